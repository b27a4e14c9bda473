"""How many events wait for an endpoint: one number for the daemon's metrics, `status`, the page and `--once`."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import redis

from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamRow

#: How many events that an endpoint has not taken yet are counted one by one; more are estimated from their share.
EXACT = 10_000
#: How long such a share is remembered while the endpoint takes no event, seconds.
REMEMBERED = 60.0


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """The events that are to be sent to an endpoint. Events that it does not want are left out."""

    events: int = 0
    #: False: an estimate.
    exact: bool = True
    #: Age of the oldest one, seconds.
    oldest_seconds: float = 0.0


class _Share(NamedTuple):
    """Of the first events that a group has not taken: how many, how many its endpoint wants, and the first of these."""

    seen: int
    wanted: int
    first: bytes | None


class BacklogMemory:
    """
    The shares of the groups of one shard, so that a long backlog of an endpoint that takes nothing is not read again
    and again.
    """

    def __init__(self) -> None:
        #: Group -> its position, when it was read (monotonic), and the share after that position.
        self._shares: dict[bytes, tuple[bytes, float, _Share]] = {}

    def find(self, group: dict[str, Any]) -> _Share | None:
        """What is remembered of this row of XINFO GROUPS, where that still holds."""
        known, lag = self._shares.get(group["name"]), group.get("lag")
        if known is None or (lag is not None and lag < EXACT):
            return None
        position, read_at, share = known
        holds = position == group["last-delivered-id"] and time.monotonic() <= read_at + REMEMBERED
        return share if holds else None

    def keep(self, group: dict[str, Any], share: _Share) -> None:
        """Remember it, where nothing that is added later changes it."""
        self._shares.pop(group["name"], None)
        if share.seen == EXACT:
            self._shares[group["name"]] = group["last-delivered-id"], time.monotonic(), share


def read_backlog(
    shard: Shard,
    group: dict[str, Any] | None,
    subscription: Subscription | None,
    now_ms: int,
    *,
    to_the_end: bool = False,
    memory: BacklogMemory | None = None,
) -> GroupBacklog | None:
    """
    The events that the group has taken and not acknowledged, and those that it has not taken and its endpoint wants.
    None: there is no group, so nobody knows.

    `group`: its row of XINFO GROUPS; None: there is none. `subscription`: None wants every event. `now_ms`: the
    shard's clock. Redis 6.2 does not count what a group has not taken: there more than EXACT events are counted only
    with `to_the_end`, else they are at least EXACT. `memory`: of earlier calls; it spares the reading where the group
    has not moved since. Raises redis.RedisError.
    """
    if group is None:
        return None
    memory = memory or BacklogMemory()
    taken = int(group["pending"])
    events = streams.read(shard, shard.keys.events, streams.after(group["last-delivered-id"]))
    share = None if to_the_end else memory.find(group)
    if share is None:
        memory.keep(group, share := _share(islice(events, EXACT), subscription))
    seen, wanted, first = share
    if taken:
        try:
            first = shard.client.xpending(shard.keys.events, group["name"])["min"] or first
        except redis.ResponseError as error:
            if is_missing_group(error):
                return None  # it has gone since
            raise
    oldest = 0.0 if first is None else max(0.0, (now_ms - streams.milliseconds(first)) / 1000)
    if seen < EXACT:
        return GroupBacklog(taken + wanted, True, oldest)
    lag = group.get("lag")
    if lag is None:
        lag = seen + (sum(1 for _ in events) if to_the_end else 0)
    return GroupBacklog(taken + wanted * int(lag) // seen, group.get("lag") == seen, oldest)


def _share(events: Iterator[StreamRow], subscription: Subscription | None) -> _Share:
    seen = wanted = 0
    first = None
    for entry, fields in events:
        seen += 1
        if subscription is None or subscription.takes(entry, fields):
            wanted += 1
            first = first or entry
    return _Share(seen, wanted, first)
