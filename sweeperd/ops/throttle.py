"""How fast a walk over a whole Redis may go, so that its other clients do not notice it."""

import threading
import time

#: Where other clients keep Redis busy, a walk rests so many times as long as each step took: it takes a quarter of the
#: time at most.
REST = 3.0
#: The part of a step's time that it waited for other clients: up to QUIET there is no rest, from BUSY on a full one.
QUIET, BUSY = 0.15, 0.5
#: How much of the estimate comes from the last step.
WEIGHT = 0.05
#: By how much the shortest known round trip grows with each step, so that one lucky step is forgotten.
FLOOR_GROWTH = 1.02


class Interrupted(Exception):
    """The walk was asked to stop."""


class Throttle:
    """
    At most `rate` keys per second (None: no limit), and a rest after each step that is the longer the busier other
    clients keep Redis. `stop` ends the walk at its next step.

    A step that reports how long Redis worked for it shows how long it waited: for the network, which the shortest wait
    so far shows, and for other clients, which is the rest.
    """

    def __init__(self, rate: float | None = None, stop: threading.Event | None = None) -> None:
        self._rate = rate
        self._stop = stop or threading.Event()
        self._began = self._next = time.monotonic()
        self._floor: float | None = None
        #: Until steps have shown that Redis is idle, it counts as busy.
        self._others = BUSY

    def raise_rate(self, rate: float) -> None:
        """Allow at least so many keys per second."""
        if self._rate is not None:
            self._rate = max(self._rate, rate)

    def begin(self) -> None:
        """A step begins. Raises Interrupted."""
        if self._stop.is_set():
            raise Interrupted
        self._began = time.monotonic()

    def end(self, keys: int = 0, busy: float | None = None) -> None:
        """
        The step has ended and has visited so many keys; Redis worked on it for `busy` seconds, where that is known.
        Waits as long as the rate and the other clients ask for. Raises Interrupted.
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
        """Wait for something else. Raises Interrupted."""
        if seconds > 0 and self._stop.wait(seconds):
            raise Interrupted

    def _measure(self, elapsed: float, busy: float) -> None:
        waited = max(0.0, elapsed - busy)
        self._floor = waited if self._floor is None else min(waited, self._floor * FLOOR_GROWTH)
        others = max(0.0, waited - 2 * self._floor) / elapsed if elapsed > 0 else 0.0
        self._others += WEIGHT * (others - self._others)
