"""The metrics of the sweep."""

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sweeperd.metrics.tenants import TenantLabels

#: The labels of what is measured of the sweep of one kind on one shard.
SWEEP = ["shard", "kind"]
#: Seconds. A sweep of an idle shard takes a millisecond, a drain as long as its time budget.
SWEEP_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Seconds. Up to the interval when all is well, hours after an outage.
LAG_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14400, 86400)

#: All outcomes that the Cycles services count. Ours are the first three.
CYCLES_OUTCOMES = ("success", "failed", "skipped_locked", "skipped_disabled", "lease_error", "lease_lost")
#: The tenant of a reservation that has none, in the metrics of the Cycles services.
CYCLES_NO_TENANT = "UNKNOWN"


class CyclesMetrics:
    """The counters of the Cycles services' own expiry sweep, so that their alerts go on working."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.runs = Counter("cycles_maintenance_runs_total", "Sweeps by outcome", ["job", "outcome"], registry=registry)
        self.expired = Counter(
            "cycles_reservations_expired_total", "Reservations expired", ["tenant"], registry=registry
        )
        self.quarantined = Counter(
            "cycles_reservations_quarantined_total", "Reservations set aside", ["tenant", "reason"], registry=registry
        )
        for outcome in CYCLES_OUTCOMES:
            self.runs.labels("reservation_expiry", outcome)


class SweepMetrics:
    """Of all kinds on all shards."""

    def __init__(self, registry: CollectorRegistry, tenants: TenantLabels, *, tenant_label: bool, cycles: bool) -> None:
        self._tenant_label = tenant_label
        self._tenants = tenants
        self._cycles = CyclesMetrics(registry) if cycles else None
        #: Shard -> the kinds that are swept there.
        self._swept: dict[str, set[str]] = {}
        self.sweeps = Counter("sweeperd_sweeps_total", "Sweeps by result", [*SWEEP, "result"], registry=registry)
        self.sweep_duration = Histogram(
            "sweeperd_sweep_duration_seconds",
            "How long a sweep took",
            SWEEP,
            buckets=SWEEP_BUCKETS,
            registry=registry,
        )
        self.pipeline_depth = Gauge(
            "sweeperd_pipeline_depth",
            "Script calls on their way to Redis at once, in the last sweep",
            SWEEP,
            registry=registry,
        )
        self.candidates = Counter(
            "sweeperd_candidates_total",
            "Index entries decided, by outcome",
            [*SWEEP, "outcome"],
            registry=registry,
        )
        self._expired = Counter(
            "sweeperd_expired_total",
            "Entries expired",
            ["kind", "tenant"] if tenant_label else ["kind"],
            registry=registry,
        )
        self.expiry_lag = Histogram(
            "sweeperd_expiry_lag_seconds",
            "From deadline and grace to the expiry",
            SWEEP,
            buckets=LAG_BUCKETS,
            registry=registry,
        )
        self.due_entries = Gauge(
            "sweeperd_due_entries", "Index entries whose deadline has passed", SWEEP, registry=registry
        )
        self.oldest_due = Gauge(
            "sweeperd_oldest_due_seconds",
            "How long ago the oldest deadline passed",
            SWEEP,
            registry=registry,
        )
        self.quarantined_entries = Gauge(
            "sweeperd_quarantined_entries", "Entries set aside for an operator", SWEEP, registry=registry
        )
        self.missing_budgets = Counter(
            "sweeperd_missing_budgets_total",
            "Budgets and counters that did not exist at expiry",
            SWEEP,
            registry=registry,
        )
        self.expiry_spikes = Counter(
            "sweeperd_expiry_spikes_total",
            "Times that a tenant's rate of expiries rose above its usual one",
            ["shard"],
            registry=registry,
        )
        self.closed_budgets = Counter(
            "sweeperd_closed_budgets_total",
            "Scopes whose budget was closed before the expiry",
            ["shard"],
            registry=registry,
        )
        self.quarantined = Counter(
            "sweeperd_quarantined_total", "Entries put into quarantine", ["shard", "kind", "reason"], registry=registry
        )
        self.leases_lost = Counter(
            "sweeperd_leases_lost_total",
            "Leases that were gone before their sweep ended",
            SWEEP,
            registry=registry,
        )
        self.redis_up = Gauge(
            "sweeperd_redis_up", "Whether Redis answers and can be written", ["shard"], registry=registry
        )

    def announce(self, shard: str, kind: str, outcomes: list[str], reasons: list[str]) -> None:
        """Show the series of a kind on a shard at 0 from the start, so that a rate over them sees the first event."""
        self._swept.setdefault(shard, set()).add(kind)
        for result in ("ok", "error", "standby"):
            self.sweeps.labels(shard, kind, result)
        for outcome in outcomes:
            self.candidates.labels(shard, kind, outcome)
        for reason in reasons:
            self.quarantined.labels(shard, kind, reason)
        for metric in (self.sweep_duration, self.expiry_lag, self.missing_budgets, self.leases_lost):
            metric.labels(shard, kind)
        self.closed_budgets.labels(shard)
        self.expiry_spikes.labels(shard)
        self.redis_up.labels(shard)

    def expired(self, kind: str, tenant: str, count: int = 1) -> None:
        """Count expiries, for their tenant where tenants are told apart."""
        if self._tenant_label:
            self._expired.labels(kind, self._tenants.label(tenant)).inc(count)
        else:
            self._expired.labels(kind).inc(count)

    def cycles_expired(self, tenant: str, count: int = 1) -> None:
        """Count expired reservations under the name that the Cycles services use."""
        if self._cycles:
            self._cycles.expired.labels(self._cycles_tenant(tenant)).inc(count)

    def cycles_quarantined(self, tenant: str, reason: str) -> None:
        """The same for one reservation in quarantine."""
        if self._cycles:
            self._cycles.quarantined.labels(self._cycles_tenant(tenant), reason).inc()

    def cycles_run(self, outcome: str) -> None:
        """The same for a sweep: `success`, `failed`, or `skipped_locked` where another process holds a lease."""
        if self._cycles:
            self._cycles.runs.labels("reservation_expiry", outcome).inc()

    def _cycles_tenant(self, tenant: str) -> str:
        return self._tenants.label(tenant) if tenant.strip() else CYCLES_NO_TENANT

    def forget_shard(self, shard: str) -> None:
        """A shard that is configured no more has no gauges; its counters stay where they are."""
        swept = self._swept.pop(shard, set())
        for gauge in (self.pipeline_depth, self.due_entries, self.oldest_due, self.quarantined_entries, self.redis_up):
            for labels in [(shard,)] if gauge is self.redis_up else [(shard, kind) for kind in swept]:
                with contextlib.suppress(KeyError):  # not measured yet
                    gauge.remove(*labels)
