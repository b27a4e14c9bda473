"""The events of one endpoint that are in hand, and how they are gathered into batches: what is sent in one request."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sweeperd.config import EndpointSettings
from sweeperd.outbox.event import OutboxEntry
from sweeperd.store.streams import StreamId


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one request, in the order of the stream."""

    entries: tuple[OutboxEntry, ...]
    #: Whether its result closes an open circuit. A probe is sent once, without quick retries.
    probe: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be, and how long a partial one may wait, seconds."""

    events: int
    bytes: int
    wait: float

    @classmethod
    def of(cls, endpoint: EndpointSettings) -> "BatchLimits":
        """The limits of one endpoint."""
        return cls(endpoint.batch_size, endpoint.batch_bytes, endpoint.batch_wait.total_seconds())


class InFlight:
    """
    The events in hand: queued, being sent, or sent and not settled yet. The reader takes no more than `capacity` of
    them, and no more than `capacity_bytes`, by the size of the events that it took last. So memory does not grow with
    the backlog. The heartbeat names exactly these events. Threads may share it.
    """

    def __init__(self, capacity: int, capacity_bytes: int, stop: threading.Event) -> None:
        self.capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._typical = 1.0
        self._stop = stop
        self._sizes: dict[bytes, int] = {}
        #: How few events the reader waits for; 0 while it does not wait.
        self._awaited = 0
        self._changed = threading.Condition(threading.Lock())

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, entry: object) -> bool:
        return entry in self._sizes

    @property
    def free(self) -> int:
        """How many more events may be taken; one where nothing is in hand, however large it is."""
        by_bytes = int((self._capacity_bytes - self._bytes) / self._typical)
        return max(0 if self._sizes else 1, min(self.capacity - len(self._sizes), by_bytes))

    def count_of(self, size: int) -> int:
        """About how many events have so many bytes; at least one."""
        return max(1, int(size / self._typical))

    def ids(self) -> list[bytes]:
        """The ids in hand at this moment."""
        with self._changed:
            return list(self._sizes)

    def add(self, entries: Sequence[OutboxEntry]) -> None:
        """The reader has taken these."""
        sizes = {entry.id: entry.size for entry in entries}
        with self._changed:
            self._bytes += sum(sizes.values()) - sum([self._sizes.get(entry, 0) for entry in sizes])
            self._sizes |= sizes
            self._typical = max(1.0, sum(sizes.values()) / len(sizes)) if sizes else self._typical

    def remove(self, ids: Iterable[bytes]) -> None:
        """These are settled."""
        with self._changed:
            self._bytes -= sum([self._sizes.pop(entry, 0) for entry in ids])
            if len(self._sizes) < self._awaited:
                self._changed.notify_all()

    def await_fewer(self, count: int, seconds: float) -> None:
        """Wait until less than `count` are in hand, or a stop, for so many seconds at most."""
        with self._changed:
            self._awaited = count
            self._changed.wait_for(lambda: self._stop.is_set() or len(self._sizes) < count, seconds)
            self._awaited = 0

    def wake(self) -> None:
        """End the waits of `await_fewer`, after a stop."""
        with self._changed:
            self._changed.notify_all()


class BatchQueue:
    """
    From the reader to the senders. A full batch is taken at once. A partial one is held while another request of the
    endpoint is in flight, and `wait` at most: else idle senders would take batches of a few events each.
    """

    def __init__(self, limits: BatchLimits, requests: int) -> None:
        self._limits = limits
        #: How many requests may be in flight.
        self._most_requests = requests
        self._waiting: deque[OutboxEntry] = deque()
        self._bytes = 0
        #: Batches of a single event, which share a request with no other: a probe, an event that was refused alone.
        self._single: deque[Batch] = deque()
        #: When the first waiting event came, monotonic; and whether the waiting events are in the order of the stream.
        self._since, self._in_order = 0.0, True
        self._requests = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    @property
    def size(self) -> int:
        """How many events a full batch has; 1 where nothing is gained by waiting for more."""
        return self._limits.events

    def put(self, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False) -> None:
        """Queue these events. `in_order`: each comes later in the stream than all that were queued before."""
        with self._changed:
            if not self._waiting:
                self._since, self._in_order = time.monotonic(), True
            self._in_order = self._in_order and in_order
            for entry in entries:
                if probe or entry.alone:
                    self._single.append(Batch((entry,), probe))
                else:
                    self._waiting.append(entry)
                    self._bytes += entry.size
            self._changed.notify(len(self._single) + 1 + len(self._waiting) // self._limits.events)

    def take(self) -> Batch | None:
        """Wait for a batch and take it; then `done` has to follow. None: the queue is closed and empty."""
        with self._changed:
            while not self._ready():
                if self._closed:
                    return None
                held = self._waiting and self._requests < self._most_requests
                self._changed.wait(max(0.0, self._since + self._limits.wait - time.monotonic()) if held else None)
            self._requests += 1
            return self._single.popleft() if self._single else self._next()

    def done(self) -> None:
        """The request of a batch has ended. The thread that calls this takes the next batch, so it wakes no other."""
        with self._changed:
            self._requests -= 1

    def allow(self, requests: int) -> None:
        """From now on so many requests may be in flight."""
        with self._changed:
            self._most_requests = requests
            self._changed.notify_all()

    def close(self) -> None:
        """No event follows: what is queued is taken, and then `take` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ready(self) -> bool:
        if self._requests >= self._most_requests and not self._closed:
            return False
        if self._single or self._full:
            return True
        if not self._waiting:
            return False
        return self._closed or not self._requests or time.monotonic() >= self._since + self._limits.wait

    @property
    def _full(self) -> bool:
        return len(self._waiting) >= self._limits.events or self._bytes >= self._limits.bytes

    def _next(self) -> Batch:
        entries, size = [self._waiting.popleft()], 0
        size = entries[0].size
        while (
            self._waiting and len(entries) < self._limits.events and size + self._waiting[0].size <= self._limits.bytes
        ):
            entries.append(self._waiting.popleft())
            size += entries[-1].size
        self._bytes -= size
        self._since = time.monotonic()
        if not self._in_order:
            entries.sort(key=lambda entry: StreamId.parse(entry.id))
        return Batch(tuple(entries))
