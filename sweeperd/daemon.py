"""The daemon: its duties and its delivery, started and stopped in order."""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC

import redis
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd.audit import Audit
from sweeperd.config import Settings
from sweeperd.delivery import Delivery
from sweeperd.duty import Duty
from sweeperd.errors import RedisUnavailable
from sweeperd.lease import Lease
from sweeperd.metrics import Metrics
from sweeperd.reservation import message, reservations
from sweeperd.shard import Shard
from sweeperd.sweep import Decision, Sweeper

log = logging.getLogger(__name__)

#: Between two rounds of trimming and measuring, seconds.
MAINTENANCE_INTERVAL = 15.0


class Daemon:
    """Everything that works, over one shard, with settings that do not change."""

    def __init__(self, settings: Settings, metrics: Metrics | None = None) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.metrics = metrics or Metrics(tenant_label=settings.metrics.tenant_label)
        self._shard = Shard(settings.redis, settings.keys.prefix)
        kind = reservations(self._shard.keys, settings.sweep)
        self._audit = Audit(self.metrics, self._shard.name)
        self._lease = Lease(self._shard, "sweep")
        self._sweeper = Sweeper(self._shard, kind, settings.sweep, self._decided, self._stop)
        encode = functools.partial(message, self._shard.keys.prefix)
        self._delivery = Delivery(settings, self._shard, encode, self.metrics, self._stop)
        interval = settings.sweep.interval.total_seconds()
        patience = 60 + 4 * settings.redis.socket_timeout.total_seconds()
        self._duties = [
            Duty("sweep", self._sweep, interval, settings.sweep.time_budget.total_seconds() + patience),
            Duty("maintenance", self._maintain, min(MAINTENANCE_INTERVAL, 3 * interval), patience),
        ]
        self._scheduler = BackgroundScheduler(
            timezone=UTC, executors={"default": ThreadPoolExecutor(len(self._duties))}
        )
        #: Why the daemon is not ready; empty when it is.
        self._not_ready = "no sweep yet"

    def start(self) -> None:
        """Start all threads."""
        self._scheduler.start()
        for duty in self._duties:
            duty.schedule(self._scheduler)
        self._delivery.start()

    def about(self) -> dict[str, object]:
        """What it works on, for the log."""
        return {
            "redis": self._shard.address,
            "prefix": self._settings.keys.prefix,
            "interval_seconds": self._settings.sweep.interval.total_seconds(),
            "endpoints": [endpoint.name for endpoint in self._delivery.endpoints],
        }

    def catch_up(self) -> None:
        """Call it every second or so: what the scheduler has forgotten runs at once."""
        for duty in self._duties:
            duty.catch_up()

    def retire(self, seconds: float) -> bool:
        """Take no more work; wait so long for the current slice. Returns whether it has ended."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        return all([duty.join(deadline) for duty in self._duties])

    def finish(self, deadline: float) -> bool:
        """
        Take no more work, finish the current slice and what is in flight, and end every thread, until `deadline`
        (monotonic). Returns whether they all ended. Nothing is lost where they did not: what was not acknowledged is
        delivered by another replica or later.
        """
        ended = self.retire(max(0.0, deadline - time.monotonic()))
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        ended = self._delivery.join(deadline) and ended
        self._shard.close()
        return ended

    def stop(self, deadline: float | None = None) -> bool:
        """`finish`, by default within `shutdown_grace`."""
        return self.finish(deadline or time.monotonic() + self._settings.shutdown_grace.total_seconds())

    def succeed(self, before: "Daemon") -> None:
        """Take over from a daemon that has retired: what it knows of Redis is still so, what it showed is not."""
        self._not_ready = before._not_ready
        self._delivery.succeed(before._delivery)

    # ---- duties

    def _sweep(self) -> None:
        if self._stop.is_set():
            return
        try:
            self._delivery.prepare()
            with self._shard.reaching():
                acquired = self._lease.acquire()
            if acquired:
                try:
                    report = self._sweeper.tick()
                finally:
                    self._release()
                self._audit.ticked(report)
            else:
                self._audit.stood_by()
            self._audit.measured(self._sweeper.backlog())
            self._not_ready = ""
        except RedisUnavailable as error:
            self._not_ready = str(error)
            self._audit.failed(error, redis_down=True)
        except Exception as error:
            self._not_ready = f"the sweep fails: {type(error).__name__}"
            self._audit.failed(error, redis_down=False)

    def _decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self._audit.decided(decisions, trace_id)
        self._lease.renew()

    def _release(self) -> None:
        # A lease that cannot be given back runs out by itself.
        with contextlib.suppress(redis.RedisError):
            self._lease.release()

    def _maintain(self) -> None:
        if self._stop.is_set():
            return
        try:
            self._delivery.maintain()
        except RedisUnavailable as error:
            log.warning("maintenance waits for redis", extra={"error": str(error)})

    # ---- health

    def health(self) -> str:
        """What is wrong with the process; nothing where all is well."""
        problems = [f"{duty.name} is stuck" for duty in self._duties if duty.stuck]
        if not self._stop.is_set() and not self._delivery.complete:
            problems.append("a delivery thread has died")
        return ", ".join(problems)

    def readiness(self) -> str:
        """Why it is not ready; nothing where it is."""
        return self._not_ready
