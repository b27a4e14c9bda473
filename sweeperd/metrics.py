"""Every metric, declared once. A counter goes up where its effect is known to have happened."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily

from sweeperd import __version__

# A `_created` series beside each counter would double what is scraped and is of use to nobody here.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: The labels of what is measured of the sweep of one kind on one shard.
SWEEP = ["shard", "kind"]
#: Seconds. A sweep of an idle shard takes a millisecond, a drain as long as its time budget.
SWEEP_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Seconds. Up to the interval when all is well, hours after an outage.
LAG_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14400, 86400)
#: Seconds. One request.
WEBHOOK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

#: The states of an endpoint, the worst last.
ENDPOINT_STATES = ("delivering", "open", "paused")
#: How many hex digits of a hash end the label of a name that is too long.
_HASH = 8
#: Stands for the tenants that have no label of their own.
OTHER_TENANTS = "_other"


class TenantLabels:
    """
    The label of a tenant. The first `limit` tenants have one each, and all further ones share `_other`, because each
    label is a series of its own. A name longer than `length` is cut, and ends with a hash of the whole name.
    """

    def __init__(self, limit: int, length: int) -> None:
        self._limit = limit
        self._length = length
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def label(self, tenant: str) -> str:
        """The label for this tenant."""
        if len(tenant) > self._length:
            digest = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
            tenant = f"{tenant[: self._length - _HASH - 1]}~{digest}"
        with self._lock:
            if tenant not in self._known:
                if len(self._known) >= self._limit:
                    return OTHER_TENANTS
                self._known.add(tenant)
        return tenant


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
        for outcome in ("success", "failure", "skipped_locked"):
            self.runs.labels("reservation_expiry", outcome)


class KeptCounter:
    """A counter whose values are kept in Redis: a command of an operator ends, and its own counters with it."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        self.labels = labels
        self._family = name, documentation
        self._lock = threading.Lock()
        #: Shard -> value by the second label.
        self._values: dict[str, dict[str, int]] = {}

    def set(self, shard: str, values: dict[str, int]) -> None:
        """The values of one shard, as Redis has them."""
        with self._lock:
            self._values[shard] = dict(values)

    def forget(self, shard: str) -> None:
        """A shard that is configured no more."""
        with self._lock:
            self._values.pop(shard, None)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For the registry."""
        family = CounterMetricFamily(*self._family, labels=self.labels)
        with self._lock:
            for shard, values in self._values.items():
                for label, value in values.items():
                    family.add_metric([shard, label], value)
        yield family


class Metrics:
    """
    The metrics of one process, in a registry of their own. Not `lasting`: of a run that ends, without what only a
    process that stays has to tell.
    """

    def __init__(
        self,
        *,
        tenant_label: bool = True,
        tenant_limit: int = 1000,
        tenant_length: int = 64,
        cycles: bool = False,
        lasting: bool = True,
    ) -> None:
        """`cycles`: count under the names of the Cycles services too. The others are the settings of `[metrics]`."""
        self.registry = registry = CollectorRegistry()
        self._tenant_label = tenant_label
        self._tenants = TenantLabels(tenant_limit, tenant_length)
        self._cycles = CyclesMetrics(registry) if cycles else None
        self._lock = threading.Lock()
        #: Endpoint -> shard -> events not acknowledged yet, age of the oldest.
        self._waiting: dict[str, dict[str, tuple[int, float]]] = {}
        #: By result; SIGHUP asks for one.
        self.reloads = Counter(
            "sweeperd_reloads_total", "Reloads of the settings", ["result"], registry=registry if lasting else None
        )
        for result in ("ok", "refused"):
            self.reloads.labels(result)
        self.operator_actions = KeptCounter(
            "sweeperd_operator_actions_total", "Actions of operators, counted in Redis", ["shard", "action"]
        )
        if lasting:
            registry.register(self.operator_actions)
        if lasting:
            # node_exporter has series of these names itself, and takes no file that has them too.
            ProcessCollector(registry=registry)
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
        self.reconcile_findings = Gauge(
            "sweeperd_reconcile_findings",
            "What the last walk over all reservations found wrong, by kind",
            ["shard", "kind"],
            registry=registry if lasting else None,
        )
        self.reconcile_last = Gauge(
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
        self.reconcile_runs = Counter(
            "sweeperd_reconcile_runs_total",
            "Walks of this process over all reservations, by result",
            ["shard", "result"],
            registry=registry if lasting else None,
        )
        #: Shard -> the kinds that are swept there.
        self._swept: dict[str, set[str]] = {}
        #: Shard -> the kinds of findings that it shows.
        self._kinds: dict[str, list[str]] = {}
        self.webhook_attempts = Counter(
            "sweeperd_webhook_attempts_total", "Webhook requests by result", ["endpoint", "result"], registry=registry
        )
        self.webhook_events = Counter(
            "sweeperd_webhook_events_total",
            "Events sent, by the result of their request after its quick retries",
            ["endpoint", "result"],
            registry=registry,
        )
        self.webhook_duration = Histogram(
            "sweeperd_webhook_duration_seconds",
            "How long a webhook request took",
            ["endpoint"],
            buckets=WEBHOOK_BUCKETS,
            registry=registry,
        )
        self.webhook_pending = Gauge(
            "sweeperd_webhook_pending_events", "Events not acknowledged yet", ["endpoint"], registry=registry
        )
        self.webhook_oldest_pending = Gauge(
            "sweeperd_webhook_oldest_pending_seconds",
            "Age of the oldest event not acknowledged yet",
            ["endpoint"],
            registry=registry,
        )
        self._endpoint_state = Gauge(
            "sweeperd_endpoint_state",
            "1 for the state that an endpoint is in, for this process, else 0; of several shards the worst",
            ["endpoint", "state"],
            registry=registry if lasting else None,
        )
        #: Endpoint -> shard -> its state there.
        self._states: dict[str, dict[str, str]] = {}
        self.webhook_dead_letters = Counter(
            "sweeperd_webhook_dead_letters_total", "Deliveries given up on", ["endpoint"], registry=registry
        )
        self.redis_up = Gauge(
            "sweeperd_redis_up", "Whether Redis answers and can be written", ["shard"], registry=registry
        )
        build_info = Gauge("sweeperd_build_info", "The running version", ["version"], registry=registry)
        build_info.labels(__version__).set(1)

    def expired(self, kind: str, tenant: str, count: int = 1) -> None:
        """Count expiries, for their tenant where tenants are told apart."""
        if self._tenant_label:
            self._expired.labels(kind, self._tenants.label(tenant)).inc(count)
        else:
            self._expired.labels(kind).inc(count)

    def cycles_expired(self, tenant: str, count: int = 1) -> None:
        """Count expired reservations under the name that the Cycles services use."""
        if self._cycles:
            self._cycles.expired.labels(self._tenants.label(tenant)).inc(count)

    def cycles_quarantined(self, tenant: str, reason: str) -> None:
        """The same for one reservation in quarantine."""
        if self._cycles:
            self._cycles.quarantined.labels(self._tenants.label(tenant), reason).inc()

    def cycles_run(self, outcome: str) -> None:
        """The same for a sweep: `success`, `failure`, or `skipped_locked` where another process holds a lease."""
        if self._cycles:
            self._cycles.runs.labels("reservation_expiry", outcome).inc()

    def waiting(self, shard: str, endpoint: str, events: int, oldest_seconds: float) -> None:
        """
        What waits for an endpoint on one shard. Its gauges show the sum and the oldest of all shards; one that cannot
        be measured now counts as it was last seen.
        """
        with self._lock:
            on_shards = self._waiting.setdefault(endpoint, {})
            on_shards[shard] = events, oldest_seconds
            self._show_waiting(endpoint, on_shards)

    def endpoint_state(self, shard: str, endpoint: str, state: str) -> None:
        """The state of an endpoint on one shard, one of ENDPOINT_STATES."""
        with self._lock:
            on_shards = self._states.setdefault(endpoint, {})
            on_shards[shard] = state
            self._show_state(endpoint, on_shards)

    def _show_state(self, endpoint: str, on_shards: dict[str, str]) -> None:
        worst = max(on_shards.values(), key=ENDPOINT_STATES.index, default="")
        for state in ENDPOINT_STATES:
            self._endpoint_state.labels(endpoint, state).set(state == worst)

    def _show_waiting(self, endpoint: str, on_shards: dict[str, tuple[int, float]]) -> None:
        self.webhook_pending.labels(endpoint).set(sum(count for count, _ in on_shards.values()))
        self.webhook_oldest_pending.labels(endpoint).set(max((oldest for _, oldest in on_shards.values()), default=0))

    def announce_sweep(self, shard: str, kind: str, outcomes: list[str], reasons: list[str]) -> None:
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

    def announce_reconcile(self, shard: str, kinds: list[str]) -> None:
        """The same for the walks over all reservations; what they found is shown once there was one."""
        self._kinds[shard] = kinds
        for result in ("ok", "error"):
            self.reconcile_runs.labels(shard, result)

    def reconciled(self, shard: str, counts: dict[str, int], finished_at: float, foreign_expiries: int = 0) -> None:
        """What the last walk over all reservations found, by this process or another; when it ended, Unix time."""
        for kind, count in counts.items():
            self.reconcile_findings.labels(shard, kind).set(count)
        self.reconcile_last.labels(shard).set(finished_at)
        self.foreign_expiries.labels(shard).set(foreign_expiries)

    def announce_endpoint(self, endpoint: str) -> None:
        """Show an endpoint's series at 0 from the start."""
        for result in ("delivered", "rejected", "failed"):
            self.webhook_attempts.labels(endpoint, result)
            self.webhook_events.labels(endpoint, result)
        self.webhook_duration.labels(endpoint)
        self.webhook_dead_letters.labels(endpoint)

    def forget_endpoint(self, endpoint: str) -> None:
        """An endpoint that is configured no more has nothing that waits; its counters stay where they are."""
        with self._lock:
            if self._waiting.pop(endpoint, None) is not None:
                self.webhook_pending.remove(endpoint)
                self.webhook_oldest_pending.remove(endpoint)
            if self._states.pop(endpoint, None) is not None:
                for state in ENDPOINT_STATES:
                    self._endpoint_state.remove(endpoint, state)

    def forget_reconcile(self, shard: str) -> None:
        """The same for a shard that is walked no more: what was found is not looked at again."""
        for gauge in (self.reconcile_last, self.foreign_expiries):
            with contextlib.suppress(KeyError):
                gauge.remove(shard)
        for kind in self._kinds.pop(shard, []):
            with contextlib.suppress(KeyError):
                self.reconcile_findings.remove(shard, kind)

    def forget_shard(self, shard: str) -> None:
        """The same for a shard."""
        self.forget_reconcile(shard)
        self.operator_actions.forget(shard)
        swept = self._swept.pop(shard, set())
        for gauge in (self.pipeline_depth, self.due_entries, self.oldest_due, self.quarantined_entries, self.redis_up):
            for labels in [(shard,)] if gauge is self.redis_up else [(shard, kind) for kind in swept]:
                with contextlib.suppress(KeyError):  # not measured yet
                    gauge.remove(*labels)
        with self._lock:
            for endpoint, on_shards in self._waiting.items():
                if on_shards.pop(shard, None) is not None:
                    self._show_waiting(endpoint, on_shards)
            for endpoint, states in self._states.items():
                if states.pop(shard, None) is not None:
                    self._show_state(endpoint, states)
