"""When an event that was not delivered is sent again, and from which age on it becomes a dead letter."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sweeperd.config import WebhooksSettings
from sweeperd.config.types import milliseconds
from sweeperd.outbox.endpoint_state import NOTE_EVERY, CircuitStateStore, DeliveryRate
from sweeperd.store.shard import Shard


def growing_wait(initial: float, longest: float, times: int) -> float:
    """Seconds to wait after so many failures: nothing, `initial`, twice that, ... up to `longest`."""
    if times <= 0:
        return 0.0
    return min(longest, initial * 2.0 ** min(times - 1, 60))


@dataclass(slots=True)
class Redelivery:
    """The waits between the deliveries of one event, and its greatest age. Times in seconds, ages in ms."""

    initial: float
    longest: float
    max_age_ms: int
    #: When the group was made, where it began in the past: an older event counts as if it had been added then.
    counts_from_ms: int = 0

    @classmethod
    def of(cls, settings: WebhooksSettings) -> Self:
        """The waits that the settings ask for."""
        return cls(
            settings.redelivery_initial.total_seconds(),
            settings.redelivery_max.total_seconds(),
            milliseconds(settings.max_age),
        )

    def oldest_ms(self, now_ms: int) -> int:
        """Events that were added before then are too old; 0: none is. `now_ms`: Redis's clock."""
        oldest = now_ms - self.max_age_ms
        return oldest if self.counts_from_ms < oldest else 0

    def wait_ms(self, deliveries: int) -> float:
        """How long an event waits after so many deliveries in vain."""
        return growing_wait(self.initial, self.longest, deliveries) * 1000


# ---- when to stop sending to a receiver that fails, and when to try again


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


# ---- publishes the circuit and the rate of this process for operators, and closes it where an operator asks for it


class CircuitPublisher:
    """The circuit of one endpoint in this process. Threads may share it. Its methods raise redis.RedisError."""

    def __init__(self, shard: Shard, endpoint: str, process: str, circuit: CircuitBreaker) -> None:
        self._store = CircuitStateStore(shard)
        self._endpoint = endpoint
        self._process = process
        self._circuit = circuit
        self._publish_at = 0.0
        self._published = False
        self._rate = DeliveryRate()
        self._sampled = 0
        #: The last time that was read at which an operator closed the circuit; "": nothing was read yet.
        self._closed_at: bytes | str | None = ""

    def publish(self) -> None:
        """Write the circuit as it is now."""
        self._published = True
        self._publish_at = time.monotonic() + NOTE_EVERY
        self._store.write(self._endpoint, self._process, self._circuit, self._rate)

    def publish_when_due(self, delivered: int) -> None:
        """
        Write it where the last time was NOTE_EVERY seconds ago: operators see that this process lives. `delivered`: how
        many events it has delivered so far; where it is more than at the last call, it is written at once.
        """
        now = time.monotonic()
        self._rate.add(now, delivered)
        changed, self._sampled = delivered != self._sampled, delivered
        if changed or now >= self._publish_at:
            self.publish()

    def operator_closes(self) -> bool:
        """Whether an operator has closed the circuit since the last call; then it is closed here as well."""
        closed_at, before = self._store.closed_at(self._endpoint), self._closed_at
        self._closed_at = closed_at
        if before in ("", closed_at):
            return False
        if self._circuit.close():
            self.publish()
        return True

    def remove(self) -> None:
        """This process has ended."""
        if self._published:
            self._store.remove(self._endpoint, self._process)
