"""Sweeps one kind on one shard: takes the lease, runs a tick, counts and logs it, and notes it for other processes."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import redis

from sweeperd import tracing
from sweeperd.config import EXPIRY_SPIKE
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused, RedisUnavailable
from sweeperd.progress import Progress, working
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.schedule import FOLLOW_EVERY, FULL_TICK, Complete, Incomplete, Outcome, Signal, Tick
from sweeperd.store.errors import describe
from sweeperd.store.lease import Lease, process_name
from sweeperd.sweep.backlog import Backlog
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.expiry_rates import ExpiryRates
from sweeperd.sweep.kind import Decision, Kind, SweepReport
from sweeperd.sweep.last_sweep import LastSweepStore, read_last_sweep
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry

log = logging.getLogger(__name__)

#: A lease of sweeperd that lasts for so many TTLs without a sweep is not believed any more.
LEASE_PATIENCE = 4
#: A process that leads and hangs is replaced within so many TTLs of the lease.
REPLACED = 1.5
#: How long the leading process keeps the lease of the sweep after a tick. If the process dies, the lease runs out.
LINGER = timedelta(seconds=FOLLOW_EVERY)


@dataclass(frozen=True)
class Failure:
    """
    What an error of a sweep, a walk or a run means. Every error is counted as `error`, makes `--once` exit with 1, and
    keeps no other kind or shard from its work. The daemon tries again at the next tick; a refused kind is only checked
    again, and is walked and, if its script is broken, swept no more until a restart.
    """

    #: `redis`: Redis cannot be worked with for now, and `redis_up` is 0. `refused`: the kind cannot be swept on this
    #: server. `command`: Redis refused a command, because of a key of another type for example. `bug`: a fault of
    #: sweeperd, the only failure that is logged with its traceback.
    category: Literal["redis", "refused", "command", "bug"]
    #: In one line.
    cause: str
    error: Exception

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """The one decision about an error, for the daemon and for `--once`."""
        match error:
            case RedisUnavailable():
                return cls("redis", str(error), error)
            case KindRefused():
                return cls("refused", str(error), error)
            case redis.ResponseError():
                return cls("command", describe(error), error)
            case _:
                return cls("bug", type(error).__name__, error)

    def log(self, level: int, line: str, fields: Mapping[str, object], text: str = "") -> None:
        """Log the failure; `text` in place of the cause."""
        traceback = self.error if self.category == "bug" else None
        log.log(level, line, extra={**fields, "error": text or self.cause}, exc_info=traceback)


class KindSweep:
    """`observe` gets the decisions of each batch after log and metrics. Methods raise RedisUnavailable."""

    def __init__(
        self,
        context: ShardContext,
        kind: Kind,
        observe: Callable[[Sequence[Decision]], None] = lambda _: None,
        cycles_lease: CyclesLease | None = None,
    ) -> None:
        settings, shard = context.settings, context.shard
        self.name = kind.name
        #: Of the run that is under way.
        self.progress = Progress()
        #: A run that makes no progress for so long hangs, seconds: another process has replaced it by then.
        self._longest_silence = REPLACED * settings.sweep.lease_ttl.total_seconds() + shard.patience
        self.kind = kind
        self.telemetry = SweepTelemetry(context.metrics, shard.name, kind)
        #: Whether the lease is kept between two ticks. With a short interval the replicas take turns.
        self._lingers = settings.sweep.looks and settings.sweep.interval > LINGER
        self.lease = Lease(shard, kind.lease_job, settings.sweep.lease_ttl, self.telemetry.lost_lease, LINGER)
        #: A holder of the lease that has not swept for this long is ignored.
        self._patience = LEASE_PATIENCE * settings.sweep.lease_ttl
        self._time_budget = settings.sweep.time_budget
        self._overrules = False
        self._shard = shard
        self._cpu_turns = context.cpu_turns
        #: The lease of the Cycles services, if the sweep needs it.
        self.cycles_lease = cycles_lease if kind.cycles else None
        #: Why the kind is not swept any more; empty while the kind is swept.
        self._broken = ""
        #: How many connections the shard had opened when the kind was checked.
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
        """Whether the lease of the Cycles services, where it counts, permits a tick now."""
        return self.cycles_lease is None or self.cycles_lease.permits()

    @property
    def proven(self) -> bool:
        """Whether an entry of the kind was seen alive, so that nothing is held."""
        return self._sweeper.proven

    def end(self) -> None:
        """The daemon ends: log what was not logged yet, and let go of the lease."""
        self.telemetry.summarize()
        self.lease.close()

    def adopt(self, before: "KindSweep") -> None:
        """Take over the lease of the daemon before a reload."""
        self.lease.adopt(before.lease)

    @property
    def hangs(self) -> bool:
        """Whether the run that is under way makes no progress."""
        return self.progress.silent_for > self._longest_silence

    def run(self, order: Tick = FULL_TICK, paged: Callable[[], None] = lambda: None) -> Outcome:
        """
        One tick under the lease, or none if another replica has the lease and sweeps. `paged`: see `Sweeper.tick`.
        Raises KindRefused if the kind cannot be swept on this server, or its script is broken.
        """
        with working(self.progress):
            return self._run(order, paged)

    def _run(self, order: Tick, paged: Callable[[], None]) -> Outcome:
        self.telemetry.begun()
        if order.others_note_ms is not None:
            self._last_sweep.noted_elsewhere(order.others_note_ms)
        if self._broken:
            raise KindRefused(self._broken)
        if not self.permitted:
            self.telemetry.stood_by()
            return Signal.BARRED
        with self._shard.reaching():
            acquired = self.lease.acquire(briefly=order.briefly and self._lingers)
            self._overrules = not acquired and self._may_overrule(order.stood_by)
        outcome: Outcome
        if acquired:
            with self.lease.kept() as lost:
                outcome = _outcome(*self._tick(lost.is_set, paged, order))
                if self._lingers and isinstance(outcome, Complete) and (outcome.noted or order.briefly):
                    self.lease.leave_to_lapse()
        elif self._overrules:
            outcome = _outcome(*self._tick(paged=paged), alone=True)
        else:
            outcome = Signal.STOOD_BY
            self.telemetry.stood_by()
        if time.monotonic() >= self._measure_at:
            self.measure()
        return outcome

    def _may_overrule(self, stood_by: float) -> bool:
        """
        A holder renews the lease, sweeps, and notes each sweep. If a lease never runs out, because the key has no TTL
        or is no lease at all, every sweep would stop for ever. So if this process has stood by for 4 TTLs and no other
        has noted a sweep meanwhile, it sweeps without the lease. Correctness never rests on the lease.
        """
        if stood_by < self._patience.total_seconds():
            return False
        # A sweep is noted at the end, and while the lease is renewed a sweep may take the whole time budget.
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
        # A note from the future is of a time before the clock of Redis was put right, perhaps of a dead process.
        return 0 <= self._shard.read_clock() - last.at < milliseconds(limit)

    def tick(self) -> SweepReport:
        """
        One tick over the whole index, without the lease; see `Sweeper.tick`. Raises KindRefused if the kind cannot be
        swept on this server, or has broken in this tick.
        """
        return self._tick()[0]

    def _tick(
        self,
        give_way: Callable[[], bool] = lambda: False,
        paged: Callable[[], None] = lambda: None,
        order: Tick = FULL_TICK,
    ) -> tuple[SweepReport, float, bool]:
        """Returns the report, when the first known grace ends (ms), and whether the tick was noted."""
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
        if report.broken:
            self._broken = f"{self.name}: not swept until sweeperd is restarted: {report.broken}"
            raise KindRefused(self._broken)
        return report, self._sweeper.grace_end_ms, noted

    def failed(self, failure: Failure) -> None:
        """Count a tick that failed, and log the failure if it is news: see `Trouble`."""
        self.telemetry.failed(redis_down=failure.category == "redis")
        if not self.telemetry.trouble.is_news(f"{failure.category}: {failure.cause}"):
            return
        fields = {"shard": self._shard.name, **self.kind.log_fields}
        match failure.category:
            case "redis":
                failure.log(logging.ERROR, "sweep failed, the next tick tries again", fields)
            case "refused":
                failure.log(logging.WARNING, "kind refused, it is not swept", fields)
            case _:
                failure.log(logging.ERROR, "sweep failed", fields)

    def backlog(self) -> Backlog:
        """The entries that are due now."""
        return self._sweeper.backlog()

    def measure(self) -> None:
        """Set the gauges."""
        self.telemetry.set_backlog(self.backlog())
        self._measure_at = time.monotonic() + self._measure_every

    def _decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self.telemetry.decided(decisions, trace_id)
        self._last_sweep.decided(decisions)
        if self._rates:
            self._rates.decided(decisions)
        self._observe(decisions)


def _outcome(report: SweepReport, grace_end_ms: float, noted: bool, *, alone: bool = False) -> Outcome:
    if report.seen_ms:
        return Complete(report.seen_ms, grace_end_ms, noted, alone)
    return Incomplete(report.failure)


def kind_sweeps(
    context: ShardContext,
    observe: Callable[[Sequence[Decision]], None] = lambda _: None,
    cycles_lease: CyclesLease | None = None,
) -> list[KindSweep]:
    kinds = kinds_of(context.settings, context.shard).values()
    return [KindSweep(context, kind, observe, cycles_lease) for kind in kinds]
