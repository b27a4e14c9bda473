"""The keys of a shard, and what its user may do with them."""

from collections.abc import Callable, Sequence

import redis

from sweeperd.ops.check.findings import CheckResult, failure, ok, warning
from sweeperd.ops.check.rights import for_ledger, for_walks, needed, refused
from sweeperd.ops.check.subject import Subject
from sweeperd.ops.grants import ANY, channels
from sweeperd.ops.last_walk import WalkStore
from sweeperd.ops.presence import WARNING, is_empty
from sweeperd.store import streams
from sweeperd.store.errors import REFUSED, describe, is_wrong_type
from sweeperd.store.scripts import Call, Script, script_names, source

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
