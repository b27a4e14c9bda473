"""One tick over one shard: page through the index, have the script decide each entry, report."""

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.pipeline import ScriptPipeline
from sweeperd.store.shard import Shard
from sweeperd.sweep.batch_size import AdaptiveBatchSize
from sweeperd.sweep.grace_cache import GraceCache
from sweeperd.sweep.index_reader import IndexEntry, IndexPager, Position
from sweeperd.sweep.kind import Backlog, Decision, Kind, Outcome, SweepReport

#: So many entries are looked at, and so many are passed by unlooked at, in the time that it takes to expire one.
LOOKS, SKIPS = 8, 32


@dataclass(frozen=True, slots=True)
class _Slice:
    """Entries whose decisions are asked for in one go, except of those that were seen to be in grace."""

    entries: Sequence[IndexEntry]
    #: Whether the page that they are from was read with a look.
    looked: bool

    @property
    def undecided(self) -> list[bytes]:
        return [entry.id for entry in self.entries if not entry.in_grace]


@dataclass
class _Tick:
    """How far a tick is."""

    stream: ScriptPipeline
    trace_id: str
    position: Position
    counts: Counter[Outcome] = field(default_factory=Counter)
    #: The slices whose replies have not been read.
    sent: deque[_Slice] = field(default_factory=deque)
    #: How many were passed by without a look.
    passed: int = 0

    def pass_by(self, position: Position, entries: int) -> None:
        self.position = position
        self.passed += entries
        self.counts[Outcome.IN_GRACE] += entries


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
        shortest = max(1, settings.pipeline_depth_min // self._ahead)
        slice_micros = settings.batch_time.total_seconds() * 1e6
        self._slice_length = AdaptiveBatchSize(shortest, settings.pipeline_depth // self._ahead, slice_micros)
        self._time_budget = settings.time_budget.total_seconds()
        self._observe = observe
        self._stop = stop
        self._pager = IndexPager(shard, kind.index)
        self._graces = None if kind.grace_scan is None else GraceCache(shard, kind.index, kind.grace_scan)
        #: Whether the last entries were in grace for the most part: to look first is then cheaper. They lie in front.
        self._look_first = True
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
        with self._shard.reaching(), ScriptPipeline(self._kind.script, self._shard.client) as stream:
            tick = _Tick(stream, secrets.token_hex(16), self._resume)
            self._resume = Position()
            until = self._shard.read_clock()
            if self._graces is not None and self._graces.begin():
                self._look_first = True
            complete = False
            while not complete:
                looks = self._graces if self._look_first else None
                if looks is None:
                    batch = self._pager.read(until, tick.position, self._batch_size)
                    last = len(batch) < self._batch_size
                else:
                    position, passed = looks.skip(tick.position, SKIPS * int(self._slice_length))
                    if passed:
                        tick.pass_by(position, passed)
                        if self._is_over(tick, started, give_way):
                            return self._report(tick, started, complete=False)
                        continue
                    most = min(self._batch_size, LOOKS * int(self._slice_length))
                    batch, last = looks.read(until, tick.position, most)
                for entries in self._slices(batch, looks is not None):
                    if self._is_over(tick, started, give_way):
                        return self._report(tick, started, complete=False)
                    self._send(tick, entries)
                    self._settle(tick, 0 if self._slice_length.keeps_distance else self._ahead - 1)
                    if looks is None and self._look_first and self._graces is not None:
                        break  # the rest of the batch is read again, with a look
                else:
                    complete = last
                self._settle(tick, 0)
                if looks is not None:
                    self._look_first = 2 * sum(entry.in_grace for entry in batch) >= len(batch)
        return self._report(tick, started, complete=True)

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

    def _is_over(self, tick: _Tick, started: float, give_way: Callable[[], bool]) -> bool:
        """Whether the tick is to stop here. Then what is on its way is taken in, and the next one goes on behind it."""
        # At least one slice, or a budget that is too short for a slow server would end every tick at once.
        spent = tick.counts and time.monotonic() - started > self._time_budget
        if not (self._stop.is_set() or give_way() or spent):
            return False
        self._settle(tick, 0)
        self._resume = tick.position
        return True

    def _report(self, tick: _Tick, started: float, *, complete: bool) -> SweepReport:
        duration = time.monotonic() - started
        depth = self._ahead * int(self._slice_length)
        return SweepReport(tick.trace_id, tick.counts, complete, duration, tick.passed, depth)

    def _slices(self, batch: Sequence[IndexEntry], looked: bool) -> Iterator[_Slice]:
        """Of as many undecided entries as go in one go at that moment."""
        start = 0
        while start < len(batch):
            end, left = start, int(self._slice_length)
            while end < len(batch) and (left or batch[end].in_grace):
                left -= not batch[end].in_grace
                end += 1
            yield _Slice(batch[start:end], looked)
            start = end

    def _send(self, tick: _Tick, entries: _Slice) -> None:
        tick.sent.append(entries)
        # What Redis choked on is on its way already, and may be noticed only when the next is written.
        self._resume = tick.position.behind_all(tick.sent[0].entries)
        undecided = entries.undecided
        if undecided:
            tick.stream.send([self._kind.call(entry, tick.trace_id) for entry in undecided])

    def _settle(self, tick: _Tick, most: int) -> None:
        """
        Take in the replies to the oldest slices until no more than `most` are on their way. Where the server is in
        trouble, what it did of those behind is taken in as well, before that is raised.
        """
        trouble = None
        while len(tick.sent) > (most if trouble is None else 0):
            part = tick.sent.popleft()
            if trouble is None:
                self._resume = tick.position.behind_all(part.entries)
            replies = iter(self._receive(tick.stream, len(part.undecided)))
            decisions = []
            for entry in part.entries:
                if entry.in_grace:
                    decisions.append(Decision(entry.id, Outcome.IN_GRACE))
                    continue
                reply = next(replies)
                if isinstance(reply, Exception) and is_server_trouble(reply):
                    trouble = reply
                else:
                    decisions.append(self._decision(entry.id, reply))
            # Before the slice fails as a whole: what was decided in it has happened.
            self._observe(decisions, tick.trace_id)
            counts = Counter(decision.outcome for decision in decisions)
            tick.counts.update(counts)
            if trouble is None:
                stays = [decision.outcome.stays for decision in decisions]
                tick.position = tick.position.behind(zip(part.entries, stays, strict=True))
                self._resume = Position()
                if not part.looked:
                    self._look_first = 2 * counts[Outcome.IN_GRACE] >= len(decisions)
        if trouble is not None:
            raise trouble

    def _receive(self, stream: ScriptPipeline, count: int) -> list[Any]:
        """The replies to the oldest slice; how long Redis took for it says how long the next ones may be."""
        if not count:
            return []
        received = stream.receive()
        if received.micros is not None:
            self._slice_length.took(count, received.micros, received.pause_micros)
        return received.replies

    def _decision(self, entry: bytes, reply: Any) -> Decision:
        if isinstance(reply, Exception):
            return Decision(entry, Outcome.ERROR, describe(reply))
        return self._kind.decision(entry, reply)
