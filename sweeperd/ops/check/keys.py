"""Checks the keys and streams that a shard holds."""

from collections.abc import Callable

import redis

from sweeperd.ops.acl import ANY
from sweeperd.ops.check.findings import CheckResult, Subject, failure, ok, warning
from sweeperd.ops.reconcile.last_walk import LastWalk, WalkStore
from sweeperd.ops.status import WARNING, is_empty
from sweeperd.outbox.filters import read_filters
from sweeperd.outbox.replays import GROUP_PREFIX
from sweeperd.store import streams
from sweeperd.store.errors import REFUSED, describe, is_wrong_type
from sweeperd.text import decode, span


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


def presence(subject: Subject) -> CheckResult:
    """Whether the shard has any key of sweeperd."""
    if is_empty(subject.shard, subject.settings):
        return warning(WARNING, "compare redis.url and keys.prefix with those of the service that writes reservations")
    return ok("there are reservations, budgets, index entries or events")


def judge_last_walk(subject: Subject, count: Callable[[LastWalk], int], says: str, advice: str) -> CheckResult:
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
    return judge_last_walk(subject, lambda walk: walk.foreign_expiries, says, advice)
