"""Runs the work on every shard in background threads."""

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC
from typing import Any

import redis
from apscheduler.executors.pool import ThreadPoolExecutor as SchedulerPool
from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.cpu_turns import CpuTurns
from sweeperd.delivery.dispatcher import Dispatcher, shares
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.metrics import Metrics
from sweeperd.ops.actions import ActionExporter
from sweeperd.ops.entry_pages import EntryPages
from sweeperd.ops.history import StatusHistory
from sweeperd.ops.processes import ProcessAnnouncer
from sweeperd.ops.status import read_status
from sweeperd.ops.status_report import status_report
from sweeperd.outbox.backlog import BacklogMemory
from sweeperd.runtime.cycles_lease import RETRY_EVERY, CyclesLease
from sweeperd.runtime.failure import Failure
from sweeperd.runtime.periodic import PeriodicTask
from sweeperd.runtime.process import Role
from sweeperd.runtime.reconciler import PeriodicReconciler
from sweeperd.runtime.schedule import Incomplete, Outcome, Rules, Schedule, Tick
from sweeperd.runtime.sweeps import KindSweep, kind_sweeps
from sweeperd.store import scripts
from sweeperd.store.errors import describe
from sweeperd.store.shard import open_shards
from sweeperd.sweep.configured import kinds_of

log = logging.getLogger(__name__)

#: The work that a daemon without a sweep reports to `/readyz`.
_MAINTENANCE = "(maintenance)"  # no kind has such a name


class ShardRunner:
    """The daemon's work on one shard: sweep, delivery, maintenance."""

    def __init__(self, context: ShardContext, role: Role = Role.ALL) -> None:
        settings, shard, metrics, stop = context.settings, context.shard, context.metrics, context.stop
        self.name = shard.name
        self._shard = shard
        self._metrics = metrics
        self._stop = stop
        self._role = role
        self._timing = context.timing
        #: How long a task may take before it counts as stuck, seconds.
        self._patience = 60 + 4 * settings.redis.socket_timeout.total_seconds()
        #: A separate client, so that the sweep never waits for a connection that a delivery uses.
        self._sweep_shard = shard.twin()
        self._cycles_lease = CyclesLease(self._sweep_shard) if settings.cycles.enabled and role.sweeps else None
        self._kinds = kinds_of(settings, shard)
        self._sweeps: list[KindSweep] = []
        if role.sweeps:
            ours = replace(context, shard=self._sweep_shard)
            self._sweeps = kind_sweeps(ours, cycles_lease=self._cycles_lease)
        self.delivery = Dispatcher(context, delivers=role.delivers)
        self._actions = ActionExporter(shard, metrics)
        self._announcer = ProcessAnnouncer(shard, sweeps=role.sweeps, delivers=role.delivers, kinds=self.kinds)
        self._reconciler: PeriodicReconciler | None = None
        if settings.reconcile.interval and role.sweeps and (settings.reservations.enabled or settings.kinds):
            self._reconciler = PeriodicReconciler(settings, shard, metrics, stop, context.timing)
        metrics.reconcile.retain(shard.name, self._reconciler.swept if self._reconciler else ())
        read = functools.partial(read_status, settings, shard, detailed=True, memory=BacklogMemory())
        self.status_history = StatusHistory(shard.name, shard.address, read)
        #: The tasks that make the process unhealthy if they are stuck.
        self._essential = list(self._essential_tasks(settings))
        precision = settings.sweep.precision.total_seconds() if settings.sweep.looks else None
        rules = Rules(settings.sweep.interval.total_seconds(), precision)
        #: Decides when each kind is swept; None if this process sweeps nothing.
        self.schedule = Schedule(self._sweep_shard, stop, self._sweeps, rules, self._sweep) if self._sweeps else None
        interval = min(self._timing.status_every, 3 * settings.sweep.interval.total_seconds())
        #: The status for the page is read in its own thread, so that no other task waits for it.
        self.tasks = [
            *self._essential,
            PeriodicTask(f"status of {self.name}", self._read_status, interval, self._patience),
        ]
        works = self.kinds if role.sweeps else [_MAINTENANCE]
        #: Why the work on each kind, or the maintenance, fails now; empty if it succeeds.
        self._troubles = dict.fromkeys(works, "no sweep yet" if role.sweeps else "not maintained yet")
        #: Why the stream is not maintained; empty if it is.
        self._maintenance = ""
        #: The works that were tried.
        self._tried: set[str] = set()

    @property
    def tried(self) -> bool:
        """Whether the first sweep of each kind was tried."""
        return self._tried >= set(self._troubles)

    @property
    def trouble(self) -> str:
        """Why the work on this shard fails now, deliveries only if it sweeps nothing; empty if it succeeds."""
        troubles = [*self._troubles.values(), "" if self._role.sweeps else self._waits]
        return ", ".join(dict.fromkeys(filter(None, troubles)))

    @property
    def kinds(self) -> list[str]:
        return [sweep.name for sweep in self._sweeps]

    @property
    def password_refused(self) -> bool:
        """Whether Redis refused the password of the URL at the last connect."""
        return any(each.password_refused for each in (self._shard, self._sweep_shard, self.delivery))

    @property
    def missing(self) -> list[str]:
        """What leaves this process ready: duties without a process, and what fails beside a sweep that works."""
        fails = [] if self.trouble else [self._waits, self._maintenance and f"maintenance fails: {self._maintenance}"]
        return [*(f"no process {duty}" for duty in self._announcer.seen.missing), *filter(None, fails)]

    @property
    def _waits(self) -> str:
        trouble = self.delivery.trouble
        return f"delivery waits for redis: {trouble}" if trouble else ""

    @property
    def address(self) -> str:
        """The shard's address, without credentials."""
        return self._shard.address

    @property
    def place(self) -> tuple[str, str, bytes]:
        """Identifies the shard across reloads."""
        return self.name, self.address, self._shard.keys.prefix

    def adopt(self, before: "ShardRunner") -> None:
        """Take over the state of a retired runner of the same shard."""
        known = self._troubles.keys() & before._troubles.keys()
        self._troubles |= {work: before._troubles[work] for work in known}
        self._tried |= before._tried & known
        self.delivery.adopt(before.delivery)
        self.status_history.adopt(before.status_history)
        for name in self._kinds.keys() & before._kinds.keys():
            self._kinds[name].adopt(before._kinds[name])
        self._announcer.adopt(before._announcer)
        sweeps = {sweep.name: sweep for sweep in before._sweeps}
        for sweep in self._sweeps:
            if predecessor := sweeps.get(sweep.name):
                sweep.adopt(predecessor)
        if self._cycles_lease and before._cycles_lease:
            self._cycles_lease.adopt(before._cycles_lease)

    @property
    def health(self) -> list[str]:
        """The threads of this shard that are stuck or have died, as a sentence each."""
        problems = [f"the {task.name} is stuck" for task in self._essential if task.stuck]
        if self._role.delivers and not self._stop.is_set() and not self.delivery.complete:
            problems.append(f"a delivery thread of {self.name} has died")
        problems += [f"the {thread} on {self.name} is stuck" for thread in self.delivery.stuck]
        if self.schedule and not self._stop.is_set():
            problems += self.schedule.problems(self._patience)
        return problems

    def retire(self, deadline: float) -> bool:
        """After a stop, wait until `deadline` (monotonic) for the current batches. Returns whether they have ended."""
        ended = all([task.join(deadline) for task in self.tasks])
        return (self.schedule is None or self.schedule.join(deadline)) and ended

    def end(self, deadline: float) -> bool:
        """After a stop, wait until `deadline` (monotonic) for the current work. Returns whether every thread ended."""
        self.delivery.stop()
        ended = self.retire(deadline)
        ended = self.delivery.join(deadline) and ended
        for sweep in self._sweeps if ended else ():
            sweep.end()
        if ended:
            self._announcer.leave()
        self.delivery.close()
        self._shard.close()
        self._sweep_shard.close()
        return ended

    def _essential_tasks(self, settings: Settings) -> Iterator[PeriodicTask]:
        interval, patience = settings.sweep.interval.total_seconds(), self._patience
        if self._cycles_lease:
            yield self._waiting("cycles lease", self._hold_cycles_lease, RETRY_EVERY, patience, "the lease of Cycles")
        maintain_every = min(self._timing.maintain_every, 3 * interval)
        if self._role.delivers:
            yield self._waiting("maintenance", self._maintain, maintain_every, patience)
            replays_every = min(self._timing.replays_every, 3 * interval)
            yield self._waiting("replays", self.delivery.refresh_replays, replays_every, patience)
        else:
            yield self._waiting("groups", self.delivery.keep_groups, maintain_every, patience)
        if self._reconciler:
            # A walk may take a day, and a stop ends it within a moment, so it is never stuck.
            yield self._waiting("reconcile", self._reconciler.run_if_due, self._reconciler.check_every, math.inf)

    def _waiting(
        self, name: str, work: Callable[[], object], interval: float, longest: float, logged: str = ""
    ) -> PeriodicTask:
        """A task that waits while Redis refuses what it needs. `logged`: its name in the log, if different."""
        outage = Outage(log, logged or name, {"shard": self.name})

        def run() -> None:
            if self._stop.is_set():
                return
            try:
                work()
            except (RedisUnavailable, redis.RedisError) as error:
                outage.begin(error, failed=not isinstance(error, RedisUnavailable))
            else:
                outage.end()

        return PeriodicTask(f"{name} of {self.name}", run, interval, longest)

    def _hold_cycles_lease(self) -> None:
        """Hold the lease of the Cycles services unless a sweep hangs."""
        if self._cycles_lease and not any(sweep.hangs for sweep in self._sweeps if sweep.cycles_lease):
            self._cycles_lease.hold()

    def _sweep(self, sweep: KindSweep, order: Tick) -> Outcome:
        outcome: Outcome
        try:
            self.delivery.prepare()
            # Ready from the first page on, because a tick may take its whole time budget.
            outcome = sweep.run(order, functools.partial(self._note, sweep.name, ""))
            trouble = outcome.failure if isinstance(outcome, Incomplete) else ""
        except Exception as error:
            failure = Failure.of(error)
            trouble = failure.cause if failure.category in ("redis", "refused") else f"the sweep fails: {failure.cause}"
            sweep.failed(failure)
            outcome = Incomplete(trouble)
        self._note(sweep.name, trouble)
        return outcome

    def _maintain(self) -> None:
        try:
            self.delivery.prepare()
            self.delivery.maintain()
        except (RedisUnavailable, redis.RedisError) as error:
            self._note(_MAINTENANCE, describe(error), redis_up=not isinstance(error, RedisUnavailable))
            raise
        self._note(_MAINTENANCE, "")

    def _note(self, work: str, trouble: str, *, redis_up: bool = True) -> None:
        if work == _MAINTENANCE:
            self._maintenance = trouble
        if work in self._troubles:
            if work == _MAINTENANCE:  # sweeps set `redis_up` themselves
                self._metrics.sweep.redis_up.labels(self.name).set(redis_up)
            self._troubles[work] = trouble
            self._tried.add(work)

    def _read_status(self) -> None:
        if not self._stop.is_set():
            if not self.health:  # others must not rely on a process that hangs
                self._announcer.update()
            silent = {each.process: each.heartbeat_age_seconds for each in self._announcer.seen.silent}
            self._metrics.set_silent_processes(self.name, silent)
            self.status_history.update()
            self._actions.update()


class Daemon:
    """The work on all shards with one version of the settings."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics | None = None,
        role: Role = Role.ALL,
        cpu_turns: CpuTurns | None = None,
    ) -> None:
        """`cpu_turns`: those of the process, because deliveries outlive a reload."""
        self._settings = settings
        self._role = role
        self._stop = threading.Event()
        self.metrics = metrics or Metrics(**settings.metrics.model_dump(), cycles=settings.cycles.enabled)
        shards, cpu_turns = open_shards(settings), cpu_turns or CpuTurns()
        self._runners = [
            ShardRunner(ShardContext(settings, shard, self.metrics, self._stop, concurrency, cpu_turns), role)
            for shard, concurrency in zip(shards, shares(settings.webhooks.concurrency, len(shards)), strict=True)
        ]
        self.entry_pages = EntryPages(settings, shards)
        self._tasks = [task for runner in self._runners for task in runner.tasks]
        # A thread for each task and each kind, so that no shard waits for the Redis of another.
        threads = len(self._tasks) + sum(len(runner.kinds) for runner in self._runners)
        self._scheduler = BackgroundScheduler(timezone=UTC, executors={"default": SchedulerPool(threads)})

    def start(self) -> None:
        """Start all threads. Raises RuntimeError if the system is out of threads; `stop` ends those that started."""
        scripts.read_all()
        if self._role.delivers:
            for runner in self._runners:
                runner.delivery.start()
        self._scheduler.start()
        for runner in self._runners:
            if runner.schedule:
                runner.schedule.start(self._scheduler)
        for task in self._tasks:
            task.schedule(self._scheduler)

    def about(self) -> dict[str, object]:
        """Role, shards and endpoints, for the log."""
        return {
            "role": self._role.value,
            "shards": {runner.name: runner.address for runner in self._runners},
            "interval_seconds": self._settings.sweep.interval.total_seconds(),
            "endpoints": [endpoint.name for endpoint in self._settings.consumers],
        }

    @property
    def password_refused(self) -> bool:
        """Whether a Redis refused the password of its URL at the last connect."""
        return any(runner.password_refused for runner in self._runners)

    def catch_up(self) -> None:
        """Run tasks that the scheduler has missed. Call this about every second."""
        for task in self._tasks:
            task.catch_up()

    def retire(self, seconds: float) -> bool:
        """Take no more work, and wait up to `seconds` for the current batches. Returns whether they have ended."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        return all([runner.retire(deadline) for runner in self._runners])

    def stop(self, deadline: float | None = None) -> bool:
        """
        Take no more work, finish what is in flight and end all threads until `deadline` (monotonic), by default within
        `shutdown_grace`. Returns whether all ended. Otherwise nothing is lost: unacknowledged events are delivered
        later or by another replica.
        """
        self._stop.set()
        limit = deadline or time.monotonic() + self._settings.shutdown_grace.total_seconds()
        ended = set[ShardRunner]()

        def end(runner: ShardRunner) -> None:
            if runner.end(limit):
                ended.add(runner)

        # In parallel, so that a shard that does not answer takes no time from others.
        threads = [threading.Thread(target=end, args=(runner,), name="end", daemon=True) for runner in self._runners]
        for thread, runner in zip(threads, self._runners, strict=True):
            try:
                thread.start()
            except RuntimeError:
                end(runner)  # out of threads
        for thread in threads:
            if thread.ident is not None:
                # If Redis hangs for longer, the process leaves its groups unannounced.
                thread.join(max(0.0, limit - time.monotonic()))
        if self._scheduler.running:
            with contextlib.suppress(RuntimeError):  # the scheduler's thread could not be started
                self._scheduler.shutdown(wait=False)
        return len(ended) == len(self._runners)

    def adopt(self, before: "Daemon") -> None:
        """Take over the state of each shard from a retired daemon."""
        predecessors = {runner.place: runner for runner in before._runners}
        for runner in self._runners:
            if predecessor := predecessors.get(runner.place):
                runner.adopt(predecessor)
        names, earlier = ({each.name for each in daemon._settings.consumers} for daemon in (self, before))
        for name in earlier - names:
            self.metrics.webhooks.forget(name)
        for runner in self._runners:
            self.metrics.retain(runner.name, runner.kinds, self._settings.events.groups)
        for name in {runner.name for runner in before._runners} - {runner.name for runner in self._runners}:
            self.metrics.forget_shard(name)

    def health(self) -> tuple[bool, str]:
        """Whether the process is well, and the problems."""
        problems = [problem for runner in self._runners for problem in runner.health]
        return not problems, ", ".join(problems) or "ok"

    def readiness(self) -> tuple[bool, str]:
        """
        Ready once each shard was tried, while the work on at least one succeeds. All replicas see the same dead Redis,
        so one dead shard must not stop a roll-out and take away the metrics of the others. If no process sweeps or
        delivers, the text says so, and this process stays ready.
        """
        troubles = [f"{runner.name}: {runner.trouble}" for runner in self._runners if runner.trouble]
        ready = all(runner.tried for runner in self._runners) and len(troubles) < len(self._runners)
        missing = [f"{runner.name}: {duty}" for runner in self._runners for duty in runner.missing]
        return ready, "\n".join(["ok"] * ready + troubles + missing)

    def report(self) -> dict[str, Any]:
        """The last known status of each shard, for the page, without waiting."""
        shards = [(runner.status_history.view(), runner.status_history.samples()) for runner in self._runners]
        return status_report(self._settings, shards, time.monotonic())
