"""How many events wait for an endpoint: one number for the daemon's metrics, `status`, the page and `--once`."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from sweeperd.delivery.outbox import OutboxEntry
from sweeperd.delivery.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.shard import Shard

#: How many events that an endpoint has not taken yet are counted one by one; more are estimated from their share.
EXACT = 10_000


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """The events that are to be sent to an endpoint. Events that it does not want are left out."""

    events: int = 0
    #: False: an estimate.
    exact: bool = True
    #: Age of the oldest one, seconds.
    oldest_seconds: float = 0.0


def read_backlog(
    shard: Shard,
    group: dict[str, Any] | None,
    subscription: Subscription | None,
    now_ms: int,
    *,
    to_the_end: bool = False,
) -> GroupBacklog:
    """
    The events that the group has taken and not acknowledged, and those that it has not taken and its endpoint wants.

    `group`: its row of XINFO GROUPS; None: there is none yet. `subscription`: None wants every event. `now_ms`: the
    shard's clock. Redis 6.2 does not count what a group has not taken: there more than EXACT events are counted only
    with `to_the_end`, else they are at least EXACT. Raises redis.RedisError.
    """
    if group is None:
        return GroupBacklog()
    taken, first = int(group["pending"]), None
    seen = wanted = 0
    events = streams.read(shard, shard.keys.events, streams.after(group["last-delivered-id"]))
    for entry, fields in islice(events, EXACT):
        seen += 1
        if subscription is None or subscription.wants(OutboxEntry(entry, 0, fields)):
            wanted += 1
            first = first or entry
    if taken:
        first = shard.client.xpending(shard.keys.events, group["name"])["min"] or first
    oldest = 0.0 if first is None else max(0.0, (now_ms - streams.milliseconds(first)) / 1000)
    if seen < EXACT:
        return GroupBacklog(taken + wanted, True, oldest)
    lag = group.get("lag")
    if lag is None:
        lag = seen + (sum(1 for _ in events) if to_the_end else 0)
    return GroupBacklog(taken + wanted * int(lag) // seen, group.get("lag") == seen, oldest)
