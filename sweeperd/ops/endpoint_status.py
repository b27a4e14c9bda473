"""Reads the status of all endpoints of a shard."""

from collections.abc import Mapping
from typing import Any

import redis
from pydantic import Field

from sweeperd.config import RELAY, EndpointSettings, Settings
from sweeperd.document import Count, Document, Moment, Seconds
from sweeperd.ops.processes import Processes
from sweeperd.ops.rate import Rate
from sweeperd.outbox.backlog import BacklogMemory, read_backlogs
from sweeperd.outbox.circuits import CircuitNote, CircuitState, CircuitStateStore
from sweeperd.outbox.dead_letters import LetterCounts
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.outbox.filters import LivingFilters, read_filters
from sweeperd.outbox.groups import REPLAY_PREFIX
from sweeperd.outbox.replays import ReplayStore
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_refused
from sweeperd.store.shard import Shard
from sweeperd.text import decode, span

#: The warning of the relay if `cycles.dispatch_backlog` is reached.
WAITS = "waits for the dispatcher of Cycles"


class ReplayDocument(Document):
    since: Moment = Field(validation_alias="since_ms")
    until: Moment = Field(validation_alias="until_ms")
    tenant: str | None
    event_type: str | None
    began_at: Moment = Field(validation_alias="made_at")
    running_seconds: Count
    events: Count
    left: Count = Field(description="About how many are left: neither delivered nor a dead letter.")


class ReplicaDocument(Document):
    process: str
    circuit_open: bool
    failures: Count
    failure: str = Field(validation_alias="reason")
    rate: Seconds | None = Field(description="Events per second that this process delivers; null if unknown.")
    delivered_at: Moment | None = Field(description="Its last delivery.")

    @classmethod
    def of(cls, note: CircuitNote) -> "ReplicaDocument":
        rate, delivered_at = note.rate if note.rate_window else None, note.delivered_at or None
        return cls.made_of(note, circuit_open=note.probe_at > 0, rate=rate, delivered_at=delivered_at)


class EndpointDocument(Document):
    endpoint: str
    state: str = Field(
        description="delivering, stopped (no process delivers), open (its circuit), paused, muted, group (of another "
        "program, named by events.groups), or unknown to the configuration."
    )
    configured: bool
    pending: Count | None = Field(description="Unacknowledged events; null without a consumer group.")
    pending_exact: bool = Field(description="False if pending is an estimate.")
    oldest_pending_seconds: Seconds
    paused_at: Moment | None
    muted_until: Moment | None = Field(description="Until when the receiver wants no requests (Retry-After).")
    open_on: Count = Field(description="How many processes have an open circuit.")
    processes: Count = Field(description="How many processes deliver to it.")
    failures: Count = Field(description="How many deliveries failed in a row.")
    failure: str = Field(description="Why the last delivery failed, while a circuit is open.")
    warning: str = Field(description="Why events wait although it is delivering, or why some will be lost.")
    falling_behind: bool = Field(description="Whether the backlog takes longer than max_age at this rate.")
    dead_letters: Count
    dead_letters_counted: bool = Field(description="False if there may be more than these.")
    rate: Seconds | None = Field(description="Events per second that all processes deliver; null if unknown.")
    rate_window_seconds: Seconds = Field(description="The time over which the rate was measured.")
    empty_in_seconds: Seconds | None = Field(description="How long the backlog takes at this rate; null: forever.")
    position: str | None = Field(description="The stream id up to which the endpoint has taken events.")
    paused_reason: str
    muted_seconds: Seconds = Field(description="How long muted_until is from now.")
    circuit_open: bool
    replay: ReplayDocument | None = Field(description="The replay that is running.")
    replicas: list[ReplicaDocument] = Field(description="The delivering processes, open circuits first.")

    @property
    def stalled(self) -> bool:
        """Whether Redis refuses to a process what its deliveries need."""
        return any(each.failure and not each.circuit_open for each in self.replicas)


def read_endpoints(
    settings: Settings,
    shard: Shard,
    now: int,
    letters: LetterCounts,
    processes: Processes,
    memory: BacklogMemory | None = None,
) -> tuple[EndpointDocument, ...]:
    """
    The configured endpoints in order, the groups of other programs, and unknown endpoints with a group, a replay or
    dead letters. `now`: ms on Redis's clock. `memory`: the backlogs of earlier calls. Few commands are sent, whatever
    the number of endpoints.
    """
    groups = streams.groups(shard.client, shard.keys.events)
    known, foreign = {endpoint.name: endpoint for endpoint in settings.consumers}, settings.events.groups
    named = {name for name in map(decode, groups) if not name.startswith(REPLAY_PREFIX)}
    replays, filters = _replays(shard, groups, now), _filters(shard)
    unknown = (named | letters.by_endpoint.keys() | replays.keys()) - known.keys() - set(foreign)
    names = [*known, *foreign, *sorted(unknown)]
    rows = [groups.get(name.encode()) for name in names]
    subscriptions = [Subscription(known[name]) if name in known else None for name in names]
    backlogs = read_backlogs(shard, list(zip(rows, subscriptions, strict=True)), now, memory=memory)
    states, circuits = EndpointStateStore(shard).read_all(), CircuitStateStore(shard).read_all()
    stopped = "delivers" in processes.missing
    waits = RELAY.name in known and shard.client.hget(shard.keys.relay, "waiting")
    found = []
    for place, (name, row, backlog) in enumerate(zip(names, rows, backlogs, strict=True)):
        figures = {
            "endpoint": name,
            "position": row["last-delivered-id"].decode() if row else None,
            "pending": backlog.events if backlog else None,
            "pending_exact": backlog.exact if backlog else True,
            "oldest_pending_seconds": backlog.oldest_seconds if backlog else 0.0,
            "dead_letters": letters.by_endpoint[name],
            "dead_letters_counted": letters.complete,
        }
        if place >= len(known):
            is_foreign = place < len(known) + len(foreign)
            figures |= {"dead_letters": 0, "dead_letters_counted": True} if is_foreign else {}
            replay = None if is_foreign else replays.get(name)
            found.append(_endpoint(figures, now, "group" if is_foreign else "unknown", replay=replay))
            continue
        state, circuit = states.get(name, EndpointState()), circuits.get(name, CircuitState())
        warnings = [WAITS if name == RELAY.name and waits else "", circuit.stalled, filters.difference(name, now)]
        endpoint = _endpoint(figures, now, "", state, circuit, "; ".join(filter(None, warnings)), replays.get(name))
        if (stopped or not circuit.processes) and endpoint.state == "delivering":
            endpoint = endpoint.model_copy(update={"state": "stopped"})
        found.append(_with_outlook(settings, known[name], endpoint))
    return tuple(found)


def _with_outlook(settings: Settings, endpoint: EndpointSettings, status: EndpointDocument) -> EndpointDocument:
    """With a warning if its backlog takes longer than max_age. The relay never gives up."""
    needed, longest = status.empty_in_seconds, settings.webhooks.of(endpoint).max_age.total_seconds()
    if endpoint.name == RELAY.name or needed is None or needed <= longest:
        return status
    batches = f", in batches of up to {endpoint.batch_size}" if endpoint.batch_size > 1 else ""
    needs = f"falls behind: its backlog takes {span(needed)} at this rate{batches}, max_age is {span(longest)}"
    warning = "; ".join(filter(None, [needs, status.warning]))
    return status.model_copy(update={"falling_behind": True, "warning": warning})


def _endpoint(
    figures: dict[str, Any],
    now: int,
    label: str,
    state: EndpointState = EndpointState(),  # noqa: B008 - frozen
    circuit: CircuitState = CircuitState(),  # noqa: B008 - frozen
    warning: str = "",
    replay: ReplayDocument | None = None,
) -> EndpointDocument:
    """`figures`: the fields about group and dead letters. `label`: the state of a name that is not in the settings."""
    rate, pending = Rate(circuit.rate, circuit.rate_window), figures["pending"]
    muted = max(0.0, (state.muted_until - now) / 1000)
    usual = "paused" if state.paused else "open" if circuit.open else "muted" if muted else "delivering"
    return EndpointDocument(
        **figures,
        state=label or usual,
        configured=label != "unknown",
        paused_at=state.paused_at,
        paused_reason=state.reason,
        muted_until=state.muted_until or None,
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
        empty_in_seconds=None if pending is None or (pending and state.paused) else rate.seconds_for(pending),
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


def _replays(shard: Shard, groups: Mapping[bytes, Any], now: int) -> dict[str, ReplayDocument]:
    store, found = ReplayStore(shard), dict[str, ReplayDocument]()
    for endpoint, note in store.all().items():
        if not note.cancelled:
            left, running = store.progress(note, groups).left, max(0, now - note.made_at) // 1000
            found[endpoint] = ReplayDocument.made_of(note, left=left, running_seconds=running)
    return found
