"""The events that this process has taken for one endpoint and has not settled yet."""

import threading
from collections.abc import Iterable


class InFlight:
    """
    The ids of events in hand: queued, being sent, or sent and not settled yet. The reader takes no more than `capacity`
    of them, so memory does not grow with the backlog, and the heartbeat names exactly these. Threads may share it.
    """

    def __init__(self, capacity: int, stop: threading.Event) -> None:
        self.capacity = capacity
        self._stop = stop
        self._ids: set[bytes] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, entry: bytes) -> bool:
        return entry in self._ids

    @property
    def free(self) -> int:
        """How many more events may be taken."""
        return self.capacity - len(self._ids)

    def ids(self) -> list[bytes]:
        """The ids in hand at this moment."""
        with self._changed:
            return list(self._ids)

    def add(self, ids: Iterable[bytes]) -> None:
        """The reader has taken these."""
        with self._changed:
            self._ids.update(ids)

    def remove(self, ids: Iterable[bytes]) -> None:
        """These are settled."""
        with self._changed:
            self._ids.difference_update(ids)
            self._changed.notify_all()

    def await_fewer(self, count: int, seconds: float) -> None:
        """Wait until less than `count` are in hand, or a stop, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or len(self._ids) < count, seconds)

    def wake(self) -> None:
        """End the waits of `await_fewer`, after a stop."""
        with self._changed:
            self._changed.notify_all()
