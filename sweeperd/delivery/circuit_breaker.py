"""When to stop asking a receiver that does not answer, and when to ask again."""

import threading
import time
from collections.abc import Callable

#: So many failed hand-overs in a row open the circuit.
FAILURES_TO_OPEN = 5


def growing_wait(initial: float, longest: float, times: int) -> float:
    """Seconds to wait after so many failures: nothing, `initial`, twice that, ... up to `longest`."""
    if times <= 0:
        return 0.0
    return min(longest, initial * 2.0 ** min(times - 1, 60))


class CircuitBreaker:
    """Closed: events flow. Open: nothing is sent until the wait is over; then one probe decides."""

    def __init__(self, initial: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._initial = initial
        self._longest = longest
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether events are held back."""
        return self._failures >= FAILURES_TO_OPEN

    @property
    def failures(self) -> int:
        """How many hand-overs failed in a row; while it is open only probes count."""
        return self._failures

    @property
    def wait(self) -> float:
        """Seconds until the probe is due; 0 where it is, or where there is nothing to probe."""
        return max(0.0, self._open_until - self._clock()) if self.open else 0.0

    @property
    def probe_due(self) -> bool:
        """Whether it is time for the probe."""
        return self.open and self._clock() >= self._open_until

    def succeeded(self) -> None:
        """A hand-over succeeded: the circuit is closed."""
        with self._lock:
            self._failures = 0

    def failed(self, *, probe: bool = False) -> bool:
        """
        A hand-over failed. Returns whether that opened the circuit. While it is open only the probe counts: what was
        under way when it opened says nothing new.
        """
        with self._lock:
            if self.open and not probe:
                return False
            self._failures += 1
            if self.open:
                probes = self._failures - FAILURES_TO_OPEN + 1
                self._open_until = self._clock() + growing_wait(self._initial, self._longest, probes)
            return self._failures == FAILURES_TO_OPEN
