"""What all work of one process on one shard shares."""

import threading
from dataclasses import dataclass, field

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.store.interpreter import Interpreter
from sweeperd.store.shard import Shard


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
