"""The daemon: a keeper for each shard, the scheduler, the HTTP port and the signals, started and stopped in order."""

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC

from apscheduler.executors.pool import ThreadPoolExecutor as SchedulerPool
from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd import __version__
from sweeperd.config import Settings
from sweeperd.delivery import shares
from sweeperd.keeper import Keeper
from sweeperd.metrics import Metrics
from sweeperd.shard import open_shards
from sweeperd.web import Web

log = logging.getLogger(__name__)


class Daemon:
    """Everything that runs, over all shards. Raises OSError where the HTTP address is taken."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self.metrics = Metrics(tenant_label=settings.metrics.tenant_label)
        shards = open_shards(settings)
        self._keepers = [
            Keeper(settings, shard, self.metrics, self._stop, concurrency)
            for shard, concurrency in zip(shards, shares(settings.webhooks.concurrency, len(shards)), strict=True)
        ]
        self._duties = [duty for keeper in self._keepers for duty in keeper.duties]
        # A thread for each duty, so that none waits for another's shard.
        self._scheduler = BackgroundScheduler(timezone=UTC, executors={"default": SchedulerPool(len(self._duties))})
        address = settings.http.address
        self.web = Web(address, self.metrics, self._health, self._readiness) if address else None

    def start(self) -> None:
        """Start all threads."""
        if self.web:
            self.web.start()
        self._scheduler.start()
        for keeper in self._keepers:
            keeper.start(self._scheduler)
        log.info(
            "started",
            extra={
                "version": __version__,
                "shards": {keeper.name: keeper.address for keeper in self._keepers},
                "interval_seconds": self._settings.sweep.interval.total_seconds(),
                "endpoints": [endpoint.name for endpoint in self._settings.webhooks.endpoints],
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
        # All at once: a shard that does not answer takes none of the others' time.
        with ThreadPoolExecutor(len(self._keepers), thread_name_prefix="end") as pool:
            ended = all(list(pool.map(lambda keeper: keeper.end(deadline), self._keepers)))
        self._scheduler.shutdown(wait=False)
        if self.web:
            self.web.close()
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

    def _health(self) -> tuple[bool, str]:
        problems = [problem for keeper in self._keepers for problem in keeper.health]
        return not problems, ", ".join(problems) or "ok"

    def _readiness(self) -> tuple[bool, str]:
        """
        Ready once each shard has been tried, and as long as one can be swept. All replicas see the same dead Redis, so
        were one enough to be unready, it would stop a roll-out and take the metrics of all others away.
        """
        if self._stop.is_set():
            return False, "stopping"
        troubles = [f"{keeper.name}: {keeper.trouble}" for keeper in self._keepers if keeper.trouble]
        ready = all(keeper.tried for keeper in self._keepers) and len(troubles) < len(self._keepers)
        return ready, "\n".join(["ok"] * ready + troubles)
