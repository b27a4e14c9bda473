"""The daemon: its duties, its delivery, its HTTP port and its signals, started and stopped in order."""

import contextlib
import functools
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from datetime import UTC

import redis
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd import __version__
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
from sweeperd.web import Web

log = logging.getLogger(__name__)

#: Between two rounds of trimming and measuring, seconds.
MAINTENANCE_INTERVAL = 15.0


class Daemon:
    """Everything that runs, over one shard. Raises OSError where the HTTP address is taken."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.metrics = Metrics(tenant_label=settings.metrics.tenant_label)
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
        address = settings.http.address
        self.web = Web(address, self.metrics, self._health, self._readiness) if address else None

    def start(self) -> None:
        """Start all threads."""
        if self.web:
            self.web.start()
        self._scheduler.start()
        for duty in self._duties:
            duty.schedule(self._scheduler)
        self._delivery.start()
        log.info(
            "started",
            extra={
                "version": __version__,
                "redis": self._shard.address,
                "prefix": self._settings.keys.prefix,
                "interval_seconds": self._settings.sweep.interval.total_seconds(),
                "endpoints": [endpoint.name for endpoint in self._delivery.endpoints],
                "http_port": self.web.port if self.web else None,
            },
        )

    def stop(self) -> bool:
        """
        Take no more work, finish the current slice and what is in flight, and end every thread, within
        `shutdown_grace`. Returns whether they all ended. Nothing is lost where they did not: what was not acknowledged
        is delivered by another replica or later.
        """
        deadline = time.monotonic() + self._settings.shutdown_grace.total_seconds()
        self._stop.set()
        ended = all([duty.join(deadline) for duty in self._duties])
        self._scheduler.shutdown(wait=False)
        ended = self._delivery.join(deadline) and ended
        if self.web:
            self.web.close()
        self._shard.close()
        log.info("stopped" if ended else "stopped, with work still in flight; it will be done again")
        return ended

    def run(self) -> None:
        """Start, serve until SIGTERM or SIGINT, stop. A second signal ends the process at once."""

        def on_signal(number: int, _frame: object) -> None:
            for name in (signal.SIGTERM, signal.SIGINT):
                signal.signal(name, signal.SIG_DFL)
            self._stop.set()
            log.info("stopping", extra={"signal": signal.Signals(number).name})

        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, on_signal)
        self.start()
        while not self._stop.wait(1):
            for duty in self._duties:
                duty.catch_up()
        if not self.stop():
            # Threads that hang in a request would keep the interpreter from ending.
            logging.shutdown()
            os._exit(0)

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
        try:
            self._delivery.maintain()
        except RedisUnavailable as error:
            log.warning("maintenance waits for redis", extra={"error": str(error)})

    # ---- health

    def _health(self) -> str:
        problems = [f"{duty.name} is stuck" for duty in self._duties if duty.stuck]
        if not self._stop.is_set() and not self._delivery.complete:
            problems.append("a delivery thread has died")
        return ", ".join(problems)

    def _readiness(self) -> str:
        return "stopping" if self._stop.is_set() else self._not_ready
