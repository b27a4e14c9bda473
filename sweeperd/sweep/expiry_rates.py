"""Counts expiries by tenant, and tells when a tenant's rate spikes."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import redis

from sweeperd.config import EXPIRY_SPIKE, CyclesSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import Call, Script, batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Outcome

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

#: How many tenants are counted. Further tenants are not, until some have had no expiry for an hour or so.
TENANTS = 10_000
#: How many tenants go into one call of the script.
TOGETHER = 500


class ExpiryRates:
    """
    Counts what one process expires on one shard. The counts are kept in Redis, and go on when another replica takes the
    lease. Not to be shared by threads.
    """

    def __init__(self, shard: Shard, settings: CyclesSettings) -> None:
        self._shard = shard
        self._script = Script("sweep/expiry_rates")
        self._window_ms = milliseconds(settings.spike_window)
        self._factor = settings.spike_factor
        self._counts: Counter[bytes] = Counter()

    def decided(self, decisions: Sequence[Decision]) -> None:
        """Count a batch of decisions."""
        self._counts.update(
            decision.tenant for decision in decisions if decision.outcome is Outcome.EXPIRED and decision.tenant
        )

    def record(self, trace_id: str) -> int:
        """
        Add the counts to those in Redis, after a tick. Returns how many spikes began. If Redis refuses (no
        rights, a key of another type), the counts are dropped with a warning: the sweep does not depend on them. Raises
        RedisUnavailable.
        """
        counts, self._counts = list(self._counts.items()), Counter()
        with self._shard.reaching():
            return sum(self._add(part, trace_id) for part in batches(counts, TOGETHER))

    def _add(self, counts: Sequence[tuple[bytes, int]], trace_id: str) -> int:
        keys = self._shard.keys
        args: list[bytes | str | int] = [
            self._shard.clock.now_ms(),
            self._window_ms,
            str(self._factor),
            TENANTS,
            EXPIRY_SPIKE,
            trace_id,
        ]
        for tenant, count in counts:
            args += [tenant, count]
        try:
            return int(self._script.run(self._shard.client, Call([keys.expiry_rates, keys.events], args)))
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
            log.warning(
                "the rates of expiries are not kept", extra={"shard": self._shard.name, "error": describe(error)}
            )
            return 0
