"""Whether a shard is a Cycles installation, and whether sweeperd can take over the expiry sweep there."""

from collections.abc import Callable, Mapping
from typing import cast

import redis

from sweeperd.delivery.cycles_subscription import SYSTEM, parse
from sweeperd.ops.check.findings import CheckResult, failure, ok, warning
from sweeperd.ops.check.rights import refused
from sweeperd.ops.check.subject import Subject
from sweeperd.ops.grants import cycles_grants
from sweeperd.ops.last_walk import WalkStore
from sweeperd.ops.reconcile import Fault
from sweeperd.store.lease import CYCLES_TOKEN
from sweeperd.text import decode

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


def rights(subject: Subject) -> CheckResult:
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
    "cycles rights": rights,
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
