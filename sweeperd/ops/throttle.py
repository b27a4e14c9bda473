"""How fast a walk over a whole Redis may go, so that nobody else there notices it."""

import threading
import time

#: A walk rests at least so many times as long as Redis took to answer: it takes a quarter of the time at most.
REST = 3.0


class Interrupted(Exception):
    """The walk was told to stop."""


class Throttle:
    """
    At most `rate` keys a second. `stop` ends the walk at its next step.

    The rate is what a walk does to a healthy Redis. The rest after each step is for one that is slow: the slower its
    answers, the longer it is left alone.
    """

    def __init__(self, rate: float, stop: threading.Event | None = None) -> None:
        self._rate = rate
        self._stop = stop or threading.Event()
        self._began = self._next = time.monotonic()

    def begin(self) -> None:
        """A step begins. Raises Interrupted."""
        if self._stop.is_set():
            raise Interrupted
        self._began = time.monotonic()

    def end(self, keys: int = 0) -> None:
        """The step has ended and has looked at so many keys; wait as long as it takes. Raises Interrupted."""
        now = time.monotonic()
        self._next = max(self._next, self._began) + keys / self._rate
        self.wait(max(self._next - now, REST * (now - self._began)))

    def wait(self, seconds: float) -> None:
        """Wait for something else. Raises Interrupted."""
        if self._stop.wait(max(0.0, seconds)):
            raise Interrupted
