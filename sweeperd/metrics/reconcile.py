"""The metrics of the walks over all reservations."""

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge


class ReconcileMetrics:
    """Of all shards. Not `lasting`: of a run that ends, which makes no walks."""

    def __init__(self, registry: CollectorRegistry, *, lasting: bool) -> None:
        #: Shard -> the kinds of findings that it shows.
        self._kinds: dict[str, list[str]] = {}
        self.findings = Gauge(
            "sweeperd_reconcile_findings",
            "What the last walk over all reservations found wrong, by kind",
            ["shard", "kind"],
            registry=registry if lasting else None,
        )
        self.last = Gauge(
            "sweeperd_reconcile_last_timestamp_seconds",
            "When the last walk over all reservations ended",
            ["shard"],
            registry=registry if lasting else None,
        )
        self.foreign_expiries = Gauge(
            "sweeperd_foreign_expiries",
            "Reservations that another sweeper expired, by the last walk over all reservations",
            ["shard"],
            registry=registry if lasting else None,
        )
        self.runs = Counter(
            "sweeperd_reconcile_runs_total",
            "Walks of this process over all reservations, by result",
            ["shard", "result"],
            registry=registry if lasting else None,
        )

    def announce(self, shard: str, kinds: list[str]) -> None:
        """Show the series of a shard's walks at 0 from the start; its findings are shown once there was a walk."""
        self._kinds[shard] = kinds
        for result in ("ok", "error"):
            self.runs.labels(shard, result)

    def reconciled(self, shard: str, counts: dict[str, int], finished_at: float, foreign_expiries: int = 0) -> None:
        """What the last walk over all reservations found, by this process or another; when it ended, Unix time."""
        for kind, count in counts.items():
            self.findings.labels(shard, kind).set(count)
        self.last.labels(shard).set(finished_at)
        self.foreign_expiries.labels(shard).set(foreign_expiries)

    def forget_shard(self, shard: str) -> None:
        """A shard that is walked no more shows no findings: they would never change again."""
        for gauge in (self.last, self.foreign_expiries):
            with contextlib.suppress(KeyError):
                gauge.remove(shard)
        for kind in self._kinds.pop(shard, []):
            with contextlib.suppress(KeyError):
                self.findings.remove(shard, kind)
