"""Throttles a walk so that other clients of Redis do not notice it."""

import contextlib
import threading
import time
from collections.abc import Iterator

from sweeperd import progress
from sweeperd.context import DEFAULT_TIMING, Timing

#: While other clients keep Redis busy, a walk rests after each step for REST times as long as the step took.
REST = 3.0
#: Share of a step spent waiting for other clients: up to QUIET the walk does not rest, from BUSY on it rests fully.
QUIET, BUSY = 0.15, 0.5
#: Weight of the last step in the moving average.
WEIGHT = 0.05
#: The shortest known round trip grows by this factor with each step, to forget a lucky one.
FLOOR_GROWTH = 1.02


class Interrupted(Exception):
    """The walk was told to stop."""


class Throttle:
    """
    Limits a walk to `rate` keys per second (None: no limit), and rests after each step, the longer the busier other
    clients are. `stop` ends the walk at its next step. Methods raise Interrupted.

    If a step reports how long Redis worked on it, the remaining time went to the network, as estimated by the shortest
    wait so far, and to other clients.
    """

    def __init__(
        self, rate: float | None = None, stop: threading.Event | None = None, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self.timing = timing
        self._rate = rate
        self._stop = stop or threading.Event()
        self._began = self._next = time.monotonic()
        self._floor: float | None = None
        #: Redis counts as busy until steps have shown that it is idle.
        self._others = BUSY

    def raise_rate(self, rate: float) -> None:
        """Allows at least this many keys per second."""
        if self._rate is not None:
            self._rate = max(self._rate, rate)

    @contextlib.contextmanager
    def step(self, keys: int = 0) -> Iterator[None]:
        """Runs the block as one step that visits this many keys."""
        self.begin()
        yield
        self.end(keys)

    def begin(self) -> None:
        if self._stop.is_set():
            raise Interrupted
        self._began = time.monotonic()

    def end(self, keys: int = 0, busy: float | None = None) -> None:
        """
        Ends a step that visited this many keys, on which Redis worked for `busy` seconds (None: unknown). Waits as long
        as the rate and the other clients require.
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
        if seconds > 0 and progress.pause(self._stop, seconds):
            raise Interrupted

    def _measure(self, elapsed: float, busy: float) -> None:
        waited = max(0.0, elapsed - busy)
        self._floor = waited if self._floor is None else min(waited, self._floor * FLOOR_GROWTH)
        others = max(0.0, waited - 2 * self._floor) / elapsed if elapsed > 0 else 0.0
        self._others += WEIGHT * (others - self._others)
