"""Reconciles each kind once per `reconcile.interval`, on one of the replicas, without repairs."""

import logging
import math
import threading
import time

from sweeperd.config import Settings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.metrics import Metrics
from sweeperd.ops.reconcile.faults import Fault, faults_of
from sweeperd.ops.reconcile.last_walk import KEPT, LastWalk, WalkStore
from sweeperd.ops.reconcile.report import ReconcileReport
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.throttle import Interrupted, Throttle
from sweeperd.ops.reconcile.walk import reconcile
from sweeperd.runtime.failure import Failure
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Kind

log = logging.getLogger(__name__)

#: The longest time between two checks for walks that are due, seconds.
CHECK_EVERY = 60.0
#: The longest wait after a walk that failed, seconds.
RETRY = 600.0
#: The fields of a report that are logged under the same name.
_LOGGED = {"hashes", "index_entries", "counters", "counters_unjudged", "foreign_expiries", "unreadable", "far_ahead"}
_LOGGED |= {"far_ahead_unit", "resumed"}


class DailyWalk:
    """The walks over one kind on one shard. Methods raise RedisUnavailable, redis.RedisError."""

    def __init__(self, kind: Kind, settings: Settings, shard: Shard, metrics: Metrics, timing: Timing) -> None:
        self.kind = kind.name
        #: No walk before this, monotonic.
        self.wait_until = 0.0
        self._settings = settings
        self._shard = shard
        self._metrics = metrics.reconcile
        self._timing = timing
        self._faults = faults_of(kind)
        self._store = WalkStore(shard, kind.walk_suffix)
        #: The last walk of this process if Redis was too full to keep it.
        self._own: LastWalk | None = None
        self._metrics.announce(shard.name, kind.name)

    def last(self) -> LastWalk | None:
        """The last complete walk by any process, whose findings are exported."""
        known = [walk for walk in (self._own, self._store.last()) if walk]
        last = max(known, key=lambda walk: walk.finished_at, default=None)
        if last:
            self._export(last)
        return last

    def walk(self, within: float, stop: threading.Event) -> None:
        """Walk in about `within` seconds, then keep, export and log the findings. Raises Interrupted."""
        throttle = Throttle(self._settings.reconcile.rate, stop, self._timing)
        report = reconcile(
            subject_of(self._shard, self._settings, self.kind, throttle),
            within=within,
            limit=KEPT,
            resume=self._store.cursor(),
            checkpoint=self._store.write_cursor,
        )
        walk = LastWalk.of(self._shard, report)
        self._own = None if self._store.finish(walk, report) else walk
        self._log(report)
        self.count("ok")
        self._export(walk)

    def count(self, result: str) -> None:
        self._metrics.runs.labels(self._shard.name, self.kind, result).inc()

    def _export(self, walk: LastWalk) -> None:
        counts: dict[str, int] = {fault: walk.found.get(fault, 0) for fault in self._faults}
        self._metrics.reconciled(self._shard.name, self.kind, counts, walk.finished_at / 1000)
        if Fault.FOREIGN_QUARANTINE in self._faults:
            self._metrics.foreign_expiries.labels(self._shard.name, self.kind).set(walk.foreign_expiries)

    def _log(self, report: ReconcileReport) -> None:
        fields: dict[str, object] = {"shard": self._shard.name, "kind": self.kind}
        for finding in report.findings:
            log.warning("reconcile found a fault", extra=fields | finding.document().as_json())
        document = report.document(self._shard)
        fields |= document.model_dump(include=_LOGGED)
        findings = {"findings": report.remaining, "findings_logged": len(report.findings)}
        level = logging.WARNING if report.remaining or report.far.count else logging.INFO
        log.log(level, "reconciled", extra=fields | findings | {"seconds": document.duration_seconds})


class PeriodicReconciler:
    """
    Walks the kinds of one shard, one after the other. Redis keeps each last walk, so that a restart causes no early
    walk and all replicas export the findings. It also keeps the place of an unfinished walk, where the next one goes on
    if Redis was not restarted. The rate is raised if all walks would take longer than half of the interval.
    """

    def __init__(
        self, settings: Settings, shard: Shard, metrics: Metrics, stop: threading.Event, timing: Timing = DEFAULT_TIMING
    ) -> None:
        assert settings.reconcile.interval  # noqa: S101 - for the type checker
        self._interval = settings.reconcile.interval.total_seconds()
        self._shard = shard
        self._stop = stop
        self._walks = [DailyWalk(kind, settings, shard, metrics, timing) for kind in kinds_of(settings, shard).values()]
        self._lease = Lease(shard, "reconcile", settings.sweep.lease_ttl)
        #: How often `run_if_due` should be called, seconds.
        self.check_every = min(CHECK_EVERY, self._interval / 4)
        self._checked = False

    @property
    def swept(self) -> list[str]:
        return [walk.kind for walk in self._walks]

    def run_if_due(self) -> None:
        """Export the last walks, and walk the kinds that are due. Raises RedisUnavailable, redis.RedisError."""
        if self._stop.is_set():
            return
        with self._shard.reaching():
            now = self._shard.read_clock()
            due = [walk for walk in self._walks if self._is_due(walk, now)]
            # At the first check, when a daemon starts, other work is more urgent.
            first, self._checked = not self._checked, True
            if first or not due or not self._lease.acquire():
                return
            with self._lease.kept():
                self._walk_all(due)

    def _is_due(self, walk: DailyWalk, now: int) -> bool:
        last = walk.last()
        # A walk in the future was noted under a wrong clock.
        rested = last and last.finished_at <= now < last.finished_at + self._interval * 1000
        return not rested and time.monotonic() >= walk.wait_until

    def _walk_all(self, due: list[DailyWalk]) -> None:
        """Walk each kind, even if the walk of another one fails."""
        within = self._interval / 2 / len(self._walks)
        for walk in due:
            walk.wait_until = time.monotonic() + min(RETRY, self._interval)
            fields = {"shard": self._shard.name, "kind": walk.kind}
            try:
                with self._shard.reaching():
                    walk.walk(within, self._stop)
            except Interrupted:
                return
            except Exception as error:
                walk.count("error")
                failure = Failure.of(error)
                match failure.category:
                    case "redis":
                        failure.log(logging.WARNING, "reconcile failed, it is tried again later", fields)
                    case "refused":
                        walk.wait_until = math.inf  # another walk would fail, or block Redis, in the same way
                        failure.log(logging.WARNING, "kind refused, it is not walked", fields)
                    case _:
                        failure.log(logging.ERROR, "reconcile failed", fields)
            else:
                walk.wait_until = 0.0
