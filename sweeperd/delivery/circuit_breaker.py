"""When to stop sending to a receiver that fails, and when to try again."""

import threading
import time
from collections.abc import Callable

from sweeperd.delivery.redelivery import growing_wait

#: So many failed deliveries in a row open the circuit.
FAILURES_TO_OPEN = 5


class CircuitBreaker:
    """Closed: events flow. Open: nothing is sent until the wait is over; then the result of one probe decides."""

    def __init__(self, initial: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._initial = initial
        self._longest = longest
        self._clock = clock
        self._failures = 0
        #: Why the last delivery failed.
        self.reason = ""
        self._open_until = 0.0
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether events are held back."""
        return self._failures >= FAILURES_TO_OPEN

    @property
    def failures(self) -> int:
        """How many deliveries failed in a row; while it is open only probes count."""
        return self._failures

    @property
    def wait(self) -> float:
        """Seconds until the probe is due; 0 where it is due now, or where the circuit is closed."""
        return max(0.0, self._open_until - self._clock()) if self.open else 0.0

    @property
    def probe_due(self) -> bool:
        """Whether it is time for the probe."""
        return self.open and self._clock() >= self._open_until

    def succeeded(self) -> bool:
        """A delivery succeeded. Returns whether that closed the circuit."""
        with self._lock:
            was_open, self._failures = self.open, 0
            return was_open

    def failed(self, reason: str = "", *, probe: bool = False) -> bool:
        """
        A delivery failed. Returns whether that opened the circuit. While it is open only the probe counts: a request
        that was in flight when it opened says nothing new.
        """
        with self._lock:
            self.reason = reason
            if self.open and not probe:
                return False
            self._failures += 1
            if self.open:
                probes = self._failures - FAILURES_TO_OPEN + 1
                self._open_until = self._clock() + growing_wait(self._initial, self._longest, probes)
            return self._failures == FAILURES_TO_OPEN
