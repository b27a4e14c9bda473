"""Sweeps one kind: pages through the due entries, lets the kind's script decide each, and reports the tick."""

import math
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.errors import describe, is_refused, is_script_fault, is_server_trouble
from sweeperd.store.scripts import Call, Script, ScriptPipeline, accepted, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.backlog import Backlog, read_index_backlog
from sweeperd.sweep.batch_size import AdaptiveBatchSize
from sweeperd.sweep.index import GraceEnds, IndexEntry, IndexReader, WokenReader
from sweeperd.sweep.kind import Decision, Kind, Outcome, SweepReport
from sweeperd.sweep.memory_brake import MemoryBrake
from sweeperd.sweep.proof import HeldCauses, Proof

#: Up to this many failed entries do not make a tick fail: a few bad hashes must not block a rollout.
FEW = 10
#: How many protected entries are compared with the index when the backlog is measured.
COMPARED = 1000
_DROP_NOTES = Script("sweep/drop_notes")

#: Entries that are decided together, with a script call for each that is not marked as in grace.
Batch = Sequence[IndexEntry]


@dataclass
class _Tick:
    """One tick while it runs."""

    pipeline: ScriptPipeline
    reader: IndexReader | WokenReader
    give_way: Callable[[], bool]
    trace_id: str
    paged: Callable[[], None]
    held: HeldCauses
    started: float = field(default_factory=time.monotonic)
    counts: Counter[Outcome] = field(default_factory=Counter)
    in_flight: deque[Batch] = field(default_factory=deque)
    #: How many entries in grace were skipped as part of a cached range.
    passed: int = 0
    #: The first error of an entry, and whether every error was about the script, which concerns all entries.
    error: str = ""
    general: bool = True
    #: The first refusal for a missing right, which ends the tick.
    refused: str = ""
    #: Whether a batch was decided. Each tick decides at least one, however short the time budget.
    progressed: bool = False

    def fail(self, reply: Exception) -> str:
        """Note that an entry failed with this reply. Returns the reply in one line."""
        text = describe(reply)
        self.error = self.error or text
        self.general = self.general and is_script_fault(reply)
        if is_refused(reply):
            self.refused = self.refused or text
        return text

    @property
    def failure(self) -> str:
        """Why the tick failed: a right is missing, or every entry failed."""
        if self.refused:
            return f"a right is missing: {self.refused}"
        failed = self.counts[Outcome.ERROR]
        if not failed or failed < self.counts.total() - self.counts[Outcome.IN_GRACE]:
            return ""
        return f"every entry failed: {self.error}" if self.general or failed > FEW else ""

    @property
    def duration(self) -> float:
        return time.monotonic() - self.started


class Sweeper:
    """Sweeps one kind on one shard. `observe` gets each batch's decisions. `stop` ends a tick after the batch."""

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
        self._ends = GraceEnds() if settings.looks else None
        self._reader = IndexReader(shard, kind, settings.batch_size, self._ends)
        self._proof = Proof(shard, kind)
        self._brake = MemoryBrake(shard, settings)
        #: How many protected entries, oldest first, were compared with the index.
        self._compared = 0
        #: Where the next page of notes begins, for each of their keys.
        self._scanned: dict[bytes, int] = {}
        # While Redis runs one batch, this process handles the other. Together they have `pipeline_depth` calls, in a
        # hurry that many each.
        self._batches_in_flight = min(2, settings.pipeline_depth)
        self._batch_size = AdaptiveBatchSize(
            max(1, settings.pipeline_depth_min // self._batches_in_flight),
            settings.pipeline_depth // self._batches_in_flight,
            settings.batch_time.total_seconds() * 1e6,
            milliseconds(settings.max_lag),
            settings.pipeline_depth,
        )

    @property
    def proven(self) -> bool:
        """Whether an entry of the kind was seen alive under these settings. Not during a tick."""
        return self._proof.proven

    @property
    def grace_end_ms(self) -> float:
        """When the first known grace ends, ms on the server's clock; infinite if none. Not during a tick."""
        return math.inf if self._ends is None else self._ends.first

    def tick(
        self,
        give_way: Callable[[], bool] = lambda: False,
        trace_id: str = "",
        paged: Callable[[], None] = lambda: None,
        seen_ms: int | None = None,
        leave_ms: int = 0,
    ) -> SweepReport:
        """
        Decide once each entry that is due when the tick starts, by the server's clock. The tick is cut short by the
        time budget, `stop`, a missing right, or when `give_way` is true, for another replica. The next tick then goes
        on from there. Memory holds one page. The events carry `trace_id`, 32 hex digits. `paged` is called after each
        page, unless the tick has failed.

        With `seen_ms` a woken tick decides only entries after this score, and those whose known grace has ended.
        `leave_ms`: entries that became due within this time are left to a woken tick, which learns when their grace
        ends.

        Raises RedisUnavailable. The next tick then goes on after the batch that failed, in case the batch caused it.
        """
        with self._shard.reaching(), ScriptPipeline(self._kind.script, self._shard.client) as pipeline:
            broken = self._proof.begin(whole=seen_ms is None)
            self._brake.begin()
            reader, until = self._begin(seen_ms, leave_ms)
            tick = _Tick(pipeline, reader, give_way, trace_id or secrets.token_hex(16), paged, HeldCauses(self._kind))
            try:
                if broken is not None:  # the tick ends before its first entry
                    tick.error = broken.detail
                    tick.counts[broken.outcome] += 1
                    self._observe([broken], tick.trace_id)
                complete = self._drain(tick)
            except BaseException:
                reader.stop(tick.in_flight[0] if tick.in_flight else ())
                raise
        return SweepReport(
            trace_id=tick.trace_id,
            counts=tick.counts,
            complete=complete,
            duration_seconds=tick.duration,
            passed=tick.passed,
            pipeline_depth=self._batches_in_flight * int(self._batch_size),
            failure=tick.failure or self._kind.broken,
            seen_ms=until if complete and not tick.failure else 0,
            held_because=tick.held.likely,
            deferred_because=self._brake.because if tick.counts[Outcome.DEFERRED] else "",
        )

    def backlog(self) -> Backlog:
        """Raises RedisUnavailable."""
        with self._shard.reaching():
            if self._kind.protected:
                self._drop_ended(self._kind.protected)
            for key in filter(None, (self._kind.notes, self._kind.marks)):
                self._drop_notes(key)
            return read_index_backlog(self._shard, self._kind, self._shard.read_clock())

    def _drop_ended(self, key: bytes) -> None:
        """Forget protected entries that a service has ended, which no sweep visits again: a page at each call."""
        client = self._shard.client
        page = cast(list[bytes], client.zrange(key, self._compared, self._compared + COMPARED - 1))
        if page:
            scores = accepted(run_commands(client, (("ZSCORE", self._kind.index, entry) for entry in page)))
            # If an entry returns to the index right now, its next check adds it again.
            gone = [entry for entry, score in zip(page, scores, strict=True) if score is None]
            if gone:
                client.zrem(key, *gone)
            self._compared += len(page) - len(gone)
        if len(page) < COMPARED:
            self._compared = 0

    def _drop_notes(self, key: bytes) -> None:
        """Forget notes of entries that have left index and quarantine without a sweep: a page at each call."""
        kind = self._kind
        page: Any = self._shard.client.hscan(key, self._scanned.get(key, 0), count=COMPARED)
        self._scanned[key], notes = page
        for ids in batches(list(notes), COMPARED):
            _DROP_NOTES.run(
                self._shard.client, Call([key, kind.index, kind.quarantine, *map(kind.entry_key, ids)], ids)
            )

    def _begin(self, seen_ms: int | None, leave_ms: int) -> tuple[IndexReader | WokenReader, int]:
        """The reader of a new tick, and the score up to which the tick decides every entry."""
        if seen_ms is not None and self._ends is not None:
            woken = WokenReader(self._shard, self._kind, self._reader.pages, self._ends, seen_ms)
            return woken, woken.until_ms
        now, (head,) = self._shard.read_with_clock(("ZRANGE", self._kind.index, 0, 0, "WITHSCORES"))
        until = now - leave_ms
        self._reader.start(until, idle=not head or self._kind.moment_of(head[1]) > until)
        # An entry whose deadline is the present millisecond is not due.
        return self._reader, min(until, now - 1)

    def _drain(self, tick: _Tick) -> bool:
        """Returns whether the tick reached the end of the due entries."""
        if tick.reader.ended:
            tick.paged()
        while not tick.reader.ended:
            if self._is_over(tick):
                return False
            page = tick.reader.next(int(self._batch_size))
            if page.passed:
                tick.passed += page.passed
                tick.counts[Outcome.IN_GRACE] += page.passed
            for batch in self._batches(tick.reader, page.entries):
                if self._is_over(tick):
                    return False
                self._send(tick, batch)
                self._receive(tick, 0 if self._batch_size.sends_alone else self._batches_in_flight - 1)
            self._receive(tick, 0)
            tick.progressed = True
            if not tick.failure:
                tick.paged()
        return True

    def _is_over(self, tick: _Tick) -> bool:
        """Whether the tick ends here, after the replies to the batches in flight."""
        spent = tick.progressed and tick.duration > self._time_budget
        if not (spent or self._kind.broken or tick.refused or self._stop.is_set() or tick.give_way()):
            return False
        self._receive(tick, 0)
        tick.reader.stop()
        return True

    def _batches(self, reader: IndexReader | WokenReader, entries: Batch) -> Iterator[Batch]:
        """Batches with as many undecided entries as the batch size allows at that moment."""
        start = 0
        while start < len(entries) and not reader.rereads:
            end, left = start, int(self._batch_size)
            while end < len(entries) and (left or entries[end].in_grace):
                left -= not entries[end].in_grace
                end += 1
            yield entries[start:end]
            start = end

    def _send(self, tick: _Tick, batch: Batch) -> None:
        # A failure of Redis in an earlier batch may show only when the next batch is written.
        tick.in_flight.append(batch)
        if undecided := [entry.id for entry in batch if not entry.in_grace]:
            proven, admitted = self._proof.proven, self._brake.admit(len(undecided))
            calls = [self._kind.call(entry, tick.trace_id, proven) for entry in undecided[:admitted]]
            calls += [self._kind.call(entry, tick.trace_id, proven, True) for entry in undecided[admitted:]]
            tick.pipeline.send(calls)

    def _receive(self, tick: _Tick, at_most: int) -> None:
        """Receive the replies to the oldest batches until at most `at_most` are in flight."""
        while len(tick.in_flight) > at_most:
            decisions, trouble = self._decide(tick, tick.in_flight[0])
            if trouble is not None:
                while len(tick.in_flight) > 1:  # the server may have run the later batches
                    self._decide(tick, tick.in_flight[1])
                    del tick.in_flight[1]
                raise trouble
            tick.reader.advance(tick.in_flight.popleft(), decisions)
            tick.progressed = True

    def _decide(self, tick: _Tick, batch: Batch) -> tuple[list[Decision], Exception | None]:
        """The decisions about a batch, observed and counted, and the error of the server that left some undecided."""
        undecided = sum(not entry.in_grace for entry in batch)
        replies = iter(self._replies(tick.pipeline, undecided))
        decisions, trouble = [], None
        for entry in batch:
            if entry.in_grace:
                decisions.append(Decision(entry.id, Outcome.IN_GRACE, grace_end_ms=entry.grace_end_ms))
                continue
            reply = next(replies)
            if isinstance(reply, Exception) and is_server_trouble(reply):
                trouble = reply
            else:
                decisions.append(self._decision(tick, entry.id, reply))
        if undecided:
            self._brake.decided(decisions)
        if expired := [decision.lag_ms for decision in decisions if decision.outcome is Outcome.EXPIRED]:
            self._batch_size.late_by(max(expired))
        # Even if the batch fails as a whole, its expiries have happened.
        self._observe(decisions, tick.trace_id)
        tick.counts.update(decision.outcome for decision in decisions)
        if not self._proof.proven:
            tick.held.add(decisions)
            if trouble is None:
                self._proof.decided(decisions)
        return decisions, trouble

    def _replies(self, pipeline: ScriptPipeline, count: int) -> list[Any]:
        """The replies to the oldest batch, whose time in Redis sets the size of the next ones."""
        if not count:
            return []
        received = pipeline.receive()
        if received.micros is not None:
            self._batch_size.record(count, received.micros, received.pause_micros)
        return received.replies

    def _decision(self, tick: _Tick, entry: bytes, reply: Any) -> Decision:
        if isinstance(reply, Exception):
            text = tick.fail(reply)
            self._kind.breaks(reply)
            return Decision(entry, Outcome.ERROR, text)
        return self._kind.decision(entry, reply)
