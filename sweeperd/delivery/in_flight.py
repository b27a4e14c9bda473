"""The events that this process has taken for one endpoint and has not settled yet."""

import threading
from collections.abc import Iterable, Sequence

from sweeperd.delivery.outbox import OutboxEntry


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
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, entry: bytes) -> bool:
        return entry in self._sizes

    @property
    def free(self) -> int:
        """How many more events may be taken; one where nothing is in hand, however large it is."""
        by_bytes = int((self._capacity_bytes - self._bytes) / self._typical)
        return max(0 if self._sizes else 1, min(self.capacity - len(self._sizes), by_bytes))

    def ids(self) -> list[bytes]:
        """The ids in hand at this moment."""
        with self._changed:
            return list(self._sizes)

    def add(self, entries: Sequence[OutboxEntry]) -> None:
        """The reader has taken these."""
        sizes = {entry.id: entry.size for entry in entries}
        with self._changed:
            self._sizes |= sizes
            self._bytes += sum(sizes.values())
            self._typical = max(1.0, sum(sizes.values()) / len(sizes)) if sizes else self._typical

    def remove(self, ids: Iterable[bytes]) -> None:
        """These are settled."""
        with self._changed:
            self._bytes -= sum(self._sizes.pop(entry, 0) for entry in ids)
            self._changed.notify_all()

    def await_fewer(self, count: int, seconds: float) -> None:
        """Wait until less than `count` are in hand, or a stop, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or len(self._sizes) < count, seconds)

    def wake(self) -> None:
        """End the waits of `await_fewer`, after a stop."""
        with self._changed:
            self._changed.notify_all()
