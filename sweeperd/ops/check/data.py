"""Checks of a shard's keys, of the rights to them, and of a Cycles installation."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import redis

from sweeperd.ops.acl import ANY, channels, cycles_grants
from sweeperd.ops.check.findings import CheckResult, Subject, failure, ok, warning
from sweeperd.ops.check.rights import for_ledger, for_walks, needed, refused
from sweeperd.ops.reconcile import Fault, WalkStore
from sweeperd.ops.status import WARNING, is_empty
from sweeperd.outbox.subscription import SYSTEM, parse
from sweeperd.store import streams
from sweeperd.store.errors import REFUSED, describe, is_wrong_type
from sweeperd.store.lease import CYCLES_TOKEN
from sweeperd.store.scripts import Call, Script, script_names, source
from sweeperd.text import decode

_GRANT = "`sweeperd acl` prints the rights to grant; a command that was renamed needs its name back"


def writable(subject: Subject) -> CheckResult:
    """A write of nothing: a replica refuses it, and a server that lacks replicas or cannot save."""
    try:
        subject.shard.client.zrem(subject.shard.keys.reservation_index, ANY)
    except (redis.ResponseError, *REFUSED) as error:
        if "WRONGTYPE" in str(error):
            return ok("it takes writes")  # but not here; see the types of the keys
        return failure(f"it refuses writes: {describe(error)}", "nothing can expire until it takes them again")
    return ok("it takes writes")


def key_types(subject: Subject) -> CheckResult:
    """Whether every key of sweeperd has its type."""
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
    """Whether the streams take another entry: none has an id that is greater than the greatest."""
    keys = subject.shard.keys
    full = []
    for key in (keys.events, keys.dead_letters):
        try:
            last = streams.StreamId.parse(streams.last_id(subject.shard.client, key))
        except redis.ResponseError as error:
            if not is_wrong_type(error):  # which `key types` names
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


def scripts(subject: Subject) -> CheckResult:
    """Whether the user may load and run every script."""
    return _load(subject, script_names())


def ledger_scripts(subject: Subject) -> CheckResult:
    """The same of the scripts of the ledger."""
    return _load(subject, [name for name in script_names() if name.startswith("ledger/")])


def _load(subject: Subject, names: Sequence[str]) -> CheckResult:
    index = subject.shard.keys.reservation_index
    problems = []
    for name in names:
        # It is compiled as a whole and ends before its first line.
        text = "do return 1 end\n" + source(name)
        try:
            Script(name, text).run(subject.shard.client, Call([index], []))
        except redis.ResponseError as error:
            problems.append(f"{name}: {describe(error)}")
    if problems:
        return failure("; ".join(problems), "let this user run EVAL and EVALSHA on all keys of the shard")
    return ok(f"{len(names)} load")


def presence(subject: Subject) -> CheckResult:
    """Whether there is any key that sweeperd works on."""
    if is_empty(subject.shard, subject.settings):
        return warning(WARNING, "compare redis.url and keys.prefix with those of the service that writes reservations")
    return ok("there are reservations, budgets, index entries or events")


def foreign_expiries(subject: Subject) -> CheckResult:
    """Whether the last walk found reservations that another sweeper expired."""
    try:
        walk = WalkStore(subject.shard).last()
    except redis.ResponseError:  # of another type, see there
        walk = None
    if walk is None:
        return ok("not known before the first walk over all reservations")
    if walk.foreign_expiries:
        says = f"{walk.foreign_expiries} reservations are EXPIRED without an event of sweeperd: another sweeper runs"
        return warning(says, "`sweeperd reconcile` names them; let one service alone expire reservations")
    return ok("none in the last walk over all reservations")


def rights(subject: Subject) -> CheckResult:
    """Whether the user may run every command that sweeperd needs."""
    missing = refused(subject.shard, needed(subject), channels(subject.settings))
    if missing:
        return failure(f"this user may not {', '.join(missing)}", _GRANT)
    missing = refused(subject.shard, for_walks(subject))
    if missing:
        return warning(f"this user may not {', '.join(missing)}: reconcile does not work", _GRANT)
    return ok("all commands on all keys of the shard")


def ledger_rights(subject: Subject) -> CheckResult:
    """Whether the user may run every command of the ledger."""
    missing = refused(subject.shard, for_ledger(subject))
    if missing:
        return failure(f"this user may not {', '.join(missing)}", "`sweeperd acl --ledger` prints the rights to grant")
    return ok("all commands of the ledger on its keys")


# ---- whether a shard is a Cycles installation, and whether sweeperd can take over the expiry sweep there


#: How many subscription records are read at most, in all sets together; a check takes a moment, not minutes.
MOST_SUBSCRIPTIONS = 10_000
#: How many unreadable records a finding names.
NAMED = 3


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
    """Which process holds the lease of the expiry sweep."""
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
    """Whether the user may run what the lease and the relay need."""
    missing = refused(subject.shard, list(cycles_grants(subject.shard.keys)))
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
    pipeline = client.pipeline(transaction=False)
    for each in ids:
        pipeline.get(keys.subscription(each))
    records = pipeline.execute(raise_on_error=False)
    bad = [decode(name) for name, record in zip(ids, records, strict=True) if not _is_readable(record)]
    if bad:
        names = ", ".join(bad[:NAMED]) + (" and more" if len(bad) > NAMED else "")
        return warning(f"{len(bad)} of {len(ids)} cannot be read, and get no events: {names}", "write them anew")
    return ok(f"{len(ids)} can be read" + (f", of {len(members)}" if len(members) > len(ids) else ""))


def foreign_quarantine(subject: Subject) -> CheckResult:
    """How many reservations the services set aside, by the last walk."""
    try:
        walk = WalkStore(subject.shard).last()
    except redis.ResponseError:  # of another type: a finding of its own
        walk = None
    if walk is None:
        return ok("not known before the first walk over all reservations")
    count = walk.found.get(Fault.FOREIGN_QUARANTINE, 0)
    if count:
        return warning(f"{count} reservations were set aside by another sweeper", "`sweeperd quarantine adopt --all`")
    return ok("none in the last walk over all reservations")


#: Every check of `--cycles`, in the order in which they run.
CYCLES_CHECKS: Mapping[str, Callable[[Subject], CheckResult]] = {
    "cycles installation": installation,
    "cycles enabled": enabled,
    "cycles lease": lease,
    "cycles rights": cycles_rights,
    "cycles subscriptions": subscriptions,
    "cycles quarantine": foreign_quarantine,
}


def _is_readable(record: object) -> bool:
    """A subscription that was deleted has no record; that is no fault."""
    if record is None:
        return True
    try:
        return isinstance(record, bytes) and bool(parse(record))
    except ValueError:
        return False
