"""Samples the status of a shard for the charts of the status page."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeperd.ops.health import ShardView
from sweeperd.ops.status import ShardStatus

#: Seconds between two samples, for which a sample is kept, and for which each `update` reads Redis after a request.
SAMPLE_EVERY, REMEMBERED, WATCHED_FOR = 15.0, 3600.0, 15.0


@dataclass(frozen=True, slots=True)
class KindSample:
    overdue: int
    quarantined: int
    #: Expiries per second; None if unknown.
    rate: float | None


@dataclass(frozen=True, slots=True)
class StatusSample:
    """One shard at one moment. None if Redis did not answer."""

    #: Monotonic, seconds.
    at: float
    kinds: Mapping[str, KindSample] | None = None
    #: When the status was read, ms on Redis's clock.
    now_ms: int = 0
    #: Endpoint -> events that wait.
    pending: Mapping[str, int | None] | None = None


class StatusHistory:
    """
    Keeps the status of a shard, so that requests never wait for Redis: one thread calls `update`, requests call `view`
    and `samples`. `read` may take long, and does not raise if Redis is down.
    """

    def __init__(
        self, name: str, address: str, read: Callable[[], ShardStatus], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._name = name
        self._address = address
        self._read = read
        self._lock = threading.Lock()
        self._samples: deque[StatusSample] = deque(maxlen=int(REMEMBERED / SAMPLE_EVERY))
        self._status: ShardStatus | None = None
        self._read_at = 0.0
        self._error = ""
        self._asked_at: float | None = None

    def adopt(self, before: "StatusHistory") -> None:
        """Takes over samples and status of the same shard, after a reload."""
        with before._lock:
            samples, status, read_at, error = before._samples.copy(), before._status, before._read_at, before._error
        with self._lock:
            self._samples, self._status, self._read_at, self._error = samples, status, read_at, error

    def update(self) -> None:
        """Call this every few seconds. Reads Redis every SAMPLE_EVERY, and each time for a while after a request."""
        now = self._clock()
        with self._lock:
            watched = self._asked_at is not None and now - self._asked_at < WATCHED_FOR
            due = not self._samples or now - self._samples[-1].at >= SAMPLE_EVERY
        if not (watched or due):
            return
        status = self._read()
        with self._lock:
            self._error = status.error
            if status.reachable:
                self._status, self._read_at = status, self._clock()
            if due:
                self._samples.append(_sample(now, status))

    def view(self) -> ShardView:
        """The last status, for a request."""
        with self._lock:
            self._asked_at = now = self._clock()
            age = now - self._read_at if self._status else 0.0
            return ShardView(self._name, self._address, self._status, age, self._error)

    def samples(self) -> list[StatusSample]:
        """The last hour, oldest sample first, and the current status last."""
        now = self._clock()
        with self._lock:
            kept = [sample for sample in self._samples if now - sample.at <= REMEMBERED]
            status = None if self._error else self._status
            if status is not None and not (kept and kept[-1].now_ms == status.now_ms):
                kept.append(_sample(self._read_at, status))
        return kept


def _sample(at: float, status: ShardStatus) -> StatusSample:
    if not status.reachable:
        return StatusSample(at)
    return StatusSample(
        at,
        {kind.kind: KindSample(kind.overdue, kind.quarantined, kind.rate) for kind in status.kinds},
        status.now_ms,
        {endpoint.endpoint: endpoint.pending for endpoint in status.endpoints if endpoint.configured},
    )
