"""Counts the index entries whose deadline is more than 100 years ahead. Such a deadline is hardly in milliseconds."""

from dataclasses import dataclass

from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind

#: 100 years, ms.
FAR_MS = 100 * 365 * 86_400_000
#: 1 January 2000, ms: no deadline is older.
_EARLIEST_MS = 946_684_800_000
#: A unit of time, and how many of it are a millisecond.
_UNITS = {"microseconds": 1_000, "nanoseconds": 1_000_000}


@dataclass(frozen=True, slots=True)
class FarAhead:
    count: int = 0
    #: The unit in which the nearest of these deadlines would be an ordinary one; empty if there is none.
    unit: str = ""


def far_from(now: int) -> str:
    """The least score of such an entry, for ZCOUNT and ZRANGE. `now`: ms on Redis's clock."""
    return f"({now + FAR_MS}"


def read_far_ahead(shard: Shard, kind: Kind) -> FarAhead:
    """Raises redis.RedisError."""
    now = shard.read_clock()
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.zcount(kind.index, far_from(now), "+inf")
    pipeline.zrange(kind.index, far_from(now), "+inf", byscore=True, offset=0, num=1, withscores=True)
    count, first = pipeline.execute()
    score = first[0][1] if first else 0.0
    units = (unit for unit, factor in _UNITS.items() if _EARLIEST_MS <= score / factor <= now + FAR_MS)
    return FarAhead(count, next(units, "") if count else "")
