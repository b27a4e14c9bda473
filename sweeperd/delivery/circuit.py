"""Decides when an endpoint gets the next request, by its circuit, its state and the waits between retries."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import redis

from sweeperd.config import WebhooksSettings
from sweeperd.config.types import milliseconds
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.outbox import (
    Announcements,
    CircuitNote,
    CircuitStateStore,
    DeliveryRate,
    EndpointState,
    EndpointStateStore,
)
from sweeperd.store import Shard
from sweeperd.store.errors import is_server_trouble


def growing_wait(initial: float, longest: float, times: int) -> float:
    """Seconds to wait after this many failures: 0, `initial`, twice `initial`, ... up to `longest`."""
    if times <= 0:
        return 0.0
    return min(longest, initial * 2.0 ** min(times - 1, 60))


@dataclass(slots=True)
class Redelivery:
    """The waits between the deliveries of one event, seconds, and the greatest age of an event, ms."""

    initial: float
    longest: float
    max_age_ms: int
    #: If the group began in the past: when the group was made. An older event counts as if added at this time. While it
    #: is not known (None), no event is too old.
    counts_from_ms: int | None = None

    @classmethod
    def of(cls, settings: WebhooksSettings) -> Self:
        """The waits that the settings ask for."""
        return cls(
            settings.redelivery_initial.total_seconds(),
            settings.redelivery_max.total_seconds(),
            milliseconds(settings.max_age),
        )

    def oldest_ms(self, now_ms: int) -> int:
        """Oldest add time that is still retried, ms; 0: no limit. `now_ms`: Redis's clock."""
        if self.counts_from_ms is None:
            return 0
        self.counts_from_ms = min(self.counts_from_ms, now_ms)  # the clock may have been set back
        oldest = now_ms - self.max_age_ms
        return oldest if self.counts_from_ms < oldest else 0

    def wait_ms(self, deliveries: int) -> float:
        """How long an event waits after this many failed deliveries."""
        return growing_wait(self.initial, self.longest, deliveries) * 1000


#: This many failed deliveries in a row open the circuit.
FAILURES_TO_OPEN = 5
#: If this many events in a row are refused, each sent alone, the route or a secret is wrong, not the events.
REFUSED_TO_FAIL = 5


class CircuitBreaker:
    """
    Closed: events flow. Open: nothing is sent until the wait is over; then the result of one probe decides.

    A failure of the endpoint moves the circuit. A refusal (a 4xx about one event) does not: if a probe is refused,
    another event becomes the probe. REFUSED_TO_FAIL different events refused in a row count as a failure.
    """

    def __init__(self, initial: float, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._initial = initial
        self._longest = longest
        self._clock = clock
        #: How many deliveries failed in a row; while the circuit is open, only probes count.
        self.failures = 0
        #: Why the last delivery failed.
        self.reason = ""
        self._open_until = 0.0
        #: Until when the last failure counts: until then the next probe was due.
        self._failed_until = 0.0
        self._succeeded_at: float | None = None
        #: How many requests have succeeded.
        self.successes = 0
        #: Since the last success: the last event that failed, whether another event failed too, and the refused events.
        self._failed_event: bytes | None = None
        self._several_failed = False
        self._refused: set[bytes] = set()
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether events are held back."""
        return self.failures >= FAILURES_TO_OPEN

    @property
    def rests_on_one_event(self) -> bool:
        """Whether the same event failed each time: the event may be the cause, and no other event was tried."""
        return not self._several_failed

    @property
    def failed_lately(self) -> bool:
        """Whether the circuit is open and a delivery failed within the last wait. If not, a probe has to come first."""
        return self.open and self._clock() < self._failed_until

    @property
    def idle(self) -> float | None:
        """Seconds since the last success; None before the first."""
        return None if self._succeeded_at is None else self._clock() - self._succeeded_at

    @property
    def wait(self) -> float:
        """Seconds until the probe is due; 0 if the probe is due now, or if the circuit is closed."""
        return max(0.0, self._open_until - self._clock()) if self.open else 0.0

    @property
    def probe_due(self) -> bool:
        return self.open and self._clock() >= self._open_until

    def take_probe(self) -> bool:
        """Whether the caller sends the probe that is due. For a while no other reader of this process gets a probe."""
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
        """A delivery succeeded. Returns whether the success closed the circuit."""
        self._succeeded_at = self._clock()
        self.successes += 1
        return self.close()

    def close(self) -> bool:
        """Let events flow. Returns whether the circuit was open."""
        with self._lock:
            was_open, self.failures = self.open, 0
            self._failed_event, self._several_failed = None, False
            self._refused.clear()
            return was_open

    def failed(self, event: bytes, reason: str, *, probe: bool = False) -> bool:
        """
        The endpoint failed on this event. Returns whether the failure opened the circuit. While the circuit is open,
        only the probe counts: a request that was in flight when the circuit opened says nothing new.
        """
        with self._lock:
            self.reason = reason
            if self.open and not probe:
                return False
            self._several_failed |= self._failed_event not in (None, event)
            self._failed_event = event
            return self._fail(self.failures + 1)

    def refused(self, event: bytes, reason: str, *, probe: bool = False) -> bool:
        """This event, sent alone, was refused. Returns whether the refusal opened the circuit."""
        with self._lock:
            if self.open and not probe:
                return False
            again = event in self._refused
            self._refused.add(event)
            if len(self._refused) < REFUSED_TO_FAIL and not (self.open and again):
                return False  # if this event was the probe, another event is the probe at once
            self.reason = reason
            self._several_failed |= len(self._refused) >= REFUSED_TO_FAIL
            self._refused.clear()
            return self._fail(max(self.failures + 1, FAILURES_TO_OPEN))

    def note(self, process: str, now_ms: int, rate: DeliveryRate, trouble: str = "") -> CircuitNote:
        """
        What this process publishes, with the rate of its deliveries. `now_ms`: Redis's clock. `trouble`: why Redis
        keeps the process from delivering.
        """
        is_open = self.open
        return CircuitNote(
            process=process,
            at=now_ms,
            delivered_at=now_ms - int(self.idle * 1000) if self.idle is not None else 0,
            rate=rate.per_second,
            rate_window=rate.window_seconds,
            probe_at=now_ms + int(self.wait * 1000) if is_open else 0,
            failures=self.failures if is_open else 0,
            reason=self.reason if is_open else trouble,
        )

    def _fail(self, failures: int) -> bool:
        was_open, self.failures = self.open, failures
        if self.open:
            probes = self.failures - FAILURES_TO_OPEN + 1
            self._open_until = self._failed_until = self._clock() + growing_wait(self._initial, self._longest, probes)
        return self.open and not was_open


class CircuitPublisher:
    """
    Publishes the circuit and the rate of this process for operators, and closes the circuit when an operator asks.
    Threads may share a publisher. `rate`: of the live deliveries, if this publisher is of a replay. All methods raise
    redis.RedisError.
    """

    def __init__(
        self,
        shard: Shard,
        endpoint: str,
        process: str,
        circuit: CircuitBreaker,
        timing: Timing = DEFAULT_TIMING,
        rate: DeliveryRate | None = None,
    ) -> None:
        self._store = CircuitStateStore(shard, timing)
        self._every = timing.note_every
        self._now_ms = shard.clock.now_ms
        self._clock = timing.clock
        self._endpoint = endpoint
        self._process = process
        self._circuit = circuit
        self._publish_at = 0.0
        self._published = False
        self._trouble = ""
        self.rate = rate or DeliveryRate()
        self._sampled = 0
        #: When an operator last closed the circuit, as read from Redis; "": not read yet.
        self._closed_at: bytes | str | None = ""

    def publish(self) -> None:
        """Write the circuit now."""
        self._store.write(self._endpoint, self._note())

    def note_when_due(self, delivered: int, trouble: str = "") -> CircuitNote | None:
        """
        The note that the caller writes now: every `Timing.note_every`, so operators see a living process. `delivered`:
        how many events the process has delivered so far. `trouble`: why Redis keeps it from delivering. If either has
        changed since the last call, the note is due.
        """
        now = self._clock()
        self.rate.add(now, delivered)
        changed = (delivered, trouble) != (self._sampled, self._trouble)
        self._sampled, self._trouble = delivered, trouble
        return self._note() if changed or now >= self._publish_at else None

    def operator_closes(self, closed_at: bytes | None) -> bool:
        """
        Whether an operator has closed the circuit since the last call; then close the circuit here too. `closed_at`:
        when an operator last closed the circuit, as read from Redis; None: never.
        """
        before, self._closed_at = self._closed_at, closed_at
        if before in ("", closed_at):
            return False
        if self._circuit.close():
            self.publish()
        return True

    def remove(self) -> None:
        """Remove the note: this process has ended."""
        if self._published:
            self._store.remove(self._endpoint, self._process)

    def _note(self) -> CircuitNote:
        self._published = True
        self._publish_at = self._clock() + self._every
        return self._circuit.note(self._process, self._now_ms(), self.rate, self._trouble)


class EndpointStateCache:
    """
    The state of one endpoint in this process. The reader refreshes the state from Redis. If a response asks for a pause
    or a mute, a sender changes the state here at once, and the change is kept until Redis has taken the change.
    """

    def __init__(self, shard: Shard, endpoint: str, announcements: Announcements | None = None) -> None:
        self.state = EndpointState()
        self._store = EndpointStateStore(shard, announcements)
        self._clock = shard.clock
        self._endpoint = endpoint
        self._lock = threading.Lock()
        #: A state not yet taken by Redis.
        self._unsaved: EndpointState | None = None
        #: How often a sender has changed the state: if a read began before a change, the read is out of date.
        self._changes = 0

    @property
    def resting(self) -> bool:
        """Whether the endpoint is paused or muted now."""
        return self.state.resting(self._clock.now_ms())

    @property
    def rest(self) -> float:
        """For how long nothing is sent, seconds: until the mute ends, or forever while the endpoint is paused."""
        return math.inf if self.state.paused else max(0, self.state.muted_until - self._clock.now_ms()) / 1000

    @property
    def changes(self) -> int:
        """How often a sender has changed the state, for `learn`."""
        return self._changes

    def learn(self, entry: bytes | None, changes: int) -> None:
        """
        Take the state from its entry in Redis, unless a sender has changed the state since. `changes`: as they were
        before the entry was read.
        """
        state = self._store.parse(entry)
        with self._lock:
            if self._changes == changes and self._unsaved is None:
                self.state = state

    def pause(self, reason: str) -> None:
        """Send nothing until an operator resumes the endpoint. `save` has to follow."""
        self._change(EndpointState(paused_at=self._clock.now_ms(), reason=reason))

    def mute(self, seconds: float) -> None:
        """Send nothing for this many seconds, or longer if a longer mute holds. `save` has to follow."""
        self._change(EndpointState.mute(self._clock.now_ms(), seconds))

    def end_mute(self) -> None:
        """The clock was set back, so a mute would last longer. `save` has to follow."""
        with self._lock:
            if self.state.muted_until > self._clock.now_ms():
                self._changes += 1
                self.state = self._unsaved = EndpointState()

    def resume(self) -> None:
        """An operator has resumed the endpoint: drop a change that Redis has not taken."""
        with self._lock:
            if self._unsaved is not None:
                self._changes += 1
                self.state, self._unsaved = EndpointState(), None

    def save(self) -> redis.ResponseError | None:
        """
        Write the last change to Redis. If Redis refuses, keep the change for the next call, and return the error.
        Raises RedisError.
        """
        unsaved = self._unsaved
        if unsaved is None:
            return None
        try:
            state = self._store.write(self._endpoint, unsaved)
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
            return error
        with self._lock:
            if self._unsaved is unsaved:
                self._unsaved, self.state = None, state
        return None

    def _change(self, state: EndpointState) -> None:
        with self._lock:
            if not state.paused and (self.state.paused or self.state.muted_until >= state.muted_until):
                return
            self._changes += 1
            self.state = self._unsaved = state
