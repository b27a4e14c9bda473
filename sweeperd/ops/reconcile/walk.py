"""One walk over a shard: budgets, reservations, index, and the budgets that seem wrong once more."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from sweeperd.config import SweepSettings
from sweeperd.ops.budget_drift import BudgetDrift, Difference
from sweeperd.ops.reconcile.budgets import BudgetJudge
from sweeperd.ops.reconcile.cursor import WalkCursor
from sweeperd.ops.reconcile.faults import FaultFinder, OrphanFinder, Page, Place, Tally
from sweeperd.ops.reconcile.keyspace import PAGE, Interrupted, Keyspace, Throttle
from sweeperd.ops.reconcile.reader import ReservationReader, Sight
from sweeperd.ops.reconcile.report import FINDINGS, Fault, Finding, ReconcileReport, WalkStage
from sweeperd.store.shard import Shard

#: How often the place of a walk is handed out, seconds.
CHECKPOINT = 10.0
#: How often a walk visits each key: for the budgets, the reservations, the index, and once more for suspects.
PASSES = 4

#: (stage, keys done so far, keys expected in all)
WalkProgress = Callable[[WalkStage, int, int], None]


def reconcile(
    shard: Shard,
    settings: SweepSettings,
    rate: float | None = None,
    *,
    within: float | None = None,
    limit: int = FINDINGS,
    stop: threading.Event | None = None,
    progress: WalkProgress = lambda *_: None,
    resume: WalkCursor | None = None,
    checkpoint: Callable[[WalkCursor], None] = lambda _: None,
) -> ReconcileReport:
    """
    Walk one shard, and change nothing. `rate`: keys per second at most (None: full speed while Redis is idle); it is
    raised where the walk would take longer than `within` seconds. `limit` findings are kept. `resume`: go on from
    there, if the server is still the same. `checkpoint` gets the place of the walk now and then, and when `stop` ends
    it.

    Raises RedisUnavailable, redis.RedisError, and Interrupted once `stop` is set.
    """
    throttle = Throttle(rate, stop)
    with shard.reaching(), ReservationReader(shard, settings, throttle) as reader:
        keyspace = Keyspace(shard, throttle)
        size = keyspace.size()
        if within:
            throttle.raise_rate(PASSES * size / within)
        judge = BudgetJudge(shard, keyspace, reader, throttle)
        if resume is not None and resume.run_id != keyspace.run_id:
            resume = None
        return _Walk(shard, throttle, keyspace, reader, judge, size, limit, progress, checkpoint, resume).run()


class _Walk:
    def __init__(
        self,
        shard: Shard,
        throttle: Throttle,
        keyspace: Keyspace,
        reader: ReservationReader,
        judge: BudgetJudge,
        size: int,
        limit: int,
        progress: WalkProgress,
        checkpoint: Callable[[WalkCursor], None],
        resume: WalkCursor | None,
    ) -> None:
        self._shard = shard
        self._keyspace = keyspace
        self._reader = reader
        self._judge = judge
        self._size = size
        self._progress = progress
        self._checkpoint = checkpoint
        self._resume = resume
        self._tally = _tally(limit, resume)
        #: The place of the first page that is not begun.
        self._next: Place | None = None
        self._faults = FaultFinder(shard, throttle, self._tally, size)
        self._orphans = OrphanFinder(shard, throttle)
        self._started_at = resume.started_at if resume else shard.read_clock()
        self._began = time.monotonic() - (resume.seconds if resume else 0.0)
        self._saved_at = time.monotonic()
        self._drift = BudgetDrift(shard.keys, size)
        self._differences: Mapping[bytes, Difference | None] = {}

    def run(self) -> ReconcileReport:
        place = (self._resume.stage, self._resume.position) if self._resume else (WalkStage.RESERVATIONS, 0)
        try:
            if not self._resume:
                self._judge.read_all(self._drift, self._pages(WalkStage.BUDGETS))
            if place[0] is WalkStage.RESERVATIONS:
                self._walk_reservations(place)
                place = (WalkStage.INDEX, 0)
            self._walk_index(place)
            self._faults.settle(all_of_them=True)
        except Interrupted:
            if at := self._faults.place or self._next:
                self._checkpoint(self._cursor(at))
            raise
        drifts, unjudged = self._judge.confirm(self._differences, self._size, self._pages(WalkStage.AGAIN))
        for key, drift in drifts.items():
            bounds = (drift.least, drift.most)
            self._tally.add(Finding(Fault.BUDGET_DRIFT, key, str(drift.reserved), str(drift.held), bounds=bounds))
        return self._report(unjudged)

    def _walk_reservations(self, place: Place) -> None:
        stem = self._shard.keys.reservation(b"")
        since = None if self._resume else self._drift.first_ms
        page_done = self._pages(WalkStage.RESERVATIONS)
        for cursor, keys in self._keyspace.keys(stem, place[1]):
            page = self._faults.page(place)
            ids = [key.removeprefix(stem) for key in keys]
            for sight in self._reader.read(ids, since):
                self._note(sight, page)
            page.tally.reservations = len(ids)
            place = (WalkStage.RESERVATIONS, cursor) if cursor else (WalkStage.INDEX, 0)
            self._end_page(page, place)
            page_done()
        if not self._resume:
            self._differences = self._judge.differences(self._drift)

    def _note(self, sight: Sight, page: Page) -> None:
        if sight.holding and not self._resume:
            self._drift.held(sight.entry, sight.holding)
        if sight.mark == b"dismissed":
            page.tally.dismissed += self._faults.new(sight.entry)
        elif sight.mark == b"foreign_expiry":
            page.tally.foreign_expiries += self._faults.new(sight.entry)
            page.tally.foreign_ids.append(sight.entry)
        elif sight.mark:
            self._faults.hint(sight.entry, page)

    def _walk_index(self, place: Place) -> None:
        page_done = self._pages(WalkStage.INDEX)
        for cursor, entries in self._keyspace.index(place[1]):
            page = self._faults.page(place)
            for entry in self._orphans.find(entries):
                self._faults.hint(entry, page)
            page.tally.entries = len(entries)
            place = (WalkStage.INDEX, cursor)
            self._end_page(page, place if cursor else None)
            page_done()

    def _end_page(self, page: Page, following: Place | None) -> None:
        """Settle what can be settled; the walk goes on at the place `following`, None at its end."""
        page.visited, self._next = True, following
        self._faults.settle()
        if time.monotonic() >= self._saved_at + CHECKPOINT and (place := self._faults.place or following):
            self._saved_at = time.monotonic()
            self._checkpoint(self._cursor(place))

    def _pages(self, stage: WalkStage) -> Callable[[], None]:
        """Count the pages of one stage for `progress`."""
        done = 0

        def page_done() -> None:
            nonlocal done
            done += PAGE
            self._progress(stage, done, max(self._size, done))

        return page_done

    def _cursor(self, place: Place) -> WalkCursor:
        tally = self._tally
        return WalkCursor(
            run_id=self._keyspace.run_id,
            started_at=self._started_at,
            seconds=time.monotonic() - self._began,
            stage=place[0],
            position=place[1],
            reservations=tally.reservations,
            entries=tally.entries,
            dismissed=tally.dismissed,
            foreign_expiries=tally.foreign_expiries,
            found=dict(tally.found),
            findings=[(each.fault, each.subject.hex(), each.found, each.expected) for each in tally.findings],
        )

    def _report(self, unjudged: int) -> ReconcileReport:
        tally, drift = self._tally, self._drift
        return ReconcileReport(
            reservations=tally.reservations,
            entries=tally.entries,
            budgets=len(drift),
            unjudged=unjudged,
            closed=len(drift.closed),
            unreadable=drift.unreadable,
            dismissed=tally.dismissed,
            foreign_expiries=tally.foreign_expiries,
            foreign_ids=tuple(tally.foreign_ids),
            resumed=self._resume is not None,
            found=tally.found,
            mended={},
            findings=tuple(tally.findings),
            mendable=tuple(tally.mendable),
            started_at=self._started_at,
            duration_seconds=time.monotonic() - self._began,
        )


def _tally(limit: int, resume: WalkCursor | None) -> Tally:
    if resume is None:
        return Tally(limit)
    return Tally(
        limit,
        reservations=resume.reservations,
        entries=resume.entries,
        dismissed=resume.dismissed,
        foreign_expiries=resume.foreign_expiries,
        found=Counter(resume.found),
        findings=[
            Finding(fault, bytes.fromhex(subject), found, expected)
            for fault, subject, found, expected in resume.findings
        ],
    )
