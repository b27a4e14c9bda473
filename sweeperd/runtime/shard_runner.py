"""All that a daemon does for one shard: its sweep, its delivery, its upkeep. It shares nothing with other shards'."""

import functools
import logging
import math
import threading
from collections.abc import Sequence

from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd.config import Settings
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.ops.status import read_status
from sweeperd.ops.status_history import StatusHistory
from sweeperd.runtime.periodic import PeriodicTask
from sweeperd.runtime.reconciler import PeriodicReconciler
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision
from sweeperd.sweep.last_sweep import LastSweepStore
from sweeperd.sweep.reservations import reservations
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry

log = logging.getLogger(__name__)

#: Between two rounds of trimming and measuring, seconds.
MAINTENANCE_INTERVAL = 15.0
#: Between two looks for the page while somebody watches, seconds.
LOOK_INTERVAL = 3.0


class ShardRunner:
    """Keeps one shard. `concurrency`: how many requests it may have in flight."""

    def __init__(
        self, settings: Settings, shard: Shard, metrics: Metrics, stop: threading.Event, concurrency: int
    ) -> None:
        self.name = shard.name
        self._shard = shard
        self._stop = stop
        self._audit = SweepTelemetry(metrics, shard.name)
        self._lease = Lease(shard, "sweep", settings.sweep.lease_ttl, self._audit.lost_lease)
        kind = reservations(shard.keys, settings.sweep)
        self._ticks = LastSweepStore(shard)
        self._sweeper = Sweeper(shard, kind, settings.sweep, self._decided, stop)
        self._delivery = Dispatcher(settings, shard, metrics, stop, concurrency)
        interval = settings.sweep.interval.total_seconds()
        patience = 60 + 4 * settings.redis.socket_timeout.total_seconds()
        self.status_history = StatusHistory(shard.name, shard.address, functools.partial(read_status, settings, shard))
        self._vital = [
            PeriodicTask(
                f"sweep of {self.name}", self._sweep, interval, settings.sweep.time_budget.total_seconds() + patience
            ),
            PeriodicTask(
                f"maintenance of {self.name}", self._maintain, min(MAINTENANCE_INTERVAL, 3 * interval), patience
            ),
        ]
        self._reconciler: PeriodicReconciler | None = None
        if settings.reconcile.interval:
            self._reconciler = PeriodicReconciler(settings, shard, metrics, stop)
            # A walk may take a day and is ended by a stop within a moment, so it is never stuck.
            every = self._reconciler.look_every
            self._vital.append(PeriodicTask(f"reconcile of {self.name}", self._reconcile, every, math.inf))
        else:
            metrics.forget_reconcile(shard.name)
        #: In a thread of its own, so that nothing waits for what is only to be shown.
        self.tasks = [
            *self._vital,
            PeriodicTask(f"look at {self.name}", self._look, min(LOOK_INTERVAL, 3 * interval), patience),
        ]
        #: Whether a sweep was tried yet.
        self.tried = False
        #: Why this shard cannot be swept now; empty where it can.
        self.trouble = "no sweep yet"

    @property
    def address(self) -> str:
        """Where the shard is, without credentials."""
        return self._shard.address

    @property
    def place(self) -> tuple[str, str, bytes]:
        """What makes it the same shard after a reload: its name, where it is, its prefix."""
        return self.name, self.address, self._shard.keys.prefix

    def adopt(self, before: "ShardRunner") -> None:
        """Take over from one that has retired: what it knows of Redis is still so."""
        self.tried, self.trouble = before.tried, before.trouble
        self._delivery.adopt(before._delivery)
        self.status_history.adopt(before.status_history)

    @property
    def health(self) -> list[str]:
        """What is wrong with its threads."""
        problems = [f"the {duty.name} is stuck" for duty in self._vital if duty.stuck]
        if not self._stop.is_set() and not self._delivery.complete:
            problems.append(f"a delivery thread of {self.name} has died")
        return problems

    def start(self, scheduler: BackgroundScheduler) -> None:
        """Start all threads."""
        for duty in self.tasks:
            duty.schedule(scheduler)
        self._delivery.start()

    def end(self, deadline: float) -> bool:
        """After a stop: wait until `deadline` (monotonic) for what is in hand. Returns whether every thread ended."""
        ended = all([duty.join(deadline) for duty in self.tasks])
        ended = self._delivery.join(deadline) and ended
        self._shard.close()
        return ended

    def _decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self._audit.decided(decisions, trace_id)
        self._ticks.decided(decisions)

    def _sweep(self) -> None:
        if self._stop.is_set():
            return
        try:
            self._delivery.prepare()
            with self._shard.reaching():
                acquired = self._lease.acquire()
            if acquired:
                with self._lease.kept() as lost:
                    report = self._sweeper.tick(lost.is_set)
                self._audit.ticked(report)
                self._ticks.note(report)
            else:
                self._audit.stood_by()
            self._audit.measured(self._sweeper.backlog())
            self.trouble = ""
        except RedisUnavailable as error:
            self.trouble = str(error)
            self._audit.failed(error, redis_down=True)
        except Exception as error:
            self.trouble = f"the sweep fails: {type(error).__name__}"
            self._audit.failed(error, redis_down=False)
        self.tried = True

    def _maintain(self) -> None:
        if self._stop.is_set():
            return
        try:
            self._delivery.maintain()
        except RedisUnavailable as error:
            log.warning("maintenance waits for redis", extra={"shard": self.name, "error": str(error)})

    def _look(self) -> None:
        if not self._stop.is_set():
            self.status_history.update()

    def _reconcile(self) -> None:
        assert self._reconciler  # noqa: S101 - for the type checker
        try:
            self._reconciler.look()
        except RedisUnavailable as error:
            log.warning("reconcile waits for redis", extra={"shard": self.name, "error": str(error)})
