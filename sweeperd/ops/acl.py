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
#: Glob characters; and the characters that no rule can hold, because Redis splits an ACL file at spaces.
_SPECIAL, _UNWRITABLE = re.compile(r"[*?\[\]\\]"), re.compile(r"[\x00-\x20\x7f]")
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


def granted(duty: Duty, key: bytes, commands: str) -> Grant:
    return Grant(duty, key, tuple(commands.split()))


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
    yield granted(Duty.STATUS, b"", "TIME CLIENT|SETNAME")
    address = redis_url.parse(url)
    if address.options.get("db"):
        yield granted(Duty.STATUS, b"", "SELECT")
    if address.topology is redis_url.Topology.CLUSTER:
        yield granted(Duty.STATUS, b"", "CLUSTER|SLOTS ASKING")


def _reservations(keys: Keys) -> Iterable[Grant]:
    reservation, budget = keys.reservation(ANY), keys.budget_stem + ANY
    entry = _hash_grants(reservation)
    yield from _swept(keys.reservation_index, entry, keys.quarantine, keys.ticks, keys.lease("sweep"))
    yield granted(Duty.STATUS, reservation, "HGET")
    yield granted(Duty.SWEEP, reservation, "PEXPIRE")
    yield granted(Duty.STATUS, budget, "EXISTS HMGET")
    yield granted(Duty.SWEEP, budget, "HSET")
    yield granted(Duty.SHOW, budget, "HGETALL")


def _hash_grants(entry: bytes) -> Iterable[Grant]:
    return [
        granted(Duty.STATUS, entry, "EXISTS HMGET"),
        granted(Duty.SWEEP, entry, "HSET"),
        granted(Duty.SHOW, entry, "HGETALL PTTL TYPE"),
        granted(Duty.WALK, entry, "PTTL"),
        granted(Duty.OPERATE, entry, "HDEL PEXPIRE"),
    ]


def _swept(index: bytes, entry: Iterable[Grant], quarantine: bytes, ticks: bytes, lease: bytes) -> Iterable[Grant]:
    return [
        granted(Duty.STATUS, index, "EVAL EVALSHA EXISTS ZCARD ZCOUNT ZRANGE ZSCORE"),
        granted(Duty.SWEEP, index, "ZADD ZREM ZMSCORE"),
        granted(Duty.WALK, index, "ZSCAN"),
        *entry,
        granted(Duty.STATUS, quarantine, "ZCARD ZCOUNT ZRANGE ZSCORE"),
        granted(Duty.SWEEP, quarantine, "ZADD"),
        granted(Duty.OPERATE, quarantine, "ZREM"),
        granted(Duty.STATUS, ticks, "HMGET"),
        granted(Duty.SWEEP, ticks, "HDEL HSET"),
        granted(Duty.STATUS, lease, "GET"),
        granted(Duty.SWEEP, lease, "SET PEXPIRE PTTL DEL"),
    ]


def kind_grants(kind: KindSettings, keys: Keys) -> Iterator[Grant]:
    quarantine, ticks = keys.kind_quarantine(kind.name), keys.kind_ticks(kind.name)
    entry = _form_grants(kind, keys)
    yield from _swept(keys.kind_index(kind.index), entry, quarantine, ticks, keys.lease(f"sweep:{kind.name}"))
    yield granted(Duty.STATUS, keys.proofs, "HGET")
    yield granted(Duty.SWEEP, keys.proofs, "HSET")
    # On Redis 6.2 each command of a plan is queued and discarded before the sweep, to learn whether it is allowed.
    yield granted(Duty.SWEEP, b"", "INFO MULTI DISCARD")
    if kind.script is None:
        for command in kind.given_back:
            if command.name != "PUBLISH":
                name = "HSET" if command.name == "HINCRBY" else command.name
                yield granted(Duty.STATUS, _like(keys, command.pattern), _PLANNED)
                yield granted(Duty.SWEEP, _like(keys, command.pattern), name)
    else:
        names = {"HSET" if name == "HINCRBY" else name for name in kind.commands or FORMS} - {"PUBLISH"}
        for pattern in kind.write_patterns:
            yield granted(Duty.STATUS, _like(keys, pattern), _PLANNED)
            yield granted(Duty.SWEEP, _like(keys, pattern), " ".join(sorted(names)))
        for pattern in kind.read_patterns:
            yield granted(Duty.STATUS, _like(keys, pattern), _READS)
    for pattern in dict.fromkeys([*kind.write_patterns, *kind.read_patterns]):
        yield granted(Duty.OPERATE, _like(keys, pattern), _COPIES)
    if kind.unless is not None:
        protected = keys.kind_protected(kind.name)
        yield granted(Duty.STATUS, protected, "ZCARD ZRANGE ZSCORE")
        yield granted(Duty.SWEEP, protected, "ZADD ZREM")
    if kind.unless_key is not None:
        yield granted(Duty.STATUS, _like(keys, pattern_of(kind.unless_key)), "EXISTS")
    for declared in kind.sums:
        pattern = "".join(part if isinstance(part, str) else "*" for part in parse_word(declared.key))
        yield granted(Duty.WALK, _like(keys, pattern), "HGET")
    if kind.channels:
        yield granted(Duty.SWEEP, b"", "PUBLISH")


def _form_grants(kind: KindSettings, keys: Keys) -> Iterator[Grant]:
    """What the entry itself takes, and the keys that note what a hash would say of itself."""
    entry = keys.kind_entry(kind.key_parts, ANY)
    if kind.entry == "hash":
        yield from _hash_grants(entry)
        yield granted(Duty.OPERATE, entry, "HLEN")
        if kind.script is not None:
            yield granted(Duty.STATUS, entry, "HLEN HGETALL")
    elif kind.entry == "json":
        yield granted(Duty.STATUS, entry, "EXISTS GETRANGE")
        yield granted(Duty.SHOW, entry, "GET STRLEN PTTL TYPE")
        yield granted(Duty.WALK, entry, "PTTL")
        yield granted(Duty.OPERATE, entry, "PEXPIRE")
    if kind.entry != "member":
        yield granted(Duty.SWEEP, entry, "PEXPIRE" if kind.retention_ms else "DEL")
        if kind.deadline is None:
            yield granted(Duty.SWEEP, entry, "PTTL PERSIST")
            yield granted(Duty.OPERATE, entry, "PERSIST")
    places = {"notes": keys.kind_notes(kind.name), "marks": keys.kind_marks(kind.name)}
    for key in (key for name, key in places.items() if name in more_keys(kind)):
        yield granted(Duty.STATUS, key, "HGET HMGET")
        yield granted(Duty.SWEEP, key, "HSET HDEL HSCAN")
        yield granted(Duty.OPERATE, key, "HSET HDEL")


def _like(keys: Keys, pattern: str) -> bytes:
    """Turns a kind's pattern, in which only `*` is special, into the key of a grant."""
    return keys.prefix + pattern.replace("*", _ANY).encode()


def _events(settings: Settings, keys: Keys) -> Iterator[Grant]:
    events, letters, endpoints, circuits = keys.events, keys.dead_letters, keys.endpoints, keys.circuits
    yield granted(Duty.STATUS, events, "EXISTS XLEN XRANGE XREVRANGE XPENDING XINFO|STREAM XINFO|GROUPS")
    yield granted(Duty.SWEEP, events, "XADD XACK XGROUP|CREATE XGROUP|SETID XGROUP|DELCONSUMER XINFO|CONSUMERS")
    yield granted(Duty.DELIVER, events, "XADD XACK XCLAIM XTRIM XREAD XREADGROUP")
    yield granted(Duty.DELIVER, events, "XGROUP|CREATE XGROUP|SETID XGROUP|DESTROY XGROUP|DELCONSUMER XINFO|CONSUMERS")
    yield granted(Duty.OPERATE, events, "XADD XACK XCLAIM XREADGROUP XGROUP|CREATE XGROUP|DESTROY XGROUP|DELCONSUMER")
    yield granted(Duty.STATUS, letters, "XLEN XRANGE XREVRANGE XINFO|STREAM")
    yield granted(Duty.DELIVER, letters, "XADD")
    yield granted(Duty.OPERATE, letters, "XDEL")
    yield granted(Duty.STATUS, endpoints, "HGET HGETALL")
    yield granted(Duty.DELIVER, endpoints, "HSET HDEL")
    yield granted(Duty.OPERATE, endpoints, "HSET HDEL")
    yield granted(Duty.STATUS, keys.groups, "HGET HGETALL")
    yield granted(Duty.SWEEP, keys.groups, "HSET HDEL")
    yield granted(Duty.DELIVER, keys.groups, "HSET HDEL")
    yield granted(Duty.OPERATE, keys.groups, "HSET HDEL")
    yield granted(Duty.STATUS, circuits, "HGETALL HMGET")
    yield granted(Duty.DELIVER, circuits, "HSET HDEL")
    yield granted(Duty.OPERATE, circuits, "HSET")
    yield granted(Duty.STATUS, keys.attempts(_ANY), "XREVRANGE")
    if settings.events.attempts_kept:
        yield granted(Duty.DELIVER, keys.attempts(_ANY), "XADD")
    if any(endpoint.max_rate for endpoint in settings.webhooks.endpoints):
        yield granted(Duty.DELIVER, keys.pace, "HGET HSET HDEL")
    if any(endpoint.order for endpoint in settings.webhooks.endpoints):
        yield granted(Duty.DELIVER, keys.lease(f"order:{_ANY}"), "SET GET PEXPIRE PTTL DEL")
    yield granted(Duty.STATUS, keys.filters, "HGETALL")
    yield granted(Duty.DELIVER, keys.filters, "HGET HSET HDEL")
    yield granted(Duty.STATUS, keys.processes, "HGETALL")
    yield granted(Duty.SWEEP, keys.processes, "HSET HDEL")
    yield granted(Duty.DELIVER, keys.processes, "HSET HDEL")
    if settings.events.wait_replicas:
        yield granted(Duty.DELIVER, b"", "WAIT")
    if EXPIRY_SPIKE in settings.announced:
        yield granted(Duty.SWEEP, keys.expiry_rates, "HLEN HGET HRANDFIELD HSET HDEL")
        yield granted(Duty.SWEEP, events, "XLEN")


def _commands(keys: Keys) -> Iterable[Grant]:
    yield granted(Duty.MEMORY, b"", "INFO")
    yield granted(Duty.WALK, b"", "SCAN DBSIZE INFO")
    yield granted(Duty.STATUS, keys.reconcile, "HMGET")
    yield granted(Duty.WALK, keys.reconcile, "HSET HGET HDEL")
    yield granted(Duty.WALK, keys.lease("reconcile"), "SET GET PEXPIRE PTTL DEL")
    yield granted(Duty.STATUS, keys.actions, "XRANGE XREVRANGE XINFO|STREAM")
    yield granted(Duty.OPERATE, keys.actions, "XADD XTRIM XDEL")
    yield granted(Duty.STATUS, keys.action_counts, "HMGET")
    yield granted(Duty.OPERATE, keys.action_counts, "HGET HSET")
    yield granted(Duty.OPERATE, keys.lease("repair-budget"), "SET GET PEXPIRE PTTL DEL")


def ledger_grants(keys: Keys) -> list[Grant]:
    """What `sweeperd.ledger` needs. Its scripts name the tenants' records in KEYS, which takes full access to them."""
    return [
        granted(Duty.LEDGER, keys.reservation_index, "EVAL EVALSHA ZCARD ZADD ZREM"),
        granted(Duty.LEDGER, keys.reservation(ANY), "EXISTS HMGET HGET HSET PEXPIRE"),
        granted(Duty.LEDGER, keys.budget_stem + ANY, "EVAL EVALSHA EXISTS HMGET HSET"),
        granted(Duty.LEDGER, keys.idempotency_stem + ANY, "EVAL EVALSHA GET SET PTTL PEXPIRE"),
        granted(Duty.LEDGER, keys.events, "EVAL EVALSHA XADD XINFO|STREAM"),
        granted(Duty.LEDGER, keys.tenant(ANY), "EVAL EVALSHA GET"),
        granted(Duty.LEDGER, b"", "TIME"),
        granted(Duty.CYCLES_LEDGER, keys.idempotency_stem + ANY, "EXISTS"),
        granted(Duty.CYCLES_LEDGER, keys.cycles.created_index(ANY), "EVAL EVALSHA TYPE ZSCORE ZADD"),
        granted(Duty.CYCLES_LEDGER, keys.cycles.created_metadata(ANY), "EVAL EVALSHA TYPE HGET HSET PEXPIRE"),
    ]


def cycles_grants(keys: Keys) -> Iterator[Grant]:
    cycles, name = keys.cycles, _ANY
    yield granted(Duty.SWEEP, cycles.lease, "SET GET PEXPIRE")
    yield granted(Duty.DELIVER, cycles.subscriptions(ANY), "SMEMBERS")
    # The secrets that sign webhooks have names that begin like those of subscriptions: `webhook:secret:<id>`.
    yield Grant(Duty.DELIVER, cycles.subscription(SUBSCRIPTION + ANY), ("GET",), foreign=True)
    yield granted(Duty.DELIVER, cycles.event(name), "EXISTS SET")
    yield granted(Duty.OPERATE, cycles.event(name), "GET PTTL")
    yield granted(Duty.OPERATE, cycles.tenants, "SMEMBERS")
    yield granted(Duty.OPERATE, cycles.created_index(ANY), "TYPE ZCARD")
    yield granted(Duty.OPERATE, cycles.created_metadata(ANY), "TYPE HMGET")
    yield granted(Duty.DELIVER, cycles.events(ANY), "ZADD ZCARD")
    yield granted(Duty.OPERATE, cycles.all_events, "ZRANGE")
    yield granted(Duty.DELIVER, cycles.delivery(name), "EXISTS SET")
    yield granted(Duty.OPERATE, cycles.delivery(name), "GET PTTL")
    yield granted(Duty.DELIVER, cycles.deliveries(name), "ZADD ZCARD")
    yield granted(Duty.OPERATE, cycles.deliveries(name), "ZRANGE")
    yield granted(Duty.DELIVER, cycles.dispatch, "LPUSH LLEN LINDEX LPOS")
    yield Grant(Duty.DELIVER, cycles.dispatch_lock, ("PTTL",), foreign=True)
    yield Grant(Duty.OPERATE, cycles.dispatch_lock, ("GET", "PTTL"), foreign=True)
    yield Grant(Duty.OPERATE, cycles.dispatch_processing, ("LLEN",), foreign=True)
    yield Grant(Duty.OPERATE, cycles.dispatch_failed, ("LLEN",), foreign=True)
    yield Grant(Duty.OPERATE, cycles.webhook_security, ("GET",), foreign=True)
    yield granted(Duty.STATUS, keys.relay, "HGET")
    yield granted(Duty.DELIVER, keys.relay, "HMGET HSET")


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
