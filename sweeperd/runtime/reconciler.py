"""The daemon's own walk over a shard, now and then: its findings are logged and exported, and nothing is mended."""

import logging
import threading
import time

from sweeperd.config import Settings
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.ops.last_walk import LastWalk, WalkStore
from sweeperd.ops.reconcile import Fault, ReconcileReport, reconcile
from sweeperd.ops.throttle import Interrupted
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The longest time between two checks whether a walk is due, seconds.
CHECK_EVERY = 60.0
#: How long to wait after a walk that failed, seconds; no longer than the interval.
RETRY = 600.0
#: How many findings of each walk are logged and kept; all are counted.
KEPT = 20


class PeriodicReconciler:
    """
    Walks one shard once in each `reconcile.interval`, on one of the replicas. The end of the last walk is kept in
    Redis: a daemon that restarts does not walk again too early, and all replicas export what it found. The place of an
    unfinished walk is kept as well: the next one goes on from there, while Redis is still the same process.

    The rate rises where `reconcile.rate` would not end the walk within half of the interval.
    """

    def __init__(self, settings: Settings, shard: Shard, metrics: Metrics, stop: threading.Event) -> None:
        assert settings.reconcile.interval  # noqa: S101 - for the type checker
        self._interval = settings.reconcile.interval.total_seconds()
        self._rate = settings.reconcile.rate
        self._sweep = settings.sweep
        self._shard = shard
        self._metrics = metrics
        self._stop = stop
        self._store = WalkStore(shard)
        self._lease = Lease(shard, "reconcile", settings.sweep.lease_ttl)
        #: How often `run_if_due` should be called, seconds.
        self.check_every = min(CHECK_EVERY, self._interval / 4)
        self._checked = False
        self._wait_until = 0.0
        #: The last walk of this process, where Redis was too full to keep it.
        self._own: LastWalk | None = None
        metrics.reconcile.announce(shard.name, [fault.value for fault in Fault])

    def run_if_due(self) -> None:
        """Export what is known; walk where a walk is due. Raises RedisUnavailable, redis.RedisError."""
        if self._stop.is_set():
            return
        with self._shard.reaching():
            now = self._shard.read_clock()
            last = self._last()
            if last:
                self._export(last)
            # Not at the first check: a daemon that starts has more urgent work.
            first, self._checked = not self._checked, True
            # The end of a walk in the future comes from a clock that was wrong.
            rested = last and last.finished_at <= now < last.finished_at + self._interval * 1000
            if first or rested or time.monotonic() < self._wait_until or not self._lease.acquire():
                return
            with self._lease.kept():
                self._walk()

    def _walk(self) -> None:
        shard = self._shard.name
        self._wait_until = time.monotonic() + min(RETRY, self._interval)
        try:
            report = reconcile(
                self._shard,
                self._sweep,
                self._rate,
                within=self._interval / 2,
                limit=KEPT,
                stop=self._stop,
                resume=self._store.cursor(),
                checkpoint=self._store.write_cursor,
            )
        except Interrupted:
            return
        except RedisUnavailable as error:
            self._metrics.reconcile.runs.labels(shard, "error").inc()
            log.warning("reconcile failed, it is tried again later", extra={"shard": shard, "error": str(error)})
            return
        except Exception:
            self._metrics.reconcile.runs.labels(shard, "error").inc()
            raise
        walk = LastWalk(
            finished_at=self._shard.read_clock(), found=dict(report.found), foreign_expiries=report.foreign_expiries
        )
        self._own = None if self._store.finish(walk, report) else walk
        self._metrics.reconcile.runs.labels(shard, "ok").inc()
        self._wait_until = 0.0
        self._export(walk)
        self._log(report)

    def _last(self) -> LastWalk | None:
        known = [walk for walk in (self._own, self._store.last()) if walk]
        return max(known, key=lambda walk: walk.finished_at, default=None)

    def _export(self, walk: LastWalk) -> None:
        counts = {fault.value: walk.found.get(fault, 0) for fault in Fault}
        self._metrics.reconcile.reconciled(self._shard.name, counts, walk.finished_at / 1000, walk.foreign_expiries)

    def _log(self, report: ReconcileReport) -> None:
        fields: dict[str, object] = {"shard": self._shard.name}
        for finding in report.findings:
            log.warning("reconcile found a fault", extra=fields | finding.as_dict())
        log.log(
            logging.WARNING if report.remaining else logging.INFO,
            "reconciled",
            extra=fields
            | {
                "reservations": report.reservations,
                "budgets": report.budgets,
                "budgets_unjudged": report.unjudged,
                "unreadable": report.unreadable,
                "foreign_expiries": report.foreign_expiries,
                "resumed": report.resumed,
                "findings": report.remaining,
                "findings_logged": len(report.findings),
                "seconds": round(report.duration_seconds, 3),
            },
        )
