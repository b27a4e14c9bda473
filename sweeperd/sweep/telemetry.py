"""Logs and counts what a sweep decides."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sweeperd.logs import Trouble
from sweeperd.store.memory import MemoryUse
from sweeperd.sweep.backlog import Backlog
from sweeperd.sweep.kind import PROTECTED, Decision, Kind, Outcome, SweepReport
from sweeperd.text import decode

if TYPE_CHECKING:
    from sweeperd.metrics import Metrics

log = logging.getLogger(__name__)

#: The most entries in one log line: many log shippers cut lines at 16 KiB.
LINE = 50
#: How many entries a warning about a tick names.
NAMED = 10
#: In a tick of at least this many entries, it is unexpected that more than half have no hash.
BULK = 20

#: The outcomes that need an operator.
_ALARMING = {Outcome.QUARANTINED: logging.WARNING, Outcome.ERROR: logging.ERROR}
#: The names that the Cycles services give to the results of a sweep.
_CYCLES_OUTCOMES = {"ok": "success", "error": "failed", "standby": "skipped_locked"}
_UNEXPECTED = {
    Outcome.HELD: "entries are held, because no entry of the kind was seen alive",
    Outcome.NOT_FOUND: "most entries of a tick had no hash",
    Outcome.SKIPPED: "entries have ended in a way that the settings do not name",
}
#: The field of the log line for the decision's detail.
_DETAIL = {
    Outcome.NOT_DUE: "why",
    Outcome.SKIPPED: "state",
    Outcome.QUARANTINED: "reason",
    Outcome.ERROR: "error",
    Outcome.HELD: "instead_of",
}


class SweepTelemetry:
    """The log lines and the metrics of the sweep of one kind on one shard."""

    def __init__(self, metrics: "Metrics", shard: str, kind: Kind, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics.sweep
        self._clock = clock
        #: When the present run began.
        self._begun: float | None = None
        self._shard = shard
        self._kind = kind
        #: The ordinary decisions of a tick that wait for more of their outcome, to share a log line.
        self._waiting: dict[tuple[Outcome, str, int], list[Decision]] = {}
        #: The decisions of a tick that the settings do not explain: how many, and the first ones.
        self._unexpected: Counter[Outcome] = Counter()
        self._named: dict[Outcome, list[Decision]] = {}
        #: Whether the last full tick, or a woken one since, deferred expiries.
        self._defers = False
        #: The ticks since the last log line about ticks.
        self._ticks, self._seconds = 0, 0.0
        self._counts: Counter[Outcome] = Counter()
        self._trace_id = ""
        #: Ticks that fail one after the other.
        self.trouble = Trouble(clock)
        self._about: dict[str, object] = {"shard": shard, **kind.log_fields}
        metrics.sweep.announce(shard, kind.name, list(Outcome), list(kind.reasons))

    def decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        """Count and log a batch. Decisions that need an operator have a line each; thousands of others share lines."""
        self._count(decisions)
        self._note_unexpected(decisions)
        for decision in decisions:
            level = logging.WARNING if decision.missing or decision.closed else _ALARMING.get(decision.outcome)
            if level is None:
                # An entry that stays, or is protected, has not changed.
                unchanged = decision.outcome.stays or decision.detail == PROTECTED
                key = decision.outcome, trace_id, logging.DEBUG if unchanged else logging.INFO
                alike = self._waiting.setdefault(key, [])
                alike.append(decision)
                if len(alike) == LINE:
                    self._log_ordinary(*key)
            else:
                self._log(decision.outcome, trace_id, level, self._fields_of(decision))

    def _log_ordinary(self, outcome: Outcome, trace_id: str, level: int) -> None:
        alike = self._waiting.pop((outcome, trace_id, level))
        if log.isEnabledFor(level):
            rows = [self._fields_of(decision) for decision in alike]
            self._log(outcome, trace_id, level, {self._kind.labels.entries: rows})

    def flush(self) -> None:
        """Log what waits for a full line."""
        for key in list(self._waiting):
            self._log_ordinary(*key)

    def _note_unexpected(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            outcome = decision.outcome
            ends = outcome is Outcome.NOT_FOUND or (outcome is Outcome.SKIPPED and decision.why)
            if ends or outcome is Outcome.HELD:
                self._unexpected[outcome] += 1
                if len(named := self._named.setdefault(outcome, [])) < NAMED:
                    named.append(decision)

    def _warn_unexpected(self, report: SweepReport, *, woken: bool) -> None:
        """Warn once for each outcome of this tick that the settings do not explain."""
        found, named = self._unexpected, self._named
        self._unexpected, self._named = Counter(), {}
        if 2 * found[Outcome.NOT_FOUND] <= report.candidates or report.candidates < BULK:
            del found[Outcome.NOT_FOUND]
        if woken:
            del found[Outcome.HELD]  # the next full tick holds the same entries
        for outcome, count in found.items():
            about = self._about | {"outcome": outcome.value, "count": count, "trace_id": report.trace_id}
            about[self._kind.labels.entries] = [self._fields_of(decision) for decision in named[outcome]]
            if outcome is Outcome.HELD:
                about["because"] = report.held_because
            else:
                self._metrics.unexpected.labels(self._shard, self._kind.name, outcome).inc(count)
            log.warning(_UNEXPECTED[outcome], extra=about)

    def _note_deferred(self, report: SweepReport, *, woken: bool) -> None:
        """Log once that expiries are deferred, and once that they are not any more."""
        count = report.counts.get(Outcome.DEFERRED, 0)
        if count and not self._defers:
            about = self._about | {"count": count, "because": report.deferred_because}
            log.warning("expiries are deferred, because Redis is full", extra=about)
        elif self._defers and not count and not woken and not report.failure:
            log.info("expiries are no longer deferred", extra=self._about)
        if count or not (woken or report.failure):
            self._defers = count > 0

    def paged(self) -> None:
        self._metrics.redis_up.labels(self._shard).set(1)

    def begun(self) -> None:
        """A run begins. No effect during a run."""
        if self._begun is None:
            self._begun = self._clock()

    def ticked(self, report: SweepReport, *, woken: bool = False) -> None:
        """A tick reached its end or was cut short. A woken tick is logged together with later ticks."""
        self.flush()
        self._warn_unexpected(report, woken=woken)
        self._note_deferred(report, woken=woken)
        self._count_run("error" if report.failure else "ok")
        self._metrics.sweep_duration.labels(self._shard, self._kind.name).observe(report.duration_seconds)
        # Decided entries are counted already.
        self._metrics.candidates.labels(self._shard, self._kind.name, Outcome.IN_GRACE).inc(report.passed)
        self._metrics.pipeline_depth.labels(self._shard, self._kind.name).set(report.pipeline_depth)
        self._metrics.redis_up.labels(self._shard).set(1)
        if report.candidates > report.counts.get(Outcome.DEFERRED, 0):
            self._ticks += 1
            self._seconds += report.duration_seconds
            self._counts.update(report.counts)
            self._trace_id = report.trace_id
        if not woken:
            self.summarize()
        if not report.failure:
            self._recovered()
        elif self.trouble.is_news(report.failure):
            log.error("sweep failed", extra=self._about | {"error": report.failure})

    def _recovered(self) -> None:
        if (outage := self.trouble.end()) is not None:
            log.info("sweep goes on", extra=self._about | outage)

    def summarize(self) -> None:
        """Log the sum of the ticks since the last such line, if they decided anything."""
        if self._ticks:
            several = {"ticks": self._ticks} if self._ticks > 1 else {"trace_id": self._trace_id}
            counts: dict[str, object] = {outcome.value: count for outcome, count in self._counts.items() if count}
            log.info("swept", extra=self._about | several | {"seconds": round(self._seconds, 3)} | counts)
        self._ticks, self._seconds, self._counts = 0, 0.0, Counter()

    def stood_by(self) -> None:
        self.summarize()
        self._recovered()
        self._count_run("standby")
        self._metrics.redis_up.labels(self._shard).set(1)

    def spiked(self, tenants: int) -> None:
        self._metrics.expiry_spikes.labels(self._shard, self._kind.name).inc(tenants)
        log.warning("expiries of tenants rose above their usual rate", extra={"shard": self._shard, "tenants": tenants})

    def lost_lease(self) -> None:
        self._metrics.leases_lost.labels(self._shard, self._kind.name).inc()
        log.warning("the lease was lost during a sweep; no reservation was", extra=self._about)

    def failed(self, *, redis_down: bool) -> None:
        self.flush()
        self._count_run("error")
        if redis_down:
            self._metrics.redis_up.labels(self._shard).set(0)

    def set_backlog(self, backlog: Backlog) -> None:
        metrics = self._metrics
        gauges = {
            metrics.alive_entries: backlog.alive,
            metrics.due_entries: backlog.due,
            metrics.oldest_due: backlog.oldest_due_seconds,
            metrics.quarantined_entries: backlog.quarantined,
            metrics.far_ahead: backlog.far_ahead,
            metrics.deferred_entries: backlog.deferred,
        }
        if self._kind.proof:
            gauges |= {metrics.held_entries: backlog.held, metrics.unproven: not backlog.proven}
        if self._kind.protected:
            gauges[metrics.protected_entries] = backlog.protected
            gauges[metrics.oldest_protected] = backlog.oldest_protected_seconds
        for gauge, value in gauges.items():
            gauge.labels(self._shard, self._kind.name).set(value)

    def set_memory(self, use: MemoryUse | None) -> None:
        """Set the gauges of the server's memory. `use`: None if unknown."""
        used, limit = (None, None) if use is None else (use.used, use.limit)
        self._metrics.set_memory(self._shard, used, limit)

    def _count_run(self, result: str) -> None:
        self._metrics.sweeps.labels(self._shard, self._kind.name, result).inc()
        now = self._clock()
        if self._kind.cycles:
            self._metrics.cycles.ran(_CYCLES_OUTCOMES[result], now - (now if self._begun is None else self._begun))
        self._begun = None

    def _count(self, decisions: Sequence[Decision]) -> None:
        metrics, shard, kind = self._metrics, self._shard, self._kind.name
        for outcome, count in Counter(decision.outcome for decision in decisions).items():
            metrics.candidates.labels(shard, kind, outcome).inc(count)
        observe_lag = metrics.expiry_lag.labels(shard, kind).observe
        tenants: Counter[str] = Counter()
        for decision in decisions:
            if decision.outcome is Outcome.EXPIRED:
                tenants[decode(decision.tenant)] += 1
                observe_lag(decision.lag_ms / 1000)
            elif decision.outcome is Outcome.QUARANTINED:
                metrics.quarantined.labels(shard, kind, decision.detail).inc()
                if self._kind.cycles:
                    metrics.cycles.quarantined(decode(decision.tenant), decision.detail)
            if decision.missing:
                metrics.missing_budgets.labels(shard, kind).inc(len(decision.missing))
            if decision.closed:
                metrics.closed_budgets.labels(shard, kind).inc(len(decision.closed))
        for tenant, count in tenants.items():
            metrics.expired(kind, tenant, count)
            if self._kind.cycles:
                metrics.cycles.expired(tenant, count)

    def _log(self, outcome: Outcome, trace_id: str, level: int, fields: dict[str, object]) -> None:
        common = self._about | {"outcome": outcome.value, "trace_id": trace_id}
        log.log(level, outcome.value.replace("_", " "), extra=common | fields)

    def _fields_of(self, decision: Decision) -> dict[str, object]:
        labels = self._kind.labels
        fields: dict[str, object] = {labels.id: decode(decision.id)}
        if decision.detail:
            fields[_DETAIL[decision.outcome]] = decision.detail
        if decision.outcome is Outcome.EXPIRED:
            fields["lag_ms"] = decision.lag_ms
        more = {"tenant": decode(decision.tenant), "why": decision.why, labels.missing: list(decision.missing)}
        more["closed_budgets"] = list(decision.closed)
        return fields | {name: value for name, value in more.items() if value}
