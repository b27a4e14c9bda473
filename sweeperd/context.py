"""
How the sweep and the delivery of one process share its interpreter: the sweep goes first.

All threads of a process take turns in one interpreter. To send a single event takes about twenty times the CPU time of
expiring one entry, so unlimited delivery would stretch a sweep of a backlog. Row `beside`: a sweep beside single events
at 64 connections takes 1.08 times as long with the turns, and 1.86 times as long without.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Counter

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.store.shard import Shard

#: While a sweep runs, deliveries take the interpreter for so much of the time at most.
DELIVERY_SHARE = 0.15
#: What one delivery is taken to need before the first one is measured; and how much the latest ones count.
FIRST_ESTIMATE, WEIGHT = 0.001, 0.125


class Interpreter:
    """
    Spreads deliveries over the time that a sweep takes, each by the CPU time that the last ones needed. Without a sweep
    nobody waits. Threads may share it.

    `clock` is monotonic, `cpu_time` the CPU time of the calling thread, both in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_time: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_time = cpu_time
        self._lock = threading.Lock()
        self._sweeps = 0
        self._typical = FIRST_ESTIMATE
        #: When the next delivery may begin.
        self._free_at = 0.0

    @contextlib.contextmanager
    def sweep(self) -> Iterator[None]:
        """A sweep runs while the `with` block lasts; several may at the same time."""
        with self._lock:
            self._sweeps += 1
        try:
            yield
        finally:
            with self._lock:
                self._sweeps -= 1

    @property
    def sweeping(self) -> bool:
        """Whether a sweep runs."""
        return self._sweeps > 0

    @contextlib.contextmanager
    def delivery(self, stop: threading.Event, waits: Counter) -> Iterator[None]:
        """Wait for a turn or for `stop`, then deliver in the `with` block. `waits` counts what had to wait."""
        if wait := self._book():
            waits.inc()
            stop.wait(wait)
        began = self._cpu_time()
        try:
            yield
        finally:
            used = self._cpu_time() - began
            with self._lock:
                self._typical += WEIGHT * (used - self._typical)

    def _book(self) -> float:
        """Take the next turn. Returns how far off it is, seconds."""
        if not self.sweeping:
            return 0.0
        with self._lock:
            now = self._clock()
            begins = max(now, self._free_at)
            self._free_at = begins + self._typical / DELIVERY_SHARE
        return begins - now


# ---- what all work of one process on one shard shares


@dataclass(frozen=True)
class ShardContext:
    """One shard as one process works on it."""

    settings: Settings
    shard: Shard
    metrics: Metrics
    #: Ends the work.
    stop: threading.Event
    #: How many requests to endpoints the process may have in flight for this shard.
    concurrency: int
    #: The same one for all shards of a process.
    interpreter: Interpreter = field(default_factory=Interpreter)
