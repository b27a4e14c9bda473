"""All that a daemon does for one shard: its sweep, its delivery, its upkeep. It shares nothing with other shards'."""

import functools
import logging
import math
import threading

from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd.config import Settings
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.ops.status import read_status
from sweeperd.ops.status_history import StatusHistory
from sweeperd.runtime.kind_sweep import KindSweep, kind_sweeps
from sweeperd.runtime.periodic import PeriodicTask
from sweeperd.runtime.reconciler import PeriodicReconciler
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import RESERVATIONS

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
        #: The sweep waits for no connection of a delivery.
        self._sweep_shard = shard.twin()
        self._sweeps = kind_sweeps(settings, self._sweep_shard, metrics, stop)
        #: Kind -> why it cannot be swept now; empty where it can.
        self._troubles = {sweep.name: "no sweep yet" for sweep in self._sweeps}
        #: The kinds whose first sweep was tried.
        self._tried: set[str] = set()
        self._delivery = Dispatcher(settings, shard, metrics, stop, concurrency)
        interval = settings.sweep.interval.total_seconds()
        patience = 60 + 4 * settings.redis.socket_timeout.total_seconds()
        self.status_history = StatusHistory(shard.name, shard.address, functools.partial(read_status, settings, shard))
        longest_sweep = settings.sweep.time_budget.total_seconds() + patience
        self._vital = [
            *(
                PeriodicTask(self._task_name(sweep), functools.partial(self._sweep, sweep), interval, longest_sweep)
                for sweep in self._sweeps
            ),
            PeriodicTask(
                f"maintenance of {self.name}", self._maintain, min(MAINTENANCE_INTERVAL, 3 * interval), patience
            ),
        ]
        self._reconciler: PeriodicReconciler | None = None
        if settings.reconcile.interval:
            self._reconciler = PeriodicReconciler(settings, shard, metrics, stop)
            # A walk may take a day and is ended by a stop within a moment, so it is never stuck.
            every = self._reconciler.check_every
            self._vital.append(PeriodicTask(f"reconcile of {self.name}", self._reconcile, every, math.inf))
        else:
            metrics.forget_reconcile(shard.name)
        #: In a thread of its own, so that nothing waits for what is only to be shown.
        self.tasks = [
            *self._vital,
            PeriodicTask(f"look at {self.name}", self._look, min(LOOK_INTERVAL, 3 * interval), patience),
        ]

    @property
    def tried(self) -> bool:
        """Whether the first sweep of each kind was tried."""
        return self._tried >= set(self._troubles)

    @property
    def trouble(self) -> str:
        """Why this shard cannot be swept now; empty where it can."""
        return ", ".join(dict.fromkeys(trouble for trouble in self._troubles.values() if trouble))

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
        known = self._troubles.keys() & before._troubles.keys()
        self._troubles |= {kind: before._troubles[kind] for kind in known}
        self._tried |= before._tried & known
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
        self._sweep_shard.close()
        return ended

    def _task_name(self, sweep: KindSweep) -> str:
        return f"sweep of {self.name}" if sweep.name == RESERVATIONS else f"sweep of {sweep.name} on {self.name}"

    def _sweep(self, sweep: KindSweep) -> None:
        if self._stop.is_set():
            return
        try:
            self._delivery.prepare()
            trouble = sweep.run()
        except RedisUnavailable as error:
            trouble = str(error)
            sweep.telemetry.failed(error, redis_down=True)
        except KindRefused as error:
            trouble = str(error)
            sweep.telemetry.failed(error, redis_down=False, logged=True)
            log.warning("kind refused, it is not swept", extra={"shard": self.name, "error": trouble})
        except Exception as error:
            trouble = f"the sweep fails: {type(error).__name__}"
            sweep.telemetry.failed(error, redis_down=False)
        self._troubles[sweep.name] = trouble
        self._tried.add(sweep.name)

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
            self._reconciler.run_if_due()
        except RedisUnavailable as error:
            log.warning("reconcile waits for redis", extra={"shard": self.name, "error": str(error)})
