"""Reads the status of all endpoints of a shard."""

from collections import Counter
from typing import Any

import redis
from pydantic import Field

from sweeperd.config import RELAY, EndpointSettings, Settings
from sweeperd.document import Count, Document, Moment, Seconds
from sweeperd.ops.rate import Rate
from sweeperd.outbox.backlog import BacklogMemory, read_backlog
from sweeperd.outbox.circuits import CircuitNote, CircuitState, CircuitStateStore
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.outbox.filters import LivingFilters, read_filters
from sweeperd.outbox.replays import GROUP_PREFIX, ReplayStore
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_refused
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode, span

#: The warning of the relay if `cycles.dispatch_backlog` is reached.
WAITS = "waits for the dispatcher of Cycles"
#: Up to how many dead letters are counted, and how many in one call.
LETTERS, LETTERS_PAGE = 10_000, 500
_LETTERS = Script("ops/letters")


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


class EndpointFigures(Document):
    """What `status` and `endpoints list` both say of an endpoint."""

    endpoint: str
    state: str = Field(
        description="delivering, open (its circuit), paused, muted, group (of another program, named by "
        "events.groups), or unknown to the configuration."
    )
    configured: bool
    pending: Count | None = Field(
        description="Events that the endpoint has not acknowledged; null if it has no consumer group."
    )
    pending_exact: bool = Field(description="False if pending is an estimate.")
    oldest_pending_seconds: Seconds
    paused_at: Moment | None
    muted_until: Moment | None = Field(description="Until when the receiver wants no requests (Retry-After).")
    open_on: Count = Field(description="How many processes have an open circuit.")
    processes: Count = Field(description="How many processes deliver to it.")
    failures: Count = Field(description="How many deliveries failed in a row.")
    failure: str = Field(description="Why the last delivery failed, while a circuit is open.")
    warning: str = Field(
        description="What its events wait for although it is delivering, or why some will be lost; or empty."
    )
    falling_behind: bool = Field(
        description="Whether the backlog takes longer than webhooks.max_age at this rate, so that some events become "
        "dead letters."
    )
    dead_letters: Count
    rate: Seconds | None = Field(description="Events per second that all processes deliver; null if unknown.")
    rate_window_seconds: Seconds = Field(description="The time over which the rate was measured.")
    empty_in_seconds: Seconds | None = Field(
        description="How long the backlog takes at this rate; null if nothing is delivered."
    )


class EndpointDocument(EndpointFigures):
    position: str | None = Field(description="The stream id up to which the endpoint has taken events.")
    paused_reason: str
    muted_seconds: Seconds = Field(description="How long muted_until is from now.")
    circuit_open: bool
    replay: ReplayDocument | None = Field(description="The replay that is running.")
    replicas: list[ReplicaDocument] = Field(
        description="The processes that deliver to it, those with an open circuit first."
    )


def read_endpoints(
    settings: Settings, shard: Shard, now: int, dead_letters: Counter[str], memory: BacklogMemory | None = None
) -> tuple[EndpointDocument, ...]:
    """
    The configured endpoints in order, the groups of other programs, and unknown endpoints with a group or dead letters.
    `now`: ms on Redis's clock. `memory`: the backlogs of earlier calls.
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
    """Endpoint -> how many of the oldest LETTERS dead letters it has."""
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
    """With a warning if it falls behind. `difference`: how the filters of the processes differ."""
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
    if name == RELAY.name or needed is None or needed <= longest:  # the relay never gives up
        return found
    batches = f", in batches of up to {endpoint.batch_size}" if endpoint.batch_size > 1 else ""
    needs = f"falls behind: its backlog takes {span(needed)} at this rate{batches}, max_age is {span(longest)}"
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
    """`backlog`: the fields about group and dead letters. `state`: for a name that is not in the settings."""
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
