"""One tick over one shard: page through the index, have the script decide each entry, report."""

import enum
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.lua import Call, Script, Stream
from sweeperd.shard import Shard, describe, is_server_trouble


class Outcome(enum.StrEnum):
    """What became of one index entry."""

    EXPIRED = "expired"
    SKIPPED = "skipped"
    IN_GRACE = "in_grace"
    NOT_DUE = "not_due"
    NOT_FOUND = "not_found"
    QUARANTINED = "quarantined"
    ERROR = "error"

    @property
    def stays(self) -> bool:
        """Whether the entry is still where it was in the index."""
        return self in (Outcome.IN_GRACE, Outcome.ERROR)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the script decided for one entry."""

    id: bytes
    outcome: Outcome
    #: The state of what was skipped, the reason of a quarantine, the text of an error.
    detail: str = ""
    tenant: bytes = b""
    #: From the moment when it could be expired to the moment when it was, ms.
    lag_ms: int = 0
    #: What should have been given back to, and does not exist.
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """What is swept. The sweep knows ids, an index and a script; everything else about them is in here."""

    name: str
    index: bytes
    quarantine: bytes
    script: Script
    #: (id, trace id) to a run of the script.
    call: Callable[[bytes, str], Call]
    #: (id, the script's reply) to what it decided.
    decision: Callable[[bytes, Any], Decision]


@dataclass(frozen=True)
class SweepReport:
    """One tick in numbers."""

    trace_id: str
    counts: Mapping[Outcome, int]
    #: False where the tick stopped before the end of what was due.
    complete: bool
    duration_seconds: float

    @property
    def candidates(self) -> int:
        """How many entries were decided."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Backlog:
    """What is logically gone and still resident, and what was set aside."""

    due: int
    oldest_due_seconds: float
    quarantined: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where paging through a sorted set goes on: at this score, past this many entries of that score, which stay."""

    score: bytes = b"-inf"
    passed: int = 0

    def after(self, score: bytes, *, stays: bool) -> "Position":
        """Behind an entry of this score, which stays where it is or does not."""
        passed = self.passed if score == self.score else 0
        return Position(score, passed + stays)

    def behind(self, entries: Sequence[tuple[bytes, bytes]]) -> "Position":
        """Behind all of these, which stay."""
        position = self
        for _, score in entries:
            position = position.after(score, stays=True)
        return position


@dataclass
class _Tick:
    """How far a tick is."""

    stream: Stream
    trace_id: str
    position: Position
    counts: Counter[Outcome] = field(default_factory=Counter)
    #: The slices, ids and scores, whose replies have not been read.
    sent: deque[Sequence[tuple[bytes, bytes]]] = field(default_factory=deque)

    def report(self, started: float, *, complete: bool) -> SweepReport:
        return SweepReport(self.trace_id, self.counts, complete, time.monotonic() - started)


class Sweeper:
    """
    Sweeps one kind of thing on one shard.

    `observe` gets the decisions of each slice as soon as they are known. `stop` ends a tick after its current slice.
    """

    def __init__(
        self,
        shard: Shard,
        kind: Kind,
        settings: SweepSettings,
        observe: Callable[[Sequence[Decision], str], None],
        stop: threading.Event,
    ) -> None:
        self._shard = shard
        self._kind = kind
        self._batch_size = settings.batch_size
        # So many calls are on their way at once, in two halves: while Redis runs one, we read and write the other.
        self._ahead = min(2, settings.pipeline_depth)
        self._slice_length = settings.pipeline_depth // self._ahead
        self._time_budget = settings.time_budget.total_seconds()
        self._observe = observe
        self._stop = stop
        self._page = Script("page")
        self._resume = Position()

    def tick(self, give_way: Callable[[], bool] = lambda: False) -> SweepReport:
        """
        Decide every entry that is due by the server's clock at the start of the tick, each once, until the end, the
        time budget or `stop`, or until it is to `give_way` to another replica. The next tick takes up where one that
        was cut short stopped. Memory holds one batch.

        Raises RedisUnavailable. The tick after that goes on behind the slice that failed: should that slice be what
        Redis chokes on, it must not keep the entries behind it from being looked at.
        """
        started = time.monotonic()
        with self._shard.reaching(), self._kind.script.stream(self._shard.client) as stream:
            tick = _Tick(stream, secrets.token_hex(16), self._resume)
            self._resume = Position()
            until = self._shard.read_clock()
            complete = False
            while not complete:
                batch = self._read_page(until, tick.position)
                for entries in _slices(batch, self._slice_length):
                    # At least one slice, or a budget that is too short for a slow server would end every tick at once.
                    spent = tick.counts and time.monotonic() - started > self._time_budget
                    if self._stop.is_set() or give_way() or spent:
                        self._settle(tick, 0)
                        self._resume = tick.position
                        return tick.report(started, complete=False)
                    tick.sent.append(entries)
                    # What Redis choked on is on its way already, and may be noticed only when the next is written.
                    self._resume = tick.position.behind(tick.sent[0])
                    stream.send([self._kind.call(entry, tick.trace_id) for entry, _ in entries])
                    self._settle(tick, self._ahead - 1)
                self._settle(tick, 0)
                complete = len(batch) < self._batch_size
        return tick.report(started, complete=True)

    def backlog(self) -> Backlog:
        """How much is due now, how long the oldest has been, how much is set aside. Raises RedisUnavailable."""
        with self._shard.reaching():
            now = self._shard.read_clock()
            pipeline = self._shard.client.pipeline(transaction=False)
            pipeline.zcount(self._kind.index, "-inf", now)
            pipeline.zrange(self._kind.index, 0, 0, withscores=True)
            pipeline.zcard(self._kind.quarantine)
            due, oldest, quarantined = pipeline.execute()
        age = (now - oldest[0][1]) / 1000 if due else 0.0
        return Backlog(due, age, quarantined)

    def _read_page(self, until: int, position: Position) -> list[tuple[bytes, bytes]]:
        """The next entries, id and score."""
        call = Call([self._kind.index], [until, position.score, position.passed, self._batch_size])
        flat: list[bytes] = self._page.run(self._shard.client, call)
        return list(zip(flat[::2], flat[1::2], strict=True))

    def _settle(self, tick: "_Tick", most: int) -> None:
        """
        Take in the replies to the oldest slices until no more than `most` are on their way. Where the server is in
        trouble, what it did of those behind is taken in as well, before that is raised.
        """
        trouble = None
        while len(tick.sent) > (most if trouble is None else 0):
            entries = tick.sent.popleft()
            if trouble is None:
                self._resume = tick.position.behind(entries)
            decisions = []
            for (entry, _), reply in zip(entries, tick.stream.receive(), strict=True):
                if isinstance(reply, Exception) and is_server_trouble(reply):
                    trouble = reply
                else:
                    decisions.append(self._decision(entry, reply))
            # Before the slice fails as a whole: what was decided in it has happened.
            self._observe(decisions, tick.trace_id)
            tick.counts.update(decision.outcome for decision in decisions)
            if trouble is None:
                for (_, score), decision in zip(entries, decisions, strict=True):
                    tick.position = tick.position.after(score, stays=decision.outcome.stays)
                self._resume = Position()
        if trouble is not None:
            raise trouble

    def _decision(self, entry: bytes, reply: Any) -> Decision:
        if isinstance(reply, Exception):
            return Decision(entry, Outcome.ERROR, describe(reply))
        return self._kind.decision(entry, reply)


def _slices(batch: Sequence[tuple[bytes, bytes]], length: int) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    for start in range(0, len(batch), length):
        yield batch[start : start + length]
