"""
Are we keeping up, is anyone not getting their events, is something set aside?

Everything is read from Redis, so whoever asks gets the answer for all replicas. Reading changes nothing, needs no right
that the daemon does not have, and costs the same whatever the backlog.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import redis

from sweeperd.config import Settings, SweepSettings
from sweeperd.delivery.endpoint_state import CircuitStateStore, EndpointStateStore
from sweeperd.delivery.outbox import Outbox
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.explain import explain
from sweeperd.store.errors import describe
from sweeperd.store.lease import holder
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Outcome
from sweeperd.sweep.last_sweep import LastSweep, read_last_sweep
from sweeperd.text import decode

#: How many due entries are looked into; where there are more, so many of them, evenly spread.
SAMPLE = 200
#: How many dead letters are looked at, and how many of them in one go.
LETTERS, LETTERS_PAGE = 10_000, 500


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
class EndpointStatus:
    """One endpoint on one shard."""

    name: str
    #: False for one that is not in the configuration (any more) and has dead letters.
    configured: bool = True
    #: Events that it has not acknowledged, and since when the oldest of them has been there.
    pending: int = 0
    oldest_pending_seconds: float = 0.0
    #: Since when it is paused, ms on Redis's clock, and why.
    paused_at_ms: int | None = None
    paused_reason: str = ""
    #: For how long the receiver asked to be left alone, seconds from now.
    quiet_seconds: float = 0.0
    #: Whether a process holds its events back because hand-overs fail, how many failed in a row, and the last reason.
    circuit_open: bool = False
    failures: int = 0
    failure: str = ""
    dead_letters: int = 0

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
    #: Host and process id of who sweeps at this moment; empty where nobody does.
    sweeping: str = ""
    endpoints: tuple[EndpointStatus, ...] = ()
    #: All dead letters; those of each endpoint are counted up to LETTERS, from the oldest on.
    dead_letters: int = 0
    dead_letters_counted: bool = True

    @property
    def reachable(self) -> bool:
        """Whether Redis answered."""
        return not self.error

    @property
    def tick_age_seconds(self) -> float | None:
        """Since the last tick ended."""
        return None if self.tick is None else max(0.0, (self.now_ms - self.tick.at_ms) / 1000)

    @property
    def rate(self) -> float | None:
        """
        How many expired a second, over the last one to two minutes. For any other span take two readings of
        `tick.expired` and the `now_ms` beside them.
        """
        return None if self.tick is None else self.tick.rate(self.now_ms)


def read_status(settings: Settings, shard: Shard, sample: int = SAMPLE) -> ShardStatus:
    """
    One shard as it is now. It does not raise where Redis cannot be worked with: that is part of the answer.
    `sample`: how many due entries may be looked into.
    """
    try:
        with shard.reaching():
            return _read(settings, shard, sample)
    except RedisUnavailable as error:
        return ShardStatus(shard.name, shard.address, str(error).removeprefix(f"{shard.address}: "))
    except redis.RedisError as error:  # a key of another type, say
        return ShardStatus(shard.name, shard.address, describe(error))


def read_all(settings: Settings, shards: Sequence[Shard]) -> list[ShardStatus]:
    """All of these shards at the same time, so that one that does not answer delays no other's answer."""
    with ThreadPoolExecutor(len(shards), thread_name_prefix="status") as pool:
        return list(pool.map(lambda shard: read_status(settings, shard), shards))


def _read(settings: Settings, shard: Shard, sample: int) -> ShardStatus:
    now = shard.read_clock()
    keys = shard.keys
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.zcount(keys.reservation_index, "-inf", now)
    pipeline.zcard(keys.quarantine)
    pipeline.xlen(keys.dead_letters)
    due, quarantined, dead_letters = pipeline.execute()
    by_endpoint = _dead_letters(shard) if dead_letters else Counter()
    return ShardStatus(
        shard.name,
        shard.address,
        now_ms=now,
        due=_due(shard, settings.sweep, now, due, sample),
        quarantined=quarantined,
        tick=read_last_sweep(shard),
        sweeping=holder(shard, "sweep"),
        endpoints=_endpoints(settings, shard, now, by_endpoint),
        dead_letters=dead_letters,
        dead_letters_counted=dead_letters <= LETTERS,
    )


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
            oldest_overdue = max(oldest_overdue, (now - score) / 1000)
    exact = due <= sample
    if exact:
        due = len(entries)
    in_grace = round(in_grace * due / len(entries))
    return Due(due, in_grace, due - in_grace, exact, max(0.0, (now - entries[0][1]) / 1000), oldest_overdue)


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


def _dead_letters(shard: Shard) -> Counter[str]:
    """How many each endpoint has, of the oldest LETTERS."""
    script, counts, first = Script("ops/letters"), Counter[str](), b"-"
    for _ in range(0, LETTERS, LETTERS_PAGE):
        reply = script.run(shard.client, Call([shard.keys.dead_letters], [first, LETTERS_PAGE]))
        if not reply:
            break
        first = b"(" + reply[0]
        for endpoint, count in zip(reply[1::2], reply[2::2], strict=True):
            counts[decode(endpoint)] += count
        if sum(reply[2::2]) < LETTERS_PAGE:
            break
    return counts


def _endpoints(settings: Settings, shard: Shard, now: int, dead_letters: Counter[str]) -> tuple[EndpointStatus, ...]:
    stream, board, circuits = Outbox(shard, "operator"), EndpointStateStore(shard), CircuitStateStore(shard)
    found = []
    for endpoint in settings.consumers:
        name = endpoint.name
        backlog, state, circuit = stream.backlog(name), board.read(name), circuits.read(name)
        found.append(
            EndpointStatus(
                name,
                pending=backlog.events,
                oldest_pending_seconds=backlog.oldest_seconds,
                paused_at_ms=state.paused_at,
                paused_reason=state.reason,
                quiet_seconds=max(0.0, (state.muted_until - now) / 1000),
                circuit_open=circuit.open,
                failures=circuit.failures,
                failure=circuit.reason,
                dead_letters=dead_letters[name],
            )
        )
    known = {endpoint.name for endpoint in found}
    others = sorted(dead_letters.keys() - known)
    return (*found, *(EndpointStatus(name, configured=False, dead_letters=dead_letters[name]) for name in others))
