"""Limits the CPU time of deliveries while a sweep of the same process runs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeperd.progress import pause

if TYPE_CHECKING:
    from prometheus_client import Counter

#: The largest share of CPU time for deliveries of single events, and for batches of the relay, while a sweep runs. A
#: batch takes about as much of Redis's time as of the CPU's.
DELIVERY_SHARE, RELAY_SHARE = 0.15, 0.08
#: A shorter sweep, in seconds, has a handful of entries, and no delivery waits for it.
HANDFUL = 0.01
#: The estimated CPU time of the first delivery and of the first batch, seconds, and the weight of each new measurement.
FIRST_ESTIMATE, FIRST_BATCH, WEIGHT = 0.001, 0.005, 0.125
#: How often a waiting thread checks whether the sweep has ended, seconds.
LOOK_EVERY = 0.02


@dataclass
class _Turns:
    """When deliveries, or batches of the relay, may start."""

    share: float
    #: The moving average of the CPU time of one, seconds.
    typical: float
    #: When the next one may start.
    free_at: float = 0.0


class CpuTurns:
    """
    Limits the share of CPU time that deliveries get while a long sweep runs. Without a sweep, or during a short one,
    deliveries start at once. Thread-safe.

    `clock` is monotonic, and `cpu_time` the CPU time of the calling thread, both in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_time: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_time = cpu_time
        self._lock = threading.Lock()
        self._sweeps = 0
        #: When the oldest running sweep stops being a short one.
        self._busy_at = 0.0
        self._deliveries = _Turns(DELIVERY_SHARE, FIRST_ESTIMATE)
        self._records = _Turns(RELAY_SHARE, FIRST_BATCH)

    @contextlib.contextmanager
    def sweep(self) -> Iterator[None]:
        """A sweep runs during the block. Several may run at the same time."""
        with self._lock:
            if not self._sweeps:
                self._busy_at = self._clock() + HANDFUL
            self._sweeps += 1
        try:
            yield
        finally:
            with self._lock:
                self._sweeps -= 1

    @property
    def sweeping(self) -> bool:
        """Whether a long sweep is running."""
        return self._sweeps > 0 and self._clock() >= self._busy_at

    def delivery(self, stop: threading.Event, waits: "Counter") -> AbstractContextManager[None]:
        """Wait for a turn or for `stop`, then run the block. `waits` counts the blocks that had to wait."""
        return self._turn(self._deliveries, stop, waits)

    def records(self, stop: threading.Event, waits: "Counter") -> AbstractContextManager[None]:
        """The same for a batch of the relay."""
        return self._turn(self._records, stop, waits)

    @contextlib.contextmanager
    def _turn(self, turns: _Turns, stop: threading.Event, waits: "Counter") -> Iterator[None]:
        if begins := self._book(turns):
            waits.inc()
            while self.sweeping and (left := begins - self._clock()) > 0 and not pause(stop, min(left, LOOK_EVERY)):
                pass
        began = self._cpu_time()
        try:
            yield
        finally:
            used = self._cpu_time() - began
            with self._lock:
                turns.typical += WEIGHT * (used - turns.typical)

    def _book(self, turns: _Turns) -> float:
        """Reserve the next turn. Returns its start by the clock, or 0 for now."""
        if not self.sweeping:
            return 0.0
        with self._lock:
            now = self._clock()
            begins = max(now, turns.free_at)
            turns.free_at = begins + turns.typical / turns.share
        return begins if begins > now else 0.0
