"""Logs and counts what a sweep decides."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sweeperd.logs import Trouble
from sweeperd.sweep.kind import PROTECTED, Backlog, Decision, Kind, Outcome, SweepReport
from sweeperd.text import decode

if TYPE_CHECKING:
    from sweeperd.metrics import Metrics

log = logging.getLogger(__name__)

#: The most entries in one log line: log shippers cut lines, many at 16 KiB.
LINE = 50
#: How many entries a warning about a tick names.
NAMED = 10
#: A tick of at least so many entries is unexpected if more than half of the entries have no hash.
BULK = 20

#: The outcomes that need an operator.
_ALARMING = {Outcome.QUARANTINED: logging.WARNING, Outcome.ERROR: logging.ERROR}
#: The names that the Cycles services give to the results of a sweep.
_CYCLES_OUTCOMES = {"ok": "success", "error": "failed", "standby": "skipped_locked"}
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
        """`clock`: monotonic, seconds."""
        self._metrics = metrics.sweep
        self._clock = clock
        #: When the present run began.
        self._begun: float | None = None
        self._shard = shard
        self._kind = kind
        #: Ordinary decisions that wait for more of their outcome, to share a line of LINE; of one tick.
        self._waiting: dict[tuple[Outcome, str, int], list[Decision]] = {}
        #: What one tick decided and the settings do not explain: how many, and the first of them.
        self._unexpected: Counter[Outcome] = Counter()
        self._named: dict[Outcome, list[Decision]] = {}
        #: The ticks since the last line about ticks: how many, how long, what was decided, and the last trace id.
        self._ticks, self._seconds = 0, 0.0
        self._counts: Counter[Outcome] = Counter()
        self._trace_id = ""
        #: Ticks that fail one after the other.
        self.trouble = Trouble(clock)
        #: The fields of every log line of this sweep.
        self._about: dict[str, object] = {"shard": shard, **kind.log_fields}
        metrics.sweep.announce(shard, kind.name, list(Outcome), list(kind.reasons))

    def decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        """
        The decisions of a batch. Ordinary decisions of a tick share log lines by outcome, because there are thousands a
        second after an outage. A decision that needs an operator has a line of its own.
        """
        self._count(decisions)
        self._note_unexpected(decisions)
        for decision in decisions:
            level = logging.WARNING if decision.missing or decision.closed else _ALARMING.get(decision.outcome)
            if level is None:
                # An entry in grace, held or protected has not changed.
                unchanged = decision.outcome in (Outcome.IN_GRACE, Outcome.HELD) or decision.detail == PROTECTED
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
        """The tick has ended: log what waits for a full line."""
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
        """One warning for each outcome of this tick that the settings do not explain."""
        found, named = self._unexpected, self._named
        self._unexpected, self._named = Counter(), {}
        if 2 * found[Outcome.NOT_FOUND] <= report.candidates or report.candidates < BULK:
            del found[Outcome.NOT_FOUND]
        if woken:
            del found[Outcome.HELD]  # the next tick over the whole index holds the same entries
        for outcome, count in found.items():
            about = self._about | {"outcome": outcome.value, "count": count, "trace_id": report.trace_id}
            about[self._kind.labels.entries] = [self._fields_of(decision) for decision in named[outcome]]
            if outcome is Outcome.HELD:
                because = {"because": report.held_because}
                log.warning("entries are held, because no entry of the kind was seen alive", extra=about | because)
                continue
            self._metrics.unexpected.labels(self._shard, self._kind.name, outcome).inc(count)
            if outcome is Outcome.NOT_FOUND:
                log.warning("most entries of a tick had no hash", extra=about)
            else:
                log.warning("entries have ended in a way that the settings do not name", extra=about)

    def paged(self) -> None:
        """A page of a tick was decided."""
        self._metrics.redis_up.labels(self._shard).set(1)

    def begun(self) -> None:
        """A run begins, before the lease is asked for. No effect during a run."""
        if self._begun is None:
            self._begun = self._clock()

    def ticked(self, report: SweepReport, *, woken: bool = False) -> None:
        """A tick that reached its end or was cut short. A woken tick is logged together with later ticks."""
        self.flush()
        self._warn_unexpected(report, woken=woken)
        self._count_run("error" if report.failure else "ok")
        self._metrics.sweep_duration.labels(self._shard, self._kind.name).observe(report.duration_seconds)
        # The other entries were counted with their decisions.
        self._metrics.candidates.labels(self._shard, self._kind.name, Outcome.IN_GRACE).inc(report.passed)
        self._metrics.pipeline_depth.labels(self._shard, self._kind.name).set(report.pipeline_depth)
        self._metrics.redis_up.labels(self._shard).set(1)
        if report.candidates:
            self._add_up(report)
        if not woken:
            self.summarize()
        if not report.failure:
            self._recovered()
        elif self.trouble.is_news(report.failure):
            log.error("sweep failed", extra=self._about | {"error": report.failure})

    def _recovered(self) -> None:
        if (outage := self.trouble.end()) is not None:
            log.info("sweep goes on", extra=self._about | outage)

    def _add_up(self, report: SweepReport) -> None:
        self._ticks += 1
        self._seconds += report.duration_seconds
        self._counts.update(report.counts)
        self._trace_id = report.trace_id

    def summarize(self) -> None:
        """Log the sum of the ticks since the last such line, if they have decided anything."""
        if self._ticks:
            several = {"ticks": self._ticks} if self._ticks > 1 else {"trace_id": self._trace_id}
            counts: dict[str, object] = {outcome.value: count for outcome, count in self._counts.items() if count}
            log.info("swept", extra=self._about | several | {"seconds": round(self._seconds, 3)} | counts)
        self._ticks, self._seconds, self._counts = 0, 0.0, Counter()

    def stood_by(self) -> None:
        """Another replica holds the lease."""
        self.summarize()
        self._recovered()
        self._count_run("standby")
        self._metrics.redis_up.labels(self._shard).set(1)

    def spiked(self, tenants: int) -> None:
        """The rates of expiries of so many tenants rose above the usual rates."""
        self._metrics.expiry_spikes.labels(self._shard).inc(tenants)
        log.warning("expiries of tenants rose above their usual rate", extra={"shard": self._shard, "tenants": tenants})

    def lost_lease(self) -> None:
        """The lease was gone before the sweep ended."""
        self._metrics.leases_lost.labels(self._shard, self._kind.name).inc()
        log.warning("the lease was lost during a sweep; no reservation was", extra=self._about)

    def failed(self, *, redis_down: bool) -> None:
        """A tick that raised an error."""
        self.flush()
        self._count_run("error")
        if redis_down:
            self._metrics.redis_up.labels(self._shard).set(0)

    def set_backlog(self, backlog: Backlog) -> None:
        """How much is due, in quarantine and far ahead."""
        self._metrics.due_entries.labels(self._shard, self._kind.name).set(backlog.due)
        self._metrics.oldest_due.labels(self._shard, self._kind.name).set(backlog.oldest_due_seconds)
        self._metrics.quarantined_entries.labels(self._shard, self._kind.name).set(backlog.quarantined)
        self._metrics.far_ahead.labels(self._shard, self._kind.name).set(backlog.far_ahead)
        if self._kind.proof:
            self._metrics.held_entries.labels(self._shard, self._kind.name).set(backlog.held)
            self._metrics.unproven.labels(self._shard, self._kind.name).set(not backlog.proven)
        if self._kind.protected:
            self._metrics.protected_entries.labels(self._shard, self._kind.name).set(backlog.protected)
            self._metrics.oldest_protected.labels(self._shard, self._kind.name).set(backlog.oldest_protected_seconds)

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
                metrics.closed_budgets.labels(shard).inc(len(decision.closed))
        for tenant, count in tenants.items():
            metrics.expired(kind, tenant, count)
            if self._kind.cycles:
                metrics.cycles.expired(tenant, count)

    def _log(self, outcome: Outcome, trace_id: str, level: int, fields: dict[str, object]) -> None:
        common = self._about | {"outcome": outcome.value, "trace_id": trace_id}
        log.log(level, outcome.value.replace("_", " "), extra=common | fields)

    def _fields_of(self, decision: Decision) -> dict[str, object]:
        """The fields of the log for an entry."""
        labels = self._kind.labels
        fields: dict[str, object] = {labels.id: decode(decision.id)}
        if decision.tenant:
            fields["tenant"] = decode(decision.tenant)
        if decision.detail:
            fields[_DETAIL[decision.outcome]] = decision.detail
        if decision.why:
            fields["why"] = decision.why
        if decision.outcome is Outcome.EXPIRED:
            fields["lag_ms"] = decision.lag_ms
        if decision.missing:
            fields[labels.missing] = list(decision.missing)
        if decision.closed:
            fields["closed_budgets"] = list(decision.closed)
        return fields
