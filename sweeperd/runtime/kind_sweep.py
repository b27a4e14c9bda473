"""The sweep of one kind on one shard, with all that belongs to it: its lease, its log and metrics, its last tick."""

import threading
from collections.abc import Callable, Sequence

from sweeperd import tracing
from sweeperd.config import EXPIRY_SPIKE, Settings
from sweeperd.errors import KindRefused
from sweeperd.metrics import Metrics
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.stand_by import StandBy
from sweeperd.store.interpreter import Interpreter
from sweeperd.store.lease import Lease
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured_kinds import all_kinds
from sweeperd.sweep.expiry_rates import ExpiryRates
from sweeperd.sweep.kind import RESERVATIONS, Backlog, Decision, Kind, SweepReport
from sweeperd.sweep.last_sweep import LastSweepStore
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry


class KindSweep:
    """`observe` gets the decisions of each batch, after they are logged and counted. Methods raise RedisUnavailable."""

    def __init__(
        self,
        settings: Settings,
        shard: Shard,
        kind: Kind,
        metrics: Metrics,
        stop: threading.Event,
        observe: Callable[[Sequence[Decision]], None] = lambda _: None,
        cycles_lease: CyclesLease | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        self.name = kind.name
        self.telemetry = SweepTelemetry(metrics, shard.name, kind.name)
        self.lease = Lease(shard, kind.lease_job, settings.sweep.lease_ttl, self.telemetry.lost_lease)
        self._stand_by = StandBy(shard, kind.name, self.lease, settings.sweep)
        self._shard = shard
        self._kind = kind
        self._interpreter = interpreter or Interpreter()
        self._cycles_lease = cycles_lease if kind.name == RESERVATIONS else None
        #: Why the kind is not swept any more; empty where it is.
        self._broken = ""
        #: How many connections the shard had opened when the kind was checked.
        self._checked = -1
        self._observe = observe
        self._last_sweep = LastSweepStore(shard, kind.name)
        spikes_wanted = kind.name == RESERVATIONS and EXPIRY_SPIKE in settings.announced
        self._rates = ExpiryRates(shard, settings.cycles) if spikes_wanted else None
        self._sweeper = Sweeper(shard, kind, settings.sweep, self._decided, stop)

    def run(self) -> str:
        """
        One tick under the lease, or none where another replica has it and sweeps. Returns why it failed, or "". Raises
        KindRefused where the kind cannot be swept on this server, or its script is broken.
        """
        if self._broken:
            raise KindRefused(self._broken)
        if self._cycles_lease and not self._cycles_lease.permits():
            self.telemetry.stood_by()
            return ""
        with self._shard.reaching():
            acquired = self.lease.acquire()
            alone = not acquired and self._stand_by.is_pointless()
        if acquired:
            self._stand_by.end()
            with self.lease.kept() as lost:
                failure = self.tick(lost.is_set).failure
        elif alone:
            failure = self.tick().failure
        else:
            failure = ""
            self.telemetry.stood_by()
        self.measure()
        return failure

    def tick(self, give_way: Callable[[], bool] = lambda: False) -> SweepReport:
        """One tick. Raises KindRefused where the kind cannot be swept on this server, or has broken in this tick."""
        if self._checked != self._shard.opened:
            # A new connection may lead to another server, or to other rights.
            with self._shard.reaching():
                self._kind.check(self._shard.client)
            self._checked = self._shard.opened
        with self._interpreter.sweep(), tracing.tick(self._shard.name, self.name) as span:
            report = self._sweeper.tick(give_way, span.trace_id)
            span.mark({f"sweeperd.{outcome.value}": count for outcome, count in report.counts.items()})
            if report.failure:
                span.fail(report.failure)
        self.telemetry.ticked(report)
        self._last_sweep.note(report)
        if self._rates and (spikes := self._rates.record(report.trace_id)):
            self.telemetry.spiked(spikes)
        if report.broken:
            self._broken = f"{self.name}: not swept until sweeperd is restarted: {report.broken}"
            raise KindRefused(self._broken)
        return report

    def backlog(self) -> Backlog:
        """How much is due now."""
        return self._sweeper.backlog()

    def measure(self) -> None:
        """Set the gauges."""
        self.telemetry.measured(self.backlog())

    def _decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        self.telemetry.decided(decisions, trace_id)
        self._last_sweep.decided(decisions)
        if self._rates:
            self._rates.decided(decisions)
        self._observe(decisions)


def kind_sweeps(
    settings: Settings,
    shard: Shard,
    metrics: Metrics,
    stop: threading.Event,
    observe: Callable[[Sequence[Decision]], None] = lambda _: None,
    cycles_lease: CyclesLease | None = None,
    interpreter: Interpreter | None = None,
) -> list[KindSweep]:
    """The sweep of each kind of these settings on the shard."""
    kinds = all_kinds(settings, shard.keys)
    return [KindSweep(settings, shard, kind, metrics, stop, observe, cycles_lease, interpreter) for kind in kinds]
