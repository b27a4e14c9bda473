"""
Are we keeping up, is anyone not getting their events, is something set aside?

Everything is read from Redis, so the answer is about all replicas. Reading changes nothing, needs no right that the
daemon does not have, and its cost does not grow with the backlog.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import redis

from sweeperd.config import Settings, SweepSettings
from sweeperd.delivery.backlog import BacklogMemory
from sweeperd.errors import RedisUnavailable
from sweeperd.ops import endpoint_status
from sweeperd.ops.details import Details, read_details
from sweeperd.ops.endpoint_status import EndpointStatus, count_dead_letters, read_endpoints
from sweeperd.ops.explain import explain
from sweeperd.ops.last_walk import KindWalkStore, LastKindWalk, LastWalk, WalkStore
from sweeperd.ops.presence import is_empty
from sweeperd.ops.processes import Processes, read_processes
from sweeperd.ops.rate import Rate, read_rate
from sweeperd.store.errors import describe
from sweeperd.store.lease import holder
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured_kinds import all_kinds
from sweeperd.sweep.kind import RESERVATIONS, Kind, Outcome
from sweeperd.sweep.last_sweep import LastSweep, read_last_sweep
from sweeperd.text import moment_ms

#: How many due entries are explained; where there are more, so many of them, evenly spread.
SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Due:
    """
    The entries whose deadline, as the index has it, has passed.

    Whether the grace has passed too is not in the index, so expire.lua is asked about each of them, or about a sample
    where they are many.
    """

    entries: int = 0
    #: Those that a sweep would leave where they are, because a late commit is still accepted.
    in_grace: int = 0
    #: All others: those that a sweep would act on now.
    overdue: int = 0
    #: False where `in_grace` and `overdue` are estimates from a sample.
    exact: bool = True
    #: Since the deadline of the oldest entry, in grace or not, seconds.
    oldest_seconds: float = 0.0
    #: Since deadline and grace of the oldest entry that a sweep would act on; of those in the sample.
    oldest_overdue_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KindStatus:
    """One of `[[kinds]]` on one shard."""

    name: str
    #: The entries whose deadline, as the index has it, has passed, and since when that of the oldest one has, seconds.
    due: int
    oldest_due_seconds: float
    quarantined: int
    #: The last tick; None before the first.
    tick: LastSweep | None
    #: Host, process id and a random part of the process that sweeps at this moment; empty where none does.
    sweeping: str
    #: The last complete walk over all of its hashes; None before the first.
    last_walk: LastKindWalk | None


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard. Where `error` is not empty, Redis did not answer, and all else says nothing."""

    name: str
    #: Where it is, without credentials.
    address: str
    error: str = ""
    #: When this was read, ms on Redis's clock.
    now_ms: int = 0
    due: Due = Due()
    quarantined: int = 0
    #: The last tick; None before the first.
    tick: LastSweep | None = None
    #: Host, process id and a random part of who sweeps at this moment; empty where nobody does.
    sweeping: str = ""
    #: Each configured kind. All else here is about reservations.
    kinds: tuple[KindStatus, ...] = ()
    endpoints: tuple[EndpointStatus, ...] = ()
    #: All dead letters; those of each endpoint are counted up to LETTERS, from the oldest on.
    dead_letters: int = 0
    dead_letters_counted: bool = True
    #: How fast entries expire.
    rate: Rate = field(default_factory=Rate)
    #: The last complete walk over all reservations; None before the first.
    last_walk: LastWalk | None = None
    #: The daemons that run on it.
    processes: Processes = field(default_factory=Processes)
    #: Only where they were asked for.
    details: Details = field(default_factory=Details)
    #: Whether there is no key that sweeperd works on: perhaps the database or the prefix is wrong.
    empty: bool = False

    @property
    def reachable(self) -> bool:
        """Whether Redis answered."""
        return not self.error

    @property
    def tick_age_seconds(self) -> float | None:
        """Since the last tick ended."""
        return None if self.tick is None else max(0.0, (self.now_ms - self.tick.at_ms) / 1000)

    @property
    def empty_in_seconds(self) -> float | None:
        """How long it takes at this rate to expire the entries that are overdue now. None where none expires."""
        return self.rate.seconds_for(self.due.overdue)


def read_status(
    settings: Settings,
    shard: Shard,
    sample: int = SAMPLE,
    *,
    detailed: bool = False,
    memory: BacklogMemory | None = None,
) -> ShardStatus:
    """
    One shard as it is now. It does not raise where Redis cannot be worked with: that is part of the answer.
    `sample`: how many due entries are explained at most. `detailed`: with what only the status page shows.
    `memory`: of the backlogs of earlier calls.
    """
    try:
        with shard.reaching():
            status = _read(settings, shard, sample, memory)
            return replace(status, details=read_details(settings, shard)) if detailed else status
    except RedisUnavailable as error:
        return ShardStatus(shard.name, shard.address, str(error).removeprefix(f"{shard.address}: "))
    except redis.RedisError as error:  # a key of another type, say
        return ShardStatus(shard.name, shard.address, describe(error))


def read_all(settings: Settings, shards: Sequence[Shard]) -> list[ShardStatus]:
    """All of these shards at the same time, so that one that does not answer delays no other's answer."""
    with ThreadPoolExecutor(len(shards), thread_name_prefix="status") as pool:
        return list(pool.map(lambda shard: read_status(settings, shard), shards))


def _read(settings: Settings, shard: Shard, sample: int, memory: BacklogMemory | None) -> ShardStatus:
    now = shard.read_clock()
    keys = shard.keys
    swept = settings.reservations.enabled
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.xlen(keys.dead_letters)
    if swept:
        pipeline.zcount(keys.reservation_index, "-inf", now)
        pipeline.zcard(keys.quarantine)
    dead_letters, due, quarantined = [*pipeline.execute(), 0, 0][:3]
    by_endpoint = count_dead_letters(shard) if dead_letters else Counter[str]()
    return ShardStatus(
        shard.name,
        shard.address,
        now_ms=now,
        due=_due(shard, settings.sweep, now, due, sample),
        quarantined=quarantined,
        tick=read_last_sweep(shard) if swept else None,
        sweeping=holder(shard, "sweep") if swept else "",
        kinds=tuple(_kind(shard, kind, now) for kind in all_kinds(settings, shard.keys) if kind.name != RESERVATIONS),
        endpoints=read_endpoints(shard, settings.consumers, now, by_endpoint, memory),
        dead_letters=dead_letters,
        dead_letters_counted=dead_letters <= endpoint_status.LETTERS,
        rate=read_rate(shard, now),
        last_walk=WalkStore(shard).last() if swept else None,
        processes=read_processes(shard, now),
        empty=not due and is_empty(shard, settings),
    )


def _kind(shard: Shard, kind: Kind, now: int) -> KindStatus:
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.zcount(kind.index, "-inf", now)
    pipeline.zrange(kind.index, 0, 0, withscores=True)
    pipeline.zcard(kind.quarantine)
    due, first, quarantined = pipeline.execute()
    oldest = (now - moment_ms(first[0][1])) / 1000 if due and first else 0.0
    tick, sweeping = read_last_sweep(shard, kind.name), holder(shard, kind.lease_job)
    last_walk = KindWalkStore(shard, kind.name).last()
    return KindStatus(kind.name, due, oldest, quarantined, tick, sweeping, last_walk)


def _due(shard: Shard, settings: SweepSettings, now: int, due: int, sample: int) -> Due:
    if not due:
        return Due()
    entries = _spread(shard, due, sample)
    if not entries:
        return Due()  # all of them were swept meanwhile
    explanations = explain(shard, settings, [entry for entry, _ in entries])
    in_grace, oldest_overdue = 0, 0.0
    for (_, score), explanation in zip(entries, explanations, strict=True):
        decision = explanation.decision
        if decision.outcome is Outcome.IN_GRACE:
            in_grace += 1
        elif decision.outcome is Outcome.EXPIRED:
            oldest_overdue = max(oldest_overdue, decision.lag_ms / 1000)
        else:
            oldest_overdue = max(oldest_overdue, (now - moment_ms(score)) / 1000)
    exact = due <= sample
    if exact:
        due = len(entries)
    in_grace = round(in_grace * due / len(entries))
    return Due(due, in_grace, due - in_grace, exact, max(0.0, (now - moment_ms(entries[0][1])) / 1000), oldest_overdue)


def _spread(shard: Shard, due: int, sample: int) -> list[tuple[bytes, float]]:
    """Id and score of the due entries, the oldest first; of `sample` of them, evenly spread, where there are more."""
    index = shard.keys.reservation_index
    if due <= sample:
        return list(shard.client.zrange(index, 0, due - 1, withscores=True))  # type: ignore[arg-type]
    pipeline = shard.client.pipeline(transaction=False)
    for number in range(sample):
        rank = number * (due - 1) // max(1, sample - 1)
        pipeline.zrange(index, rank, rank, withscores=True)
    return [entry for found in pipeline.execute() for entry in found]
