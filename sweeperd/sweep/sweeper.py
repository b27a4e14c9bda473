"""
One tick over one shard: read the index page by page, have the script decide each entry, report.

The entries are sent in batches. Redis serves one client after the other, so the time that Redis takes for a batch is
the time for which all other clients wait. By Redis's own clock each reply says how long the batch took, and how long
Redis was busy with other clients between two batches. The busier they keep Redis, the less time a batch may take. As in
Redis's own active expiry, the work goes on in any case, and only the size of the steps changes: a batch gets smaller at
once, by half at most, and larger little by little.

If entries are overdue for half of `max_lag`, the size approaches the size of a hurry, and reaches that size at
`max_lag`. A hurry has larger batches than an idle Redis would need: when the system takes the core from the sweeping
process for some milliseconds, Redis goes on with the calls that are on their way.
"""

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
from sweeperd.store.scripts import ScriptPipeline, accepted, run_commands
from sweeperd.store.shard import Shard
from sweeperd.sweep.far_ahead import far_from
from sweeperd.sweep.index import GraceEnds, IndexEntry, IndexReader, WokenReader
from sweeperd.sweep.kind import Backlog, Decision, Kind, Outcome, SweepReport
from sweeperd.sweep.proof import HeldCauses, Proof, is_proven
from sweeperd.text import decode, moment_ms

#: A batch is at most so many times as large as the batch before.
GROWTH = 1.25
#: Up to the first share of Redis's time, the pauses between batches are those of a slow machine. From the second share
#: on, other clients keep Redis busy, and a batch may take only the third share of its usual time.
QUIET, BUSY, SHORTENED = 0.025, 0.05, 0.25
#: How much the last batch counts for the share of the other clients, and how much of that share each batch decays that
#: measures no other client.
WEIGHT, FORGOTTEN = 0.05, 0.003
#: The longest time that Redis reads, writes and polls between two batches without other clients, µs. The estimate is
#: the median pause, and follows the pauses in steps of so many µs.
OVERHEAD, STEP = 300.0, 4.0
#: Other clients cause pauses again and again, a single long pause is more likely the machine's. So a pause counts up to
#: this share of the time of the batch after the pause.
BELIEVED = 0.25
#: A shorter pause, µs, is none: Redis read both batches at once, and served no other client in between.
NO_PAUSE = 10
#: From the first part of `max_lag` on the size grows; from the second part on, the next batch is always sent ahead.
HURRY, SEND_AHEAD = 0.5, 0.75
#: If no more entries fail than this, the tick does not count as failed: a few bad hashes must not block a rollout.
FEW = 10
#: How many protected entries are compared with the index each time that the backlog is measured.
COMPARED = 1000

#: Entries that are decided together: one script call for each entry that is not marked as in grace.
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
    #: The batches whose replies have not been read.
    in_flight: deque[Batch] = field(default_factory=deque)
    #: How many entries were passed by as in grace without a decision about each.
    passed: int = 0
    #: The first error of an entry, and whether every error was about the script, which concerns all entries.
    error: str = ""
    general: bool = True
    #: The first refusal of rights. A right may have been taken away, so the tick ends there.
    refused: str = ""
    #: The error after which the kind must not be swept any more.
    broken: str = ""
    #: Whether a batch was decided. If the time budget is too short for a slow server, each tick still decides a batch.
    progressed: bool = False

    def fail(self, reply: Exception) -> str:
        """An entry failed with this reply. Returns the reply in one line."""
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
        """Seconds since the tick began."""
        return time.monotonic() - self.started


class AdaptiveBatchSize:
    """
    From `smallest` to `largest` calls, so that Redis is busy with a batch for `limit_micros` at most; `hurried` calls
    if an entry is overdue for `max_lag_ms`.
    """

    def __init__(
        self, smallest: int, largest: int, limit_micros: float, max_lag_ms: float = math.inf, hurried: int = 0
    ) -> None:
        self._smallest = min(smallest, largest)
        self._largest = largest
        self._hurried = max(hurried, largest)
        self._limit = limit_micros
        self._max_lag_ms = max_lag_ms
        #: How late the last expiries were, as a part of `max_lag`.
        self._lateness = 0.0
        #: The share of Redis's time that other clients take while a batch waits for its turn, smoothed.
        self._others = 0.0
        self._overhead: float | None = None
        self._polite = float(largest)

    def __int__(self) -> int:
        hurry = min(1.0, max(0.0, self._lateness - HURRY) / (1 - HURRY))
        return int(self._polite + hurry * (self._hurried - self._polite))

    @property
    def keeps_distance(self) -> bool:
        """
        Whether other clients keep Redis so busy that the next batch is sent only after the reply to the last. A batch
        sent alone measures no other client, so `_others` decays, and after a while a batch is sent ahead again.
        """
        return self._others > BUSY and self._lateness < SEND_AHEAD

    def late_by(self, lag_ms: int) -> None:
        """An entry has just expired so long after the end of its grace."""
        self._lateness = lag_ms / self._max_lag_ms

    def record(self, entries: int, micros: int, pause_micros: int | None) -> None:
        """
        Redis took `micros` for a batch of so many entries, after a pause of `pause_micros` (None if unknown) since the
        batch before. Times are ignored if the clock was set in between.
        """
        if micros <= 0 or entries <= 0:
            return
        if pause_micros is None or pause_micros < NO_PAUSE:
            self._others *= 1 - FORGOTTEN
        else:
            overhead = pause_micros if self._overhead is None else self._overhead
            self._overhead = min(overhead + (STEP if pause_micros > overhead else -STEP), OVERHEAD)
            others = min(max(0.0, pause_micros - self._overhead), BELIEVED * micros)
            self._others += WEIGHT * (others / (others + micros) - self._others)
        busy = min(1.0, max(0.0, self._others - QUIET) / (BUSY - QUIET))
        allowed = self._limit * (1 - (1 - SHORTENED) * busy)
        fitting = entries * allowed / micros
        nearest = min(max(fitting, self._polite / 2), self._polite * GROWTH)
        self._polite = min(max(nearest, self._smallest), self._largest)


def read_index_backlog(shard: Shard, kind: Kind, now: int) -> Backlog:
    """
    How many entries are due, since when the oldest, how many are in quarantine, protected, far ahead and held. `now`:
    ms on Redis's clock. Raises redis.RedisError.
    """
    proven = is_proven(shard, kind)
    pipeline = shard.client.pipeline(transaction=False)
    pipeline.zcount(kind.index, "-inf", now)
    pipeline.zrange(kind.index, 0, 0, withscores=True)
    pipeline.zcard(kind.quarantine)
    pipeline.zcount(kind.index, far_from(now), "+inf")
    if kind.protected:
        pipeline.zcard(kind.protected)
        pipeline.zrange(kind.protected, 0, 0, withscores=True)
    due, first, quarantined, far, *more = pipeline.execute()
    protected, longest = more or (0, [])
    # If another client ends the only due entry between the commands, there is no entry, or a later one is first.
    row = [] if proven else cast(list[bytes | None], shard.client.hmget(kind.ticks, ["held", "held_because"]))
    held, because = row or (None, None)
    return Backlog(
        due,
        _age(first, now) if due else 0.0,
        quarantined,
        protected,
        _age(longest, now),
        far,
        proven,
        int(held or b"0"),
        decode(because or b""),
    )


def _age(first: Sequence[tuple[bytes, float]], now: int) -> float:
    return max(0.0, (now - moment_ms(first[0][1])) / 1000) if first else 0.0


class Sweeper:
    """
    Sweeps one kind on one shard. `observe` gets the decisions of each batch at once. `stop` ends a tick after the
    current batch.
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
        self._ends = GraceEnds() if settings.looks else None
        self._reader = IndexReader(shard, kind, settings.batch_size, self._ends)
        self._proof = Proof(shard, kind)
        #: How many of the protected entries, from the oldest on, were compared with the index.
        self._compared = 0
        # Two batches are in flight: while Redis runs one, this process handles the other. They have `pipeline_depth`
        # calls together, and as many each if the sweep is in a hurry.
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
        """When the first grace ends that is known, ms on the server's clock; infinite if none is. Not during a tick."""
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
        Decide every entry that is due by the server's clock at the start of the tick, each once, until the end, the
        time budget, `stop`, a refusal of rights, or until `give_way` is true, for another replica. If a tick is cut
        short, the next tick goes on from there. Memory holds one page. The events carry `trace_id`, 32 hex digits.
        `paged` is called after each page that was decided, as long as the tick has not failed.

        With `seen_ms` a woken tick decides only the entries after this score, and those whose grace has ended as far as
        earlier ticks know. `leave_ms`: entries that became due within this time are left to a woken tick, which learns
        when their grace ends.

        Raises RedisUnavailable. The next tick then goes on after the batch that failed: if Redis fails because of that
        batch, the following entries are still decided.
        """
        with self._shard.reaching(), ScriptPipeline(self._kind.script, self._shard.client) as pipeline:
            broken = self._proof.begin(whole=seen_ms is None)
            reader, until = self._begin(seen_ms, leave_ms)
            tick = _Tick(pipeline, reader, give_way, trace_id or secrets.token_hex(16), paged, HeldCauses(self._kind))
            try:
                if broken is not None:
                    self._break(tick, broken)
                complete = self._drain(tick)
            except BaseException:
                reader.stop(tick.in_flight[0] if tick.in_flight else ())
                raise
        depth = self._batches_in_flight * int(self._batch_size)
        seen = until if complete and not tick.failure else 0
        return SweepReport(
            tick.trace_id,
            tick.counts,
            complete,
            tick.duration,
            tick.passed,
            depth,
            tick.failure,
            tick.broken,
            seen,
            tick.held.likely,
        )

    def backlog(self) -> Backlog:
        """What waits, as `read_index_backlog` reads it. Raises RedisUnavailable."""
        with self._shard.reaching():
            if self._kind.protected:
                self._drop_ended(self._kind.protected)
            return read_index_backlog(self._shard, self._kind, self._shard.read_clock())

    def _drop_ended(self, key: bytes) -> None:
        """
        If a service has ended a protected entry, no sweep comes to the entry again: with each call a page of the
        protected entries is compared with the index.
        """
        client = self._shard.client
        page = cast(list[bytes], client.zrange(key, self._compared, self._compared + COMPARED - 1))
        if page:
            scores = accepted(run_commands(client, (("ZSCORE", self._kind.index, entry) for entry in page)))
            # If an entry comes into the index again at this moment, the next question adds the entry again.
            gone = [entry for entry, score in zip(page, scores, strict=True) if score is None]
            if gone:
                client.zrem(key, *gone)
            self._compared += len(page) - len(gone)
        if len(page) < COMPARED:
            self._compared = 0

    def _begin(self, seen_ms: int | None, leave_ms: int) -> tuple[IndexReader | WokenReader, int]:
        """The reader of a tick that begins, and the score up to which the tick decides for sure."""
        if seen_ms is not None and self._ends is not None:
            woken = WokenReader(self._shard, self._kind, self._reader.pages, self._ends, seen_ms)
            return woken, woken.until_ms
        now, (head,) = self._shard.read_with_clock(("ZRANGE", self._kind.index, 0, 0, "WITHSCORES"))
        until = now - leave_ms
        self._reader.start(until, idle=not head or float(head[1]) > until)
        # If the script finds the deadline in the present millisecond, the entry is not due.
        return self._reader, min(until, now - 1)

    def _drain(self, tick: _Tick) -> bool:
        """Go through the index. Returns False if the tick stopped before the end."""
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
                self._receive(tick, 0 if self._batch_size.keeps_distance else self._batches_in_flight - 1)
            self._receive(tick, 0)
            tick.progressed = True
            if not tick.failure:
                tick.paged()
        return True

    def _is_over(self, tick: _Tick) -> bool:
        """Whether the tick is to stop here. If so, the replies to the batches in flight are received first."""
        spent = tick.progressed and tick.duration > self._time_budget
        if not (spent or tick.broken or tick.refused or self._stop.is_set() or tick.give_way()):
            return False
        self._receive(tick, 0)
        tick.reader.stop()
        return True

    def _batches(self, reader: IndexReader | WokenReader, entries: Batch) -> Iterator[Batch]:
        """Batches with as many undecided entries as fit into a batch at that moment."""
        start = 0
        while start < len(entries) and not reader.rereads:
            end, left = start, int(self._batch_size)
            while end < len(entries) and (left or entries[end].in_grace):
                left -= not entries[end].in_grace
                end += 1
            yield entries[start:end]
            start = end

    def _send(self, tick: _Tick, batch: Batch) -> None:
        # If Redis fails because of an earlier batch in flight, this is noticed only when the next batch is written.
        tick.in_flight.append(batch)
        if undecided := [entry.id for entry in batch if not entry.in_grace]:
            proven = self._proof.proven
            tick.pipeline.send([self._kind.call(entry, tick.trace_id, proven) for entry in undecided])

    def _receive(self, tick: _Tick, at_most: int) -> None:
        """Receive the replies to the oldest batches until at most so many are in flight."""
        while len(tick.in_flight) > at_most:
            decisions, trouble = self._decide(tick, tick.in_flight[0])
            if trouble is not None:
                self._abandon(tick)
                raise trouble
            tick.reader.advance(tick.in_flight.popleft(), decisions)
            tick.progressed = True

    def _abandon(self, tick: _Tick) -> None:
        """The oldest batch has failed: receive the replies to the later batches, which the server may have run."""
        while len(tick.in_flight) > 1:
            self._decide(tick, tick.in_flight[1])
            del tick.in_flight[1]

    def _decide(self, tick: _Tick, batch: Batch) -> tuple[list[Decision], Exception | None]:
        """
        The decisions about a batch in flight, observed and counted; and the server's trouble if some entries got no
        decision for this reason, else None.
        """
        replies = iter(self._replies(tick.pipeline, sum(not entry.in_grace for entry in batch)))
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
        if expired := [decision.lag_ms for decision in decisions if decision.outcome is Outcome.EXPIRED]:
            self._batch_size.late_by(max(expired))
        # Also when the batch fails as a whole: the expiries in the batch have happened.
        self._observe(decisions, tick.trace_id)
        tick.counts.update(decision.outcome for decision in decisions)
        if not self._proof.proven:
            tick.held.add(decisions)
            if trouble is None:
                self._proof.decided(decisions)
        return decisions, trouble

    def _replies(self, pipeline: ScriptPipeline, count: int) -> list[Any]:
        """The replies to the oldest batch. How long Redis took sets the size of the next batches."""
        if not count:
            return []
        received = pipeline.receive()
        if received.micros is not None:
            self._batch_size.record(count, received.micros, received.pause_micros)
        return received.replies

    def _break(self, tick: _Tick, decision: Decision) -> None:
        """The sample has shown that the script is broken: the tick ends before it decides an entry."""
        tick.broken = tick.error = decision.detail
        tick.counts[decision.outcome] += 1
        self._observe([decision], tick.trace_id)

    def _decision(self, tick: _Tick, entry: bytes, reply: Any) -> Decision:
        if isinstance(reply, Exception):
            text = tick.fail(reply)
            if self._kind.is_broken_by(reply):
                tick.broken = tick.broken or text
            return Decision(entry, Outcome.ERROR, text)
        return self._kind.decision(entry, reply)
