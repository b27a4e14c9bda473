"""Which events of a lane move: what the heartbeat of the lane and the health of the process vouch for."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from sweeperd.outbox import OutboxEntry
from sweeperd.progress import Progress, working

#: A sender beats once a second while it waits, and a request may last until its deadline. A sender that is late by so
#: many seconds hangs.
LATE = 5.0


class Work:
    """What one thread of a lane has in its hands."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.entries: Sequence[OutboxEntry] = ()

    def begin(self, entries: Sequence[OutboxEntry]) -> None:
        """The thread takes these events."""
        self.progress.step()
        self.entries = entries

    def end(self) -> None:
        """The thread has passed the events on."""
        self.entries = ()
        self.progress.rest()

    @property
    def hangs(self) -> bool:
        return self.progress.silent_for > LATE


class Beats:
    """The work of the senders of a lane. Threads may share the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: list[Work] = []

    @contextlib.contextmanager
    def work(self) -> Iterator[Work]:
        """The work of the current thread during the block."""
        work = Work()
        with self._lock:
            self._works.append(work)
        try:
            with working(work.progress):
                work.end()
                yield work
        finally:
            with self._lock:
                self._works.remove(work)

    @property
    def hanging(self) -> list[Work]:
        """The senders that hang."""
        with self._lock:
            return [work for work in self._works if work.hangs]

    def moves(self, free: int) -> bool:
        """
        Whether queued events will be sent: a sender beats, or waits for a batch and may send, or the senders are yet to
        start. `free`: how many more requests may be in flight.
        """
        with self._lock:
            works = self._works
            return not works or any(not work.hangs and (work.entries or free > 0) for work in works)
