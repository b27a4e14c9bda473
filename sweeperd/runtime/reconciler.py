"""What is walked once in each `reconcile.interval`: the reservations, and each configured kind. Nothing is mended."""

import abc
import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, Generic

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.ops.reconcile import Fault, KindFault, KindReport, ReconcileReport, reconcile, reconcile_kind
from sweeperd.ops.reconcile.keyspace import Interrupted
from sweeperd.ops.status import KindWalkStore, LastKindWalk, LastWalk, WalkStore, WalkT
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard
from sweeperd.sweep.reservations import RESERVATIONS

log = logging.getLogger(__name__)


#: How many findings of each walk are logged and kept; all are counted.
KEPT = 20


class DailyWalk(abc.ABC, Generic[WalkT]):
    """The walks over one kind of entries on one shard. Methods raise RedisUnavailable, redis.RedisError."""

    def __init__(self, swept: str, faults: Sequence[str], shard: Shard, settings: Settings, metrics: Metrics) -> None:
        """`faults`: all kinds of findings."""
        self.swept = swept
        #: Monotonic: not to be walked before.
        self.wait_until = 0.0
        self._shard = shard
        self._settings = settings
        self._rate = settings.reconcile.rate
        self._metrics = metrics.reconcile
        self._faults = faults
        #: The last walk of this process, where Redis was too full to keep it.
        self._own: WalkT | None = None
        self._metrics.announce(shard.name, swept, list(faults))

    def last(self) -> WalkT | None:
        """The last complete walk, by any process; its findings are exported."""
        known = [walk for walk in (self._own, self._kept()) if walk]
        last = max(known, key=lambda walk: walk.finished_at, default=None)
        if last:
            self._export(last)
        return last

    def walk(self, within: float, stop: threading.Event) -> None:
        """Walk, within about so many seconds; what it finds is kept, exported and logged. Raises Interrupted."""
        walk, kept = self._walked(within, stop)
        self._own = None if kept else walk
        self.count("ok")
        self._export(walk)

    def count(self, result: str) -> None:
        """Count a walk that has ended in this way, `ok` or `error`."""
        self._metrics.runs.labels(self._shard.name, self.swept, result).inc()

    @abc.abstractmethod
    def _kept(self) -> WalkT | None:
        """The last walk that Redis knows of."""

    @abc.abstractmethod
    def _walked(self, within: float, stop: threading.Event) -> tuple[WalkT, bool]:
        """Walk and log. Returns the walk, and whether Redis has kept it."""

    def _export(self, walk: WalkT) -> None:
        counts = {fault: walk.found.get(fault, 0) for fault in self._faults}
        self._metrics.reconciled(self._shard.name, self.swept, counts, walk.finished_at / 1000)

    def _log(self, report: ReconcileReport | KindReport, about: dict[str, Any]) -> None:
        fields: dict[str, object] = {"shard": self._shard.name, "kind": self.swept}
        for finding in report.findings:
            log.warning("reconcile found a fault", extra=fields | finding.as_dict())
        log.log(
            logging.WARNING if report.remaining else logging.INFO,
            "reconciled",
            extra=fields
            | about
            | {
                "unreadable": report.unreadable,
                "resumed": report.resumed,
                "findings": report.remaining,
                "findings_logged": len(report.findings),
                "seconds": round(report.duration_seconds, 3),
            },
        )


class ReservationsWalk(DailyWalk[LastWalk]):
    """Over the reservations, with their index and their budgets."""

    def __init__(self, settings: Settings, shard: Shard, metrics: Metrics) -> None:
        self._store = WalkStore(shard)
        super().__init__(RESERVATIONS, list(Fault), shard, settings, metrics)

    def _kept(self) -> LastWalk | None:
        return self._store.last()

    def _walked(self, within: float, stop: threading.Event) -> tuple[LastWalk, bool]:
        report = reconcile(
            self._shard,
            self._settings.sweep,
            self._rate,
            within=within,
            limit=KEPT,
            stop=stop,
            resume=self._store.cursor(),
            checkpoint=self._store.write_cursor,
        )
        walk = LastWalk(
            finished_at=self._shard.read_clock(), found=dict(report.found), foreign_expiries=report.foreign_expiries
        )
        kept = self._store.finish(walk, report.as_json())
        about = {"reservations": report.reservations, "budgets": report.budgets, "budgets_unjudged": report.unjudged}
        self._log(report, about | {"foreign_expiries": report.foreign_expiries})
        return walk, kept

    def _export(self, walk: LastWalk) -> None:
        super()._export(walk)
        self._metrics.foreign_expiries.labels(self._shard.name).set(walk.foreign_expiries)


class ConfiguredKindWalk(DailyWalk[LastKindWalk]):
    """Over one of `[[kinds]]`, with its index and its sums."""

    def __init__(self, kind: KindSettings, settings: Settings, shard: Shard, metrics: Metrics) -> None:
        self._kind = kind
        self._store = KindWalkStore(shard, kind.name)
        super().__init__(kind.name, list(KindFault), shard, settings, metrics)

    def _kept(self) -> LastKindWalk | None:
        return self._store.last()

    def _walked(self, within: float, stop: threading.Event) -> tuple[LastKindWalk, bool]:
        report = reconcile_kind(
            self._shard,
            self._settings,
            self._kind,
            self._rate,
            within=within,
            limit=KEPT,
            stop=stop,
            resume=self._store.cursor(),
            checkpoint=self._store.write_cursor,
        )
        walk = LastKindWalk(finished_at=self._shard.read_clock(), found=dict(report.found))
        kept = self._store.finish(walk, report.as_json())
        self._log(report, {"hashes": report.hashes, "index_entries": report.entries, "sums_unjudged": report.unjudged})
        return walk, kept


def daily_walks(settings: Settings, shard: Shard, metrics: Metrics) -> list[ReservationsWalk | ConfiguredKindWalk]:
    """All walks of these settings over the shard, in the order in which they are made."""
    built_in = [ReservationsWalk(settings, shard, metrics)] if settings.reservations.enabled else []
    return [*built_in, *(ConfiguredKindWalk(kind, settings, shard, metrics) for kind in settings.kinds)]


# ---- the daemon's own walks over a shard, now and then, one after the other, on one of the replicas


#: The longest time between two checks whether a walk is due, seconds.
CHECK_EVERY = 60.0
#: How long to wait after a walk that failed, seconds; no longer than the interval.
RETRY = 600.0


class PeriodicReconciler:
    """
    Walks the reservations and each configured kind of one shard once in each `reconcile.interval`, on one of the
    replicas. The end of each last walk is kept in Redis: a daemon that restarts does not walk again too early, and all
    replicas export what it found. The place of an unfinished walk is kept as well: the next one goes on from there,
    while Redis is still the same process.

    The rate rises where `reconcile.rate` would not end all walks within half of the interval.
    """

    def __init__(self, settings: Settings, shard: Shard, metrics: Metrics, stop: threading.Event) -> None:
        assert settings.reconcile.interval  # noqa: S101 - for the type checker
        self._interval = settings.reconcile.interval.total_seconds()
        self._shard = shard
        self._stop = stop
        self._walks = daily_walks(settings, shard, metrics)
        self._lease = Lease(shard, "reconcile", settings.sweep.lease_ttl)
        #: How often `run_if_due` should be called, seconds.
        self.check_every = min(CHECK_EVERY, self._interval / 4)
        self._checked = False

    @property
    def swept(self) -> list[str]:
        """What it walks: reservations, kinds."""
        return [walk.swept for walk in self._walks]

    def run_if_due(self) -> None:
        """Export what is known; walk what is due. Raises RedisUnavailable, redis.RedisError."""
        if self._stop.is_set():
            return
        with self._shard.reaching():
            now = self._shard.read_clock()
            due = [walk for walk in self._walks if self._is_due(walk, now)]
            # Not at the first check: a daemon that starts has more urgent work.
            first, self._checked = not self._checked, True
            if first or not due or not self._lease.acquire():
                return
            with self._lease.kept():
                self._walk_all(due)

    def _is_due(self, walk: ReservationsWalk | ConfiguredKindWalk, now: int) -> bool:
        last = walk.last()
        # The end of a walk in the future comes from a clock that was wrong.
        rested = last and last.finished_at <= now < last.finished_at + self._interval * 1000
        return not rested and time.monotonic() >= walk.wait_until

    def _walk_all(self, due: list[ReservationsWalk | ConfiguredKindWalk]) -> None:
        """A walk that fails keeps no other from being made."""
        within = self._interval / 2 / len(self._walks)
        for walk in due:
            walk.wait_until = time.monotonic() + min(RETRY, self._interval)
            fields = {"shard": self._shard.name, "kind": walk.swept}
            try:
                walk.walk(within, self._stop)
            except Interrupted:
                return
            except RedisUnavailable as error:
                walk.count("error")
                log.warning("reconcile failed, it is tried again later", extra=fields | {"error": str(error)})
            except KindRefused as error:
                walk.count("error")
                walk.wait_until = math.inf  # it would fail, or block Redis, in the same way
                log.warning("kind refused, it is not walked until a restart", extra=fields | {"error": str(error)})
            except Exception:
                walk.count("error")
                log.exception("reconcile failed", extra=fields)
            else:
                walk.wait_until = 0.0
