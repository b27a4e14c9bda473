"""Gives every worker of a shard what the workers share."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeperd.config import Settings
from sweeperd.progress import pause
from sweeperd.store.shard import Shard

if TYPE_CHECKING:
    from prometheus_client import Counter

    from sweeperd.metrics import Metrics

#: The largest share of the CPU time that deliveries of single events, and batches of the relay, use while a sweep runs.
#: A batch needs about as much time of Redis as of the CPU.
DELIVERY_SHARE, RELAY_SHARE = 0.15, 0.08
#: A sweep that ends sooner, seconds, had a handful of entries: no delivery waits for the sweep.
HANDFUL = 0.01
#: What a delivery, and a batch of the relay, is taken to need before the first one is measured; and how much the latest
#: ones count.
FIRST_ESTIMATE, FIRST_BATCH, WEIGHT = 0.001, 0.005, 0.125
#: Who waits looks so often whether the sweep has ended, seconds.
LOOK_EVERY = 0.02


@dataclass
class _Turns:
    """The turns of one sort of work."""

    share: float
    #: The CPU time that the last ones needed, seconds.
    typical: float
    #: When the next one may begin.
    free_at: float = 0.0


class CpuTurns:
    """
    Spreads deliveries over the time that a long sweep takes, each by the CPU time that the last ones needed. Without a
    sweep, or beside a short one, nobody waits. Threads may share it.

    `clock` is monotonic, `cpu_time` the CPU time of the calling thread, both in seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_time: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_time = cpu_time
        self._lock = threading.Lock()
        self._sweeps = 0
        #: When the oldest of the sweeps has run for HANDFUL.
        self._busy_at = 0.0
        self._deliveries = _Turns(DELIVERY_SHARE, FIRST_ESTIMATE)
        self._records = _Turns(RELAY_SHARE, FIRST_BATCH)

    @contextlib.contextmanager
    def sweep(self) -> Iterator[None]:
        """A sweep runs while the `with` block lasts; several may at the same time."""
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
        """Whether a sweep runs that has more than a handful to do."""
        return self._sweeps > 0 and self._clock() >= self._busy_at

    def delivery(self, stop: threading.Event, waits: "Counter") -> AbstractContextManager[None]:
        """Wait for a turn or for `stop`, then deliver in the `with` block. `waits` counts what had to wait."""
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
        """Take the next turn. Returns when the turn begins, by the clock; 0: now."""
        if not self.sweeping:
            return 0.0
        with self._lock:
            now = self._clock()
            begins = max(now, turns.free_at)
            turns.free_at = begins + turns.typical / turns.share
        return begins if begins > now else 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the threads of a process wait, seconds. Tests hand in other times."""

    #: A process that has sent no heartbeat for so long is dead: the others take over its events.
    take_over_after: float = 15.0
    #: Between two heartbeats. Two of them may be lost before the process counts as dead.
    heartbeat_every: float = 5.0
    #: The longest that a reader waits in Redis for a new event: so long can a stop take to be noticed.
    block: float = 1.0
    #: The longest time between two refreshes. A refresh reads the endpoint's state and takes parked events again.
    refresh_every: float = 5.0
    #: Between two steps of a scan over many parked events.
    scan_every: float = 0.2
    #: Between two tries while events wait for the dispatcher of Cycles.
    brake_pause: float = 0.25
    #: How long the reader lets new events gather if they are too few for a batch while senders are busy.
    gather_events: float = 0.005
    #: The longest that the first settlement waits for more to share its round trip.
    gather_settlements: float = 0.01
    #: How long Redis is left alone after a failure.
    recovery_pause: float = 1.0
    #: Between two notes of a process about its circuits.
    note_every: float = 10.0
    #: After so long the note of a process is removed.
    note_kept: float = 3600.0
    #: How long the stream is trimmed without a pause.
    trim_for: float = 1.0
    #: Between two rounds of trimming and measuring.
    maintain_every: float = 15.0
    #: How soon a replay begins after an operator has asked for one.
    replays_every: float = 2.0
    #: Between two readings for the status page while the page is open.
    status_every: float = 3.0
    #: How long after the first observation a walk reads a fault again.
    settle_faults: float = 1.0
    #: How often the place of a walk is kept, and how often a walk asks whether the server is still the same one.
    keep_walk_every: float = 10.0
    identify_every: float = 1.0
    #: What the threads count by: monotonic.
    clock: Callable[[], float] = time.monotonic


#: The times of a daemon.
DEFAULT_TIMING = Timing()


@dataclass(frozen=True)
class ShardContext:
    """One shard as one process works on it."""

    settings: Settings
    shard: Shard
    metrics: "Metrics"
    #: Ends the work.
    stop: threading.Event
    #: How many requests to endpoints the process may have in flight for this shard.
    concurrency: int
    #: The same one for all shards of a process.
    cpu_turns: CpuTurns = field(default_factory=CpuTurns)
    timing: Timing = DEFAULT_TIMING
    #: Whether the deliveries end by themselves when nothing is left that can be delivered now.
    until_idle: bool = False
