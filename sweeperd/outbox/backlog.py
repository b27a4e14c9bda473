"""Counts the events that wait for an endpoint."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import redis

from sweeperd.outbox.dead_letters import LetterCounts
from sweeperd.outbox.event import ONLY_FOR, Fields
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.scripts import batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamRow

#: How many undelivered events to count one by one. Beyond that, the share of wanted events is extrapolated.
EXACT = 10_000
#: How many bytes of these events to read unless the count must be complete. A megabyte takes 30 ms of CPU time, and
#: every endpoint is counted every few seconds while the status page is open.
SAMPLE_BYTES = 512 * 1024
#: How many events to read per round trip, and in total if Redis knows the number and there is no filter.
SAMPLE_PAGE = 100
#: How many of these events are kept for other groups at the same position.
SHARED = 20_000
#: How many groups one round trip asks for their oldest pending event.
GROUPS = 250
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


#: An event's id, its fields, and their size, bytes.
_SizedEvent = tuple[bytes, Fields, int]


class _Share(NamedTuple):
    """A sample of the events that a group has not read yet."""

    seen: int
    wanted: int
    #: The first wanted id.
    first: bytes | None
    #: Whether more events may follow.
    more: bool
    #: Whether it is the same for every endpoint with this filter: no event is for one endpoint only.
    common: bool = True


class BacklogMemory:
    """Remembers what was read of each group and of the dead letters, so that a long backlog is read once."""

    def __init__(self, exact: int = EXACT, clock: Callable[[], float] = time.monotonic) -> None:
        """`exact`: how many events to count one by one. `clock`: monotonic, seconds."""
        self.exact = exact
        self._clock = clock
        self.letters = LetterCounts()
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


def read_backlogs(
    shard: Shard,
    groups: Sequence[tuple[dict[str, Any] | None, Subscription | None]],
    now_ms: int,
    *,
    to_the_end: bool = False,
    memory: BacklogMemory | None = None,
) -> list[GroupBacklog | None]:
    """
    Count the pending events of each group, and the wanted events that it has not read yet. None if there is no group.

    `groups`: the row of XINFO GROUPS, and the subscription (None wants every event). `now_ms`: the shard's clock.
    `memory`: the samples of earlier calls.

    A group that is up to date costs no command. Groups at the same position share what is read, and if they have the
    same filter, they share the sample. Redis 7 reports the lag of a group, so that only a filter needs a sample. Redis
    6.2 does not: beyond EXACT events or SAMPLE_BYTES the count is a lower bound, unless `to_the_end` is set. Raises
    redis.RedisError.
    """
    rows = [group for group, _ in groups if group is not None]
    oldest, events_after = _oldest_pending(shard, rows), _Pages(shard).read
    last = streams.last_id(shard.client, shard.keys.events) if any(row.get("lag") is None for row in rows) else None
    memory, samples = memory or BacklogMemory(), dict[tuple[object, ...], _Share]()

    def count(group: dict[str, Any] | None, subscription: Subscription | None) -> GroupBacklog | None:
        if group is None or (group["pending"] and group["name"] not in oldest):
            return None  # there is no group, or it was removed in the meantime
        lag, position = group.get("lag"), group["last-delivered-id"]
        events = events_after(position)
        counted = lag is not None and lag > 10 * SAMPLE_PAGE and (subscription is None or subscription.gets_all)
        share = None if to_the_end else memory.find(group)
        if lag == 0 or position == last:
            share = _Share(0, 0, None, more=False)
        if share is None:
            most = SAMPLE_PAGE if counted else memory.exact
            selects = () if subscription is None else subscription.selects
            key = (position, most, selects)
            share = samples.get(key) if selects is not None and not to_the_end else None
            if share is None:
                share = _share(events, subscription, most, math.inf if to_the_end else SAMPLE_BYTES)
                if share.common and selects is not None:
                    samples[key] = share
            memory.keep(group, share)
        seen, wanted, first, more, _ = share
        taken, first = int(group["pending"]), oldest.get(group["name"]) or first
        oldest_seconds = 0.0 if first is None else max(0.0, (now_ms - streams.milliseconds(first)) / 1000)
        if not more:
            return GroupBacklog(taken + wanted, True, oldest_seconds)
        exact = lag is not None and (subscription is None or lag == seen)
        if lag is None:
            lag = seen + (sum(1 for _ in events) if to_the_end else 0)
        return GroupBacklog(taken + wanted * int(lag) // seen, exact, oldest_seconds)

    return [count(group, subscription) for group, subscription in groups]


def _oldest_pending(shard: Shard, rows: Sequence[dict[str, Any]]) -> dict[bytes, bytes | None]:
    """The oldest pending event of each group that has any. A group that was removed is left out."""
    found = dict[bytes, bytes | None]()
    for part in batches([row["name"] for row in rows if row["pending"]], GROUPS):
        replies = run_commands(shard.client, (("XPENDING", shard.keys.events, name) for name in part))
        for name, reply in zip(part, replies, strict=True):
            if not isinstance(reply, Exception):
                found[name] = reply["min"]
            elif not (isinstance(reply, redis.ResponseError) and is_missing_group(reply)):
                raise reply
    return found


class _Pages:
    """Pages of the event stream, kept for other groups at the same position."""

    def __init__(self, shard: Shard) -> None:
        self._client, self._key = shard.client, shard.keys.events
        self._pages, self._room = dict[bytes, list[_SizedEvent]](), SHARED

    def read(self, position: bytes) -> Iterator[_SizedEvent]:
        """The events after this position."""
        while True:
            page = self._pages.get(position)
            if page is None:
                rows = cast(list[StreamRow], self._client.xrange(self._key, streams.after(position), count=SAMPLE_PAGE))
                page = [(entry, fields, sum(map(len, fields.values()))) for entry, fields in rows]
                if self._room > 0:
                    self._pages[position], self._room = page, self._room - len(page)
            yield from page
            if len(page) < SAMPLE_PAGE:
                return
            position = page[-1][0]


def _share(events: Iterator[_SizedEvent], subscription: Subscription | None, most: int, most_bytes: float) -> _Share:
    """A sample of up to `most` events or `most_bytes`."""
    seen = wanted = size = 0
    first, common = None, True
    for entry, fields, length in events:
        seen += 1
        size += length
        common = common and ONLY_FOR not in fields
        if subscription is None or subscription.takes(entry, fields):
            wanted += 1
            first = first or entry
        if seen == most or size >= most_bytes:
            return _Share(seen, wanted, first, True, common)
    return _Share(seen, wanted, first, False, common)
