"""Counts the events that wait for an endpoint."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamRow

#: How many undelivered events to count one by one. Beyond that, the share of wanted events is extrapolated.
EXACT = 10_000
#: How many bytes of these events to read unless the count must be complete. A megabyte takes 30 ms of CPU time, and
#: every endpoint is counted every few seconds while the status page is open.
SAMPLE_BYTES = 512 * 1024
#: How many events to read per round trip, and in total if Redis knows the number and there is no filter.
SAMPLE_PAGE = 100
#: How long a share is remembered while the endpoint takes no event, seconds.
REMEMBERED = 60.0


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """The wanted events that an endpoint has not received yet."""

    events: int = 0
    #: False for an estimate.
    exact: bool = True
    #: The age of the oldest event, seconds.
    oldest_seconds: float = 0.0


class _Share(NamedTuple):
    """A sample of the events that a group has not read yet."""

    seen: int
    wanted: int
    #: The first wanted id.
    first: bytes | None
    #: Whether more events may follow.
    more: bool


class BacklogMemory:
    """Remembers the sample of each group of a shard, so that the long backlog of a stuck endpoint is read once."""

    def __init__(self, exact: int = EXACT, clock: Callable[[], float] = time.monotonic) -> None:
        """`exact`: how many events to count one by one. `clock`: monotonic, seconds."""
        self.exact = exact
        self._clock = clock
        #: Group -> its position, when the sample was read (monotonic), the sample.
        self._shares: dict[bytes, tuple[bytes, float, _Share]] = {}

    def find(self, group: dict[str, Any]) -> _Share | None:
        """The sample of this row of XINFO GROUPS, if it is still valid."""
        known, lag = self._shares.get(group["name"]), group.get("lag")
        if known is None:
            return None
        position, read_at, share = known
        if lag is not None and lag < share.seen:
            return None
        holds = position == group["last-delivered-id"] and self._clock() <= read_at + REMEMBERED
        return share if holds else None

    def keep(self, group: dict[str, Any], share: _Share) -> None:
        """Remember a sample that later events cannot change."""
        self._shares.pop(group["name"], None)
        if share.more:
            self._shares[group["name"]] = group["last-delivered-id"], self._clock(), share


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
    Count the pending events of the group, and the wanted events that it has not read yet. None if there is no group.

    `group`: the row of XINFO GROUPS. `subscription`: None wants every event. `now_ms`: the shard's clock. `memory`: the
    samples of earlier calls.

    Redis 7 reports the lag of a group, so that only a filter needs a sample. Redis 6.2 does not: beyond EXACT events or
    SAMPLE_BYTES the count is a lower bound, unless `to_the_end` is set. Raises redis.RedisError.
    """
    if group is None:
        return None
    memory = memory or BacklogMemory()
    taken, lag = int(group["pending"]), group.get("lag")
    events = streams.read(shard, shard.keys.events, streams.after(group["last-delivered-id"]), page=SAMPLE_PAGE)
    counted = lag is not None and lag > 10 * SAMPLE_PAGE and (subscription is None or subscription.gets_all)
    share = None if to_the_end else memory.find(group)
    if share is None:
        most = SAMPLE_PAGE if counted else memory.exact
        share = _share(events, subscription, most, math.inf if to_the_end else SAMPLE_BYTES)
        memory.keep(group, share)
    seen, wanted, first, more = share
    if taken:
        try:
            first = shard.client.xpending(shard.keys.events, group["name"])["min"] or first
        except redis.ResponseError as error:
            if is_missing_group(error):
                return None  # the group was removed in the meantime
            raise
    oldest = 0.0 if first is None else max(0.0, (now_ms - streams.milliseconds(first)) / 1000)
    if not more:
        return GroupBacklog(taken + wanted, True, oldest)
    exact = lag is not None and (subscription is None or lag == seen)
    if lag is None:
        lag = seen + (sum(1 for _ in events) if to_the_end else 0)
    return GroupBacklog(taken + wanted * int(lag) // seen, exact, oldest)


def _share(events: Iterator[StreamRow], subscription: Subscription | None, most: int, most_bytes: float) -> _Share:
    """A sample of up to `most` events or `most_bytes`."""
    seen = wanted = size = 0
    first = None
    for entry, fields in events:
        seen += 1
        size += len(b"".join(fields.values()))
        if subscription is None or subscription.takes(entry, fields):
            wanted += 1
            first = first or entry
        if seen == most or size >= most_bytes:
            return _Share(seen, wanted, first, True)
    return _Share(seen, wanted, first, False)
