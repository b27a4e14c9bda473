"""Builds Redis ACL rules from one table of the commands and keys that sweeperd needs."""

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field

from sweeperd import redis_url
from sweeperd.config import EXPIRY_SPIKE, Settings, ShardSettings
from sweeperd.config.kinds import KindSettings
from sweeperd.config.templates import FORMS, parse_word, pattern_of
from sweeperd.document import CommandDocument, Document
from sweeperd.redis_url import parse
from sweeperd.store.keys import SUBSCRIPTION, Keys
from sweeperd.sweep.kind_script import more_keys

#: Any text in the name of a key. No entry, group or member has this name, so a check may run commands on it.
ANY = b"\0sweeperd check"
_ANY = ANY.decode()
#: The commands of `get` in the script of a kind.
_READS = "EXISTS GET HEXISTS HGET HLEN HMGET LLEN PTTL SCARD SISMEMBER STRLEN TYPE ZCARD ZSCORE"
#: The commands that copy the keys of a plan for `prove --live`.
_COPIES = "TYPE HLEN HGETALL HMGET STRLEN GET SRANDMEMBER SISMEMBER ZRANGE ZSCORE LRANGE"
#: The commands that check a plan before its first write.
_PLANNED = "TYPE EXISTS HMGET GET"
#: The commands of a lease.
_LEASE = "SET GET PEXPIRE PTTL DEL"
#: Glob characters; and the characters that no rule can hold: Redis splits an ACL file at spaces, and redis-cli takes
#: quotes away.
_SPECIAL, _UNWRITABLE = re.compile(r"[*?\[\]\\]"), re.compile(r"[\x00-\x20\"'\x7f]")
Role = Literal["all", "sweep", "deliver"]


class Duty(enum.StrEnum):
    """What a grant is needed for."""

    #: Needed by every process: to connect, and to read what `status` and the status page show.
    STATUS = "status"
    SWEEP = "sweep"
    DELIVER = "deliver"
    #: `sweep.memory_limit`, and what `status` and metrics show of Redis's memory.
    MEMORY = "memory"
    #: `sweeperd reconcile` and the daemon's daily walk.
    WALK = "walk"
    #: `sweeperd show` and the entry pages.
    SHOW = "show"
    #: Commands that change something.
    OPERATE = "operate"
    #: `sweeperd.ledger`, and what it needs in addition beside a Cycles service.
    LEDGER = "ledger"
    CYCLES_LEDGER = "cycles ledger"


class Grant(NamedTuple):
    """Commands on a key, or without a key if `key` is empty. A subcommand is written `XINFO|GROUPS`."""

    duty: Duty
    key: bytes
    commands: tuple[str, ...]
    #: Whether the key belongs to another service, and is only read.
    foreign: bool = False


def granted(key: bytes, *, foreign: bool = False, **commands: str) -> Iterator[Grant]:
    """The commands on a key by the name of their duty, such as `sweep="HSET HDEL"`."""
    return (Grant(Duty[duty.upper()], key, tuple(names.split()), foreign) for duty, names in commands.items())


def grants(settings: Settings, keys: Keys) -> list[Grant]:
    return [
        *(_reservations(keys) if settings.reservations.enabled else []),
        *(grant for kind in settings.kinds for grant in kind_grants(kind, keys)),
        *_events(settings, keys),
        *_commands(keys),
        *ledger_grants(keys),
        *(cycles_grants(keys) if settings.cycles.enabled else []),
    ]


def channels(settings: Settings) -> list[str]:
    """The channel patterns that plans publish to."""
    return list(dict.fromkeys(channel for kind in settings.kinds for channel in kind.channels))


def connection_grants(url: str) -> Iterator[Grant]:
    yield from granted(b"", status="TIME CLIENT|SETNAME")
    address = redis_url.parse(url)
    if address.options.get("db"):
        yield from granted(b"", status="SELECT")
    if address.topology is redis_url.Topology.CLUSTER:
        yield from granted(b"", status="CLUSTER|SLOTS ASKING")


def _reservations(keys: Keys) -> Iterator[Grant]:
    reservation = keys.reservation(ANY)
    yield from _swept(keys.reservation_index, _hash(reservation), keys.quarantine, keys.ticks, keys.lease("sweep"))
    yield from granted(reservation, status="HGET", sweep="PEXPIRE")
    yield from granted(keys.budget_stem + ANY, status="EXISTS HMGET", sweep="HSET", show="HGETALL")


def _hash(entry: bytes) -> Iterator[Grant]:
    return granted(
        entry, status="EXISTS HMGET", sweep="HSET", show="HGETALL PTTL TYPE", walk="PTTL", operate="HDEL PEXPIRE"
    )


def _swept(index: bytes, entry: Iterable[Grant], quarantine: bytes, ticks: bytes, lease: bytes) -> Iterator[Grant]:
    reads = "EVAL EVALSHA EXISTS ZCARD ZCOUNT ZRANGE ZSCORE"
    yield from granted(index, status=reads, sweep="ZADD ZREM ZMSCORE", walk="ZSCAN")
    yield from entry
    yield from granted(quarantine, status="EXISTS ZCARD ZCOUNT ZRANGE ZSCORE", sweep="ZADD", operate="ZREM")
    yield from granted(ticks, status="HMGET", sweep="HDEL HSET")
    yield from granted(lease, status="GET", sweep="SET PEXPIRE PTTL DEL")


def kind_grants(kind: KindSettings, keys: Keys) -> Iterator[Grant]:
    quarantine, ticks = keys.kind_quarantine(kind.name), keys.kind_ticks(kind.name)
    entry = _form_grants(kind, keys)
    yield from _swept(keys.kind_index(kind.index), entry, quarantine, ticks, keys.lease(f"sweep:{kind.name}"))
    yield from granted(keys.proofs, status="HGET", sweep="HSET")
    # On Redis 6.2 each command of a plan is queued and discarded before the sweep, to learn whether it is allowed.
    yield from granted(b"", sweep="INFO MULTI DISCARD")
    if kind.script is None:
        planned = [(each.pattern, {each.name}) for each in kind.given_back if each.name != "PUBLISH"]
    else:
        planned = [(pattern, {*(kind.commands or FORMS)} - {"PUBLISH"}) for pattern in kind.write_patterns]
    for pattern, names in planned:
        # A plan's HINCRBY is written as HSET.
        writes = {"HSET" if name == "HINCRBY" else name for name in names}
        yield from granted(_like(keys, pattern), status=_PLANNED, sweep=" ".join(sorted(writes)))
    for pattern in kind.read_patterns if kind.script is not None else ():
        yield from granted(_like(keys, pattern), status=_READS)
    for pattern in dict.fromkeys([*kind.write_patterns, *kind.read_patterns]):
        yield from granted(_like(keys, pattern), operate=_COPIES)
    if kind.unless is not None:
        yield from granted(keys.kind_protected(kind.name), status="ZCARD ZRANGE ZSCORE", sweep="ZADD ZREM")
    if kind.unless_key is not None:
        yield from granted(_like(keys, pattern_of(kind.unless_key)), status="EXISTS")
    for declared in kind.sums:
        pattern = "".join(part if isinstance(part, str) else "*" for part in parse_word(declared.key))
        yield from granted(_like(keys, pattern), walk="HGET")
    if kind.channels:
        yield from granted(b"", sweep="PUBLISH")


def _form_grants(kind: KindSettings, keys: Keys) -> Iterator[Grant]:
    """What the entry itself takes, and the keys that note what a hash would say of itself."""
    entry = keys.kind_entry(kind.key_parts, ANY)
    if kind.entry == "hash":
        yield from _hash(entry)
        yield from granted(entry, operate="HLEN")
        if kind.script is not None:
            yield from granted(entry, status="HLEN HGETALL")
    elif kind.entry == "json":
        shown = "GET STRLEN PTTL TYPE"
        yield from granted(entry, status="EXISTS GETRANGE", show=shown, walk="PTTL", operate="PEXPIRE")
    if kind.entry != "member":
        yield from granted(entry, sweep="PEXPIRE" if kind.retention_ms else "DEL")
        if kind.deadline is None:
            yield from granted(entry, sweep="PTTL PERSIST", operate="PERSIST")
    places = {"notes": keys.kind_notes(kind.name), "marks": keys.kind_marks(kind.name)}
    for key in (key for name, key in places.items() if name in more_keys(kind)):
        yield from granted(key, status="HGET HMGET", sweep="HSET HDEL HSCAN", operate="HSET HDEL")


def _like(keys: Keys, pattern: str) -> bytes:
    """Turns a kind's pattern, in which only `*` is special, into the key of a grant."""
    return keys.prefix + pattern.replace("*", _ANY).encode()


def _events(settings: Settings, keys: Keys) -> Iterator[Grant]:
    yield from granted(
        keys.events,
        status="EXISTS XLEN XRANGE XREVRANGE XPENDING XINFO|STREAM XINFO|GROUPS",
        sweep="XADD XACK XGROUP|CREATE XGROUP|SETID XGROUP|DELCONSUMER XINFO|CONSUMERS",
        deliver="XADD XACK XCLAIM XTRIM XREAD XREADGROUP XGROUP|CREATE XGROUP|SETID XGROUP|DESTROY XGROUP|DELCONSUMER "
        "XINFO|CONSUMERS",
        operate="XADD XACK XCLAIM XREADGROUP XGROUP|CREATE XGROUP|DESTROY XGROUP|DELCONSUMER",
    )
    yield from granted(keys.dead_letters, status="XLEN XRANGE XREVRANGE XINFO|STREAM", deliver="XADD", operate="XDEL")
    changed = "HSET HDEL"
    yield from granted(keys.endpoints, status="HGET HGETALL", deliver=changed, operate=changed)
    yield from granted(keys.groups, status="HGET HGETALL", sweep=changed, deliver=changed, operate=changed)
    yield from granted(keys.circuits, status="HGETALL HMGET", deliver=changed, operate="HSET")
    yield from granted(keys.attempts(_ANY), status="XREVRANGE")
    if settings.events.attempts_kept:
        yield from granted(keys.attempts(_ANY), deliver="XADD")
    if any(endpoint.max_rate for endpoint in settings.webhooks.endpoints):
        yield from granted(keys.pace, deliver="HGET HSET HDEL")
    if any(endpoint.order for endpoint in settings.webhooks.endpoints):
        yield from granted(keys.lease(f"order:{_ANY}"), deliver=_LEASE)
    yield from granted(keys.filters, status="HGETALL", deliver="HGET HSET HDEL")
    yield from granted(keys.processes, status="HGETALL", sweep=changed, deliver=changed)
    if settings.events.wait_replicas:
        yield from granted(b"", deliver="WAIT")
    if EXPIRY_SPIKE in settings.announced:
        yield from granted(keys.expiry_rates, sweep="HLEN HGET HRANDFIELD HSET HDEL")
        yield from granted(keys.events, sweep="XLEN")


def _commands(keys: Keys) -> Iterator[Grant]:
    yield from granted(b"", memory="INFO", walk="SCAN DBSIZE INFO")
    yield from granted(keys.reconcile, status="HMGET", walk="HSET HGET HDEL")
    yield from granted(keys.lease("reconcile"), walk=_LEASE)
    yield from granted(keys.actions, status="XRANGE XREVRANGE XINFO|STREAM", operate="XADD XTRIM XDEL")
    yield from granted(keys.action_counts, status="HMGET", operate="HGET HSET")
    yield from granted(keys.lease("repair-budget"), operate=_LEASE)


def ledger_grants(keys: Keys) -> Iterator[Grant]:
    """What `sweeperd.ledger` needs. Its scripts name the tenants' records in KEYS, which takes full access to them."""
    yield from granted(keys.reservation_index, ledger="EVAL EVALSHA ZCARD ZADD ZREM")
    yield from granted(keys.reservation(ANY), ledger="EXISTS HMGET HGET HSET PEXPIRE")
    yield from granted(keys.budget_stem + ANY, ledger="EVAL EVALSHA EXISTS HMGET HSET")
    yield from granted(keys.idempotency_stem + ANY, ledger="EVAL EVALSHA GET SET PTTL PEXPIRE", cycles_ledger="EXISTS")
    yield from granted(keys.events, ledger="EVAL EVALSHA XADD XINFO|STREAM")
    yield from granted(keys.tenant(ANY), ledger="EVAL EVALSHA GET")
    yield from granted(b"", ledger="TIME")
    yield from granted(keys.cycles.created_index(ANY), cycles_ledger="EVAL EVALSHA TYPE ZSCORE ZADD")
    yield from granted(keys.cycles.created_metadata(ANY), cycles_ledger="EVAL EVALSHA TYPE HGET HSET PEXPIRE")


def cycles_grants(keys: Keys) -> Iterator[Grant]:
    cycles, name = keys.cycles, _ANY
    yield from granted(cycles.lease, sweep="SET GET PEXPIRE")
    yield from granted(cycles.subscriptions(ANY), deliver="SMEMBERS")
    # The secrets that sign webhooks have names that begin like those of subscriptions: `webhook:secret:<id>`.
    yield from granted(cycles.subscription(SUBSCRIPTION + ANY), foreign=True, deliver="GET")
    yield from granted(cycles.event(name), deliver="EXISTS SET", operate="GET PTTL")
    yield from granted(cycles.tenants, operate="SMEMBERS")
    yield from granted(cycles.created_index(ANY), operate="TYPE ZCARD")
    yield from granted(cycles.created_metadata(ANY), operate="TYPE HMGET")
    yield from granted(cycles.events(ANY), deliver="ZADD ZCARD")
    yield from granted(cycles.all_events, operate="ZRANGE")
    yield from granted(cycles.delivery(name), deliver="EXISTS SET", operate="GET PTTL")
    yield from granted(cycles.deliveries(name), deliver="ZADD ZCARD", operate="ZRANGE")
    yield from granted(cycles.dispatch, deliver="LPUSH LLEN LINDEX LPOS")
    yield from granted(cycles.dispatch_lock, foreign=True, deliver="PTTL", operate="GET PTTL")
    yield from granted(cycles.dispatch_processing, foreign=True, operate="LLEN")
    yield from granted(cycles.dispatch_failed, foreign=True, operate="LLEN")
    yield from granted(cycles.webhook_security, foreign=True, operate="GET")
    yield from granted(keys.relay, status="HGET", deliver="HMGET HSET")


class AclUser(Document):
    """The rights of sweeperd on one Redis. The rules replace everything about the user but its passwords."""

    address: str = Field(description="Where the Redis is, without credentials.")
    shards: list[str]
    rules: list[str] = Field(description="As Redis takes them after ACL SETUSER NAME.")


def acl_users(
    settings: Settings,
    shards: Sequence[ShardSettings],
    role: Role,
    *,
    commands: bool,
    ledger: bool = False,
    cycles: bool = False,
    read_only: bool = False,
) -> list[AclUser]:
    """
    One user for each Redis, with the rights of a daemon in this role. `commands` adds what operators' commands need.
    `ledger` asks for the rights of `sweeperd.ledger` instead, `cycles` for those of a ledger beside a Cycles service.
    `read_only`: keys of other services are granted for reading only, which Redis 6.2 cannot do.
    """
    if ledger:
        wanted = ledger_duties(cycles=cycles)
    else:
        wanted = {*daemon_duties(role), Duty.MEMORY, Duty.SHOW, *((Duty.WALK, Duty.OPERATE) if commands else ())}
        if role != "deliver" and settings.reconcile.interval:
            wanted.add(Duty.WALK)
    found = dict[str, list[ShardSettings]]()
    for shard in shards:
        place = urlsplit(parse(shard.url.get_secret_value()).shown)
        # A user belongs to the server, whatever the database.
        found.setdefault(f"{place.scheme}://{place.netloc or place.path}", []).append(shard)
    return [
        AclUser(
            address=address, shards=[shard.name for shard in there], rules=_rules(settings, there, wanted, read_only)
        )
        for address, there in found.items()
    ]


def daemon_duties(role: Role) -> set[Duty]:
    """What a daemon in this role cannot work without."""
    return {Duty.STATUS, *([Duty.SWEEP] * (role != "deliver")), *([Duty.DELIVER] * (role != "sweep"))}


def ledger_duties(*, cycles: bool) -> set[Duty]:
    return {Duty.LEDGER} | ({Duty.CYCLES_LEDGER} if cycles else set())


def _rules(settings: Settings, shards: Iterable[ShardSettings], wanted: Collection[Duty], read_only: bool) -> list[str]:
    keys, commands = dict[str, None](), set[str]()
    for shard in shards:
        connection = list(connection_grants(shard.url.get_secret_value()))
        for grant in (*connection, *grants(settings, Keys(shard.prefix))):
            if grant in connection or grant.duty in wanted:
                commands.update(command.lower() for command in grant.commands)
                if grant.key:
                    keys[f"{'%R' * (grant.foreign and read_only)}~{_glob(grant.key.decode(), _ANY)}"] = None
    audible = [f"&{_glob(channel, '*')}" for channel in channels(settings) if "publish" in commands]
    return ["on", "resetkeys", "resetchannels", "-@all", *keys, *audible, *(f"+{name}" for name in sorted(commands))]


def _glob(text: str, wildcard: str) -> str:
    """A text as a glob. A character that no rule can hold becomes `?`, which matches any character."""
    return "*".join(_UNWRITABLE.sub("?", _SPECIAL.sub(r"\\\g<0>", part)) for part in text.split(wildcard))


class AclUserDocument(AclUser):
    user: str
    line: str = Field(description="What is printed without --json.")


class AclDocument(CommandDocument, title="sweeperd acl --json"):
    users: list[AclUserDocument] = Field(description="One for each Redis.")
