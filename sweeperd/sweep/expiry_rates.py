"""Detects tenants whose rate of expiries spikes."""

import logging
from collections import Counter
from collections.abc import Sequence

import redis

from sweeperd.config import EXPIRY_SPIKE, CyclesSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Call, Script, batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Outcome

log = logging.getLogger(__name__)

#: How many tenants are counted. Others are counted when some have had no expiry for about an hour.
TENANTS = 10_000
#: Tenants per call of the script.
BATCH = 500


class ExpiryRates:
    """Counts what one process expires on one shard, in Redis, so that a new leader goes on. Not thread-safe."""

    def __init__(self, shard: Shard, settings: CyclesSettings) -> None:
        self._shard = shard
        self._script = Script("sweep/expiry_rates")
        self._window_ms = milliseconds(settings.spike_window)
        self._factor = settings.spike_factor
        self._counts: Counter[bytes] = Counter()

    def decided(self, decisions: Sequence[Decision]) -> None:
        self._counts.update(
            decision.tenant for decision in decisions if decision.outcome is Outcome.EXPIRED and decision.tenant
        )

    def record(self, trace_id: str) -> int:
        """Add the counts of a tick to those in Redis. Returns how many spikes began. Raises RedisUnavailable."""
        counts, self._counts = list(self._counts.items()), Counter()
        with self._shard.reaching():
            return sum(self._add(part, trace_id) for part in batches(counts, BATCH))

    def _add(self, counts: Sequence[tuple[bytes, int]], trace_id: str) -> int:
        keys = self._shard.keys
        now, flat = self._shard.clock.now_ms(), [value for pair in counts for value in pair]
        args = [now, self._window_ms, str(self._factor), TENANTS, EXPIRY_SPIKE, trace_id, *flat]
        try:
            return int(self._script.run(self._shard.client, Call([keys.expiry_rates, keys.events], args)))
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
            about = {"shard": self._shard.name, "error": describe(error)}
            log.warning("the rates of expiries are not kept", extra=about)
            return 0
