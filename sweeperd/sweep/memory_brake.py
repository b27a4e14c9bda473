"""Defers expiries while Redis is above `sweep.memory_limit`, except for a batch a minute."""

import math
import time
from collections import deque
from collections.abc import Sequence

from sweeperd.config import SweepSettings
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Outcome

#: From the first expiry of a batch that is not deferred to that of the next batch, seconds.
BATCH_EVERY = 60.0
#: These outcomes use up the batch, because they need memory.
_COSTLY = (Outcome.EXPIRED, Outcome.QUARANTINED)


class MemoryBrake:
    """The brake of one kind on one shard, in one process. Not thread-safe."""

    def __init__(self, shard: Shard, settings: SweepSettings) -> None:
        self._shard = shard
        self._percent = settings.memory_limit
        self._batch_size = settings.batch_size
        #: How many entries may still be decided as usual before `_next_at` (monotonic), when a new batch begins.
        self._left = 0
        self._next_at = -math.inf
        #: For each call of `admit` without its decisions: how many of the batch it took, or 0 if the brake was off.
        self._taken: deque[int] = deque()
        #: How full Redis is, if the tick has deferred expiries.
        self.because = ""

    def begin(self) -> None:
        self._taken.clear()
        self.because = ""

    def admit(self, count: int) -> int:
        """How many of the next `count` entries are decided as usual. Raises redis.RedisError."""
        use = None if self._percent is None else self._shard.memory.read(self._shard.client)
        if use is None or self._percent is None or not use.exceeds(self._percent):
            self._taken.append(0)
            return count
        now = time.monotonic()
        if now >= self._next_at:
            self._left, self._next_at = self._batch_size, now + BATCH_EVERY
        admitted = min(count, self._left)
        self._left -= admitted
        self._taken.append(admitted)
        if admitted < count:
            self.because = f"Redis uses {use.percent} % of maxmemory, and sweep.memory_limit is {self._percent} %"
        return admitted

    def decided(self, decisions: Sequence[Decision]) -> None:
        """The decisions about the entries of the oldest `admit`. What needed no memory is left for others."""
        if taken := self._taken.popleft():
            self._left += max(0, taken - sum(decision.outcome in _COSTLY for decision in decisions))
