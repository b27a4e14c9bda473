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

#: So many events not taken yet are counted singly; if there are more, the share of wanted events is extrapolated.
EXACT = 10_000
#: So many bytes of these events are read at most, unless the count has to be complete: a megabyte takes 30 ms of CPU
#: time, and the events of every endpoint are counted every few seconds while the page is open.
SAMPLE_BYTES = 512 * 1024
#: So many events are read in a round trip; and so many in all, if Redis knows how many there are and nothing filters.
SAMPLE_PAGE = 100
#: How long such a share is remembered if the endpoint takes no event, seconds.
REMEMBERED = 60.0


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """How many events are to be sent to an endpoint, unwanted events left out."""

    events: int = 0
    #: False: an estimate.
    exact: bool = True
    #: Age of the oldest event, seconds.
    oldest_seconds: float = 0.0


class _Share(NamedTuple):
    """
    Of the first events not taken by a group: how many, how many are wanted, the first wanted id, and whether there may
    be more events.
    """

    seen: int
    wanted: int
    first: bytes | None
    more: bool


class BacklogMemory:
    """
    The shares of the groups of one shard: if an endpoint takes nothing, a long backlog is not read again and again.
    """

    def __init__(self, exact: int = EXACT, clock: Callable[[], float] = time.monotonic) -> None:
        """`exact`: how many events are counted one by one. `clock`: monotonic, seconds."""
        self.exact = exact
        self._clock = clock
        #: Group -> position, time of the read (monotonic), and the share after the position.
        self._shares: dict[bytes, tuple[bytes, float, _Share]] = {}

    def find(self, group: dict[str, Any]) -> _Share | None:
        """The remembered share for this row of XINFO GROUPS, if the share still holds."""
        known, lag = self._shares.get(group["name"]), group.get("lag")
        if known is None:
            return None
        position, read_at, share = known
        if lag is not None and lag < share.seen:
            return None
        holds = position == group["last-delivered-id"] and self._clock() <= read_at + REMEMBERED
        return share if holds else None

    def keep(self, group: dict[str, Any], share: _Share) -> None:
        """Remember the share, if later events cannot change the share."""
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
    Count the events that the group has taken and not acknowledged, and the wanted events not taken yet. None: there is
    no group, so nobody knows.

    `group`: the row of XINFO GROUPS, if there is one. `subscription`: None wants every event. `now_ms`: the shard's
    clock. Redis 6.2 counts no events that a group has not taken: there more than EXACT events, or SAMPLE_BYTES, are
    counted only with `to_the_end`, else the count is at least so many. Redis 7 counts them, so only a filter has to
    look at a sample. `memory`: of earlier calls; if the group has not moved since, the
    events are not read again. Raises redis.RedisError.
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
                return None  # the group has gone since
            raise
    oldest = 0.0 if first is None else max(0.0, (now_ms - streams.milliseconds(first)) / 1000)
    if not more:
        return GroupBacklog(taken + wanted, True, oldest)
    exact = lag is not None and (subscription is None or lag == seen)
    if lag is None:
        lag = seen + (sum(1 for _ in events) if to_the_end else 0)
    return GroupBacklog(taken + wanted * int(lag) // seen, exact, oldest)


def _share(events: Iterator[StreamRow], subscription: Subscription | None, most: int, most_bytes: float) -> _Share:
    """Of so many events and bytes at most."""
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
