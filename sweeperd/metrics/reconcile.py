"""The metrics of the daily walks over all reservations, and over each configured kind."""

import contextlib
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge

#: The built-in kind.
_RESERVATIONS = "reservations"


class ReconcileMetrics:
    """Of all shards. Not `lasting`: of a run that ends, which makes no walks."""

    def __init__(self, registry: CollectorRegistry, *, lasting: bool) -> None:
        #: Shard -> what is walked on it, and the kinds of findings that it shows.
        self._kinds: dict[str, dict[str, list[str]]] = {}
        self.findings = Gauge(
            "sweeperd_reconcile_findings",
            "What the last walk found wrong, by the kind of entries that it walked and by the kind of finding",
            ["shard", "swept", "kind"],
            registry=registry if lasting else None,
        )
        self.last = Gauge(
            "sweeperd_reconcile_last_timestamp_seconds",
            "When the last walk ended, by the kind of entries that it walked",
            ["shard", "swept"],
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
            "Walks of this process, by the kind of entries and by result",
            ["shard", "swept", "result"],
            registry=registry if lasting else None,
        )

    def announce(self, shard: str, swept: str, kinds: list[str]) -> None:
        """Show the series of the walks at 0 from the start; what they found is shown once there was one."""
        self._kinds.setdefault(shard, {})[swept] = kinds
        for result in ("ok", "error"):
            self.runs.labels(shard, swept, result)

    def reconciled(self, shard: str, swept: str, counts: dict[str, int], finished_at: float) -> None:
        """What the last walk over these entries found, by this process or another; when it ended, Unix time."""
        for kind, count in counts.items():
            self.findings.labels(shard, swept, kind).set(count)
        self.last.labels(shard, swept).set(finished_at)

    def retain(self, shard: str, swept: Collection[str]) -> None:
        """
        Nothing but this is walked on the shard from now on. What is walked no more shows no findings, because they
        would never change again, and no count of walks, because an alert waits for the first walk where there is one.
        """
        known = self._kinds.get(shard, {})
        for name in known.keys() - set(swept):
            for kind in known.pop(name):
                _remove(self.findings, shard, name, kind)
            _remove(self.last, shard, name)
            for result in ("ok", "error"):
                _remove(self.runs, shard, name, result)
            if name == _RESERVATIONS:
                _remove(self.foreign_expiries, shard)

    def forget_shard(self, shard: str) -> None:
        """A shard that is configured no more is walked no more."""
        self.retain(shard, ())
        self._kinds.pop(shard, None)


def _remove(metric: Gauge | Counter, *labels: str) -> None:
    with contextlib.suppress(KeyError):
        metric.remove(*labels)
