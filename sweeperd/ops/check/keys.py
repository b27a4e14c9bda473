"""Checks the keys and streams that a shard holds."""

from collections.abc import Callable

import redis

from sweeperd.config import RELAY
from sweeperd.ops.acl import ANY
from sweeperd.ops.check.findings import CheckedShard, CheckResult, failure, ok, warning
from sweeperd.ops.reconcile.last_walk import LastWalk, WalkStore
from sweeperd.ops.status import WARNING, is_empty
from sweeperd.outbox.filters import read_filters
from sweeperd.outbox.groups import REPLAY_PREFIX
from sweeperd.store import streams
from sweeperd.store.errors import REFUSED, describe, is_wrong_type
from sweeperd.store.scripts import run_commands
from sweeperd.text import counted, decode, span


def writable(subject: CheckedShard, *, ledger: bool = False) -> CheckResult:
    """Writes without effect. A replica refuses this, and so does a server that lacks replicas or cannot save."""
    client, keys = subject.shard.client, subject.shard.keys
    try:
        # A ledger may not write keys of sweeperd, nor a daemon reservations that it does not sweep.
        client.zrem(keys.reservation_index, ANY) if ledger else client.hdel(keys.groups, ANY)
    except (redis.ResponseError, *REFUSED) as error:
        if "WRONGTYPE" not in str(error):  # `key_types` reports that
            return failure(f"refuses writes: {describe(error)}", "nothing can expire until it accepts them again")
    return ok("accepts writes")


def key_types(subject: CheckedShard) -> CheckResult:
    keys, client = subject.shard.keys, subject.shard.client
    hashes = [keys.endpoints, keys.groups, keys.reconcile, keys.processes, keys.circuits, keys.filters, keys.ticks]
    hashes += [keys.proofs, keys.action_counts, keys.expiry_rates, keys.relay]
    endpoints = subject.settings.webhooks.endpoints
    hashes += [keys.pace] * any(endpoint.max_rate for endpoint in endpoints)  # otherwise no right is granted for it
    logs = [keys.events, keys.dead_letters, keys.actions, *(keys.attempts(endpoint.name) for endpoint in endpoints)]
    jobs = ["sweep", "reconcile", "repair-budget", *(f"sweep:{kind.name}" for kind in subject.settings.kinds)]
    jobs += [f"order:{endpoint.name}" for endpoint in endpoints if endpoint.order]
    reads = [
        *(("ZSET", key, ("ZCARD", key)) for key in (keys.reservation_index, keys.quarantine)),
        *(("STREAM", key, ("XLEN", key)) for key in logs),
        *(("HASH", key, ("HGET", key, "")) for key in hashes),
        *(("STRING", key, ("GET", key)) for key in map(keys.lease, jobs)),
    ]
    replies = run_commands(client, [command for _, _, command in reads])
    answers = zip(reads, replies, strict=True)
    wrong = [f"{decode(key)} is not a {kind}" for (kind, key, _), reply in answers if "WRONGTYPE" in str(reply)]
    if wrong:
        return failure(", ".join(wrong), "find out who writes these keys, and move them; is keys.prefix right?")
    return ok("every key has its type, or does not exist yet")


def full_streams(subject: CheckedShard) -> CheckResult:
    """Whether the streams accept another entry: no id is greater than the greatest one."""
    keys = subject.shard.keys
    full = []
    for key in (keys.events, keys.dead_letters):
        try:
            last = streams.StreamId.parse(streams.last_id(subject.shard.client, key))
        except redis.ResponseError as error:
            if not is_wrong_type(error):  # `key_types` reports that
                raise
        else:
            if last == (streams.GREATEST, streams.GREATEST):
                full.append(key.decode(errors="backslashreplace"))
    if full:
        return failure(
            f"{', '.join(full)}: the last id is the greatest possible one, so no entry can be added",
            "nothing can expire until the stream is renamed or removed; find out who added an entry with that id",
        )
    return ok("they accept entries")


def other_groups(subject: CheckedShard) -> CheckResult:
    """The consumer groups of other programs: those of `events.groups`, and those that nobody names."""
    settings, shard = subject.settings, subject.shard
    there = {decode(name) for name in streams.groups(shard.client, shard.keys.events)}
    known = {endpoint.name for endpoint in settings.consumers}
    named = settings.events.groups
    strange = sorted(name for name in there - known - set(named) if not name.startswith(REPLAY_PREFIX))
    others, missing = [name for name in strange if name != RELAY.name], [name for name in named if name not in there]
    replayed = {name.removeprefix(REPLAY_PREFIX) for name in there if name.startswith(REPLAY_PREFIX)}
    lonely = sorted(replayed - known)
    begun = span(settings.webhooks.longest_age.total_seconds())
    age = span(max(settings.events.retention, settings.webhooks.longest_age).total_seconds())
    help_for = dict[str, str]()
    if RELAY.name in strange:
        help_for[
            f"{RELAY.name}: nothing relays events to Cycles while cycles.enabled is false; after {age} they are lost"
        ] = (
            "set cycles.enabled = true to relay them; if Cycles needs no more events, remove the group with "
            f"XGROUP DESTROY {decode(shard.keys.events)} {RELAY.name}"
        )
    if others:
        help_for[
            f"{', '.join(others)}: neither an endpoint nor in events.groups; such a group loses events older than {age}"
        ] = "add it to events.groups if another program reads it; otherwise remove it with XGROUP DESTROY"
    if lonely:
        help_for[
            f"a replay to {', '.join(lonely)}, which is no endpoint: trimming waits until {begun} after its begin"
        ] = f"cancel it, unless other processes have the endpoint: sweeperd replay --endpoint {lonely[0]} --cancel"
    if missing:
        help_for[
            f"{', '.join(missing)}: in events.groups, but the group does not exist, so no events are kept for it"
        ] = "create it where its reader should start: XGROUP CREATE … MKSTREAM"
    if help_for:
        return warning("; ".join(help_for), "; ".join(help_for.values()))
    return ok(f"{', '.join(named)}: events are kept for it" if named else "only those of the endpoints")


def filters(subject: CheckedShard) -> CheckResult:
    """Whether all delivering processes have the same filters."""
    living, now = read_filters(subject.shard), subject.shard.read_clock()
    for endpoint in subject.settings.consumers:
        if difference := living.difference(endpoint.name, now):
            return warning(f"{endpoint.name} {difference}", "give all processes the same settings and reload them")
    return ok(f"noted by {counted(len(living.processes), 'process', 'processes')}")


def presence(subject: CheckedShard) -> CheckResult:
    if is_empty(subject.shard, subject.settings):
        advice = "compare redis.url and keys.prefix with those of the service that writes the entries"
        return warning(WARNING.format(subject.shard.address), advice)
    return ok("there are reservations, budgets, entries or events")


def judge_last_walk(subject: CheckedShard, count: Callable[[LastWalk], int], says: str, advice: str) -> CheckResult:
    """How many reservations the last walk counted."""
    try:
        walk = WalkStore(subject.shard).last()
    except redis.ResponseError:
        walk = None  # `key_types` reports a key of another type
    if walk is None:
        return ok("no walk over all reservations was completed yet")
    if found := count(walk):
        return warning(f"{found} reservations {says}", advice)
    return ok("none in the last walk over all reservations")


def foreign_expiries(subject: CheckedShard) -> CheckResult:
    says = "are EXPIRED without an event of sweeperd: another sweeper runs"
    advice = "`sweeperd reconcile` names them; let only one service expire reservations"
    return judge_last_walk(subject, lambda walk: walk.foreign_expiries, says, advice)
