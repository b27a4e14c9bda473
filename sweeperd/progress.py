"""
Progress of a thread's work: what a lease, a heartbeat and a health check vouch for. A thread that lives need not move:
it may wait for a lock, a name server or a full pipe.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

#: A thread that waits moves so often, seconds.
BEAT = 1.0


class Progress:
    """The work of one thread. That thread calls `step`, `allow` and `rest`; other threads may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the work last moved, and until when the present step may last; by the clock.
        self._moved_at, self._allowed_until = clock(), math.inf

    def step(self) -> None:
        """The work moves."""
        # In this order: another thread may ask in between.
        self._moved_at = self._clock()
        self._allowed_until = -math.inf

    def allow(self, seconds: float) -> None:
        """The present step may last so long: a request, a script in Redis, a pause that the work chose."""
        self._allowed_until = self._clock() + seconds

    def rest(self) -> None:
        """There is no work until the next `step`."""
        self._allowed_until = math.inf

    @property
    def moved_at(self) -> float:
        """When the work last moved, by the clock; now, if it rests or its step may still last."""
        return max(self._moved_at, min(self._clock(), self._allowed_until))

    @property
    def silent_for(self) -> float:
        """How long ago the work last moved, seconds."""
        now = self._clock()
        return now - max(self._moved_at, min(now, self._allowed_until))


class _Current(threading.local):
    """The work of the current thread: what moves it, such as a reply of Redis, is far from what vouches for it."""

    progress: Progress | None = None


_current = _Current()


@contextlib.contextmanager
def working(progress: Progress | None = None) -> Iterator[Progress]:
    """The block is this work; without an argument the present work of the thread, or a new one."""
    before = _current.progress
    work = progress or before or Progress()
    _current.progress = work
    work.step()
    try:
        yield work
    finally:
        _current.progress = before
        if work is not before:
            work.rest()


def step() -> None:
    """The current thread's work moves, if it has any."""
    if _current.progress is not None:
        _current.progress.step()


def allow(seconds: float) -> None:
    """The present step of the current thread's work may last so long."""
    if _current.progress is not None:
        _current.progress.allow(seconds)


def rest() -> None:
    """The current thread's work waits for something to do."""
    if _current.progress is not None:
        _current.progress.rest()


def pause(stop: threading.Event, seconds: float) -> bool:
    """Wait for `stop`, for up to so many seconds, as a part of the current thread's work. Returns whether it came."""
    end, left = time.monotonic() + seconds, seconds
    while left > BEAT:
        step()
        if stop.wait(BEAT):
            return True
        left = end - time.monotonic()
    step()
    return stop.wait(max(0.0, left))
