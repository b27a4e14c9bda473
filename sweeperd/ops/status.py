"""
Reads the status of a shard.

All figures come from Redis, so they are about all replicas. Reading changes nothing, needs the rights of a daemon only,
and costs the same however large the backlog is.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

import redis
from pydantic import Field

from sweeperd.config import Settings
from sweeperd.document import Count, Document, Moment, Seconds, ShardsDocument
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.endpoint_health import most_troubled
from sweeperd.ops.endpoint_status import EndpointDocument, read_endpoints
from sweeperd.ops.processes import Processes, read_processes
from sweeperd.ops.rate import Rate, read_rates
from sweeperd.ops.reasons import ReasonCount, count_reasons
from sweeperd.ops.reconcile.last_walk import WalkStore
from sweeperd.outbox.attempts import Attempt, read_all_attempts
from sweeperd.outbox.backlog import BacklogMemory
from sweeperd.outbox.dead_letters import LetterCounts
from sweeperd.store import streams
from sweeperd.store.errors import describe, is_refused
from sweeperd.store.lease import holder
from sweeperd.store.memory import MemoryUse
from sweeperd.store.shard import Shard
from sweeperd.sweep.backlog import Backlog, read_index_backlog
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.explanation import explain
from sweeperd.sweep.kind import PROTECTED, Kind, Outcome
from sweeperd.sweep.last_sweep import LastSweep, read_last_sweep
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.sweep.sample import spread
from sweeperd.text import moment_ms

#: How many attempts of each endpoint are shown.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Details:
    """What only the status page shows: the quarantine by reason, and the last attempts of each endpoint."""

    reasons: tuple[ReasonCount, ...] = ()
    #: Endpoint -> the last attempts, the newest first.
    attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)


def read_details(settings: Settings, shard: Shard, endpoints: Sequence[EndpointDocument]) -> Details:
    """`endpoints`: the status of each. The attempts are read of those that the page lists."""
    reasons = [count for kind in kinds_of(settings, shard).values() for count in count_reasons(shard, kind)]
    sent = [endpoint for endpoint in endpoints if endpoint.configured] if settings.events.attempts_kept else []
    names = [endpoint.endpoint for endpoint in most_troubled(sent)]
    attempts = {
        name: [each.attempt for each in found] for name, found in read_all_attempts(shard, names, ATTEMPTS).items()
    }
    return Details(tuple(sorted(reasons, key=lambda each: -each.count)), attempts)


#: Up to how many keys are scanned for one of sweeperd, and how many in one call.
VISITED, PAGE = 10_000, 1_000
WARNING = "no reservation, budget or index entry at {}: the database or the prefix may be wrong"
#: Up to how many due entries are explained; if there are more, an evenly spread sample.
SAMPLE = 200


def is_empty(shard: Shard, settings: Settings) -> bool:
    """
    Whether no index or quarantine has an entry, there never was an event, and no reservation or budget is among the
    first VISITED keys. A stream alone tells nothing, because consumer groups create it. False if the user may not run
    SCAN.
    """
    keys, client = shard.keys, shard.client
    sets = [key for kind in settings.kinds for key in (keys.kind_index(kind.index), keys.kind_quarantine(kind.name))]
    if settings.reservations.enabled:
        sets += keys.reservation_index, keys.quarantine
    if (sets and client.exists(*sets)) or streams.last_id(client, keys.events) != bytes(streams.START):
        return False
    stems, cursor = (keys.reservation(b""), keys.budget_stem), 0
    try:
        for _ in range(0, VISITED, PAGE):
            cursor, page = cast(Any, client.scan(cursor, count=PAGE))
            if any(key.startswith(stems) for key in page):
                return False
            if not cursor:
                return True
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return False
    return True


@dataclass(frozen=True, slots=True)
class Due:
    """Entries whose deadline has passed, by the index."""

    entries: Count = 0
    #: Entries that a sweep would leave in the index, because a late commit is still accepted. The index does not know
    #: the grace, so expire.lua judges each entry, or a sample.
    in_grace: Count = 0
    #: The other entries, on which a sweep would act now.
    overdue: Count = 0
    exact: Annotated[bool, Field(description="False if in_grace and overdue are estimates.")] = True
    #: Since the earliest deadline, seconds.
    oldest_seconds: Seconds = 0.0
    #: Since the earliest end of a grace in the sample, seconds.
    oldest_overdue_seconds: Seconds = 0.0


class WalkDocument(Document):
    """The last complete walk of reconcile, by a daemon or by hand, without what was mended since."""

    finished_at: Moment
    findings: Count = Field(validation_alias="total")
    found: dict[str, Count]
    foreign_expiries: Count
    drifted: list[str] = Field(description="The first budgets with budget_drift, as --repair-budget takes them.")


class KindDocument(Document):
    kind: str
    alive: Count = Field(description="All entries of the index.")
    due: Count = Field(description="Entries whose deadline has passed, by the index.")
    oldest_due_seconds: float
    in_grace: Count = Field(description="Due entries whose grace has not ended.")
    overdue: Count = Field(description="Due entries on which a sweep would act now.")
    exact: bool = Field(description="False if in_grace and overdue are estimates.")
    oldest_overdue_seconds: Seconds = Field(description="Since the earliest end of a grace in the sample.")
    quarantined: Count
    protected: Count = Field(description="Overdue entries that `unless` protects from their expiry.")
    oldest_protected_seconds: Seconds = Field(description="How long ago the grace of the oldest of them ended.")
    proven: bool = Field(description="Whether an active entry of the kind was seen under these settings.")
    held: Count = Field(description="Due entries that stay in the index because the kind is unproven.")
    held_because: str = Field(description="The likely cause; empty if nothing is held.")
    deferred: Count = Field(
        description="Overdue entries that wait because Redis is above sweep.memory_limit, as of the last full tick."
    )
    expired: Count = Field(description="All expiries so far.")
    rate: float | None = Field(description="Expiries per second, or null.")
    rate_window_seconds: Seconds = Field(description="The time over which the rate was measured.")
    empty_in_seconds: Seconds | None = Field(description="How long overdue entries take at this rate; null: forever.")
    tick: LastSweep | None = Field(description="null before the first sweep.")
    tick_age_seconds: Seconds | None
    sweeping: str = Field(description="The process that sweeps now: host, process id and a random part; or empty.")
    last_walk: WalkDocument | None = Field(description="The last walk over this kind; null before the first.")

    @classmethod
    def of(
        cls, name: str, backlog: Backlog, due: "Due", rate: Rate, tick: LastSweep | None, now: int, **more: Any
    ) -> "KindDocument":
        """`now`: ms on Redis's clock. `more`: `sweeping` and `last_walk`."""
        return cls.made_of(
            backlog,
            kind=name,
            due=due.entries,
            in_grace=due.in_grace,
            overdue=due.overdue,
            exact=due.exact,
            oldest_due_seconds=due.oldest_seconds,
            oldest_overdue_seconds=due.oldest_overdue_seconds,
            expired=tick.expired if tick else 0,
            rate=rate.known,
            rate_window_seconds=rate.window_seconds,
            empty_in_seconds=rate.seconds_for(due.overdue),
            tick=tick,
            tick_age_seconds=tick.age_seconds(now) if tick else None,
            **{"sweeping": "", "last_walk": None} | more,
        )


class MemoryDocument(Document):
    """The memory of the shard's Redis, as maxmemory counts it."""

    used_bytes: Count = Field(validation_alias="used")
    limit_bytes: Count | None = Field(validation_alias="limit", description="maxmemory; null without one.")


class AcceptedKind(Document):
    shard: str
    accepted: bool = Field(description="false if the kind was proven already.")
    held: Count = Field(description="How many entries the next tick releases, as of the last tick.")


class KindAcceptDocument(ShardsDocument, title="sweeperd kinds accept --json"):
    kind: str
    shards: list[AcceptedKind]


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard, as in ShardDocument. If there is an `error`, Redis did not answer, and no other field counts."""

    name: str
    address: str
    error: str = ""
    #: When the status was read, ms on Redis's clock.
    now_ms: int = 0
    #: All kinds that are swept, reservations first.
    kinds: tuple[KindDocument, ...] = ()
    endpoints: tuple[EndpointDocument, ...] = ()
    dead_letters: int = 0
    #: Whether those of each endpoint are all counted.
    dead_letters_counted: bool = True
    processes: Processes = field(default_factory=Processes)
    #: None if this user may not run INFO.
    memory: MemoryUse | None = None
    #: The expiries of all kinds that the last full ticks deferred because Redis was full.
    deferred: int = 0
    #: Read on request only.
    details: Details = field(default_factory=Details)
    empty: bool = False
    #: The kinds over which a daemon should walk every day, but no walk has ended yet.
    unwalked: tuple[str, ...] = ()

    @property
    def reachable(self) -> bool:
        return not self.error

    @property
    def memory_percent(self) -> int | None:
        """The used share of maxmemory; None if there is no maxmemory, or it is unknown."""
        return None if self.memory is None else self.memory.percent

    @property
    def reservations(self) -> KindDocument:
        """The built-in kind, with nothing in it if it is not swept."""
        nothing = KindDocument.of(RESERVATIONS, Backlog(0, 0.0, 0), Due(), Rate(), None, self.now_ms)
        return next((kind for kind in self.kinds if kind.kind == RESERVATIONS), nothing)

    @property
    def due(self) -> Due:
        found = self.reservations
        oldest = found.oldest_due_seconds, found.oldest_overdue_seconds
        return Due(found.due, found.in_grace, found.overdue, found.exact, *oldest)


def read_status(
    settings: Settings,
    shard: Shard,
    sample: int = SAMPLE,
    *,
    detailed: bool = False,
    memory: BacklogMemory | None = None,
) -> ShardStatus:
    """
    Reads one shard; if that fails, the status has an error, and nothing is raised. `sample`: up to how many due entries
    are explained. `detailed` adds the details for the status page. `memory`: the backlogs of earlier calls.
    """
    try:
        with shard.reaching():
            status = _read(settings, shard, sample, memory)
            return replace(status, details=read_details(settings, shard, status.endpoints)) if detailed else status
    except (RedisUnavailable, redis.RedisError) as error:  # a key of another type, say
        return ShardStatus(shard.name, shard.address, describe(error).removeprefix(f"{shard.address}: "))


def read_all(settings: Settings, shards: Sequence[Shard]) -> list[ShardStatus]:
    """Reads all shards in parallel, so that one that does not answer delays no other."""
    with ThreadPoolExecutor(len(shards), thread_name_prefix="status") as pool:
        return list(pool.map(lambda shard: read_status(settings, shard), shards))


def _read(settings: Settings, shard: Shard, sample: int, memory: BacklogMemory | None) -> ShardStatus:
    now = shard.read_clock()
    kinds = kinds_of(settings, shard)
    rates, batch = read_rates(shard, kinds), settings.sweep.pipeline_depth
    read = tuple(_kind(shard, kind, now, rates[kind.name], batch, sample) for kind in kinds.values())
    deferred = sum(kind.deferred for kind in read)
    walked = settings.reconcile.interval is not None
    unwalked = [kind.kind for kind in read if walked and kind.last_walk is None]
    letters, processes = (memory.letters if memory else LetterCounts()).read(shard), read_processes(shard, now)
    return ShardStatus(
        shard.name,
        shard.address,
        now_ms=now,
        kinds=read,
        endpoints=read_endpoints(settings, shard, now, letters, processes, memory),
        dead_letters=letters.total,
        dead_letters_counted=letters.complete,
        processes=processes,
        memory=shard.memory.read(shard.client),
        deferred=deferred,
        empty=not any(kind.alive for kind in read) and is_empty(shard, settings),
        unwalked=tuple(unwalked),
    )


def _kind(shard: Shard, kind: Kind, now: int, rate: Rate, batch: int, sample: int) -> KindDocument:
    backlog, walk = read_index_backlog(shard, kind, now), WalkStore(shard, kind.walk_suffix).last()
    return KindDocument.of(
        kind.name,
        backlog,
        _due(shard, kind, batch, now, backlog, sample),
        rate,
        read_last_sweep(shard, kind),
        now,
        sweeping=holder(shard, kind.lease_job),
        last_walk=None if walk is None else WalkDocument.model_validate(walk),
    )


def _due(shard: Shard, kind: Kind, batch: int, now: int, backlog: Backlog, sample: int) -> Due:
    due = backlog.due
    if not due:
        return Due()
    entries = spread(shard, kind.index, due, sample)
    if not entries:
        return Due()  # swept meanwhile
    explanations = explain(shard, kind, [entry for entry, _ in entries], batch, proven=backlog.proven)
    in_grace, kept, oldest_overdue = 0, 0, 0.0
    for (_, score), explanation in zip(entries, explanations, strict=True):
        decision = explanation.decision
        if decision.outcome is Outcome.IN_GRACE:
            in_grace += 1
        elif decision.outcome is Outcome.HELD or decision.detail == PROTECTED:
            kept += 1
        elif decision.outcome is Outcome.EXPIRED:
            oldest_overdue = max(oldest_overdue, decision.lag_ms / 1000)
        else:
            oldest_overdue = max(oldest_overdue, (now - moment_ms(kind.moment_of(score))) / 1000)
    exact = due <= sample
    if exact:
        due = len(entries)
    in_grace, kept = (round(count * due / len(entries)) for count in (in_grace, kept))
    oldest = max(0.0, (now - moment_ms(kind.moment_of(entries[0][1]))) / 1000)
    return Due(due, in_grace, max(0, due - in_grace - kept), exact, oldest, oldest_overdue)
