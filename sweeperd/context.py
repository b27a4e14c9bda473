"""Defines the context that every worker of a shard is given."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeperd.config import Settings
from sweeperd.cpu_turns import CpuTurns
from sweeperd.store.shard import Shard

if TYPE_CHECKING:
    from sweeperd.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals and time limits of the threads of a process, seconds. Tests use shorter ones."""

    #: A process without a heartbeat for this long counts as dead, and other processes take over its events.
    take_over_after: float = 15.0
    #: The heartbeat interval. Two heartbeats may be lost before the process counts as dead.
    heartbeat_every: float = 5.0
    #: How long a blocking read waits for a new event, and so how long a reader may take to notice a stop.
    block: float = 1.0
    #: The longest interval of refreshes. A refresh reads the endpoint's state and claims parked events.
    refresh_every: float = 5.0
    #: The pause between two pages of a scan over parked events.
    scan_every: float = 0.2
    #: How long the relay backs off while events wait for the dispatcher of Cycles.
    brake_pause: float = 0.25
    #: How long the reader lets a batch fill up while senders are busy.
    gather_events: float = 0.005
    #: How long the first settlement waits for others to share its round trip.
    gather_settlements: float = 0.01
    #: How long a thread backs off after an error of Redis.
    recovery_pause: float = 1.0
    #: How often a process publishes its circuits.
    note_every: float = 10.0
    #: When the note of a silent process is removed.
    note_kept: float = 3600.0
    #: The time budget of one trimming of the stream.
    trim_for: float = 1.0
    #: The interval of trimming and of measuring the backlog.
    maintain_every: float = 15.0
    #: How often a process checks for new replays.
    replays_every: float = 2.0
    #: How often an open status page is refreshed.
    status_every: float = 3.0
    #: How long a walk waits before it confirms a fault with a second read.
    settle_faults: float = 1.0
    #: How often a walk saves its position, and how often it checks that it still reads the same server.
    keep_walk_every: float = 10.0
    identify_every: float = 1.0
    #: A monotonic clock.
    clock: Callable[[], float] = time.monotonic


#: The timing of a daemon.
DEFAULT_TIMING = Timing()


@dataclass(frozen=True)
class ShardContext:
    """One shard, with the settings, metrics and limits of this process for it."""

    settings: Settings
    shard: Shard
    metrics: "Metrics"
    #: Set when the process shuts down.
    stop: threading.Event
    #: How many requests to endpoints the process may have in flight for this shard.
    concurrency: int
    #: Shared by all shards of a process.
    cpu_turns: CpuTurns = field(default_factory=CpuTurns)
    timing: Timing = DEFAULT_TIMING
    #: Whether deliveries stop when no more events can be delivered now.
    until_idle: bool = False
