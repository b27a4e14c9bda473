"""Paces a walk so that other clients of Redis do not notice it."""

import contextlib
import threading
import time
from collections.abc import Iterator

from sweeperd import progress
from sweeperd.context import DEFAULT_TIMING, Timing

#: If other clients keep Redis busy, a walk rests after each step for REST times the duration of the step: at most a
#: quarter of the time is then work.
REST = 3.0
#: The part of a step spent on waiting for other clients: up to QUIET there is no rest, from BUSY on a full rest.
QUIET, BUSY = 0.15, 0.5
#: How much of the estimate comes from the last step.
WEIGHT = 0.05
#: The shortest known round trip grows by this factor with each step, so that a lucky step is forgotten.
FLOOR_GROWTH = 1.02


class Interrupted(Exception):
    """The walk was asked to stop."""


class Throttle:
    """
    At most `rate` keys per second (None: no limit), and a rest after each step that grows with the load of other
    clients. `stop` ends the walk at its next step. Each method raises Interrupted.

    If a step reports how long Redis worked on the step, the rest of the step's time was spent on waiting: for the
    network, which the shortest wait so far shows, and for other clients.
    """

    def __init__(
        self, rate: float | None = None, stop: threading.Event | None = None, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self.timing = timing
        self._rate = rate
        self._stop = stop or threading.Event()
        self._began = self._next = time.monotonic()
        self._floor: float | None = None
        #: Until steps have shown that Redis is idle, Redis counts as busy.
        self._others = BUSY

    def raise_rate(self, rate: float) -> None:
        """Allow at least so many keys per second."""
        if self._rate is not None:
            self._rate = max(self._rate, rate)

    @contextlib.contextmanager
    def step(self, keys: int = 0) -> Iterator[None]:
        """The block is one step, which visits so many keys."""
        self.begin()
        yield
        self.end(keys)

    def begin(self) -> None:
        if self._stop.is_set():
            raise Interrupted
        self._began = time.monotonic()

    def end(self, keys: int = 0, busy: float | None = None) -> None:
        """
        The step has ended and has visited so many keys; Redis worked on the step for `busy` seconds (None: unknown).
        Waits as long as the rate and the other clients ask for.
        """
        now = time.monotonic()
        elapsed = now - self._began
        if busy is not None:
            self._measure(elapsed, busy)
        rest = REST * elapsed * min(1.0, max(0.0, self._others - QUIET) / (BUSY - QUIET))
        if self._rate is not None:
            self._next = max(self._next, self._began) + keys / self._rate
            rest = max(rest, self._next - now)
        self.wait(rest)

    def wait(self, seconds: float) -> None:
        """Wait for something else."""
        if seconds > 0 and progress.pause(self._stop, seconds):
            raise Interrupted

    def _measure(self, elapsed: float, busy: float) -> None:
        waited = max(0.0, elapsed - busy)
        self._floor = waited if self._floor is None else min(waited, self._floor * FLOOR_GROWTH)
        others = max(0.0, waited - 2 * self._floor) / elapsed if elapsed > 0 else 0.0
        self._others += WEIGHT * (others - self._others)
