"""
Tracks the progress of each thread's work for leases, heartbeats and health checks.

A thread that is alive may still hang, for example on a lock, a name server or a full pipe.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

#: How often a waiting thread reports progress, seconds.
BEAT = 1.0


class Progress:
    """The progress of one thread's work. Only that thread calls `step`, `allow` and `rest`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the work last made progress, and the deadline of the current step, by the clock.
        self._moved_at, self._allowed_until = clock(), math.inf

    def step(self) -> None:
        """Report progress."""
        # In this order, because another thread may read in between.
        self._moved_at = self._clock()
        self._allowed_until = -math.inf

    def allow(self, seconds: float) -> None:
        """Let the current step, such as a request or a script in Redis, take this long."""
        self._allowed_until = self._clock() + seconds

    def rest(self) -> None:
        """Report that there is no work until the next `step`."""
        self._allowed_until = math.inf

    @property
    def moved_at(self) -> float:
        """When the work last made progress, by the clock; now if it rests or its step may still take time."""
        return max(self._moved_at, min(self._clock(), self._allowed_until))

    @property
    def silent_for(self) -> float:
        """How long ago the work last made progress, seconds."""
        now = self._clock()
        return now - max(self._moved_at, min(now, self._allowed_until))


class _Current(threading.local):
    """The progress of the current thread. A reply of Redis counts as progress, far from the code that checks it."""

    progress: Progress | None = None


_current = _Current()


@contextlib.contextmanager
def working(progress: Progress | None = None) -> Iterator[Progress]:
    """Track the block as this work; by default as the current work of the thread, or a new one."""
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
    """Report progress of the current thread's work."""
    if _current.progress is not None:
        _current.progress.step()


def allow(seconds: float) -> None:
    """Let the current step of the current thread's work take this long."""
    if _current.progress is not None:
        _current.progress.allow(seconds)


def rest() -> None:
    """Report that the current thread's work is idle."""
    if _current.progress is not None:
        _current.progress.rest()


def pause(stop: threading.Event, seconds: float) -> bool:
    """Wait up to `seconds` for `stop` while reporting progress. Returns whether `stop` is set."""
    end, left = time.monotonic() + seconds, seconds
    while left > BEAT:
        step()
        if stop.wait(BEAT):
            return True
        left = end - time.monotonic()
    step()
    return stop.wait(max(0.0, left))
