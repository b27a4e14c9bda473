"""One tick over one shard: read the index page by page, have the script decide each entry, report."""

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.errors import describe, is_refused, is_script_fault, is_server_trouble
from sweeperd.store.scripts import ScriptPipeline
from sweeperd.store.shard import Shard
from sweeperd.sweep.batch_size import AdaptiveBatchSize
from sweeperd.sweep.index import IndexEntry, IndexReader
from sweeperd.sweep.kind import Backlog, Decision, Kind, Outcome, SweepReport
from sweeperd.text import moment_ms

#: If no more entries fail than this, the tick has not: a few bad hashes must not make a rollout wait.
FEW = 10

#: Entries that are decided together: one script call for each of them that is not marked as in grace.
Batch = Sequence[IndexEntry]


@dataclass
class _Tick:
    """One tick while it runs."""

    pipeline: ScriptPipeline
    give_way: Callable[[], bool]
    trace_id: str
    started: float = field(default_factory=time.monotonic)
    counts: Counter[Outcome] = field(default_factory=Counter)
    #: The batches whose replies have not been read.
    in_flight: deque[Batch] = field(default_factory=deque)
    #: How many entries were passed by as in grace without a decision about each.
    passed: int = 0
    #: The first error of an entry, and whether every one was about the script, which concerns all entries.
    error: str = ""
    general: bool = True
    #: The first reply that is a refusal of rights. A right may have been taken away, so the tick ends there.
    refused: str = ""
    #: The error after which the kind must not be swept any more.
    broken: str = ""
    #: Whether it has got any further. A time budget that is too short for a slow server must not end each tick at once.
    progressed: bool = False

    def pass_by(self, entries: int) -> None:
        """So many entries are in grace."""
        if entries:
            self.passed += entries
            self.counts[Outcome.IN_GRACE] += entries

    def fail(self, reply: Exception) -> str:
        """An entry failed with this reply. Returns it in one line."""
        text = describe(reply)
        self.error = self.error or text
        self.general = self.general and is_script_fault(reply)
        if is_refused(reply):
            self.refused = self.refused or text
        return text

    @property
    def failure(self) -> str:
        """Why the tick counts as failed: a right is missing, or every entry failed, not only a few bad hashes."""
        if self.refused:
            return f"a right is missing: {self.refused}"
        failed = self.counts[Outcome.ERROR]
        if not failed or failed < self.counts.total() - self.counts[Outcome.IN_GRACE]:
            return ""
        return f"every entry failed: {self.error}" if self.general or failed > FEW else ""

    @property
    def duration(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started


class Sweeper:
    """
    Sweeps one kind on one shard.

    `observe` gets the decisions of each batch as soon as they are known. `stop` ends a tick after its current batch.
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
        self._time_budget = settings.time_budget.total_seconds()
        self._observe = observe
        self._stop = stop
        self._reader = IndexReader(shard, kind, settings.batch_size)
        # Two batches are in flight: while Redis runs one, this process handles the other. They have `pipeline_depth`
        # calls together, and as many each where the sweep is in a hurry.
        self._batches_in_flight = min(2, settings.pipeline_depth)
        self._batch_size = AdaptiveBatchSize(
            max(1, settings.pipeline_depth_min // self._batches_in_flight),
            settings.pipeline_depth // self._batches_in_flight,
            settings.batch_time.total_seconds() * 1e6,
            milliseconds(settings.max_lag),
            settings.pipeline_depth,
        )

    def tick(self, give_way: Callable[[], bool] = lambda: False, trace_id: str = "") -> SweepReport:
        """
        Decide every entry that is due by the server's clock at the start of the tick, each once, until the end, the
        time budget or `stop`, a refusal of rights, or until it is to `give_way` to another replica. The next tick takes
        up where one that was cut short stopped. Memory holds one page. The events carry `trace_id`, 32 hex digits.

        Raises RedisUnavailable. The tick after that goes on after the batch that failed: if Redis fails because of that
        batch, it must not keep the following entries from being decided.
        """
        with self._shard.reaching(), ScriptPipeline(self._kind.script, self._shard.client) as pipeline:
            tick = _Tick(pipeline, give_way, trace_id or secrets.token_hex(16))
            self._reader.start(self._shard.read_clock())
            try:
                complete = self._drain(tick)
            except BaseException:
                self._reader.stop(tick.in_flight[0] if tick.in_flight else ())
                raise
        depth = self._batches_in_flight * int(self._batch_size)
        return SweepReport(
            tick.trace_id, tick.counts, complete, tick.duration, tick.passed, depth, tick.failure, tick.broken
        )

    def backlog(self) -> Backlog:
        """How much is due now, how long the oldest has been, how much is in quarantine. Raises RedisUnavailable."""
        with self._shard.reaching():
            now = self._shard.read_clock()
            pipeline = self._shard.client.pipeline(transaction=False)
            pipeline.zcount(self._kind.index, "-inf", now)
            pipeline.zrange(self._kind.index, 0, 0, withscores=True)
            pipeline.zcard(self._kind.quarantine)
            due, oldest, quarantined = pipeline.execute()
        age = (now - moment_ms(oldest[0][1])) / 1000 if due else 0.0
        return Backlog(due, age, quarantined)

    def _drain(self, tick: _Tick) -> bool:
        """Go through the index. Returns False where it stopped before the end."""
        while not self._reader.ended:
            if self._is_over(tick):
                return False
            page = self._reader.next(int(self._batch_size))
            tick.pass_by(page.passed)
            for batch in self._batches(page.entries):
                if self._is_over(tick):
                    return False
                self._send(tick, batch)
                self._receive(tick, 0 if self._batch_size.keeps_distance else self._batches_in_flight - 1)
            self._receive(tick, 0)
            tick.progressed = True
        return True

    def _is_over(self, tick: _Tick) -> bool:
        """Whether the tick is to stop here. Then the replies to the batches in flight are received first."""
        spent = tick.progressed and tick.duration > self._time_budget
        if not (spent or tick.broken or tick.refused or self._stop.is_set() or tick.give_way()):
            return False
        self._receive(tick, 0)
        self._reader.stop()
        return True

    def _batches(self, entries: Batch) -> Iterator[Batch]:
        """Batches with as many undecided entries as fit into one at that moment."""
        start = 0
        while start < len(entries) and not self._reader.rereads:
            end, left = start, int(self._batch_size)
            while end < len(entries) and (left or entries[end].in_grace):
                left -= not entries[end].in_grace
                end += 1
            yield entries[start:end]
            start = end

    def _send(self, tick: _Tick, batch: Batch) -> None:
        # Redis may fail because of an earlier batch in flight, which is noticed only when this one is written.
        tick.in_flight.append(batch)
        if undecided := [entry.id for entry in batch if not entry.in_grace]:
            tick.pipeline.send([self._kind.call(entry, tick.trace_id) for entry in undecided])

    def _receive(self, tick: _Tick, at_most: int) -> None:
        """Receive the replies to the oldest batches until at most so many are in flight."""
        while len(tick.in_flight) > at_most:
            decisions, trouble = self._decide(tick, tick.in_flight[0])
            if trouble is not None:
                self._abandon(tick)
                raise trouble
            self._reader.advance(tick.in_flight.popleft(), decisions)
            tick.progressed = True

    def _abandon(self, tick: _Tick) -> None:
        """Receive what the server did of the batches after the oldest one, which has failed."""
        while len(tick.in_flight) > 1:
            batch = tick.in_flight[1]
            self._decide(tick, batch)
            del tick.in_flight[1]

    def _decide(self, tick: _Tick, batch: Batch) -> tuple[list[Decision], Exception | None]:
        """
        The decisions about a batch in flight, observed and counted; and the server's trouble that some entries met in
        place of a decision, or None.
        """
        replies = iter(self._replies(tick.pipeline, sum(not entry.in_grace for entry in batch)))
        decisions, trouble = [], None
        for entry in batch:
            if entry.in_grace:
                decisions.append(Decision(entry.id, Outcome.IN_GRACE))
                continue
            reply = next(replies)
            if isinstance(reply, Exception) and is_server_trouble(reply):
                trouble = reply
            else:
                decisions.append(self._decision(tick, entry.id, reply))
        if expired := [decision.lag_ms for decision in decisions if decision.outcome is Outcome.EXPIRED]:
            self._batch_size.late_by(max(expired))
        # Also where the batch fails as a whole: the expiries in it have happened.
        self._observe(decisions, tick.trace_id)
        tick.counts.update(decision.outcome for decision in decisions)
        return decisions, trouble

    def _replies(self, pipeline: ScriptPipeline, count: int) -> list[Any]:
        """The replies to the oldest batch. How long Redis took for it sets the size of the next ones."""
        if not count:
            return []
        received = pipeline.receive()
        if received.micros is not None:
            self._batch_size.record(count, received.micros, received.pause_micros)
        return received.replies

    def _decision(self, tick: _Tick, entry: bytes, reply: Any) -> Decision:
        if isinstance(reply, Exception):
            text = tick.fail(reply)
            if self._kind.is_broken_by(reply):
                tick.broken = tick.broken or text
            return Decision(entry, Outcome.ERROR, text)
        return self._kind.decision(entry, reply)
