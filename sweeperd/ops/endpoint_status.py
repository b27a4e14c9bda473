"""The state and the backlog of each endpoint of a shard, for `status` and `endpoints list`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeperd.config import EndpointSettings
from sweeperd.delivery.backlog import BacklogMemory, GroupBacklog, read_backlog
from sweeperd.delivery.endpoint_state import CircuitNote, CircuitStateStore, EndpointStateStore
from sweeperd.delivery.replay import GROUP_PREFIX
from sweeperd.delivery.subscription import Subscription
from sweeperd.ops import replay
from sweeperd.ops.rate import UNKNOWN, Rate
from sweeperd.store import streams
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: How many dead letters are counted, and how many of them in one call.
LETTERS, LETTERS_PAGE = 10_000, 500


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """A replay that has begun and not ended. Times are ms on Redis's clock."""

    since_ms: int
    until_ms: int
    tenant: str | None
    event_type: str | None
    began_at_ms: int
    events: int
    #: How many of them are not done yet, about: not delivered, and no dead letter.
    left: int


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint on one shard. Times are ms on Redis's clock."""

    name: str
    #: False for one that is not in the configuration, and has a group or dead letters.
    configured: bool = True
    #: The last event that its group has taken; None where there is no group.
    position: str | None = None
    #: Events that are to be sent to it. Events that it does not want are left out. Not exact: an estimate. None: there
    #: is no group, because it was not made yet or is lost, so nobody knows.
    pending: int | None = None
    pending_exact: bool = True
    #: Age of the oldest event that it has not acknowledged, seconds.
    oldest_pending_seconds: float = 0.0
    #: Since when it is paused, and why.
    paused_at_ms: int | None = None
    paused_reason: str = ""
    #: How long nothing is sent because the receiver asked for it, seconds from now, and until when.
    quiet_seconds: float = 0.0
    muted_until_ms: int | None = None
    #: Whether a circuit is open, how many deliveries failed in a row, and why the last one did.
    circuit_open: bool = False
    #: How many of the processes that deliver to it have an open circuit.
    open_on: int = 0
    processes: int = 0
    failures: int = 0
    failure: str = ""
    dead_letters: int = 0
    #: The replay to it that is running.
    replay: ReplayStatus | None = None
    #: Events delivered per second by all processes.
    rate: Rate = UNKNOWN
    #: The processes that deliver to it, those with an open circuit first.
    replicas: tuple[CircuitNote, ...] = ()

    @property
    def state(self) -> str:
        """`paused`, `failing` (its circuit is open), `quiet`, `open`; `unknown` to the configuration."""
        if not self.configured:
            return "unknown"
        if self.paused_at_ms is not None:
            return "paused"
        if self.circuit_open:
            return "failing"
        return "quiet" if self.quiet_seconds else "open"

    @property
    def empty_in_seconds(self) -> float | None:
        """How long it takes at this rate to deliver the events that wait now. None where nothing is delivered."""
        if self.pending is None or (self.pending and self.paused_at_ms is not None):
            return None
        return self.rate.seconds_for(self.pending)


def read_endpoints(
    shard: Shard,
    endpoints: Sequence[EndpointSettings],
    now: int,
    dead_letters: Counter[str],
    memory: BacklogMemory | None = None,
) -> tuple[EndpointStatus, ...]:
    """
    The configured endpoints in their order, then unknown ones that have a group or dead letters. `now` is the shard's
    clock, ms. `memory`: of the backlogs of earlier calls. Raises redis.RedisError.
    """
    groups = {decode(name): info for name, info in streams.groups(shard.client, shard.keys.events).items()}
    known = {endpoint.name: endpoint for endpoint in endpoints}
    named = {name for name in groups if not name.startswith(GROUP_PREFIX)}
    unknown = sorted((named | dead_letters.keys()) - known.keys())
    return (
        *(_configured(shard, each, groups.get(name), now, dead_letters[name], memory) for name, each in known.items()),
        *(_unknown(shard, name, groups.get(name), now, dead_letters[name], memory) for name in unknown),
    )


def count_dead_letters(shard: Shard) -> Counter[str]:
    """How many each endpoint has, among the oldest LETTERS. Raises redis.RedisError."""
    script, counts, first = Script("ops/letters"), Counter[str](), streams.FIRST
    for _ in range(0, LETTERS, LETTERS_PAGE):
        reply = script.run(shard.client, Call([shard.keys.dead_letters], [first, LETTERS_PAGE]))
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
    return EndpointStatus(
        name,
        **_backlog(group, read_backlog(shard, group, Subscription(endpoint), now, memory=memory)),
        paused_at_ms=state.paused_at,
        paused_reason=state.reason,
        quiet_seconds=max(0.0, (state.muted_until - now) / 1000),
        muted_until_ms=state.muted_until or None,
        circuit_open=circuit.open,
        open_on=circuit.open_on,
        processes=circuit.processes,
        failures=circuit.failures,
        failure=circuit.reason,
        dead_letters=dead_letters,
        replay=_replay(shard, name),
        rate=Rate(circuit.rate, circuit.rate_window),
        replicas=circuit.notes,
    )


def _replay(shard: Shard, endpoint: str) -> ReplayStatus | None:
    note = replay.running(shard, endpoint)
    if note is None or note.cancelled:
        return None
    times = note.since_ms, note.until_ms
    left = replay.progress(shard, note).left
    return ReplayStatus(*times, note.tenant, note.event_type, note.made_at, note.events, left)


def _unknown(
    shard: Shard, name: str, group: dict[str, Any] | None, now: int, dead_letters: int, memory: BacklogMemory | None
) -> EndpointStatus:
    found = _backlog(group, read_backlog(shard, group, None, now, memory=memory))
    return EndpointStatus(name, False, dead_letters=dead_letters, **found)


def _backlog(group: dict[str, Any] | None, backlog: GroupBacklog | None) -> dict[str, Any]:
    """The fields of an EndpointStatus that are about its group."""
    if group is None or backlog is None:
        return {}
    return {
        "position": group["last-delivered-id"].decode(),
        "pending": backlog.events,
        "pending_exact": backlog.exact,
        "oldest_pending_seconds": backlog.oldest_seconds,
    }
