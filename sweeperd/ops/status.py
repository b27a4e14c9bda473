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
from sweeperd.outbox.endpoint_state import CircuitNote, CircuitStateStore, EndpointStateStore
from sweeperd.outbox.filters import LivingFilters, read_filters
from sweeperd.outbox.replays import GROUP_PREFIX, ReplayStore
from sweeperd.outbox.subscription import BacklogMemory, GroupBacklog, Subscription, read_backlog
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
from sweeperd.sweep.sweeper import measured
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


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint on one shard. Times are ms on Redis's clock."""

    name: str
    #: False if the endpoint is not in the configuration, and has a group or dead letters.
    configured: bool = True
    #: Whether this is no endpoint, but a group of another program that `events.groups` names.
    foreign: bool = False
    #: The last event that the group has taken; None if there is no group.
    position: str | None = None
    #: Events to be sent to the endpoint, without events of other subscriptions. Not exact: an estimate. None if not
    #: known, because the group was not made yet or is lost.
    pending: int | None = None
    pending_exact: bool = True
    #: Age of the oldest event without an acknowledgement, seconds.
    oldest_pending_seconds: float = 0.0
    #: Since when the endpoint is paused, and why.
    paused_at_ms: int | None = None
    paused_reason: str = ""
    #: How long nothing is sent, at the request of the receiver: seconds from now, and until when.
    muted_seconds: float = 0.0
    muted_until_ms: int | None = None
    #: Whether a circuit is open, how many deliveries failed in a row, and why the last delivery failed.
    circuit_open: bool = False
    #: On how many processes the circuit is open, and how many processes deliver.
    open_on: int = 0
    processes: int = 0
    failures: int = 0
    failure: str = ""
    dead_letters: int = 0
    #: What the events wait for, although the endpoint takes events, or why not all of these will be delivered.
    warning: str = ""
    #: Whether the waiting events take longer than `webhooks.max_age` at this rate, so that some become dead letters.
    falling_behind: bool = False
    #: The running replay.
    replay: ReplayDocument | None = None
    #: Events delivered per second by all processes.
    rate: Rate = UNKNOWN
    #: The processes that deliver, first the processes with an open circuit.
    replicas: tuple[CircuitNote, ...] = ()

    @property
    def state(self) -> str:
        """
        `delivering`, `open` (the circuit), `paused`, `muted`, `group` (of another program), or `unknown` to the
        configuration.
        """
        if self.foreign:
            return "group"
        if not self.configured:
            return "unknown"
        if self.paused_at_ms is not None:
            return "paused"
        if self.circuit_open:
            return "open"
        return "muted" if self.muted_seconds else "delivering"

    @property
    def empty_in_seconds(self) -> float | None:
        """The time to deliver the waiting events at this rate, seconds; None if nothing is delivered."""
        if self.pending is None or (self.pending and self.paused_at_ms is not None):
            return None
        return self.rate.seconds_for(self.pending)


def read_endpoints(
    settings: Settings, shard: Shard, now: int, dead_letters: Counter[str], memory: BacklogMemory | None = None
) -> tuple[EndpointStatus, ...]:
    """
    The configured endpoints in order, the groups of other programs, and unknown endpoints with a group or dead letters.
    `now`: ms on Redis's clock. `memory`: the backlogs of earlier calls. Raises redis.RedisError.
    """
    foreign, longest = settings.events.groups, settings.webhooks.max_age.total_seconds()
    groups = {decode(name): info for name, info in streams.groups(shard.client, shard.keys.events).items()}
    known = {endpoint.name: endpoint for endpoint in settings.consumers}
    filters = _filters(shard)
    named = {name for name in groups if not name.startswith(GROUP_PREFIX)}
    unknown = sorted((named | dead_letters.keys()) - known.keys() - set(foreign))
    return (
        *(
            _judged(
                each,
                _configured(shard, each, groups.get(name), now, dead_letters[name], memory),
                longest,
                filters.difference(name, now),
            )
            for name, each in known.items()
        ),
        *(
            replace(_unknown(shard, name, groups.get(name), now, 0, memory), configured=True, foreign=True)
            for name in foreign
        ),
        *(_unknown(shard, name, groups.get(name), now, dead_letters[name], memory) for name in unknown),
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
    shard: Shard,
    endpoint: EndpointSettings,
    group: dict[str, Any] | None,
    now: int,
    dead_letters: int,
    memory: BacklogMemory | None,
) -> EndpointStatus:
    name = endpoint.name
    state, circuit = EndpointStateStore(shard).read(name), CircuitStateStore(shard).read(name)
    waits = name == RELAY.name and shard.client.hget(shard.keys.relay, "waiting")
    return EndpointStatus(
        name,
        warning=WAITS if waits else "",
        **_backlog(group, read_backlog(shard, group, Subscription(endpoint), now, memory=memory)),
        paused_at_ms=state.paused_at,
        paused_reason=state.reason,
        muted_seconds=max(0.0, (state.muted_until - now) / 1000),
        muted_until_ms=state.muted_until or None,
        circuit_open=circuit.open,
        open_on=circuit.open_on,
        processes=circuit.processes,
        failures=circuit.failures,
        failure=circuit.reason,
        dead_letters=dead_letters,
        replay=_replay(shard, name, now),
        rate=Rate(circuit.rate, circuit.rate_window),
        replicas=circuit.notes,
    )


def _filters(shard: Shard) -> LivingFilters:
    try:
        return read_filters(shard)
    except redis.RedisError as error:
        if not is_refused(error):
            raise
        return LivingFilters()


def _judged(endpoint: EndpointSettings, status: EndpointStatus, longest: float, difference: str) -> EndpointStatus:
    """
    With a warning if the endpoint falls behind: what waits takes longer than `longest` seconds. The relay never gives
    an event up. `difference`: how the filters of the processes differ.
    """
    status = replace(status, warning="; ".join(filter(None, [status.warning, difference])))
    needed = status.empty_in_seconds
    if endpoint.name == RELAY.name or needed is None or needed <= longest:
        return status
    batches = f", in batches of up to {endpoint.batch_size}" if endpoint.batch_size > 1 else ""
    needs = f"falls behind: what waits takes {span(needed)} at this rate{batches}, max_age is {span(longest)}"
    return replace(status, falling_behind=True, warning="; ".join(filter(None, [needs, status.warning])))


def _replay(shard: Shard, endpoint: str, now: int) -> ReplayDocument | None:
    note = ReplayStore(shard).read(endpoint)
    if note is None or note.cancelled:
        return None
    left, running = ReplayStore(shard).progress(note).left, max(0, now - note.made_at) // 1000
    return ReplayDocument.made_of(note, left=left, running_seconds=running)


def _unknown(
    shard: Shard, name: str, group: dict[str, Any] | None, now: int, dead_letters: int, memory: BacklogMemory | None
) -> EndpointStatus:
    found = _backlog(group, read_backlog(shard, group, None, now, memory=memory))
    return EndpointStatus(name, False, dead_letters=dead_letters, **found)


def _backlog(group: dict[str, Any] | None, backlog: GroupBacklog | None) -> dict[str, Any]:
    """The fields of an EndpointStatus about the group."""
    if group is None or backlog is None:
        return {}
    return {
        "position": group["last-delivered-id"].decode(),
        "pending": backlog.events,
        "pending_exact": backlog.exact,
        "oldest_pending_seconds": backlog.oldest_seconds,
    }


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
    endpoints: tuple[EndpointStatus, ...] = ()
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
        measured(shard, kind, now),
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
