"""When to stop sending to a receiver that fails, and when to try again."""

import threading
import time
from collections.abc import Callable

from sweeperd.delivery.redelivery import growing_wait

#: So many failed deliveries in a row open the circuit.
FAILURES_TO_OPEN = 5
#: So many different events, each sent alone and refused, in a row: the route or a secret is wrong, not the events.
REFUSED_TO_FAIL = 5


class CircuitBreaker:
    """
    Closed: events flow. Open: nothing is sent until the wait is over; then the result of one probe decides.

    A failure of the endpoint moves the circuit. A refusal (a 4xx about one event) does not: a refused probe only lets
    another event be the probe. REFUSED_TO_FAIL different events refused in a row count as a failure of the endpoint.
    """

    def __init__(self, initial: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._initial = initial
        self._longest = longest
        self._clock = clock
        self._failures = 0
        #: Why the last delivery failed.
        self.reason = ""
        self._open_until = 0.0
        self._succeeded_at: float | None = None
        #: How many requests have succeeded.
        self.successes = 0
        #: Since the last success: the last event that failed, whether another one failed too, and the refused events.
        self._failed_event: bytes | None = None
        self._several_failed = False
        self._refused: set[bytes] = set()
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
    def rests_on_one_event(self) -> bool:
        """Whether the same event failed each time: then the event may be the cause, and no other one was tried."""
        return not self._several_failed

    @property
    def idle(self) -> float | None:
        """Seconds since the last success; None before the first."""
        return None if self._succeeded_at is None else self._clock() - self._succeeded_at

    @property
    def wait(self) -> float:
        """Seconds until the probe is due; 0 where it is due now, or where the circuit is closed."""
        return max(0.0, self._open_until - self._clock()) if self.open else 0.0

    @property
    def probe_due(self) -> bool:
        """Whether it is time for the probe."""
        return self.open and self._clock() >= self._open_until

    def take_probe(self) -> bool:
        """Whether the caller sends the probe that is due. For a while no other reader of this process gets it."""
        with self._lock:
            if not self.probe_due:
                return False
            self._open_until = self._clock() + self._initial
            return True

    def return_probe(self) -> None:
        """The caller had nothing to send: the probe is due again."""
        with self._lock:
            self._open_until = self._clock()

    def succeeded(self) -> bool:
        """A delivery succeeded. Returns whether that closed the circuit."""
        self._succeeded_at = self._clock()
        self.successes += 1
        return self.close()

    def close(self) -> bool:
        """Let events flow. Returns whether it was open."""
        with self._lock:
            was_open, self._failures = self.open, 0
            self._failed_event, self._several_failed = None, False
            self._refused.clear()
            return was_open

    def failed(self, event: bytes, reason: str, *, probe: bool = False) -> bool:
        """
        The endpoint failed on this event. Returns whether that opened the circuit. While it is open only the probe
        counts: a request that was in flight when it opened says nothing new.
        """
        with self._lock:
            self.reason = reason
            if self.open and not probe:
                return False
            self._several_failed |= self._failed_event not in (None, event)
            self._failed_event = event
            return self._fail(self._failures + 1)

    def refused(self, event: bytes, reason: str, *, probe: bool = False) -> bool:
        """This event, sent alone, was refused. Returns whether that opened the circuit."""
        with self._lock:
            if self.open and not probe:
                return False
            again = event in self._refused
            self._refused.add(event)
            if len(self._refused) < REFUSED_TO_FAIL and not (self.open and again):
                return False  # where it was the probe, another event is the probe at once
            self.reason = reason
            self._several_failed |= len(self._refused) >= REFUSED_TO_FAIL
            self._refused.clear()
            return self._fail(max(self._failures + 1, FAILURES_TO_OPEN))

    def _fail(self, failures: int) -> bool:
        was_open, self._failures = self.open, failures
        if self.open:
            probes = self._failures - FAILURES_TO_OPEN + 1
            self._open_until = self._clock() + growing_wait(self._initial, self._longest, probes)
        return self.open and not was_open
