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
#: What the Cycles services call the results of a sweep.
_CYCLES_OUTCOMES = {"ok": "success", "error": "failed", "standby": "skipped_locked"}
_DETAIL = {Outcome.SKIPPED: "state", Outcome.QUARANTINED: "reason", Outcome.ERROR: "error"}


class SweepTelemetry:
    """The log lines and the metrics of the sweep of one kind on one shard."""

    def __init__(self, metrics: Metrics, shard: str, kind: str = RESERVATIONS) -> None:
        self._metrics = metrics.sweep
        self._shard = shard
        self._kind = kind
        #: What every log line of this sweep says.
        self._where: dict[str, object] = {"shard": shard} if kind == RESERVATIONS else {"shard": shard, "kind": kind}
        self._fields, self._entries = (
            (_reservation_fields, "reservations") if kind == RESERVATIONS else (_entry_fields, "entries")
        )
        metrics.sweep.announce(shard, kind, list(Outcome), list(REASONS) if kind == RESERVATIONS else [])

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
                self._log(decision.outcome, trace_id, level, self._fields(decision))
        for outcome, alike in ordinary.items():
            # An entry in grace has not changed.
            level = logging.DEBUG if outcome is Outcome.IN_GRACE else logging.INFO
            if log.isEnabledFor(level):
                for start in range(0, len(alike), LINE):
                    rows = [self._fields(decision) for decision in alike[start : start + LINE]]
                    self._log(outcome, trace_id, level, {self._entries: rows})

    def ticked(self, report: SweepReport) -> None:
        """A tick that reached its end or was cut short."""
        self._count_run("error" if report.failure else "ok")
        self._metrics.sweep_duration.labels(self._shard, self._kind).observe(report.duration_seconds)
        # The other entries were counted with their decisions.
        self._metrics.candidates.labels(self._shard, self._kind, Outcome.IN_GRACE).inc(report.passed)
        self._metrics.pipeline_depth.labels(self._shard, self._kind).set(report.pipeline_depth)
        self._metrics.redis_up.labels(self._shard).set(1)
        if report.candidates:
            seconds = round(report.duration_seconds, 3)
            counts: dict[str, object] = {outcome.value: count for outcome, count in report.counts.items() if count}
            common = self._where | {"trace_id": report.trace_id, "seconds": seconds}
            log.info("swept", extra=common | counts)
        if report.failure:
            log.error("sweep failed", extra=self._where | {"error": report.failure})

    def stood_by(self) -> None:
        """Another replica holds the lease."""
        self._count_run("standby")
        self._metrics.redis_up.labels(self._shard).set(1)

    def spiked(self, tenants: int) -> None:
        """So many tenants' rates of expiries rose above their usual ones."""
        self._metrics.expiry_spikes.labels(self._shard).inc(tenants)
        log.warning("expiries of tenants rose above their usual rate", extra={"shard": self._shard, "tenants": tenants})

    def lost_lease(self) -> None:
        """The lease was gone before the sweep ended."""
        self._metrics.leases_lost.labels(self._shard, self._kind).inc()
        log.warning("the lease was lost during a sweep; no reservation was", extra=self._where)

    def failed(self, error: Exception, *, redis_down: bool, logged: bool = False) -> None:
        """A tick that raised this. `logged`: the caller logs it."""
        self._count_run("error")
        if redis_down:
            self._metrics.redis_up.labels(self._shard).set(0)
        if logged:
            return
        if redis_down:
            log.error("sweep failed, the next tick tries again", extra=self._where | {"error": str(error)})
        else:
            log.error("sweep failed", extra=self._where, exc_info=error)

    def measured(self, backlog: Backlog) -> None:
        """How much is due and in quarantine."""
        self._metrics.due_entries.labels(self._shard, self._kind).set(backlog.due)
        self._metrics.oldest_due.labels(self._shard, self._kind).set(backlog.oldest_due_seconds)
        self._metrics.quarantined_entries.labels(self._shard, self._kind).set(backlog.quarantined)

    def _count_run(self, result: str) -> None:
        self._metrics.sweeps.labels(self._shard, self._kind, result).inc()
        if self._kind == RESERVATIONS:
            self._metrics.cycles_run(_CYCLES_OUTCOMES[result])

    def _count(self, decisions: Sequence[Decision]) -> None:
        metrics, shard, kind = self._metrics, self._shard, self._kind
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
            if decision.missing:
                metrics.missing_budgets.labels(shard, kind).inc(len(decision.missing))
            if decision.closed:
                metrics.closed_budgets.labels(shard).inc(len(decision.closed))
            if decision.outcome is Outcome.QUARANTINED and self._kind == RESERVATIONS:
                metrics.cycles_quarantined(decode(decision.tenant), decision.detail)
        for tenant, count in tenants.items():
            metrics.expired(kind, tenant, count)
            if self._kind == RESERVATIONS:
                metrics.cycles_expired(tenant, count)

    def _log(self, outcome: Outcome, trace_id: str, level: int, fields: dict[str, object]) -> None:
        common = self._where | {"outcome": outcome.value, "trace_id": trace_id}
        log.log(level, outcome.value.replace("_", " "), extra=common | fields)


def _reservation_fields(decision: Decision) -> dict[str, object]:
    """What the log has of a reservation."""
    fields = {"reservation_id": decode(decision.id)} | _common_fields(decision)
    if decision.missing:
        fields["missing_budgets"] = list(decision.missing)
    if decision.closed:
        fields["closed_budgets"] = list(decision.closed)
    return fields


def _entry_fields(decision: Decision) -> dict[str, object]:
    """What the log has of an entry of a configured kind."""
    fields = {"id": decode(decision.id)} | _common_fields(decision)
    if decision.missing:
        fields["missing"] = list(decision.missing)
    return fields


def _common_fields(decision: Decision) -> dict[str, object]:
    fields: dict[str, object] = {}
    if decision.tenant:
        fields["tenant"] = decode(decision.tenant)
    if decision.detail:
        fields[_DETAIL[decision.outcome]] = decision.detail
    if decision.why:
        fields["why"] = decision.why
    if decision.outcome is Outcome.EXPIRED:
        fields["lag_ms"] = decision.lag_ms
    return fields
