"""Gathers the events of a lane into the batches that share a request."""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeperd.config import EndpointSettings
from sweeperd.outbox import OutboxEntry
from sweeperd.store.streams import StreamId

if TYPE_CHECKING:
    from sweeperd.delivery.webhook import HandOver


@dataclass(slots=True, eq=False)
class Batch:
    """The events of one request, in the order of the stream, and how far their hand-over is."""

    entries: tuple[OutboxEntry, ...]
    #: Whether the result closes an open circuit. A probe is sent once, without quick retries.
    probe: bool = False
    #: How many requests the hand-over may take; None: as many as the settings say.
    attempts: int | None = None
    #: The hand-over, from the first request on, and how many requests to the endpoint had succeeded before it.
    hand_over: "HandOver | None" = None
    successes: int = 0
    #: When the batch's turn beside a sweep begins; None: not booked yet.
    begins: float | None = None
    #: Whether the batch has waited for `max_rate` before its next request.
    waited: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be, and how long a partial batch may wait, seconds."""

    events: int
    bytes: int
    wait: float

    @classmethod
    def of(cls, endpoint: EndpointSettings) -> "BatchLimits":
        return cls(endpoint.batch_size, endpoint.batch_bytes, endpoint.batch_wait.total_seconds())


class BatchQueue:
    """
    The queued events of one lane. A full batch is ready at once. A partial batch is held while another request of the
    lane is in flight, for `wait` at most: otherwise idle senders would take batches of a few events each.

    The pool's lock guards each queue. `clock`: monotonic.
    """

    def __init__(self, limits: BatchLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting: deque[OutboxEntry] = deque()
        self._bytes = 0
        #: Batches that are complete: a probe, an event that was refused alone, the half of a batch.
        self._complete: deque[Batch] = deque()
        #: Batches that back off before a quick retry: when it is due, a running number, the batch.
        self._backing_off: list[tuple[float, int, Batch]] = []
        self._numbers = itertools.count()
        #: When the first waiting event came, and whether the waiting events are in the order of the stream.
        self._since, self._in_order = 0.0, True
        #: No batch is taken earlier.
        self._not_before = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting_events or self._complete or self._backing_off)

    def put(
        self, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False
    ) -> Sequence[OutboxEntry]:
        """
        Queue these events. `in_order`: each comes later in the stream than all events queued before. Returns the events
        that must not be queued yet.
        """
        if not self._waiting:
            self._since, self._in_order = self._clock(), True
        self._in_order = self._in_order and in_order
        for entry in entries:
            if probe or entry.alone:
                self._complete.append(Batch((entry,), probe))
            else:
                self._waiting.append(entry)
                self._bytes += entry.size
        return ()

    def put_back(self, batch: Batch, seconds: float = 0.0) -> None:
        """Queue this batch before all others, and hold all of them back for this many seconds."""
        self._complete.appendleft(batch)
        if seconds:
            self._not_before = self._clock() + seconds

    def put_halves(self, halves: Sequence[Batch]) -> None:
        """Queue the parts of a batch before all others."""
        for half in reversed(halves):
            self.put_back(half)

    def back_off(self, batch: Batch, seconds: float) -> None:
        """Queue this batch again after this many seconds. Others go on."""
        heapq.heappush(self._backing_off, (self._clock() + seconds, next(self._numbers), batch))

    def ready_at(self, now: float, requests: int) -> float:
        """
        When the next batch may be taken, if nothing is added: `now` or earlier: at once; inf: nothing is queued.
        `requests`: how many of the lane are in flight.
        """
        waiting = self._waiting_events
        if self._complete or waiting >= self._limits.events or self._bytes >= self._limits.bytes:
            return self._not_before
        at = self._backing_off[0][0] if self._backing_off else math.inf
        if waiting:
            at = min(at, self._since + self._limits.wait if requests else now)
        return max(at, self._not_before)

    def take(self, now: float) -> Batch:
        """The next batch, or one that is not ready yet if there is no other."""
        due = self._backing_off and self._backing_off[0][0] <= now
        if due or not (self._complete or self._waiting_events):
            return heapq.heappop(self._backing_off)[2]
        return self._complete.popleft() if self._complete else self._next()

    def ids(self) -> set[bytes]:
        """The ids of the queued events."""
        batches = [*self._complete, *(batch for _, _, batch in self._backing_off)]
        return {entry.id for entry in self._waiting} | {entry.id for batch in batches for entry in batch.entries}

    @property
    def _waiting_events(self) -> int:
        """How many events may be taken in a new batch."""
        return len(self._waiting)

    def _next(self) -> Batch:
        entries = [self._waiting.popleft()]
        size = entries[0].size
        while (
            self._waiting and len(entries) < self._limits.events and size + self._waiting[0].size <= self._limits.bytes
        ):
            entries.append(self._waiting.popleft())
            size += entries[-1].size
        self._bytes -= size
        self._since = self._clock()
        if not self._in_order:
            entries.sort(key=lambda entry: StreamId.parse(entry.id))
        return Batch(tuple(entries))
