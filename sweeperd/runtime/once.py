"""Expires all due entries and delivers their events once, for cron."""

import contextlib
import enum
import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta

from pydantic import Field

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.cpu_turns import CpuTurns
from sweeperd.delivery.dispatcher import DeliveryReport, Dispatcher, shares
from sweeperd.document import Count, Document, Seconds
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.failure import Failure
from sweeperd.runtime.sweeps import KindSweep, kind_sweeps
from sweeperd.store.errors import describe_unavailable
from sweeperd.store.lease import Lease
from sweeperd.store.shard import open_shards
from sweeperd.sweep.kind import Decision, Outcome
from sweeperd.text import counted

log = logging.getLogger(__name__)

#: Between two attempts to take a lease that another process holds, seconds.
LEASE_RETRY_EVERY = 0.1
#: Between two reports of the delivery's progress, and checks for a stop or the limit, seconds.
PROGRESS_EVERY = 0.2


class OnceStage(enum.StrEnum):
    SWEEPING = "sweeping"
    DELIVERING = "delivering"


#: Called with the stage, what is done, and what is expected in all.
OnceProgress = Callable[[OnceStage, int, int], None]


@dataclass(frozen=True)
class OnceReport:
    counts: Counter[Outcome]
    #: Whether no signal cut the sweep short.
    complete: bool
    delivery: DeliveryReport
    duration_seconds: float
    #: A line for each shard or kind that failed.
    failures: tuple[str, ...] = ()
    #: Whether a kind was swept or events were delivered.
    any_done: bool = True

    @property
    def exit_code(self) -> int:
        """0: all done. 1: a failure, entries that failed or wait, or a sweep cut short. 3: undelivered events."""
        left = sum(self.counts[outcome] for outcome in (Outcome.ERROR, Outcome.HELD, Outcome.DEFERRED))
        if self.failures or left or not self.complete:
            return 1
        return 3 if self.delivery.undelivered else 0

    @property
    def document(self) -> "OnceDocument":
        counts = {outcome.value: self.counts[outcome] for outcome in Outcome if outcome is not Outcome.ERROR}
        return OnceDocument.made_of(
            self.delivery,
            candidates=self.counts.total(),
            **counts,
            errors=self.counts[Outcome.ERROR],
            duration_seconds=round(self.duration_seconds, 6),
        )


class OnceDocument(Document, title="sweeperd --once --json"):
    """One run, all shards together."""

    candidates: Count = Field(description="Index entries decided, each counted once.")
    expired: Count = Field(description="Entries expired.")
    skipped: Count = Field(description="Entries that had ended already.")
    in_grace: Count = Field(description="Entries whose grace has not ended.")
    not_due: Count = Field(description="Entries whose deadline is later, or that wait or are protected.")
    not_found: Count = Field(description="Entries whose hash or string is gone.")
    deferred: Count = Field(description="Overdue entries that wait because Redis is above sweep.memory_limit.")
    held: Count = Field(description="Entries that stay because no entry of their kind was seen alive yet.")
    quarantined: Count = Field(description="Entries set aside.")
    errors: Count = Field(description="Entries whose script call failed.")
    delivered: Count = Field(description="Deliveries: one event to one endpoint.")
    undelivered: Count = Field(description="Deliveries that wait.")
    dead_lettered: Count = Field(description="Deliveries given up in this run.")
    duration_seconds: Seconds


def run_once(
    settings: Settings,
    stop: threading.Event,
    progress: OnceProgress = lambda *_: None,
    metrics: Metrics | None = None,
    delivery_limit: timedelta | None = None,
) -> OnceReport:
    """
    Sweep all due entries of every shard, in parallel, then deliver all events that can be delivered now, for up to
    `delivery_limit`. `stop` ends the run early. If a shard fails, the others go on.
    """
    started = time.monotonic()
    metrics = metrics or Metrics(**settings.metrics.model_dump(), cycles=settings.cycles.enabled)
    shards, cpu_turns = open_shards(settings), CpuTurns()
    all_shards = _Progress(progress, [shard.name for shard in shards])
    runs = [
        _Run(ShardContext(settings, shard, metrics, stop, concurrency, cpu_turns), delivery_limit, all_shards)
        for shard, concurrency in zip(shards, shares(settings.webhooks.concurrency, len(shards)), strict=True)
    ]
    with ThreadPoolExecutor(len(runs), thread_name_prefix="once") as pool:
        for future in [pool.submit(run) for run in runs]:
            future.result()
    report = OnceReport(
        sum((run.counts for run in runs), Counter()),
        all(run.complete for run in runs),
        DeliveryReport(*map(sum, zip(*(run.delivery for run in runs), strict=True))),
        time.monotonic() - started,
        tuple(
            f"shard {run.name}: {failure}" if settings.shards else failure for run in runs for failure in run.failures
        ),
        any_done=any(run.any_done for run in runs),
    )
    if report.any_done:
        log.info(
            "run ended", extra={**report.document.as_json(), "shards": {shard.name: shard.address for shard in shards}}
        )
    return report


class _Run:
    def __init__(self, context: ShardContext, delivery_limit: timedelta | None, progress: "_Progress") -> None:
        settings, shard = context.settings, context.shard
        self.name = shard.name
        self.counts: Counter[Outcome] = Counter()
        self.complete = True
        self.delivery = DeliveryReport()
        #: Why parts of the run failed.
        self.failures: list[str] = []
        self.any_done = False
        self._metrics = context.metrics
        self._settings = settings
        self._shard = shard
        self._stop = context.stop
        self._delivery_limit = math.inf if delivery_limit is None else delivery_limit.total_seconds()
        self._delivery_stop = threading.Event()
        self._progress = progress
        self._sweeps = kind_sweeps(context, self._decided)
        #: How many entries were due when their sweeps began.
        self._due = 0
        self._delivery = Dispatcher(replace(context, stop=self._delivery_stop, until_idle=True))

    def __call__(self) -> None:
        try:
            if not self._does("", self._delivery.prepare, self._sweeps):
                return
            cycles = self._settings.cycles.enabled
            with CyclesLease(self._shard).kept(self._stop) if cycles else contextlib.nullcontext():
                swept = [
                    self._does(sweep.name, functools.partial(self._sweep, sweep), [sweep]) for sweep in self._sweeps
                ]
            # The events of the stream are delivered even if every sweep failed.
            delivered = self._does("", self._deliver)
            self._does("", self._delivery.maintain)
            counted = self._does("", self._count_delivered)
            trouble = self._delivery.trouble
            if trouble and not any(trouble in failure for failure in self.failures):
                self.failures.append(f"delivery waits for redis: {trouble}")
            self.any_done = any(swept) or (delivered and counted)
        except Exception as error:
            self._failed("", error)
        finally:
            self._progress.left(self.name)
            self._delivery.close()
            self._shard.close()

    def _does(self, kind: str, work: Callable[[], None], sweeps: Sequence[KindSweep] = ()) -> bool:
        """Do a part of the run, without which the others go on. Returns whether it succeeded."""
        try:
            work()
        except Exception as error:
            self._failed(kind, error, sweeps)
            return False
        return True

    def _failed(self, kind: str, error: Exception, sweeps: Sequence[KindSweep] = ()) -> None:
        """`kind`: whose sweep failed, if one did. `sweeps`: the sweeps that count as failed."""
        failure = Failure.of(error)
        match failure.category:
            case "redis":
                text = describe_unavailable(error)
                self._metrics.sweep.redis_up.labels(self.name).set(0)
            case "refused":
                text = failure.cause
            case _:
                text = f"{kind}: the sweep failed: {failure.cause}" if kind else f"the run failed: {failure.cause}"
                failure.log(logging.ERROR, "the run failed", {"shard": self.name}, text)
        if text not in self.failures:
            self.failures.append(text)
        for sweep in sweeps:
            sweep.telemetry.failed(redis_down=failure.category == "redis")

    def _count_delivered(self) -> None:
        self.delivery = self._delivery.report()

    def _decided(self, decisions: Sequence[Decision]) -> None:
        with contextlib.suppress(RedisUnavailable):
            self._delivery.note_filters()  # the process is alive during a long sweep
        self.counts.update(decision.outcome for decision in decisions)
        self._progress(self.name, OnceStage.SWEEPING, self.counts.total(), self._due)

    def _sweep(self, sweep: KindSweep) -> None:
        """Sweep under the lease, or without it if it is not free in time, which is correct too."""
        self._due += sweep.backlog().due
        if not self._await(sweep.lease):
            self._drain(sweep)
            return
        with sweep.lease.kept():
            self._drain(sweep)

    def _await(self, lease: Lease) -> bool:
        """
        Wait for the lease for one TTL of its holder, after which that of a dead holder is free. A holder that still
        renews it must not block cron forever. Returns whether the lease was acquired.
        """
        began, waiting = time.monotonic(), False
        while True:
            with self._shard.reaching():
                if lease.acquire():
                    return True
            ttl = lease.holder_ttl.total_seconds()
            if self._stop.is_set() or time.monotonic() >= began + ttl:
                break
            if not waiting:
                waiting = True
                log.warning(
                    "another process sweeps, waiting for it", extra={"shard": self.name, "at_most_seconds": ttl}
                )
            self._stop.wait(LEASE_RETRY_EVERY)
        if not self._stop.is_set():
            log.warning("another process still holds the lease, sweeping without it", extra={"shard": self.name})
        return False

    def _drain(self, sweep: KindSweep) -> None:
        complete, before, because = False, self.counts[Outcome.DEFERRED], ""
        while not complete and not self._stop.is_set():
            report = sweep.tick()
            self.counts[Outcome.IN_GRACE] += report.passed
            released = sweep.proven and report.counts.get(Outcome.HELD, 0)
            # If a later entry proved the kind, another tick decides what was held before.
            self.counts[Outcome.HELD] -= released
            complete = report.complete and not released
            because = report.deferred_because or because
        if left := self.counts[Outcome.DEFERRED] - before:
            self.failures.append(f"{sweep.name}: {counted(left, 'overdue entry', 'overdue entries')} left: {because}")
        self.complete = self.complete and complete
        sweep.measure()

    def _deliver(self) -> None:
        waiting = self._delivery.report().undelivered
        until = time.monotonic() + self._delivery_limit
        try:
            self._delivery.start()
        except BaseException:
            # Out of threads, so end those that started.
            self._delivery_stop.set()
            self._delivery.join(time.monotonic() + self._settings.shutdown_grace.total_seconds())
            raise
        while not self._delivery.join(time.monotonic() + PROGRESS_EVERY):
            if self._stop.is_set():
                self._delivery_stop.set()
            elif time.monotonic() >= until and not self._delivery_stop.is_set():
                self._delivery_stop.set()
                log.warning("the limit of the delivery is reached, the rest waits", extra={"shard": self.name})
            done = sum(lane.counts().total() for lane in self._delivery.lanes)
            self._progress(self.name, OnceStage.DELIVERING, done, waiting)
        self._progress(self.name, OnceStage.DELIVERING, waiting, waiting)


class _Progress:
    """Sums the progress of the shards. The second stage shows once every shard has left the first."""

    def __init__(self, progress: OnceProgress, shards: Sequence[str]) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._sweeping = set(shards)
        self._latest: dict[OnceStage, dict[str, tuple[int, int]]] = {stage: {} for stage in OnceStage}

    def __call__(self, shard: str, stage: OnceStage, done: int, expected: int) -> None:
        with self._lock:
            self._latest[stage][shard] = done, expected
            if stage is OnceStage.DELIVERING:
                self._sweeping.discard(shard)
            if stage is OnceStage.SWEEPING or not self._sweeping:
                on_shards = self._latest[stage].values()
                self._progress(stage, sum(done for done, _ in on_shards), sum(expected for _, expected in on_shards))

    def left(self, shard: str) -> None:
        with self._lock:
            self._sweeping.discard(shard)
