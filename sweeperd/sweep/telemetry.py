"""Logs and counts the sweep: each decision, and each tick as a whole."""

import logging
from collections import Counter
from collections.abc import Sequence

from sweeperd.metrics import Metrics
from sweeperd.sweep.kind import RESERVATIONS, Backlog, Decision, Outcome, SweepReport
from sweeperd.sweep.reasons import REASONS
from sweeperd.text import decode

log = logging.getLogger(__name__)

#: The most entries in one log line: log shippers cut lines, many at 16 KiB.
LINE = 50

#: The outcomes that need an operator.
_ALARMING = {Outcome.QUARANTINED: logging.WARNING, Outcome.ERROR: logging.ERROR}
_DETAIL = {Outcome.SKIPPED: "state", Outcome.QUARANTINED: "reason", Outcome.ERROR: "error"}


class SweepTelemetry:
    """The log lines and the metrics of the sweep of one kind on one shard."""

    def __init__(self, metrics: Metrics, shard: str, kind: str = RESERVATIONS) -> None:
        self._metrics = metrics
        self._shard = shard
        self._kind = kind
        metrics.announce_shard(shard, list(Outcome))
        metrics.announce_quarantine(shard, kind, list(REASONS) if kind == RESERVATIONS else [])

    def decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        """
        The decisions of a batch. Ordinary ones share log lines by outcome, because there are thousands a second of them
        after an outage. One that needs an operator has a line of its own.
        """
        self._count(decisions)
        ordinary: dict[Outcome, list[Decision]] = {}
        for decision in decisions:
            level = logging.WARNING if decision.missing or decision.closed else _ALARMING.get(decision.outcome)
            if level is None:
                ordinary.setdefault(decision.outcome, []).append(decision)
            else:
                self._log(decision.outcome, trace_id, level, _log_fields(decision))
        for outcome, alike in ordinary.items():
            # An entry in grace has not changed.
            level = logging.DEBUG if outcome is Outcome.IN_GRACE else logging.INFO
            if log.isEnabledFor(level):
                for start in range(0, len(alike), LINE):
                    rows = [_log_fields(decision) for decision in alike[start : start + LINE]]
                    self._log(outcome, trace_id, level, {"reservations": rows})

    def ticked(self, report: SweepReport) -> None:
        """A tick that reached its end or was cut short."""
        self._metrics.sweeps.labels(self._shard, "error" if report.failure else "ok").inc()
        self._metrics.sweep_duration.labels(self._shard).observe(report.duration_seconds)
        # The other entries were counted with their decisions.
        self._metrics.candidates.labels(self._shard, Outcome.IN_GRACE).inc(report.passed)
        self._metrics.pipeline_depth.labels(self._shard).set(report.pipeline_depth)
        self._metrics.redis_up.labels(self._shard).set(1)
        if report.candidates:
            seconds = round(report.duration_seconds, 3)
            counts: dict[str, object] = {outcome.value: count for outcome, count in report.counts.items() if count}
            common = {"shard": self._shard, "trace_id": report.trace_id, "seconds": seconds}
            log.info("swept", extra=common | counts)
        if report.failure:
            log.error("sweep failed", extra={"shard": self._shard, "error": report.failure})

    def stood_by(self) -> None:
        """Another replica holds the lease."""
        self._metrics.sweeps.labels(self._shard, "standby").inc()
        self._metrics.redis_up.labels(self._shard).set(1)

    def lost_lease(self) -> None:
        """The lease was gone before the sweep ended."""
        self._metrics.leases_lost.labels(self._shard).inc()
        log.warning("the lease was lost during a sweep; no reservation was", extra={"shard": self._shard})

    def failed(self, error: Exception, *, redis_down: bool, logged: bool = False) -> None:
        """A tick that raised this. `logged`: the caller logs it."""
        self._metrics.sweeps.labels(self._shard, "error").inc()
        if redis_down:
            self._metrics.redis_up.labels(self._shard).set(0)
        if logged:
            return
        if redis_down:
            log.error("sweep failed, the next tick tries again", extra={"shard": self._shard, "error": str(error)})
        else:
            log.error("sweep failed", extra={"shard": self._shard}, exc_info=error)

    def measured(self, backlog: Backlog) -> None:
        """How much is due and in quarantine."""
        self._metrics.due_entries.labels(self._shard).set(backlog.due)
        self._metrics.oldest_due.labels(self._shard).set(backlog.oldest_due_seconds)
        self._metrics.quarantined_entries.labels(self._shard).set(backlog.quarantined)

    def _count(self, decisions: Sequence[Decision]) -> None:
        metrics, shard = self._metrics, self._shard
        for outcome, count in Counter(decision.outcome for decision in decisions).items():
            metrics.candidates.labels(shard, outcome).inc(count)
        observe_lag = metrics.expiry_lag.labels(shard).observe
        tenants: Counter[str] = Counter()
        for decision in decisions:
            if decision.outcome is Outcome.EXPIRED:
                tenants[decode(decision.tenant)] += 1
                observe_lag(decision.lag_ms / 1000)
            elif decision.outcome is Outcome.QUARANTINED:
                metrics.quarantined.labels(shard, self._kind, decision.detail).inc()
            if decision.missing:
                metrics.missing_budgets.labels(shard).inc(len(decision.missing))
            if decision.closed:
                metrics.closed_budgets.labels(shard).inc(len(decision.closed))
        for tenant, count in tenants.items():
            metrics.expired(tenant, count)

    def _log(self, outcome: Outcome, trace_id: str, level: int, fields: dict[str, object]) -> None:
        common: dict[str, object] = {"shard": self._shard, "outcome": outcome.value, "trace_id": trace_id}
        log.log(level, outcome.value.replace("_", " "), extra=common | fields)


def _log_fields(decision: Decision) -> dict[str, object]:
    """What the log has of one entry."""
    fields: dict[str, object] = {"reservation_id": decode(decision.id)}
    if decision.tenant:
        fields["tenant"] = decode(decision.tenant)
    if decision.detail:
        fields[_DETAIL[decision.outcome]] = decision.detail
    if decision.outcome is Outcome.EXPIRED:
        fields["lag_ms"] = decision.lag_ms
    if decision.missing:
        fields["missing_budgets"] = list(decision.missing)
    if decision.closed:
        fields["closed_budgets"] = list(decision.closed)
    return fields
