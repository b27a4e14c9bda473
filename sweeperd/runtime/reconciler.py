"""The daemon's own walk over a shard, now and then: `reconcile` without repair, its findings logged and exported."""

import logging
import threading
import time
from typing import Any

import pydantic
import redis

from sweeperd.config import Settings
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.ops.reconcile import Fault, ReconcileReport, reconcile
from sweeperd.ops.throttle import Interrupted
from sweeperd.store.errors import is_full
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The longest between two looks at whether it is time for a walk, seconds.
LOOK = 60.0
#: How long to leave it after a walk that failed, seconds; no longer than the interval.
RETRY = 600.0
#: How many findings are logged and kept of each walk; all are counted.
TOLD = 20


class Walked(pydantic.BaseModel):
    """What all replicas know of the last complete walk: the field `last` of the HASH, JSON."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: ms on Redis's clock.
    finished_at: int
    #: Kind of finding -> how many.
    found: dict[Fault, int]


class PeriodicReconciler:
    """
    Walks one shard once in each `reconcile.interval`, whichever replica's turn it is. When the last walk ended is kept
    in Redis, so a daemon that is started again and again does not walk again and again, and all replicas export what it
    found.
    """

    def __init__(self, settings: Settings, shard: Shard, metrics: Metrics, stop: threading.Event) -> None:
        assert settings.reconcile.interval  # noqa: S101 - for the type checker
        self._interval = settings.reconcile.interval.total_seconds()
        self._rate = settings.reconcile.rate
        self._sweep = settings.sweep
        self._shard = shard
        self._metrics = metrics
        self._stop = stop
        self._lease = Lease(shard, "reconcile", settings.sweep.lease_ttl)
        #: How often `look` is to be called, seconds.
        self.look_every = min(LOOK, self._interval / 4)
        self._looked = False
        self._wait_until = 0.0
        #: The last walk of this process, where Redis was too full to take it.
        self._own: Walked | None = None
        metrics.announce_reconcile(shard.name, [fault.value for fault in Fault])

    def look(self) -> None:
        """Export what is known; walk where it is time. Raises RedisUnavailable."""
        if self._stop.is_set():
            return
        with self._shard.reaching():
            now = self._shard.read_clock()
            last = self._read()
            if last:
                self._show(last)
            # Not at the first look: a daemon that starts has more urgent things to do.
            first, self._looked = not self._looked, True
            # A walk that ended in the future was timed by a clock that was wrong.
            rested = last and last.finished_at <= now < last.finished_at + self._interval * 1000
            if first or rested or time.monotonic() < self._wait_until or not self._lease.acquire():
                return
            with self._lease.kept():
                self._walk()

    def _walk(self) -> None:
        shard = self._shard.name
        self._wait_until = time.monotonic() + min(RETRY, self._interval)
        try:
            report = reconcile(self._shard, self._sweep, self._rate, limit=TOLD, stop=self._stop)
        except Interrupted:
            return
        except RedisUnavailable as error:
            self._metrics.reconcile_runs.labels(shard, "error").inc()
            log.warning("reconcile failed, it is tried again later", extra={"shard": shard, "error": str(error)})
            return
        except Exception:
            self._metrics.reconcile_runs.labels(shard, "error").inc()
            raise
        walked = Walked(finished_at=self._shard.read_clock(), found=dict(report.found))
        self._write(walked, report)
        self._metrics.reconcile_runs.labels(shard, "ok").inc()
        self._wait_until = 0.0
        self._show(walked)
        self._log(report)

    def _read(self) -> Walked | None:
        entry = self._shard.client.hget(self._shard.keys.reconcile, "last")
        known = [self._own] if self._own else []
        if isinstance(entry, bytes):
            try:
                known.append(Walked.model_validate_json(entry))
            except ValueError:
                log.warning("what is kept of the last reconcile cannot be read", extra={"shard": self._shard.name})
        return max(known, key=lambda walked: walked.finished_at, default=None)

    def _write(self, walked: Walked, report: ReconcileReport) -> None:
        values: dict[Any, Any] = {"last": walked.model_dump_json(), "report": report.as_json()}
        try:
            self._shard.client.hset(self._shard.keys.reconcile, mapping=values)
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            self._own = walked

    def _show(self, walked: Walked) -> None:
        counts = {fault.value: walked.found.get(fault, 0) for fault in Fault}
        self._metrics.reconciled(self._shard.name, counts, walked.finished_at / 1000)

    def _log(self, report: ReconcileReport) -> None:
        about: dict[str, object] = {"shard": self._shard.name}
        for finding in report.findings:
            log.warning("reconcile found a fault", extra=about | finding.as_dict())
        log.log(
            logging.WARNING if report.remaining else logging.INFO,
            "reconciled",
            extra=about
            | {
                "reservations": report.reservations,
                "budgets": report.budgets,
                "budgets_unjudged": report.unjudged,
                "unreadable": report.unreadable,
                "findings": report.remaining,
                "findings_logged": len(report.findings),
                "seconds": round(report.duration_seconds, 3),
            },
        )
