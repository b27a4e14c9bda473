"""Limits the CPU time of deliveries while a sweep of the same process runs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

ResultT = TypeVar("ResultT")

#: The largest share of CPU time for deliveries of single events, and for batches of the relay, while a sweep runs. A
#: batch takes about as much of Redis's time as of the CPU's.
DELIVERY_SHARE, RELAY_SHARE = 0.15, 0.08
#: A shorter sweep, in seconds, has a handful of entries, and no delivery waits for it.
HANDFUL = 0.01
#: The estimated CPU time of the first delivery and of the first batch, seconds, and the weight of each new measurement.
FIRST_ESTIMATE, FIRST_BATCH, WEIGHT = 0.001, 0.005, 0.125
#: How often a waiting delivery checks whether the sweep has ended, seconds: in a short wait, and in a long one, because
#: the short checks of 1,000 endpoints would take a whole core.
LOOK_EVERY, LONG_LOOK_EVERY = 0.02, 0.25


class Turns:
    """When deliveries, or batches of the relay, may start: `share` of the CPU time. Thread-safe."""

    def __init__(self, cpu_turns: "CpuTurns", share: float, typical: float) -> None:
        self._cpu_turns = cpu_turns
        self._share = share
        #: The moving average of the CPU time of one, seconds.
        self._typical = typical
        #: When the next one may start.
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def limited(self) -> bool:
        """Whether one may have to wait, because a long sweep runs."""
        return self._cpu_turns.sweeping

    def book(self) -> float:
        """Reserve the next turn. Returns its start by the clock, or 0 for now."""
        if not self._cpu_turns.sweeping:
            return 0.0
        with self._lock:
            now = self._cpu_turns.clock()
            begins = max(now, self._free_at)
            self._free_at = begins + self._typical / self._share
        return begins if begins > now else 0.0

    def wait(self, begins: float) -> float:
        """How long to wait for a reserved turn before the next look, seconds; 0 if it starts or the sweep has ended."""
        left = begins - self._cpu_turns.clock() if begins and self._cpu_turns.sweeping else 0.0
        return min(max(0.0, left), max(LOOK_EVERY, min(left / 2, LONG_LOOK_EVERY)))

    def use(self, work: Callable[[], ResultT]) -> ResultT:
        """Do the work of a turn, and measure its CPU time."""
        began = self._cpu_turns.cpu_time()
        try:
            return work()
        finally:
            used = self._cpu_turns.cpu_time() - began
            with self._lock:
                self._typical += WEIGHT * (used - self._typical)


class CpuTurns:
    """
    Limits the share of CPU time that deliveries get while a long sweep runs. Without a sweep, or during a short one,
    deliveries start at once. Thread-safe.

    `clock` is monotonic, and `cpu_time` the CPU time of the calling thread, both in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_time: Callable[[], float] = time.thread_time
    ) -> None:
        self.clock = clock
        self.cpu_time = cpu_time
        self._lock = threading.Lock()
        self._sweeps = 0
        #: When the oldest running sweep stops being a short one.
        self._busy_at = 0.0
        self.deliveries = Turns(self, DELIVERY_SHARE, FIRST_ESTIMATE)
        self.records = Turns(self, RELAY_SHARE, FIRST_BATCH)

    @contextlib.contextmanager
    def sweep(self) -> Iterator[None]:
        """A sweep runs during the block. Several may run at the same time."""
        with self._lock:
            if not self._sweeps:
                self._busy_at = self.clock() + HANDFUL
            self._sweeps += 1
        try:
            yield
        finally:
            with self._lock:
                self._sweeps -= 1

    @property
    def sweeping(self) -> bool:
        return self._sweeps > 0 and self.clock() >= self._busy_at
