"""What is told of the sweep: each decision as a log line and in the counters, each tick in the metrics."""

import logging
from collections.abc import Sequence

from sweeperd.metrics import Metrics
from sweeperd.sweep import Backlog, Decision, Outcome, SweepReport
from sweeperd.text import shown

log = logging.getLogger(__name__)

#: What changes nothing is told at debug level, what needs a person at warning or error.
_LEVELS = {
    Outcome.IN_GRACE: logging.DEBUG,
    Outcome.QUARANTINED: logging.WARNING,
    Outcome.ERROR: logging.ERROR,
}
_DETAIL = {Outcome.SKIPPED: "state", Outcome.QUARANTINED: "reason", Outcome.ERROR: "error"}


class Audit:
    """The sweep of one shard, told to the log and the metrics from the same values."""

    def __init__(self, metrics: Metrics, shard: str) -> None:
        self._metrics = metrics
        self._shard = shard
        metrics.announce_shard(shard, list(Outcome))

    def decided(self, decisions: Sequence[Decision], trace_id: str) -> None:
        """A slice of decisions."""
        metrics, shard = self._metrics, self._shard
        for decision in decisions:
            outcome = decision.outcome
            metrics.candidates.labels(shard, outcome).inc()
            if outcome is Outcome.EXPIRED:
                metrics.expired(shown(decision.tenant))
                metrics.expiry_lag.labels(shard).observe(decision.lag_ms / 1000)
            if decision.missing:
                metrics.missing_budgets.labels(shard).inc(len(decision.missing))
            self._log(decision, trace_id)

    def ticked(self, report: SweepReport) -> None:
        """A tick that ended well."""
        self._metrics.sweeps.labels(self._shard, "ok").inc()
        self._metrics.sweep_duration.labels(self._shard).observe(report.duration_seconds)
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

    def _log(self, decision: Decision, trace_id: str) -> None:
        level = _LEVELS.get(decision.outcome, logging.INFO)
        if decision.missing:
            level = logging.WARNING
        if not log.isEnabledFor(level):
            return
        about: dict[str, object] = {
            "shard": self._shard,
            "outcome": decision.outcome.value,
            "reservation_id": shown(decision.id),
            "trace_id": trace_id,
        }
        if decision.tenant:
            about["tenant"] = shown(decision.tenant)
        if decision.detail:
            about[_DETAIL[decision.outcome]] = decision.detail
        if decision.outcome is Outcome.EXPIRED:
            about["lag_ms"] = decision.lag_ms
        if decision.missing:
            about["missing_budgets"] = list(decision.missing)
        log.log(level, decision.outcome.value.replace("_", " "), extra=about)
