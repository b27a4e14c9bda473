"""Bounds the events in hand: queued, being sent, or sent and not settled yet."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sweeperd.outbox import OutboxEntry

#: How many bytes of events all lanes of a shard have in hand, if the next events are as large as the last ones. With
#: events of 8 kB in batches a process needs 146 MiB at most, also while receivers are slow.
IN_FLIGHT_BYTES = 12 * 1024 * 1024
#: How many events they have in hand: two full batches of the largest size for each of 16 requests.
IN_FLIGHT_EVENTS = 32_000
#: How large an event is taken to be before the first one is known, bytes.
FIRST_GUESS = 8 * 1024
#: Up to how many times IN_FLIGHT_BYTES are in hand if lanes are held up.
HELD_UP_ROOM = 4


@dataclass(slots=True)
class Room:
    """
    What all lanes of a shard share: how many requests may be in flight, and how much may be in hand. The lanes at work
    get equal parts.
    """

    concurrency: int
    events: int = field(default_factory=lambda: IN_FLIGHT_EVENTS)
    bytes: int = field(default_factory=lambda: IN_FLIGHT_BYTES)
    #: How many lanes are at work: they have events in hand, or are about to take some.
    lanes: int = 1
    #: How many of them are held up, by their receivers or `max_rate`: they lessen nobody's part of `concurrency`.
    held_up: int = 0
    #: How large the last events were, bytes. All lanes read the same stream.
    typical: float = FIRST_GUESS

    def learn(self, entries: Sequence[OutboxEntry]) -> None:
        """These were the last events."""
        if entries:
            self.typical = max(1.0, sum(entry.size for entry in entries) / len(entries))

    @property
    def requests(self) -> int:
        """How many requests of one lane may be in flight while others wait."""
        return -(-self.concurrency // max(1, self.lanes - self.held_up))

    def left(self, in_hand: int, held_up: int) -> int:
        """How many more bytes may be taken if `in_hand` are, and if lanes that are held up have `held_up` of these."""
        return min(self.bytes - (in_hand - held_up), HELD_UP_ROOM * self.bytes - in_hand)


class InFlight:
    """
    The events of one lane in hand. The reader takes as many as its part of the room allows: up to two batches for each
    request, so memory does not grow with the backlog. The heartbeat names exactly these events. Threads may share it.

    `batch`: how many events share a request. `requests`: how many requests may be in flight, if not the lane's part.
    """

    def __init__(self, room: Room, batch: int = 1, requests: int | None = None) -> None:
        self._room = room
        self._batch = batch
        self._requests = requests
        self.bytes = 0
        self._typical = 1.0
        self._sizes: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, entry: object) -> bool:
        return entry in self._sizes

    @property
    def typical(self) -> float:
        """How large the next event is likely to be, bytes."""
        return max(self._typical, self._room.typical)

    def learn(self, entries: Sequence[OutboxEntry]) -> None:
        """These were the last events."""
        if entries:
            self._room.learn(entries)
            self._typical = self._room.typical

    @property
    def capacity(self) -> int:
        """How many events the lane may have in hand at this moment."""
        wanted = 2 * self._batch * (self._requests or self._room.requests)
        return max(1, min(wanted, self._room.events // self._room.lanes))

    @property
    def free(self) -> int:
        """How many more events may be taken; at least 1 if nothing is in hand, however large the event is."""
        by_bytes = int((self._room.bytes // self._room.lanes - self.bytes) / self.typical)
        return max(0 if self._sizes else 1, min(self.capacity - len(self._sizes), by_bytes))

    @property
    def worth_reading(self) -> bool:
        """Whether there is room for enough events to be worth a round trip."""
        return not self._sizes or self.free >= max(1, self.capacity // 4)

    def ids(self) -> list[bytes]:
        """The ids in hand at this moment."""
        with self._lock:
            return list(self._sizes)

    def add(self, entries: Sequence[OutboxEntry]) -> None:
        """Events that the reader has taken."""
        sizes = {entry.id: entry.size for entry in entries}
        with self._lock:
            self.bytes += sum(sizes.values()) - sum([self._sizes.get(entry, 0) for entry in sizes])
            self._sizes |= sizes

    def remove(self, ids: Iterable[bytes]) -> None:
        """Forget these events, because they are settled."""
        with self._lock:
            self.bytes -= sum([self._sizes.pop(entry, 0) for entry in ids])
