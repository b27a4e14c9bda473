"""Checks of a shard's keys, of the rights to the keys, of the kinds, and of a Cycles installation."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, cast

import redis

from sweeperd.config.kinds import KindSettings
from sweeperd.config.types import milliseconds
from sweeperd.errors import KindRefused
from sweeperd.ops.acl import ANY, Duty, Grant, channels, cycles_grants, daemon_duties, grants, ledger_duties
from sweeperd.ops.check.findings import CheckResult, Subject, failure, ok, unknown, warning
from sweeperd.ops.check.sample import endangered, misfit
from sweeperd.ops.reconcile import Fault, LastWalk, WalkStore, subject_of
from sweeperd.ops.status import WARNING, is_empty
from sweeperd.outbox.cycles_subscription import SYSTEM, parse
from sweeperd.outbox.filters import read_filters
from sweeperd.outbox.replays import GROUP_PREFIX
from sweeperd.store import streams
from sweeperd.store.errors import REFUSED, describe, is_refused, is_unknown_command, is_wrong_type
from sweeperd.store.lease import CYCLES_TOKEN
from sweeperd.store.scripts import Call, Command, Script, run_commands, script_names, source
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import configured, kinds_of
from sweeperd.sweep.proof import is_proven
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.sweep.sample import sample
from sweeperd.text import decode, span

_GRANT = "`sweeperd acl` prints the rights to grant; a command that was renamed needs its name back"
#: How many subscription records are read at most, in all sets together; a check takes a moment, not minutes.
MOST_SUBSCRIPTIONS = 10_000
#: How many tenants are looked at.
MOST_TENANTS = 1000
#: How many of the newest records are read to find one of the services.
RECENT = 500
#: The source of an event that the relay wrote.
RELAYED = "sweeperd"
#: Two lifetimes are the same, if they differ by no more than this, ms: a record is written a little after its time.
NEAR_MS = 3_600_000
#: How many unreadable records a finding names.
NAMED = 3

#: Command -> arguments after the key, for a command without effect: the command only reads, or names a field that does
#: not exist, or Redis refuses an argument, after the check of the rights.
_FORMS: dict[str, tuple[bytes | str | int, ...]] = {
    **dict.fromkeys(("EXISTS", "GET", "HGETALL", "HLEN", "LLEN", "PTTL", "SCARD", "SMEMBERS", "STRLEN"), ()),
    **dict.fromkeys(("TYPE", "XLEN", "ZCARD"), ()),
    **dict.fromkeys(("HDEL", "HEXISTS", "HGET", "HMGET", "SISMEMBER", "SREM", "ZMSCORE", "ZREM", "ZSCORE"), (ANY,)),
    "HINCRBY": (ANY, "none"),
    "HSET": ("a", "b", "c"),
    "INCRBY": ("none",),
    "PEXPIRE": ("none",),
    "SET": ("", "PX", 0),
    "XACK": (ANY, "none"),
    "XADD": ("none", "a", "b"),
    "XCLAIM": (ANY, ANY, "none", "0-1"),
    "XDEL": ("0-0",),
    "XPENDING": (ANY,),
    "XRANGE": ("0-1", "0-1"),
    "XREVRANGE": ("0-1", "0-1"),
    "XTRIM": ("MAXLEN", "none"),
    "ZADD": ("none", ANY),
    "ZCOUNT": (0, 0),
    "ZRANGE": (0, 0),
    "ZSCAN": (0, "COUNT", 1),
    "XINFO|STREAM": (),
    "XINFO|GROUPS": (),
    "XINFO|CONSUMERS": (ANY,),
    "XGROUP|CREATE": (ANY, "none"),
    "XGROUP|SETID": (ANY, "none"),
    "XGROUP|DELCONSUMER": (ANY, ANY),
    "XGROUP|DESTROY": (ANY,),
}
#: Stands for the key in the forms below.
_KEY = b"\0key"
#: The commands without a key, or with the key in another place.
_WHOLE: dict[str, tuple[bytes | str | int, ...]] = {
    "EVAL": ("EVAL", "return 1", 1, _KEY),
    "EVALSHA": ("EVALSHA", "0" * 40, 1, _KEY),
    "XREADGROUP": ("XREADGROUP", "GROUP", ANY, ANY, "COUNT", 1, "STREAMS", _KEY, ">"),
    "SCAN": ("SCAN", 0, "COUNT", 1),
    "DBSIZE": ("DBSIZE",),
    "INFO": ("INFO", "server"),
    "WAIT": ("WAIT", 0, 1),
}
#: These commands cannot run without effect, so a script asks for the right. Redis 6.2 cannot answer.
_ASKED = frozenset({"LPUSH", "RPUSH", "SADD"})
_MAY = Script(
    "may run",
    "return (not redis.acl_check_cmd or redis.acl_check_cmd(unpack(ARGV))) and 1 or 0",
)


def writable(subject: Subject) -> CheckResult:
    """A write without effect. A replica refuses the write, and so does a server that lacks replicas or cannot save."""
    try:
        subject.shard.client.zrem(subject.shard.keys.reservation_index, ANY)
    except (redis.ResponseError, *REFUSED) as error:
        if "WRONGTYPE" in str(error):
            return ok("it takes writes")  # the key has another type: a finding of `key_types`
        return failure(f"it refuses writes: {describe(error)}", "nothing can expire until it takes them again")
    return ok("it takes writes")


def key_types(subject: Subject) -> CheckResult:
    keys, client = subject.shard.keys, subject.shard.client
    checks: list[tuple[bytes, str, Callable[[bytes], object]]] = [
        (keys.reservation_index, "ZSET", client.zcard),
        (keys.quarantine, "ZSET", client.zcard),
        (keys.events, "STREAM", client.xlen),
        (keys.dead_letters, "STREAM", client.xlen),
        (keys.endpoints, "HASH", lambda key: client.hget(key, "")),
        (keys.reconcile, "HASH", lambda key: client.hget(key, "")),
        (keys.lease("sweep"), "STRING", client.get),
        (keys.lease("reconcile"), "STRING", client.get),
    ]
    wrong = []
    for key, kind, count in checks:
        try:
            count(key)
        except redis.ResponseError as error:
            if "WRONGTYPE" in str(error):
                wrong.append(f"{key.decode(errors='backslashreplace')} is no {kind}")
    if wrong:
        return failure(", ".join(wrong), "find out who writes there, and move those keys away; is keys.prefix right?")
    return ok("every key is of its type, or not there yet")


def full_streams(subject: Subject) -> CheckResult:
    """Whether the streams accept another entry: after the greatest id there is no greater id."""
    keys = subject.shard.keys
    full = []
    for key in (keys.events, keys.dead_letters):
        try:
            last = streams.StreamId.parse(streams.last_id(subject.shard.client, key))
        except redis.ResponseError as error:
            if not is_wrong_type(error):  # a finding of `key_types`
                raise
        else:
            if last == (streams.GREATEST, streams.GREATEST):
                full.append(key.decode(errors="backslashreplace"))
    if full:
        return failure(
            f"{', '.join(full)}: the last id is the greatest there is, so that no entry can be added",
            "nothing can expire until the stream is renamed or removed; find out who added an entry with that id",
        )
    return ok("they take entries")


def other_groups(subject: Subject) -> CheckResult:
    """The groups of other programs on the event stream: those of `events.groups`, and those that nobody names."""
    settings, shard = subject.settings, subject.shard
    there = {decode(name) for name in streams.groups(shard.client, shard.keys.events)}
    known = {endpoint.name for endpoint in settings.consumers}
    named = settings.events.groups
    strange = sorted(name for name in there - known - set(named) if not name.startswith(GROUP_PREFIX))
    missing = [name for name in named if name not in there]
    if strange:
        age = max(settings.events.retention, settings.webhooks.max_age)
        return warning(
            f"{', '.join(strange)}: no endpoint and not in events.groups; such a group loses events older than "
            f"{span(age.total_seconds())}",
            "name it in events.groups if another program reads it; if nobody does, remove it with XGROUP DESTROY",
        )
    if missing:
        return warning(
            f"{', '.join(missing)}: named in events.groups, and not there: it holds no events",
            "the program that reads it makes it: XGROUP CREATE with the position that it begins at",
        )
    return ok(f"{', '.join(named)}: events are kept for it" if named else "none but those of the endpoints")


def filters(subject: Subject) -> CheckResult:
    """Whether all processes that deliver have the same filters."""
    living, now = read_filters(subject.shard), subject.shard.read_clock()
    for endpoint in subject.settings.consumers:
        if difference := living.difference(endpoint.name, now):
            return warning(f"{endpoint.name} {difference}", "give all processes the same settings, and reload them")
    return ok(f"noted by {len(living.processes)} process{'' if len(living.processes) == 1 else 'es'}")


def scripts(subject: Subject) -> CheckResult:
    return _load(subject, script_names())


def ledger_scripts(subject: Subject) -> CheckResult:
    """Whether the user may load and run the scripts of the ledger."""
    return _load(subject, [name for name in script_names() if name.startswith("ledger/")])


def _load(subject: Subject, names: Sequence[str]) -> CheckResult:
    index = subject.shard.keys.reservation_index
    problems = []
    for name in names:
        # Redis compiles the whole text; the run ends before the first line of the script.
        text = "do return 1 end\n" + source(name)
        try:
            Script(name, text).run(subject.shard.client, Call([index], []))
        except redis.ResponseError as error:
            problems.append(f"{name}: {describe(error)}")
    if problems:
        return failure("; ".join(problems), "let this user run EVAL and EVALSHA on all keys of the shard")
    return ok(f"{len(names)} load")


def presence(subject: Subject) -> CheckResult:
    """Whether the shard has any key of sweeperd."""
    if is_empty(subject.shard, subject.settings):
        return warning(WARNING, "compare redis.url and keys.prefix with those of the service that writes reservations")
    return ok("there are reservations, budgets, index entries or events")


def _of_last_walk(subject: Subject, count: Callable[[LastWalk], int], says: str, advice: str) -> CheckResult:
    """How many reservations the last walk counted. A key of another type is a finding of `key_types`."""
    try:
        walk = WalkStore(subject.shard).last()
    except redis.ResponseError:
        walk = None
    if walk is None:
        return ok("not known before the first walk over all reservations")
    if found := count(walk):
        return warning(f"{found} reservations {says}", advice)
    return ok("none in the last walk over all reservations")


def foreign_expiries(subject: Subject) -> CheckResult:
    """Whether the last walk found reservations that another sweeper expired."""
    says = "are EXPIRED without an event of sweeperd: another sweeper runs"
    advice = "`sweeperd reconcile` names them; let one service alone expire reservations"
    return _of_last_walk(subject, lambda walk: walk.foreign_expiries, says, advice)


def _grants(subject: Subject, *duties: Duty) -> list[Grant]:
    return [grant for grant in grants(subject.settings, subject.shard.keys) if grant.duty in duties]


def trials(found: Iterable[Grant]) -> Iterator[tuple[bytes | str | int, ...]]:
    """Each command of these grants that can run without effect."""
    free: bytes | None = None  # a key that does not exist
    for grant in found:
        free = grant.key if free is None and ANY in grant.key else free
        for command in grant.commands:
            if command in _WHOLE:
                yield tuple(grant.key if word == _KEY else word for word in _WHOLE[command])
            elif command == "DEL":
                if free is not None:
                    yield "DEL", free
            elif command in _FORMS:
                yield *command.split("|"), grant.key, *_FORMS[command]


def refused(shard: Shard, found: Sequence[Grant], audible: Sequence[str] = ()) -> list[str]:
    """
    The commands of these grants that the user may not run, and the channels to which the user may not publish, without
    duplicates. Raises redis.RedisError.
    """
    tried = list(dict.fromkeys(trials(found)))
    replies = run_commands(shard.client, tried)
    missing = [_description(trial, reply) for trial, reply in zip(tried, replies, strict=True) if is_refused(reply)]
    asked = [(name, grant.key) for grant in found for name in grant.commands if name in _ASKED]
    asked += [("PUBLISH", channel.encode()) for channel in audible]
    answers = _MAY.run_many(shard.client, [Call([], [name, key, ""]) for name, key in asked])
    missing += [
        _description(pair, answer)
        for pair, answer in zip(asked, answers, strict=True)
        if answer == 0 or is_refused(answer)
    ]
    return list(dict.fromkeys(missing))


def _description(trial: Command, reply: object) -> str:
    """The command and its key, with `*` for any text, and the reason if the server has no such command."""
    words = [
        word.replace(ANY, b"*").decode(errors="backslashreplace") if isinstance(word, bytes) else str(word)
        for word in trial
    ]
    key = next((word for word, part in zip(words, trial, strict=True) if isinstance(part, bytes) and word != "*"), "")
    two = trial[0] in ("XGROUP", "XINFO")
    why = "(the server has no command of this name)" if is_unknown_command(reply) else ""
    return " ".join(filter(None, [*words[: 2 if two else 1], key and f"{key!r}".strip("'"), why]))


def rights(subject: Subject) -> CheckResult:
    """Whether the user may run what the daemon needs; what it lacks of the rights for commands is named."""
    duties = daemon_duties(subject.daemon_role) - ({Duty.DELIVER} if not subject.settings.consumers else set())
    missing = refused(subject.shard, _grants(subject, *duties), channels(subject.settings))
    if missing:
        return failure(f"this user may not {', '.join(missing)}", _GRANT)
    lacking = {duty: refused(subject.shard, _grants(subject, duty)) for duty in (Duty.WALK, Duty.SHOW, Duty.OPERATE)}
    walks = subject.settings.reconcile.interval and subject.daemon_role != "deliver"
    for duty, name, wanted in ((Duty.WALK, "reconcile", walks), (Duty.SHOW, "show, like the page of an entry,", True)):
        if lacking[duty] and wanted:
            return warning(f"this user may not {', '.join(lacking[duty])}: {name} does not work", _GRANT)
    if not any(lacking.values()):
        return ok("all commands on all keys of the shard")
    enough = "the daemon and show" if lacking[Duty.WALK] else "the daemon, reconcile and show"
    others = dict.fromkeys([*lacking[Duty.WALK], *lacking[Duty.OPERATE]])
    return ok(f"all that {enough} need; some commands of operators may not {', '.join(others)}")


def ledger_rights(subject: Subject, *, cycles: bool) -> CheckResult:
    missing = refused(subject.shard, _grants(subject, *ledger_duties(cycles=cycles)))
    if missing:
        command = f"sweeperd acl --ledger{' --cycles' if cycles else ''}"
        return failure(f"this user may not {', '.join(missing)}", f"`{command}` prints the rights to grant")
    return ok("all commands of the ledger on its keys")


def swept(kind: KindSettings, subject: Subject) -> CheckResult:
    """
    Whether the script compiles, the index is a sorted set, on Redis 6.2 the rights suffice, the settings fit a sample
    of the entries, and the entries can expire.
    """
    shard = subject.shard
    made = configured(kind, subject.settings, shard.keys)
    try:
        made.check(shard.client)
    except KindRefused as error:
        return failure(str(error), "repair the script, or give the user the right; until then the kind is not swept")
    type_ = cast(bytes, shard.client.type(made.index)).decode()
    if type_ not in ("zset", "none"):
        return failure(f"{kind.index} is a {type_}", "the index of a kind is a sorted set: name it in kinds.index")
    try:
        entries = sample(shard, made)
        problem = misfit(kind, made, shard, entries)
        problem = problem or endangered(subject_of(shard, subject.settings, kind.name), entries)
    except KindRefused as error:
        return failure(str(error), "repair the script; until then the kind is not swept")
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return unknown("HMGET, PTTL and TYPE on the entries")
    if problem is not None:
        # Of a proven kind the sample has only leftovers, or its hashes are gone.
        return warning(*problem[1:]) if is_proven(shard, made) else problem
    return ok(f"{kind.index}: {shard.client.zcard(made.index)} entries")


def deadlines(subject: Subject) -> CheckResult:
    """Whether the deadlines of reservations can pass, and whether a sample of the reservations lives until then."""
    shard, kind = subject.shard, kinds_of(subject.settings, subject.shard).get(RESERVATIONS)
    if kind is None:
        return ok("reservations are not swept")
    try:
        problem = endangered(subject_of(shard, subject.settings, RESERVATIONS), sample(shard, kind))
    except redis.RedisError as error:
        if is_refused(error):
            return unknown("HMGET, PTTL and TYPE on the reservations")
        if "WRONGTYPE" not in str(error):  # a finding of `key_types`
            raise
        problem = None
    return problem or ok("none is too far ahead, and no sampled hash has a TTL that is too short")


def installation(subject: Subject) -> CheckResult:
    """Whether there are keys that the services of Cycles write."""
    keys = subject.shard.keys.cycles
    found = [
        key.decode(errors="backslashreplace")
        for key in (keys.all_subscriptions, keys.all_events, keys.dispatch, keys.lease)
        if subject.shard.client.exists(key)
    ]
    if found:
        return ok(f"a Cycles installation: it has {', '.join(found)}")
    return warning(
        "no key of the Cycles services: no subscription, event, delivery or lease",
        "compare redis.url and keys.prefix with those of the services",
    )


def enabled(subject: Subject) -> CheckResult:
    """Whether this configuration makes sweeperd the sweep of the installation."""
    if subject.settings.cycles.enabled:
        return ok("cycles.enabled is true: sweeperd takes the lease and writes the records of Cycles")
    return ok("cycles.enabled is false: the services of Cycles go on sweeping")


def lease(subject: Subject) -> CheckResult:
    """Which process holds the lease of the expiry sweep of Cycles."""
    key, client = subject.shard.keys.cycles.lease, subject.shard.client
    token, rest = client.get(key), client.pttl(key)
    if token is None:
        return ok("free: no process sweeps under it now")
    if token == CYCLES_TOKEN.encode():
        return ok("held by sweeperd")
    holder = decode(cast(bytes, token))
    if rest < 0:
        return failure(f"held by {holder}, without a TTL: it never ends", "find out who set it, and delete the key")
    return ok(f"held by a service ({holder}) for {rest / 1000:.0f} s: sweeperd gets it when that sweep ends")


def cycles_rights(subject: Subject) -> CheckResult:
    """Whether the user may run the commands of the lease and of the relay."""
    missing = refused(
        subject.shard, [grant for grant in cycles_grants(subject.shard.keys) if grant.duty is not Duty.OPERATE]
    )
    if missing:
        return failure(
            f"this user may not {', '.join(missing)}", "`sweeperd acl` with cycles.enabled = true prints the rights"
        )
    return ok("all commands on the keys of the lease and of the relay")


def subscriptions(subject: Subject) -> CheckResult:
    """Whether the records of all webhook subscriptions can be read."""
    keys, client = subject.shard.keys.cycles, subject.shard.client
    members = cast(set[bytes], client.smembers(keys.all_subscriptions) | client.smembers(keys.subscriptions(SYSTEM)))
    ids = sorted(members)[:MOST_SUBSCRIPTIONS]
    records = run_commands(client, (("GET", keys.subscription(each)) for each in ids))
    faults = ((decode(name), _fault(record)) for name, record in zip(ids, records, strict=True))
    bad = [f"{name} ({fault})" for name, fault in faults if fault]
    if bad:
        return warning(
            f"{len(bad)} of {len(ids)} cannot be read, and get no events: "
            + ", ".join(bad[:NAMED])
            + (" and more" if len(bad) > NAMED else ""),
            "correct the fields through the admin API of Cycles, or delete the subscriptions there",
        )
    return ok(f"{len(ids)} can be read" + (f", of {len(members)}" if len(members) > len(ids) else ""))


def retention(subject: Subject) -> CheckResult:
    """Whether the services keep events and deliveries as long as the relay, by the newest record of the services."""
    keys, cycles = subject.shard.keys.cycles, subject.settings.cycles
    if missing := _no_looks(subject):
        return ok(f"not known: this user may not run {missing}")
    members = sorted(cast(set[bytes], subject.shard.client.smembers(keys.all_subscriptions)))[:RECENT]
    indexes = [keys.deliveries(decode(each)) for each in members]
    known, other = [], []
    for name, lifetime, setting, ours in (
        ("events", _lifetime(subject, [keys.all_events], keys.event), "event_ttl", cycles.event_ttl),
        ("deliveries", _lifetime(subject, indexes, keys.delivery), "delivery_ttl", cycles.delivery_ttl),
    ):
        if lifetime is not None:
            known.append(f"{name} {_days(lifetime)}")
            if abs(lifetime - milliseconds(ours)) > NEAR_MS:
                other.append((known[-1], f"cycles.{setting} ({_days(milliseconds(ours))})"))
    if other:
        differing, settings = (", ".join(texts) for texts in zip(*other, strict=True))
        return warning(f"the services keep {differing}", f"set {settings} to the same")
    if not known:
        return ok(f"not known: no new record of the services among the {RECENT} newest")
    return ok(f"{', '.join(known)}, as in the services")


def created_index(subject: Subject) -> CheckResult:
    """Whether the indexes by creation, which the service and the ledger keep, are what their metadata says."""
    keys, client = subject.shard.keys.cycles, subject.shard.client
    if missing := _no_looks(subject):
        return ok(f"not known: this user may not run {missing}")
    tenants = sorted(cast(set[bytes], client.smembers(keys.tenants)))[:MOST_TENANTS]
    looks = list[Command]()
    for tenant in tenants:
        index, metadata = keys.created_index(tenant), keys.created_metadata(tenant)
        looks += [("TYPE", metadata), ("HMGET", metadata, "state", "expected_count"), ("TYPE", index), ("ZCARD", index)]
    replies = iter(run_commands(client, looks))
    ready, faults = 0, []
    for tenant, metadata, fields, index, count in zip(tenants, replies, replies, replies, replies, strict=True):
        if metadata not in (b"hash", b"none"):
            faults.append(f"{decode(tenant)}: the metadata is a {metadata.decode()}")
        elif index not in (b"zset", b"none"):
            faults.append(f"{decode(tenant)}: the index is a {index.decode()}")
        elif fields[0] == b"READY":
            ready += 1
            if fields[1] != b"%d" % count:
                faults.append(f"{decode(tenant)}: {count} ids, but {decode(fields[1] or b'none')} are expected")
    if faults:
        more = " and more" if len(faults) > NAMED else ""
        advice = "nothing: the service reads all reservations, until it has made the indexes anew"
        return warning("; ".join(faults[:NAMED]) + more, advice)
    if not ready:
        return ok("no tenant has one: the service reads all reservations")
    return ok(f"READY for {ready} of {len(tenants)} tenants, and complete")


def _no_looks(subject: Subject) -> str:
    """The commands of these looks that the user may not run."""
    looks = [each for each in cycles_grants(subject.shard.keys) if each.duty is Duty.OPERATE]
    return ", ".join(refused(subject.shard, looks))


def _lifetime(subject: Subject, indexes: Sequence[bytes], key: Callable[[str], bytes]) -> int | None:
    """
    The TTL that the services gave the newest of their records in these sorted sets, ms. None: they have none among the
    newest. `key`: of a record, by its id.
    """
    client, keys = subject.shard.client, subject.shard.keys.cycles
    pages = client.pipeline(transaction=False)
    for index in indexes:
        pages.zrange(index, -1 - RECENT // len(indexes), -1, withscores=True)
    rows = sorted(chain.from_iterable(pages.execute()), key=itemgetter(1), reverse=True)[:RECENT]
    records = _documents(client, [key(decode(name)) for name, _ in rows])
    # A delivery does not say who made it; its event does.
    events = _documents(client, [keys.event(str(record.get("event_id"))) for record in records])
    for (name, at), record, event in zip(rows, records, events, strict=True):
        if (record.get("source") or event.get("source") or RELAYED) != RELAYED:
            left = client.pttl(key(decode(name)))
            if left > 0:
                return left + subject.shard.read_clock() - int(at)
    return None


def _documents(client: redis.Redis, keys: Sequence[bytes]) -> list[dict[str, Any]]:
    """The JSON objects under these keys. Empty: there is none."""
    return [_document(text) for text in run_commands(client, (("GET", key) for key in keys))]


def _document(text: object) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, bytes) else None
    except ValueError:
        document = None
    return document if isinstance(document, dict) else {}


def _days(duration_ms: int) -> str:
    return f"{duration_ms / 86_400_000:.2f}".rstrip("0").rstrip(".") + " d"


def foreign_quarantine(subject: Subject) -> CheckResult:
    """How many reservations the services set aside, by the last walk."""
    says, advice = "were set aside by another sweeper", "`sweeperd quarantine adopt --all`"
    return _of_last_walk(subject, lambda walk: walk.found.get(Fault.FOREIGN_QUARANTINE, 0), says, advice)


#: Every check of `--cycles`, in the order in which they run.
CYCLES_CHECKS: Mapping[str, Callable[[Subject], CheckResult]] = {
    "cycles installation": installation,
    "cycles enabled": enabled,
    "cycles lease": lease,
    "cycles rights": cycles_rights,
    "cycles subscriptions": subscriptions,
    "cycles retention": retention,
    "cycles created-at index": created_index,
    "cycles quarantine": foreign_quarantine,
}


def _fault(record: object) -> str:
    """Why the record cannot be read; empty if it can, or if there is none, since its subscription was deleted."""
    if record is None:
        return ""
    if not isinstance(record, bytes):
        return "the record is no string"
    try:
        parse(record)
    except ValueError as error:
        return str(error)
    return ""
