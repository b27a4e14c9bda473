"""
The status of one shard: sweep, backlog, endpoints, quarantine, walks.

All figures are read from Redis, so the status is about all replicas. Reading changes nothing, needs no more rights than
a daemon has, and costs no more if the backlog grows.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

import redis
from pydantic import Field

from sweeperd.config import RELAY, EndpointSettings, Settings
from sweeperd.document import CommandDocument, Count, Document, Down, Moment, Seconds
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.processes import Processes, read_processes
from sweeperd.ops.reconcile import WalkStore
from sweeperd.ops.show import Details, read_details
from sweeperd.outbox.backlog import BacklogMemory, read_backlog
from sweeperd.outbox.circuits import CircuitNote, CircuitState, CircuitStateStore
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.outbox.filters import LivingFilters, read_filters
from sweeperd.outbox.replays import GROUP_PREFIX, ReplayStore
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import describe, is_refused
from sweeperd.store.lease import holder
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.explanation import explain
from sweeperd.sweep.kind import Kind, Outcome
from sweeperd.sweep.last_sweep import LastSweep, read_last_sweep
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.sweep.sample import spread
from sweeperd.sweep.sweeper import read_index_backlog
from sweeperd.text import decode, moment_ms, span

#: How many keys are visited in search of a key of sweeperd, and how many in one call.
VISITED, PAGE = 10_000, 1_000
WARNING = "no reservation, budget or index entry here: right database and prefix?"
#: The warning of the relay if `cycles.dispatch_backlog` is reached.
WAITS = "waits for the dispatcher of Cycles"

#: The window of a rate, seconds, and the most events that are counted. If there are more events, the window is shorter.
WINDOW, COUNTED = 60.0, 2000
_RATE = Script("ops/rate")


#: How many dead letters are counted, and how many in one call.
LETTERS, LETTERS_PAGE = 10_000, 500
_LETTERS = Script("ops/letters")


#: How many due entries are explained; if there are more, a sample of this size, evenly spread.
SAMPLE = 200


def is_empty(shard: Shard, settings: Settings) -> bool:
    """
    Whether there is neither an index entry nor an event, and no reservation or budget among the first VISITED keys.
    False if the user may not run SCAN. Raises redis.RedisError.
    """
    keys, client = shard.keys, shard.client
    indexes = [keys.kind_index(kind.index) for kind in settings.kinds]
    if settings.reservations.enabled:
        indexes.append(keys.reservation_index)
    if client.exists(*indexes, keys.events):
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
class Rate:
    """Events per second, over the last `window_seconds`; 0.0 seconds if nothing is known."""

    per_second: float = 0.0
    window_seconds: float = WINDOW

    @property
    def known(self) -> float | None:
        """Events per second; None if nothing is known."""
        return self.per_second if self.window_seconds else None

    def seconds_for(self, waiting: int) -> float | None:
        """How long `waiting` events take at this rate, seconds; None if events wait and the rate is 0."""
        if not waiting:
            return 0.0
        return round(waiting / self.per_second, 1) if self.per_second else None


#: The rate if nothing was measured.
UNKNOWN = Rate(0.0, 0.0)


def read_rate(shard: Shard) -> Rate:
    """
    The rate of expiries up to now. Each event has the time of its expiry on Redis's clock, so the rate is right
    during a long tick and afterwards, and each process reads the same rate. The script reads the clock after the
    newest event: during a drain, thousands of events may be newer than a clock that was read before. UNKNOWN if the
    clock was set back. Raises redis.RedisError.
    """
    call = Call([shard.keys.events], [int(WINDOW * 1000), COUNTED])
    read, expiries, since_oldest = _RATE.run(shard.client, call)
    window = WINDOW if read < COUNTED else since_oldest / 1000
    return Rate(round(expiries / window, 2), round(window, 3)) if window > 0 else UNKNOWN


class ReplayDocument(Document):
    since: Moment = Field(validation_alias="since_ms")
    until: Moment = Field(validation_alias="until_ms")
    tenant: str | None
    event_type: str | None
    began_at: Moment = Field(validation_alias="made_at")
    running_seconds: Count
    events: Count
    left: Count = Field(description="How many are not done yet, about: not delivered, and no dead letter.")


class ReplicaDocument(Document):
    process: str
    circuit_open: bool
    failures: Count
    failure: str = Field(validation_alias="reason")
    rate: Seconds | None = Field(description="Events delivered a second by this process; null if not known.")
    delivered_at: Moment | None = Field(description="Its last delivery.")

    @classmethod
    def of(cls, note: CircuitNote) -> "ReplicaDocument":
        rate, delivered_at = note.rate if note.rate_window else None, note.delivered_at or None
        return cls.made_of(note, circuit_open=note.probe_at > 0, rate=rate, delivered_at=delivered_at)


class EndpointFigures(Document):
    """The fields of an endpoint on a shard that `status` and `endpoints list` share."""

    endpoint: str
    state: str = Field(
        description="delivering, open (its circuit), paused, muted, group (of another program, named by "
        "events.groups), or unknown to the configuration."
    )
    configured: bool
    pending: Count | None = Field(
        description="Events that the endpoint has not acknowledged; null: it has no consumer group, so nobody knows."
    )
    pending_exact: bool = Field(description="False: pending is an estimate.")
    oldest_pending_seconds: Seconds
    paused_at: Moment | None
    muted_until: Moment | None = Field(description="Until when the receiver asked to be left alone (Retry-After).")
    open_on: Count = Field(description="How many processes have an open circuit.")
    processes: Count = Field(description="How many processes deliver to it.")
    failures: Count = Field(description="How many deliveries failed in a row.")
    failure: str = Field(description="Why the last delivery failed, while a circuit is open.")
    warning: str = Field(
        description="What its events wait for although it takes events, or why not all of them will be delivered; "
        "empty: nothing."
    )
    falling_behind: bool = Field(
        description="Whether what is pending takes longer than webhooks.max_age at this rate, so that some become dead "
        "letters."
    )
    dead_letters: Count
    rate: Seconds | None = Field(description="Events delivered a second by all processes; null if not known.")
    rate_window_seconds: Seconds = Field(description="The time over which the rate was measured.")
    empty_in_seconds: Seconds | None = Field(
        description="How long it takes at this rate to deliver what is pending now; null if nothing is delivered."
    )


class EndpointDocument(EndpointFigures):
    position: str | None = Field(description="The stream id up to which the endpoint has taken events.")
    paused_reason: str
    muted_seconds: Seconds = Field(description="How long muted_until is from now.")
    circuit_open: bool
    replay: ReplayDocument | None = Field(description="The replay to it that is running.")
    replicas: list[ReplicaDocument] = Field(
        description="The processes that deliver to it, those with an open circuit first."
    )


def read_endpoints(
    settings: Settings, shard: Shard, now: int, dead_letters: Counter[str], memory: BacklogMemory | None = None
) -> tuple[EndpointDocument, ...]:
    """
    The configured endpoints in order, the groups of other programs, and unknown endpoints with a group or dead letters.
    `now`: ms on Redis's clock. `memory`: the backlogs of earlier calls. Raises redis.RedisError.
    """
    foreign = settings.events.groups
    groups = {decode(name): info for name, info in streams.groups(shard.client, shard.keys.events).items()}
    known = {endpoint.name: endpoint for endpoint in settings.consumers}
    filters = _filters(shard)
    named = {name for name in groups if not name.startswith(GROUP_PREFIX)}
    unknown = sorted((named | dead_letters.keys()) - known.keys() - set(foreign))

    def backlog(name: str, subscription: Subscription | None = None) -> dict[str, Any]:
        group = groups.get(name)
        found = read_backlog(shard, group, subscription, now, memory=memory)
        return {
            "endpoint": name,
            "position": group["last-delivered-id"].decode() if group else None,
            "pending": found.events if found else None,
            "pending_exact": found.exact if found else True,
            "oldest_pending_seconds": found.oldest_seconds if found else 0.0,
            "dead_letters": dead_letters[name],
        }

    return (
        *(
            _configured(settings, shard, each, now, backlog(name, Subscription(each)), filters.difference(name, now))
            for name, each in known.items()
        ),
        *(_endpoint(backlog(name) | {"dead_letters": 0}, now, "group") for name in foreign),
        *(_endpoint(backlog(name), now, "unknown") for name in unknown),
    )


def count_dead_letters(shard: Shard) -> Counter[str]:
    """Endpoint -> how many of the oldest LETTERS dead letters are of this endpoint. Raises redis.RedisError."""
    counts, first = Counter[str](), streams.FIRST
    for _ in range(0, LETTERS, LETTERS_PAGE):
        reply = _LETTERS.run(shard.client, Call([shard.keys.dead_letters], [first, LETTERS_PAGE]))
        if not reply:
            break
        first = streams.after(reply[0])
        for endpoint, count in zip(reply[1::2], reply[2::2], strict=True):
            counts[decode(endpoint)] += count
        if sum(reply[2::2]) < LETTERS_PAGE:
            break
    return counts


def _configured(
    settings: Settings, shard: Shard, endpoint: EndpointSettings, now: int, backlog: dict[str, Any], difference: str
) -> EndpointDocument:
    """
    With a warning if the endpoint falls behind: what waits takes longer than `webhooks.max_age`. The relay never gives
    an event up. `difference`: how the filters of the processes differ.
    """
    name, longest = endpoint.name, settings.webhooks.max_age.total_seconds()
    waits = name == RELAY.name and shard.client.hget(shard.keys.relay, "waiting")
    found = _endpoint(
        backlog,
        now,
        board=EndpointStateStore(shard).read(name),
        circuit=CircuitStateStore(shard).read(name),
        warning="; ".join(filter(None, [WAITS if waits else "", difference])),
        replay=_replay(shard, name, now),
    )
    needed = found.empty_in_seconds
    if name == RELAY.name or needed is None or needed <= longest:
        return found
    batches = f", in batches of up to {endpoint.batch_size}" if endpoint.batch_size > 1 else ""
    needs = f"falls behind: what waits takes {span(needed)} at this rate{batches}, max_age is {span(longest)}"
    warning = "; ".join(filter(None, [needs, found.warning]))
    return found.model_copy(update={"falling_behind": True, "warning": warning})


def _endpoint(
    backlog: dict[str, Any],
    now: int,
    state: str = "",
    board: EndpointState | None = None,
    circuit: CircuitState | None = None,
    warning: str = "",
    replay: ReplayDocument | None = None,
) -> EndpointDocument:
    """`backlog`: the fields about group and dead letters. `state`: of a name that is not in the settings."""
    board, circuit = board or EndpointState(), circuit or CircuitState()
    rate, pending = Rate(circuit.rate, circuit.rate_window), backlog["pending"]
    muted, paused = max(0.0, (board.muted_until - now) / 1000), board.paused_at is not None
    usual = "paused" if paused else "open" if circuit.open else "muted" if muted else "delivering"
    return EndpointDocument(
        **backlog,
        state=state or usual,
        configured=state != "unknown",
        paused_at=board.paused_at,
        paused_reason=board.reason,
        muted_until=board.muted_until or None,
        muted_seconds=muted,
        circuit_open=circuit.open,
        open_on=circuit.open_on,
        processes=circuit.processes,
        failures=circuit.failures,
        failure=circuit.reason,
        warning=warning,
        falling_behind=False,
        rate=rate.known,
        rate_window_seconds=rate.window_seconds,
        empty_in_seconds=None if pending is None or (pending and paused) else rate.seconds_for(pending),
        replay=replay,
        replicas=[ReplicaDocument.of(note) for note in circuit.notes],
    )


def _filters(shard: Shard) -> LivingFilters:
    try:
        return read_filters(shard)
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return LivingFilters()


def _replay(shard: Shard, endpoint: str, now: int) -> ReplayDocument | None:
    note = ReplayStore(shard).read(endpoint)
    if note is None or note.cancelled:
        return None
    left, running = ReplayStore(shard).progress(note).left, max(0, now - note.made_at) // 1000
    return ReplayDocument.made_of(note, left=left, running_seconds=running)


@dataclass(frozen=True, slots=True)
class Due:
    """Entries whose deadline has passed, by the index."""

    # The index does not say whether the grace has passed too, so expire.lua is asked about each entry, or about a
    # sample if there are many.
    entries: Count = 0
    #: Entries that a sweep would leave in the index, because a late commit is still accepted.
    in_grace: Count = 0
    #: All other entries: a sweep would act on them now.
    overdue: Count = 0
    exact: Annotated[bool, Field(description="Whether in_grace and overdue are counted, not estimated.")] = True
    #: Since the deadline of the oldest entry, in grace or not, seconds.
    oldest_seconds: Seconds = 0.0
    #: Since the end of the grace of the oldest overdue entry in the sample, seconds.
    oldest_overdue_seconds: Seconds = 0.0


class WalkDocument(Document):
    """The last complete walk of reconcile."""

    finished_at: Moment
    findings: Count = Field(validation_alias="total")
    found: dict[str, Count]
    foreign_expiries: Count


class KindDocument(Document):
    kind: str
    due: Count = Field(description="Entries whose deadline has passed, by the index.")
    oldest_due_seconds: float
    quarantined: Count
    protected: Count = Field(description="Overdue entries that `unless` protects from their expiry.")
    oldest_protected_seconds: Seconds = Field(description="How long ago the grace of the oldest of them ended.")
    proven: bool = Field(description="Whether an entry of the kind was seen alive under these settings.")
    held: Count = Field(description="Due entries that stay in the index because the kind is unproven.")
    held_because: str = Field(description="The likely cause; empty if nothing is held.")
    tick: LastSweep | None = Field(description="null before the first sweep.")
    sweeping: str = Field(
        description="Host, process id and a random part of the process that sweeps now; empty if none does."
    )
    last_walk: WalkDocument | None = Field(description="The last daily walk over this kind; null before the first.")


class AcceptedKind(Document):
    shard: str
    accepted: bool = Field(description="false if the kind was proven already.")
    held: Count = Field(description="How many entries the next tick releases, as of the last tick.")


class KindAcceptDocument(CommandDocument, title="sweeperd kinds accept --json"):
    kind: str
    shards: list[AcceptedKind]
    down: Down


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard. If `error` is not empty, Redis did not answer, and all other fields mean nothing."""

    name: str
    #: The address of Redis, without credentials.
    address: str
    error: str = ""
    #: When the status was read, ms on Redis's clock.
    now_ms: int = 0
    due: Due = Due()
    quarantined: int = 0
    #: The last tick; None before the first.
    tick: LastSweep | None = None
    #: Host, process id and a random part of the process that sweeps now; empty if no process sweeps.
    sweeping: str = ""
    #: The configured kinds. The fields about sweep and walk above and below are about reservations.
    kinds: tuple[KindDocument, ...] = ()
    endpoints: tuple[EndpointDocument, ...] = ()
    #: All dead letters. The dead letters of each endpoint are counted up to LETTERS, from the oldest on.
    dead_letters: int = 0
    dead_letters_counted: bool = True
    #: How fast entries expire.
    rate: Rate = field(default_factory=Rate)
    #: The last complete walk over all reservations; None before the first.
    last_walk: WalkDocument | None = None
    #: The daemons that run on the shard.
    processes: Processes = field(default_factory=Processes)
    #: Read only if asked for.
    details: Details = field(default_factory=Details)
    #: Whether there is no key of sweeperd: perhaps the database or the prefix is wrong.
    empty: bool = False

    @property
    def reachable(self) -> bool:
        return not self.error

    @property
    def tick_age_seconds(self) -> float | None:
        """Since the last tick ended."""
        return None if self.tick is None else self.tick.age_seconds(self.now_ms)

    @property
    def empty_in_seconds(self) -> float | None:
        """The time to expire the overdue entries at this rate, seconds; None if nothing expires."""
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
    Read one shard. If Redis cannot be worked with, the status has an error, and nothing is raised. `sample`: how many
    due entries are explained at most. `detailed`: also the details for the status page. `memory`: the backlogs of
    earlier calls.
    """
    try:
        with shard.reaching():
            status = _read(settings, shard, sample, memory)
            return replace(status, details=read_details(settings, shard)) if detailed else status
    except (RedisUnavailable, redis.RedisError) as error:  # a key of another type, say
        return ShardStatus(shard.name, shard.address, describe(error).removeprefix(f"{shard.address}: "))


def read_all(settings: Settings, shards: Sequence[Shard]) -> list[ShardStatus]:
    """Read all shards at the same time, so that a shard that does not answer delays no other shard."""
    with ThreadPoolExecutor(len(shards), thread_name_prefix="status") as pool:
        return list(pool.map(lambda shard: read_status(settings, shard), shards))


def _read(settings: Settings, shard: Shard, sample: int, memory: BacklogMemory | None) -> ShardStatus:
    now = shard.read_clock()
    kinds = kinds_of(settings, shard)
    read = {name: _kind(shard, kind, now) for name, kind in kinds.items()}
    dead_letters = int(shard.client.xlen(shard.keys.dead_letters))
    by_endpoint = count_dead_letters(shard) if dead_letters else Counter[str]()
    built_in = read.pop(RESERVATIONS, None)
    due = (
        _due(shard, kinds[RESERVATIONS], settings.sweep.pipeline_depth, now, built_in.due, sample)
        if built_in
        else Due()
    )
    return ShardStatus(
        shard.name,
        shard.address,
        now_ms=now,
        due=due,
        quarantined=built_in.quarantined if built_in else 0,
        tick=built_in.tick if built_in else None,
        sweeping=built_in.sweeping if built_in else "",
        kinds=tuple(read.values()),
        endpoints=read_endpoints(settings, shard, now, by_endpoint, memory),
        dead_letters=dead_letters,
        dead_letters_counted=dead_letters <= LETTERS,
        rate=read_rate(shard),
        last_walk=built_in.last_walk if built_in else None,
        processes=read_processes(shard, now),
        empty=not (built_in and built_in.due) and is_empty(shard, settings),
    )


def _kind(shard: Shard, kind: Kind, now: int) -> KindDocument:
    return KindDocument.made_of(
        read_index_backlog(shard, kind, now),
        kind=kind.name,
        tick=read_last_sweep(shard, kind),
        sweeping=holder(shard, kind.lease_job),
        last_walk=WalkStore(shard, kind.walk_suffix).last(),
    )


def _due(shard: Shard, kind: Kind, batch: int, now: int, due: int, sample: int) -> Due:
    if not due:
        return Due()
    entries = spread(shard, kind.index, due, sample)
    if not entries:
        return Due()  # all entries were swept meanwhile
    explanations = explain(shard, kind, [entry for entry, _ in entries], batch)
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
