"""Measures what waits in the index of a kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Kind
from sweeperd.sweep.proof import is_proven
from sweeperd.text import decode, moment_ms, whole

#: 100 years, ms.
FAR_MS = 100 * 365 * 86_400_000
#: 1 January 2000, ms: no deadline is older.
_EARLIEST_MS = 946_684_800_000
#: A unit of time, and how many of it are a millisecond.
_UNITS = {"milliseconds": 1, "microseconds": 1_000, "nanoseconds": 1_000_000}


@dataclass(frozen=True)
class Backlog:
    """How many entries are due, in quarantine, protected by `unless`, far ahead, held and deferred."""

    due: int
    oldest_due_seconds: float
    quarantined: int
    #: `oldest_protected_seconds`: since the end of the grace.
    protected: int = 0
    oldest_protected_seconds: float = 0.0
    #: More than 100 years ahead: hardly in milliseconds.
    far_ahead: int = 0
    #: Whether an entry of the kind was seen alive; the entries that the last full tick held, and why.
    proven: bool = True
    held: int = 0
    held_because: str = ""
    #: The expiries that the last full tick deferred because Redis was full.
    deferred: int = 0
    #: All entries of the index.
    alive: int = 0


@dataclass(frozen=True, slots=True)
class FarAhead:
    """The entries whose deadline is more than 100 years ahead."""

    count: int = 0
    #: The unit in which the nearest of these deadlines would be plausible; empty if none.
    unit: str = ""


def far_from(kind: Kind, now: int) -> str:
    """The lowest score more than 100 years after `now` (ms), for ZCOUNT and ZRANGE."""
    return f"({kind.score_of(now + FAR_MS)}"


def read_far_ahead(shard: Shard, kind: Kind) -> FarAhead:
    now = shard.read_clock()
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.zcount(kind.index, far_from(kind, now), "+inf")
    pipeline.zrange(kind.index, far_from(kind, now), "+inf", byscore=True, offset=0, num=1, withscores=True)
    count, first = pipeline.execute()
    score = first[0][1] if first else 0.0
    units = (unit for unit, factor in _UNITS.items() if _EARLIEST_MS <= score / factor <= now + FAR_MS)
    return FarAhead(count, next(units, "") if count else "")


def read_index_backlog(shard: Shard, kind: Kind, now: int) -> Backlog:
    """`now`: ms on Redis's clock. Raises redis.RedisError."""
    proven = is_proven(shard, kind)
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.zcount(kind.index, "-inf", kind.score_of(now))
    pipeline.zrange(kind.index, 0, 0, withscores=True)
    pipeline.zcard(kind.quarantine)
    pipeline.zcount(kind.index, far_from(kind, now), "+inf")
    pipeline.hmget(kind.ticks, ["held", "held_because", "deferred"])
    pipeline.zcard(kind.index)
    if kind.protected:
        pipeline.zcard(kind.protected)
        pipeline.zrange(kind.protected, 0, 0, withscores=True)
    due, first, quarantined, far, row, alive, *more = pipeline.execute()
    protected, longest = more or (0, [])
    # Another client may end the only due entry between the commands.
    oldest, longest_protected = _age(first, now, kind.unit_ms) if due else 0.0, _age(longest, now)
    held, because, deferred = cast(list[bytes | None], row)
    held, because = (None, None) if proven else (held, because)
    return Backlog(
        due,
        oldest,
        quarantined,
        protected,
        longest_protected,
        far,
        proven,
        whole(held or b"") or 0,
        decode(because or b""),
        whole(deferred or b"") or 0,
        alive,
    )


def _age(first: Sequence[tuple[bytes, float]], now: int, unit_ms: int = 1) -> float:
    return max(0.0, (now - moment_ms(first[0][1] * unit_ms)) / 1000) if first else 0.0
