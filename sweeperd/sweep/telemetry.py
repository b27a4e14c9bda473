"""What is told of the sweep: each decision as a log line and in the counters, each tick in the metrics."""

import logging
from collections import Counter
from collections.abc import Sequence

from sweeperd.metrics import Metrics
from sweeperd.sweep.kind import RESERVATIONS, Backlog, Decision, Outcome, SweepReport
from sweeperd.text import decode

log = logging.getLogger(__name__)

#: The most entries that one line tells of: log shippers cut lines, many at 16 KiB.
LINE = 50

#: What needs a person.
_ALARMING = {Outcome.QUARANTINED: logging.WARNING, Outcome.ERROR: logging.ERROR}
_DETAIL = {Outcome.SKIPPED: "state", Outcome.QUARANTINED: "reason", Outcome.ERROR: "error"}


class SweepTelemetry:
    """The sweep of one shard, told to the log and the metrics from the same values."""

    def __init__(self, metrics: Metrics, shard: str, kind: str = RESERVATIONS) -> None:
        self._metrics = metrics
        self._shard = shard
        self._kind = kind
        metrics.announce_shard(shard, list(Outcome))

    def decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        """
        A slice of decisions. What went as usual shares a line with others of its outcome: after an outage there are
        thousands a second of them. What needs a person has a line of its own.
        """
        metrics, shard = self._metrics, self._shard
        usual: dict[Outcome, list[Decision]] = {}
        tenants: Counter[str] = Counter()
        for outcome, count in Counter(decision.outcome for decision in decisions).items():
            metrics.candidates.labels(shard, outcome).inc(count)
        observe_lag = metrics.expiry_lag.labels(shard).observe
        for decision in decisions:
            if decision.outcome is Outcome.EXPIRED:
                tenants[decode(decision.tenant)] += 1
                observe_lag(decision.lag_ms / 1000)
            if decision.missing:
                metrics.missing_budgets.labels(shard).inc(len(decision.missing))
            level = logging.WARNING if decision.missing else _ALARMING.get(decision.outcome)
            if level is None:
                usual.setdefault(decision.outcome, []).append(decision)
            else:
                self._log(decision.outcome, trace_id, level, _told(decision))
        for tenant, count in tenants.items():
            metrics.expired(tenant, count)
        for outcome, alike in usual.items():
            # What changes nothing is told at debug level.
            level = logging.DEBUG if outcome is Outcome.IN_GRACE else logging.INFO
            if log.isEnabledFor(level):
                for start in range(0, len(alike), LINE):
                    told = [_told(decision) for decision in alike[start : start + LINE]]
                    self._log(outcome, trace_id, level, {"reservations": told})

    def ticked(self, report: SweepReport) -> None:
        """A tick that ended well."""
        self._metrics.sweeps.labels(self._shard, "ok").inc()
        self._metrics.sweep_duration.labels(self._shard).observe(report.duration_seconds)
        # All others have been counted with their decisions.
        self._metrics.candidates.labels(self._shard, Outcome.IN_GRACE).inc(report.passed)
        self._metrics.pipeline_depth.labels(self._shard).set(report.pipeline_depth)
        self._metrics.redis_up.labels(self._shard).set(1)
        if report.candidates:
            counts: dict[str, object] = {outcome.value: count for outcome, count in report.counts.items() if count}
            log.info(
                "swept",
                extra={"shard": self._shard, "trace_id": report.trace_id, "seconds": round(report.duration_seconds, 3)}
                | counts,
            )

    def stood_by(self) -> None:
        """Another replica holds the lease."""
        self._metrics.sweeps.labels(self._shard, "standby").inc()
        self._metrics.redis_up.labels(self._shard).set(1)

    def lost_lease(self) -> None:
        """The lease was gone before the sweep ended."""
        self._metrics.leases_lost.labels(self._shard).inc()
        log.warning("the lease was lost during a sweep; nothing else is", extra={"shard": self._shard})

    def failed(self, error: Exception, *, redis_down: bool, told: bool = False) -> None:
        """A tick that did not end well. `told`: somebody else says so."""
        self._metrics.sweeps.labels(self._shard, "error").inc()
        if redis_down:
            self._metrics.redis_up.labels(self._shard).set(0)
        if told:
            return
        if redis_down:
            log.error("sweep failed, the next tick tries again", extra={"shard": self._shard, "error": str(error)})
        else:
            log.error("sweep failed", extra={"shard": self._shard}, exc_info=error)

    def measured(self, backlog: Backlog) -> None:
        """What is due and what is set aside."""
        self._metrics.due_entries.labels(self._shard).set(backlog.due)
        self._metrics.oldest_due.labels(self._shard).set(backlog.oldest_due_seconds)
        self._metrics.quarantined_entries.labels(self._shard).set(backlog.quarantined)

    def _log(self, outcome: Outcome, trace_id: str, level: int, about: dict[str, object]) -> None:
        common: dict[str, object] = {"shard": self._shard, "outcome": outcome.value, "trace_id": trace_id}
        log.log(level, outcome.value.replace("_", " "), extra=common | about)


def _told(decision: Decision) -> dict[str, object]:
    """What a line says of one entry."""
    about: dict[str, object] = {"reservation_id": decode(decision.id)}
    if decision.tenant:
        about["tenant"] = decode(decision.tenant)
    if decision.detail:
        about[_DETAIL[decision.outcome]] = decision.detail
    if decision.outcome is Outcome.EXPIRED:
        about["lag_ms"] = decision.lag_ms
    if decision.missing:
        about["missing_budgets"] = list(decision.missing)
    return about
