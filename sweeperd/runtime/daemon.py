"""The daemon: a shard runner for each shard and the scheduler, started and stopped in order."""

import contextlib
import threading
import time
from datetime import UTC
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor as SchedulerPool
from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd.config import Settings
from sweeperd.delivery.dispatcher import shares
from sweeperd.metrics import Metrics
from sweeperd.ops.status_report import status_report
from sweeperd.runtime.role import Role
from sweeperd.runtime.shard_runner import ShardRunner
from sweeperd.store.context import ShardContext
from sweeperd.store.interpreter import Interpreter
from sweeperd.store.shard import open_shards


class Daemon:
    """Everything that works, over all shards, with settings that do not change."""

    def __init__(self, settings: Settings, metrics: Metrics | None = None, role: Role = Role.ALL) -> None:
        self._settings = settings
        self._role = role
        self._stop = threading.Event()
        self.metrics = metrics or Metrics(**settings.metrics.model_dump(), cycles=settings.cycles.enabled)
        shards, interpreter = open_shards(settings), Interpreter()
        self._runners = [
            ShardRunner(ShardContext(settings, shard, self.metrics, self._stop, concurrency, interpreter), role)
            for shard, concurrency in zip(shards, shares(settings.webhooks.concurrency, len(shards)), strict=True)
        ]
        self._tasks = [task for runner in self._runners for task in runner.tasks]
        # A thread for each task, so that no task waits for the Redis of another shard.
        self._scheduler = BackgroundScheduler(timezone=UTC, executors={"default": SchedulerPool(len(self._tasks))})

    def start(self) -> None:
        """Start all threads. Raises RuntimeError if the system gives no more of them; `stop` ends those there are."""
        self._scheduler.start()
        for runner in self._runners:
            runner.start(self._scheduler)

    def about(self) -> dict[str, object]:
        """What it works on, for the log."""
        return {
            "role": self._role.value,
            "shards": {runner.name: runner.address for runner in self._runners},
            "interval_seconds": self._settings.sweep.interval.total_seconds(),
            "endpoints": [endpoint.name for endpoint in self._settings.consumers],
        }

    def catch_up(self) -> None:
        """Call it every second or so: what the scheduler has forgotten runs at once."""
        for task in self._tasks:
            task.catch_up()

    def retire(self, seconds: float) -> bool:
        """Take no more work; wait so long for the current batches. Returns whether they have ended."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        return all([task.join(deadline) for task in self._tasks])

    def finish(self, deadline: float) -> bool:
        """
        Take no more work, finish the current batches and what is in flight, and end every thread, until `deadline`
        (monotonic). Returns whether they all ended. Nothing is lost where they did not: what was not acknowledged is
        delivered by another replica or later.
        """
        self._stop.set()
        ended = set[ShardRunner]()

        def end(runner: ShardRunner) -> None:
            if runner.end(deadline):
                ended.add(runner)

        # All at once: a shard that does not answer takes none of the others' time.
        threads = [threading.Thread(target=end, args=(runner,), name="end", daemon=True) for runner in self._runners]
        for thread, runner in zip(threads, self._runners, strict=True):
            try:
                thread.start()
            except RuntimeError:
                end(runner)  # the system gives no more threads
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if self._scheduler.running:
            with contextlib.suppress(RuntimeError):  # its own thread could not be started
                self._scheduler.shutdown(wait=False)
        return len(ended) == len(self._runners)

    def stop(self, deadline: float | None = None) -> bool:
        """`finish`, by default within `shutdown_grace`."""
        return self.finish(deadline or time.monotonic() + self._settings.shutdown_grace.total_seconds())

    def adopt(self, before: "Daemon") -> None:
        """Take over from a daemon that has retired: what it knows of its shards is still so."""
        predecessors = {runner.place: runner for runner in before._runners}
        for runner in self._runners:
            if predecessor := predecessors.get(runner.place):
                runner.adopt(predecessor)
        for name in before._endpoints - self._endpoints:
            self.metrics.webhooks.forget(name)
        for name in {runner.name for runner in before._runners} - {runner.name for runner in self._runners}:
            self.metrics.forget_shard(name)

    @property
    def _endpoints(self) -> set[str]:
        return {endpoint.name for endpoint in self._settings.consumers}

    def health(self) -> tuple[bool, str]:
        """Whether the process is well, and what is wrong with it."""
        problems = [problem for runner in self._runners for problem in runner.health]
        return not problems, ", ".join(problems) or "ok"

    def readiness(self) -> tuple[bool, str]:
        """
        Ready once each shard has been tried, and as long as one can be swept. All replicas see the same dead Redis, so
        were one enough to be unready, it would stop a roll-out and take the metrics of all others away. That no process
        sweeps, or none delivers, is named and makes this one not unready.
        """
        troubles = [f"{runner.name}: {runner.trouble}" for runner in self._runners if runner.trouble]
        ready = all(runner.tried for runner in self._runners) and len(troubles) < len(self._runners)
        missing = [f"{runner.name}: {duty}" for runner in self._runners for duty in runner.missing]
        return ready, "\n".join(["ok"] * ready + troubles + missing)

    def report(self) -> dict[str, Any]:
        """What the page shows: of each shard the last that is known. Waits for nothing."""
        shards = [(runner.status_history.view(), runner.status_history.samples()) for runner in self._runners]
        return status_report(self._settings, shards, time.monotonic())
