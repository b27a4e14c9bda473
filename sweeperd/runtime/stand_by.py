"""How long a replica stands by while another one holds the lease of the sweep."""

import logging
import time
from datetime import timedelta

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.lease import Lease
from sweeperd.store.process import process_name
from sweeperd.store.shard import Shard
from sweeperd.sweep.last_sweep import read_last_sweep

log = logging.getLogger(__name__)

#: So many TTLs without a sweep, and the lease is not believed any more.
PATIENCE = 4


class StandBy:
    """
    A holder renews its lease, sweeps, and notes each sweep. A lease that never runs out, because its key has no TTL or
    is not a lease at all, would stop every sweep for ever: so a replica that has stood by for 4 TTLs, in which no sweep
    was noted, sweeps without the lease. Correctness never rests on it.
    """

    def __init__(self, shard: Shard, kind: str, lease: Lease, settings: SweepSettings) -> None:
        self._shard = shard
        self._kind = kind
        self._lease = lease
        self._limit = PATIENCE * settings.lease_ttl
        self._time_budget = settings.time_budget
        #: When it began to stand by, monotonic; None while this process holds the lease itself.
        self._since: float | None = None
        self._warned = False

    def end(self) -> None:
        """This process has the lease."""
        self._since = None
        self._warned = False

    def is_pointless(self) -> bool:
        """Call it each time that the lease was not acquired: whether to sweep without it. Raises redis.RedisError."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < self._limit.total_seconds():
            return False
        # A sweep is noted when it ends, and one whose lease is renewed may take all of its time budget.
        limit = self._limit + self._time_budget if self._lease.runs_out() else self._limit
        if now - self._since < limit.total_seconds() or self._another_swept_within(limit):
            return False
        if not self._warned:
            log.warning(
                "the lease is held, but its holder does not sweep: sweeping without the lease; delete its key",
                extra={"shard": self._shard.name, "kind": self._kind, "seconds": round(now - self._since)},
            )
        self._warned = True
        return True

    def _another_swept_within(self, limit: timedelta) -> bool:
        last = read_last_sweep(self._shard, self._kind)
        if last is None or last.by == process_name():
            return False
        return self._shard.read_clock() - last.at_ms < milliseconds(limit)
