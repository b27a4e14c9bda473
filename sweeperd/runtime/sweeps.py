"""Runs the ticks of one kind on one shard under its lease."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from sweeperd import tracing
from sweeperd.config import EXPIRY_SPIKE
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused
from sweeperd.progress import BEAT, Progress, working
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.failure import Failure
from sweeperd.runtime.schedule import FOLLOW_EVERY, FULL_TICK, Complete, Incomplete, Outcome, Signal, Tick
from sweeperd.store.lease import Lease, process_name
from sweeperd.sweep.backlog import Backlog
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.expiry_rates import ExpiryRates
from sweeperd.sweep.kind import Decision, Kind, SweepReport
from sweeperd.sweep.last_sweep import LastSweepStore, read_last_sweep
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry

log = logging.getLogger(__name__)

#: A lease that lasts for this many TTLs without a sweep is ignored.
LEASE_PATIENCE = 4
#: A leader that hangs is replaced within this many TTLs of the lease.
REPLACED = 1.5
#: How long the leader keeps the lease after a tick.
LINGER = timedelta(seconds=FOLLOW_EVERY)


class KindSweep:
    """`observe` gets each batch's decisions after log and metrics. Methods raise RedisUnavailable."""

    def __init__(
        self,
        context: ShardContext,
        kind: Kind,
        observe: Callable[[Sequence[Decision]], None] = lambda _: None,
        cycles_lease: CyclesLease | None = None,
    ) -> None:
        settings, shard = context.settings, context.shard
        self.name = kind.name
        #: Of the current run.
        self.progress = Progress()
        #: A run without progress for this long hangs, seconds: it does not wait for Redis, and has been replaced.
        self._longest_silence = max(REPLACED * settings.sweep.lease_ttl.total_seconds(), shard.patience + BEAT)
        self.kind = kind
        self.telemetry = SweepTelemetry(context.metrics, shard.name, kind)
        #: Whether the lease is kept between ticks. With a short interval the replicas take turns.
        self._lingers = settings.sweep.looks and settings.sweep.interval > LINGER
        self.lease = Lease(shard, kind.lease_job, settings.sweep.lease_ttl, self.telemetry.lost_lease, LINGER)
        self._patience = LEASE_PATIENCE * settings.sweep.lease_ttl
        self._time_budget = settings.sweep.time_budget
        self._overrules = False
        self._shard = shard
        self._cpu_turns = context.cpu_turns
        self.cycles_lease = cycles_lease if kind.cycles else None
        #: How many connections the shard had opened at the last check of the kind.
        self._checked = -1
        self._observe = observe
        self._measure_every = min(context.timing.maintain_every, 3 * settings.sweep.interval.total_seconds())
        #: When the gauges are set again, monotonic.
        self._measure_at = 0.0
        self._last_sweep = LastSweepStore(shard, kind, settings.sweep.interval.total_seconds())
        spikes_wanted = kind.cycles and EXPIRY_SPIKE in settings.announced
        self._rates = ExpiryRates(shard, settings.cycles) if spikes_wanted else None
        self._sweeper = Sweeper(shard, kind, settings.sweep, self._decided, context.stop)

    @property
    def permitted(self) -> bool:
        """Whether the lease of the Cycles services, if it applies, permits a tick now."""
        return self.cycles_lease is None or self.cycles_lease.permits()

    @property
    def proven(self) -> bool:
        """Whether the kind is proven, so that nothing is held."""
        return self._sweeper.proven

    def end(self) -> None:
        """Log what was not logged yet, and release the lease."""
        self.telemetry.summarize()
        self.lease.close()

    def adopt(self, before: "KindSweep") -> None:
        self.lease.adopt(before.lease)

    @property
    def hangs(self) -> bool:
        """Whether the current run makes no progress."""
        return self.progress.silent_for > self._longest_silence

    def run(self, order: Tick = FULL_TICK, paged: Callable[[], None] = lambda: None) -> Outcome:
        """
        One tick under the lease, or none if another replica holds the lease. `paged`: see `Sweeper.tick`. Raises
        KindRefused if the kind cannot be swept on this server, or its script is broken.
        """
        with working(self.progress):
            return self._run(order, paged)

    def _run(self, order: Tick, paged: Callable[[], None]) -> Outcome:
        self.telemetry.begun()
        if order.others_note_ms is not None:
            self._last_sweep.noted_elsewhere(order.others_note_ms)
        self._refuse_broken()
        if not self.permitted:
            self.telemetry.stood_by()
            return Signal.BARRED
        with self._shard.reaching():
            acquired = self.lease.acquire(briefly=order.briefly and self._lingers)
            self._overrules = not acquired and self._may_overrule(order.stood_by)
        if acquired:
            with self.lease.kept() as lost:
                _, outcome = self._tick(lost.is_set, paged, order)
                if self._lingers and isinstance(outcome, Complete) and (outcome.noted or order.briefly):
                    self.lease.leave_to_lapse()
        elif self._overrules:
            _, outcome = self._tick(paged=paged, alone=True)
        else:
            outcome = Signal.STOOD_BY
            self.telemetry.stood_by()
        if time.monotonic() >= self._measure_at:
            self.measure()
        return outcome

    def _may_overrule(self, stood_by: float) -> bool:
        """
        Whether to sweep without the lease, which is always correct. A holder notes each sweep. If a lease never runs
        out, because its key has no TTL or isn't a lease, all sweeps would stop. So a process sweeps anyway after
        standing by for 4 TTLs in which no other noted a sweep.
        """
        if stood_by < self._patience.total_seconds():
            return False
        # A sweep is noted at its end, and under a renewed lease it may take the whole time budget.
        limit = self._patience + self._time_budget if self.lease.runs_out() else self._patience
        if stood_by < limit.total_seconds() or self._another_swept_within(limit):
            return False
        if not self._overrules:
            log.warning(
                "the lease is held, but its holder does not sweep: sweeping without the lease; delete its key",
                extra={"shard": self._shard.name, "kind": self.name, "seconds": round(stood_by)},
            )
        return True

    def _another_swept_within(self, limit: timedelta) -> bool:
        last = read_last_sweep(self._shard, self.kind)
        if last is None or last.by == process_name():
            return False
        # A note from the future was written before the clock of Redis was set back, perhaps by a dead process.
        return 0 <= self._shard.read_clock() - last.at < milliseconds(limit)

    def tick(self) -> SweepReport:
        """A full tick without the lease. Raises KindRefused as `run` does."""
        return self._tick()[0]

    def _tick(
        self,
        give_way: Callable[[], bool] = lambda: False,
        paged: Callable[[], None] = lambda: None,
        order: Tick = FULL_TICK,
        *,
        alone: bool = False,
    ) -> tuple[SweepReport, Outcome]:
        self.telemetry.begun()
        if self._checked != self._shard.opened:
            # A new connection may lead to another server, or to other rights.
            with self._shard.reaching():
                self.kind.check(self._shard.client)
            self._checked = self._shard.opened

        def page_decided() -> None:
            self.telemetry.paged()
            paged()

        with self._cpu_turns.sweep(), tracing.tick(self._shard.name, self.name) as span:
            report = self._sweeper.tick(give_way, span.trace_id, page_decided, order.seen_ms, order.leave_ms)
            span.mark({f"sweeperd.{outcome.value}": count for outcome, count in report.counts.items()})
            if report.failure:
                span.fail(report.failure)
        self.telemetry.ticked(report, woken=not order.full)
        noted = self._last_sweep.note(report, woken=not order.full, proven=self.proven)
        if self._rates and (spikes := self._rates.record(report.trace_id)):
            self.telemetry.spiked(spikes)
        self._refuse_broken()
        if report.seen_ms:
            return report, Complete(report.seen_ms, self._sweeper.grace_end_ms, noted, alone)
        return report, Incomplete(report.failure)

    def _refuse_broken(self) -> None:
        if self.kind.broken:
            until = "until its script is corrected or sweeperd restarts"
            raise KindRefused(f"{self.name}: not swept {until}: {self.kind.broken}")

    def failed(self, failure: Failure) -> None:
        """Count a tick that failed, and log it if it is news; see `Trouble`."""
        self.telemetry.failed(redis_down=failure.category == "redis")
        if not self.telemetry.trouble.is_news(f"{failure.category}: {failure.cause}"):
            return
        level, line = {
            "redis": (logging.ERROR, "sweep failed, the next tick tries again"),
            "refused": (logging.WARNING, "kind refused, it is not swept"),
        }.get(failure.category, (logging.ERROR, "sweep failed"))
        failure.log(level, line, {"shard": self._shard.name, **self.kind.log_fields})

    def backlog(self) -> Backlog:
        return self._sweeper.backlog()

    def measure(self) -> None:
        self.telemetry.set_backlog(self.backlog())
        with self._shard.reaching():
            self.telemetry.set_memory(self._shard.memory.read(self._shard.client))
        self._measure_at = time.monotonic() + self._measure_every

    def _decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self.telemetry.decided(decisions, trace_id)
        self._last_sweep.decided(decisions)
        if self._rates:
            self._rates.decided(decisions)
        self._observe(decisions)


def kind_sweeps(
    context: ShardContext,
    observe: Callable[[Sequence[Decision]], None] = lambda _: None,
    cycles_lease: CyclesLease | None = None,
) -> list[KindSweep]:
    kinds = kinds_of(context.settings, context.shard).values()
    return [KindSweep(context, kind, observe, cycles_lease) for kind in kinds]
