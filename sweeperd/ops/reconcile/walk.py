"""
Walks over the hashes, the index and the counters of a kind, and repairs the index.

Pages are settled in order, once all their hints were read again, and only then counted. So a later walk that resumes at
the first unsettled page neither misses a page nor counts it twice.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from sweeperd.ops.reconcile.bloom import BloomFilter
from sweeperd.ops.reconcile.budgets import BudgetCounters
from sweeperd.ops.reconcile.counters import Counters
from sweeperd.ops.reconcile.faults import Fault, WalkStage
from sweeperd.ops.reconcile.last_walk import WalkCursor
from sweeperd.ops.reconcile.report import FINDINGS, ReconcileReport, Tally
from sweeperd.ops.reconcile.subjects import CONFIRM, HELD, ConfiguredKind, Observation, Reservations, Subject
from sweeperd.ops.reconcile.sums import AGREEING, SumCounters
from sweeperd.ops.reconcile.throttle import Interrupted
from sweeperd.sweep.backlog import read_far_ahead
from sweeperd.sweep.kind import Sums
from sweeperd.sweep.proof import may_be_trusted


def counters_of(subject: Subject) -> Counters:
    if isinstance(subject, Reservations):
        return BudgetCounters(subject)
    sums = subject.kind.counters
    if isinstance(subject, ConfiguredKind) and isinstance(sums, Sums) and sums.declared and sums.script:
        return SumCounters(subject, sums.declared, sums.script)
    return Counters()


#: Up to how many hints wait to be read again.
WAITING = 50_000
#: A stage of the walk and its cursor.
Place = tuple[WalkStage, int]


def reconcile(
    subject: Subject,
    *,
    within: float | None = None,
    limit: int = FINDINGS,
    resume: WalkCursor | None = None,
    checkpoint: Callable[[WalkCursor], None] = lambda _: None,
) -> ReconcileReport:
    """
    Walks a subject without changing anything, and keeps up to `limit` findings. The throttle's rate is raised if the
    walk would take longer than `within` seconds. The walk resumes at `resume` if the server is still the same, and
    calls `checkpoint` with its cursor from time to time, and when it is stopped.

    Raises Interrupted, and KindRefused if the script of the kind is broken.
    """
    with subject.shard.reaching(), subject:
        counters = counters_of(subject)
        if within:
            subject.throttle.raise_rate(counters.passes * subject.size / within)
        if resume is not None and resume.run_id != subject.keyspace.run_id:
            resume = None
        report = _Walk(subject, counters, limit, resume, checkpoint).run()
        if not report.found[Fault.LOST] and not may_be_trusted(subject.shard, subject.kind):
            # If the `key` of a kind is wrong, each entry looks like an orphan. A lost hash shows that it is right.
            orphan = f"{Fault.ORPHAN}:"
            report.mendable = {key: seen for key, seen in report.mendable.items() if not seen.startswith(orphan)}
        return report


def mend(subject: Subject, report: ReconcileReport) -> ReconcileReport:
    """
    Repairs the index without another walk, and returns the report with what was mended. One script judges and writes an
    entry. An entry that is correct by now counts as mended. If its fault or its deadline has changed, it is left alone
    and stays a finding. Counters are not changed. Raises Interrupted.
    """
    wanted = report.mendable
    with subject.shard.reaching():
        found = {each.subject: each.evidence for each in subject.check(list(wanted), mend=wanted)}
    right = {entry for entry, evidence in wanted.items() if found.get(entry, evidence) == evidence}
    findings = [
        replace(each, mended=True) if each.subject in right and each.evidence == wanted[each.subject] else each
        for each in report.findings
    ]
    mended = Counter(Fault(wanted[entry].partition(":")[0]) for entry in right)
    return replace(report, mended=mended, findings=findings, changed=len(right & found.keys()))


@dataclass
class _Page:
    place: Place
    tally: Tally = field(default_factory=Tally)
    visited: bool = False
    #: Hints that were not read again yet.
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class _Hint:
    #: Monotonic, seconds.
    seen_at: float
    entry: bytes
    page: _Page
    #: The evidence of the first observation; empty if ids are never reused.
    evidence: str
    #: How often the fault was observed, each time with different evidence.
    observations: int = 1


class _Walk:
    def __init__(
        self,
        subject: Subject,
        counters: Counters,
        limit: int,
        resume: WalkCursor | None,
        checkpoint: Callable[[WalkCursor], None],
    ) -> None:
        self._subject = subject
        self._throttle = subject.throttle
        self._timing = subject.throttle.timing
        self._counters = counters
        self._limit = limit
        self._checkpoint = checkpoint
        kind = subject.kind
        self._report = (
            resume.report(kind) if resume else ReconcileReport(kind=kind, started_at=subject.shard.read_clock())
        )
        self._began = time.monotonic() - (resume.seconds if resume else 0.0)
        self._saved_at = time.monotonic()
        self._from: Place = (resume.stage, resume.position) if resume else (WalkStage.HASHES, 0)
        #: The place of the next page; None before the first.
        self._next: Place | None = None
        self._pages: deque[_Page] = deque()
        self._hints: deque[_Hint] = deque()
        #: SCAN may repeat a key, and an entry is found through its hash and through the index.
        self._reported = BloomFilter(subject.size)

    def run(self) -> ReconcileReport:
        report, (stage, position) = self._report, self._from
        try:
            if stage is WalkStage.HASHES:
                self._walk_hashes(position)
                position = 0
            if stage in (WalkStage.HASHES, WalkStage.INDEX):
                self._walk_index(position)
            self._settle(all_of_them=True)
            drifts = Tally()
            for drift in self._counters.drifts():
                drifts.add(drift)
        except Interrupted:
            if place := self._place:
                self._checkpoint(self._cursor(place))
            raise
        report.merge(drifts, self._limit)
        report.counters, report.unjudged = self._counters.count, self._counters.unjudged
        report.closed = self._counters.closed
        report.unreadable, report.left_out = self._counters.unreadable, self._counters.left_out
        report.far = read_far_ahead(self._subject.shard, self._subject.kind)
        report.duration_seconds = time.monotonic() - self._began
        return report

    def _walk_hashes(self, position: int) -> None:
        # The sums of the interrupted walk are lost, so a resumed walk sums up for the counters afterwards.
        counted = not self._report.resumed
        if counted:
            self._counters.begin()
        for page, ids in self._walked(
            WalkStage.HASHES, WalkStage.INDEX, self._subject.hashes(cursor=position), position
        ):
            page.tally.hashes = len(ids)
            for observation in self._subject.look(ids, self._counters.since_ms if counted else None):
                if observation.holding and counted:
                    self._counters.add(observation)
                self._note(observation, page)
        if counted:
            self._counters.end()

    def _walk_index(self, position: int) -> None:
        for page, ids in self._walked(WalkStage.INDEX, WalkStage.COUNTERS, self._subject.index(position), position):
            page.tally.entries = len(ids)
            for observation in self._subject.orphans(ids):
                self._hint(observation, page)

    def _walked(
        self, stage: WalkStage, following: WalkStage, pages: Iterator[tuple[int, list[bytes]]], position: int
    ) -> Iterator[tuple[_Page, list[bytes]]]:
        """The pages of a stage. After each page, hints that have waited long enough are settled."""
        for cursor, ids in pages:
            page = _Page((stage, position))
            self._pages.append(page)
            yield page, ids
            page.visited, position = True, cursor
            self._next = (stage, cursor) if cursor else (following, 0)
            self._settle()
            if time.monotonic() >= self._saved_at + self._timing.keep_walk_every and (place := self._place):
                self._saved_at = time.monotonic()
                self._checkpoint(self._cursor(place))

    def _note(self, observation: Observation, page: _Page) -> None:
        if observation.mark == b"dismissed":
            page.tally.dismissed += not self._reported.add(observation.entry)
        elif observation.mark == b"foreign_expiry":
            page.tally.foreign_expiries += not self._reported.add(observation.entry)
            page.tally.foreign_ids.append(observation.entry)
        elif observation.mark == HELD:
            page.tally.held += not self._reported.add(observation.entry)
            page.tally.held_because = observation.evidence
        elif observation.mark:
            self._hint(observation, page)

    def _hint(self, observation: Observation, page: _Page, observations: int = 1) -> None:
        page.waiting += 1
        self._hints.append(_Hint(time.monotonic(), observation.entry, page, observation.evidence, observations))

    def _settle(self, *, all_of_them: bool = False) -> None:
        """Reads hints again that have waited long enough. Waits if there are too many, or for `all_of_them`."""
        self._count()
        while self._hints:
            wait = self._hints[0].seen_at + self._timing.settle_faults - time.monotonic()
            if wait > 0 and not all_of_them and len(self._hints) < WAITING:
                return
            self._throttle.wait(wait)
            latest = time.monotonic() - self._timing.settle_faults
            ready = [hint for hint in islice(self._hints, CONFIRM) if hint.seen_at <= latest]
            self._confirm(ready)
            for hint in ready:
                self._hints.popleft()
                hint.page.waiting -= 1
            self._count()

    def _confirm(self, hints: list[_Hint]) -> None:
        """The index leads to entries without a hash, the hashes lead to all other faults."""
        entries = list(dict.fromkeys(hint.entry for hint in hints))
        found = {finding.subject: finding for finding in self._subject.check(entries)}
        for hint in hints:
            finding, in_index = found.get(hint.entry), hint.page.place[0] is WalkStage.INDEX
            if finding is None or (finding.fault is Fault.ORPHAN) is not in_index:
                continue
            if hint.evidence not in ("", finding.evidence) and hint.observations < AGREEING:
                # The id was reused, or its deadline keeps moving: a new hint, and after AGREEING of them a fault.
                self._hint(Observation(hint.entry, b"", evidence=finding.evidence), hint.page, hint.observations + 1)
            elif not self._reported.add(hint.entry):
                hint.page.tally.add(finding)

    def _count(self) -> None:
        while self._pages and self._pages[0].visited and not self._pages[0].waiting:
            self._report.merge(self._pages.popleft().tally, self._limit)

    @property
    def _place(self) -> Place | None:
        """The first unsettled page, or else the next page."""
        return self._pages[0].place if self._pages else self._next

    def _cursor(self, place: Place) -> WalkCursor:
        return WalkCursor.made_of(
            self._report,
            run_id=self._subject.keyspace.run_id,
            seconds=time.monotonic() - self._began,
            stage=place[0],
            position=place[1],
            findings=[(each.fault, each.subject.hex(), each.found, each.expected) for each in self._report.findings],
        )
