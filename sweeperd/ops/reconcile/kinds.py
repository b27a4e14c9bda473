"""
The walk over one configured kind: hashes that the index lost, index entries without a hash, and the sums that the kind
declares. It changes nothing; `mend_kind` mends the index, and no walk changes a sum.

The first sight of a fault is a hint only. A second later a script reads hash, index and quarantine in one step, and
only what it confirms is a finding. Whether a hash is active says the kind's own script, with writes that are not sent.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.ops.reconcile.faults import CONFIRM
from sweeperd.ops.reconcile.keyspace import Interrupted, Throttle, batches
from sweeperd.ops.reconcile.kind_cursor import KindCursor
from sweeperd.ops.reconcile.kind_index import KindIndexWalk, KindPlace, KindTally
from sweeperd.ops.reconcile.kind_reader import KindProgress, KindReader, checked
from sweeperd.ops.reconcile.kind_report import KindFinding, KindReport, KindStage
from sweeperd.ops.reconcile.kind_sums import AGREEING, SumComparison
from sweeperd.ops.reconcile.report import FINDINGS
from sweeperd.ops.reconcile.walk import CHECKPOINT
from sweeperd.store.shard import Shard


def reconcile_kind(
    shard: Shard,
    settings: Settings,
    kind: KindSettings,
    rate: float | None = None,
    *,
    within: float | None = None,
    limit: int = FINDINGS,
    stop: threading.Event | None = None,
    progress: KindProgress = lambda *_: None,
    resume: KindCursor | None = None,
    checkpoint: Callable[[KindCursor], None] = lambda _: None,
) -> KindReport:
    """
    Walk one kind on one shard, and change nothing. The parameters are those of `reconcile`. Raises RedisUnavailable,
    redis.RedisError, KindRefused where the kind's script is broken, and Interrupted once `stop` is set.
    """
    throttle = Throttle(rate, stop)
    with shard.reaching():
        reader = KindReader(shard, settings, kind, throttle, progress)
        size = reader.keyspace.size()
        if within:
            throttle.raise_rate(_passes(kind) * size / within)
        if resume is not None and resume.run_id != reader.keyspace.run_id:
            resume = None
        return _KindWalk(reader, size, limit, checkpoint, resume).run()


def mend_kind(shard: Shard, kind: KindSettings, report: KindReport) -> KindReport:
    """
    Mend the index where the report says that it is wrong. Each entry is read and written in one step, so an entry that
    is right by now stays as it is, and counts as mended. Raises RedisUnavailable, redis.RedisError.
    """
    faults = dict(report.mendable)
    with shard.reaching():
        changed = sum(len(checked(shard, kind, part, mend=True)) for part in batches(list(faults), CONFIRM))
    findings = tuple(
        replace(each, mended=True) if each.fault.mendable and each.subject in faults else each
        for each in report.findings
    )
    return replace(report, mended=Counter(faults.values()), findings=findings, changed=changed)


def _passes(kind: KindSettings) -> int:
    """How often a walk visits each key at most: hashes, index; for the sums, and to find the counters of each."""
    return 2 + (AGREEING + len(kind.sums) if kind.sums else 0)


class _KindWalk:
    def __init__(
        self,
        reader: KindReader,
        size: int,
        limit: int,
        checkpoint: Callable[[KindCursor], None],
        resume: KindCursor | None,
    ) -> None:
        self._reader = reader
        self._tally = _tally(limit, resume)
        self._index = KindIndexWalk(reader, self._tally, size, self._settled)
        self._sums = SumComparison(reader)
        self._checkpoint = checkpoint
        self._resume = resume
        self._started_at = resume.started_at if resume else reader.shard.read_clock()
        self._began = time.monotonic() - (resume.seconds if resume else 0.0)
        #: The place up to which all is counted, and when a place was last handed out.
        self._cursor: KindCursor | None = resume
        self._saved_at = time.monotonic()

    def run(self) -> KindReport:
        try:
            self._index.walk((self._resume.stage, self._resume.position) if self._resume else (KindStage.HASHES, 0))
            if not self._resume:
                for drift in self._sums.drifts():
                    self._tally.add(drift)
        except Interrupted:
            if self._cursor:
                self._checkpoint(self._cursor)
            raise
        return self._report()

    def _settled(self, place: KindPlace) -> None:
        tally = self._tally
        self._cursor = KindCursor(
            run_id=self._reader.keyspace.run_id,
            started_at=self._started_at,
            seconds=time.monotonic() - self._began,
            stage=place[0],
            position=place[1],
            hashes=tally.hashes,
            entries=tally.entries,
            found=dict(tally.found),
            findings=[(each.fault, each.subject.hex(), each.found, each.expected) for each in tally.findings],
        )
        if time.monotonic() >= self._saved_at + CHECKPOINT:
            self._saved_at = time.monotonic()
            self._checkpoint(self._cursor)

    def _report(self) -> KindReport:
        tally = self._tally
        return KindReport(
            kind=self._reader.kind.name,
            hashes=tally.hashes,
            entries=tally.entries,
            unreadable=self._sums.unreadable,
            unjudged=self._sums.unjudged,
            resumed=self._resume is not None,
            found=tally.found,
            mended={},
            findings=tuple(tally.findings),
            mendable=tuple(tally.mendable),
            started_at=self._started_at,
            duration_seconds=time.monotonic() - self._began,
        )


def _tally(limit: int, resume: KindCursor | None) -> KindTally:
    if resume is None:
        return KindTally(limit)
    findings = [
        KindFinding(fault, bytes.fromhex(subject), found, expected)
        for fault, subject, found, expected in resume.findings
    ]
    return KindTally(limit, resume.hashes, resume.entries, Counter(resume.found), findings)
