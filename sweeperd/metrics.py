"""Defines every metric of sweeperd. A counter increases once its effect is known to have happened."""

import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily

from sweeperd import __version__
from sweeperd.logs import dropped_lines

#: The number of hex digits of the hash that ends the label of a long name.
_HASH = 8
#: The label of all tenants beyond the limit.
OTHER_TENANTS = "_other"
#: For one request, seconds.
WEBHOOK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: The states of an endpoint from best to worst.
ENDPOINT_STATES = ("delivering", "muted", "stalled", "open", "paused")
#: Labels.
SHARD, ENDPOINT, RESULT = ["shard"], ["endpoint"], ["endpoint", "result"]
SWEEP, GROUP = ["shard", "kind"], ["shard", "group"]
#: From the sweep of an idle shard to a drain that uses its whole time budget, seconds.
SWEEP_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Normally up to the precision, or to the interval without one; hours after an outage. Seconds.
LAG_BUCKETS = (0.005, 0.015, 0.03, 0.06, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14400, 86400)
#: All outcomes that the Cycles services count. sweeperd has only the first three.
CYCLES_OUTCOMES = ("success", "failed", "skipped_locked", "skipped_disabled", "lease_error", "lease_lost")
#: The label of a missing tenant in the metrics of the Cycles services.
CYCLES_NO_TENANT = "UNKNOWN"
_CYCLES_JOB = "reservation_expiry"
#: A maximum is forgotten after one to two of these, seconds.
_RECENT = 60

# An unused `_created` series for each counter would double the size of a scrape.
disable_created_metrics()  # type: ignore[no-untyped-call]


class TenantLabels:
    """
    Bounds the number of series. The first `limit` tenants get their own label, and all others share `_other`. A name
    longer than `length` is truncated and ends with a hash.
    """

    def __init__(self, limit: int, length: int) -> None:
        self._limit = limit
        self._length = length
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def label(self, tenant: str) -> str:
        if len(tenant) > self._length:
            digest = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
            tenant = f"{tenant[: self._length - _HASH - 1]}~{digest}"
        with self._lock:
            if tenant not in self._known:
                if len(self._known) >= self._limit:
                    return OTHER_TENANTS
                self._known.add(tenant)
        return tenant


class KeptCounter:
    """A counter whose values are stored in Redis, because it counts commands, which are separate processes."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        self.labels = labels
        self._family = name, documentation
        self._lock = threading.Lock()
        #: Shard -> second label -> value.
        self._values: dict[str, dict[str, int]] = {}

    def set(self, shard: str, values: dict[str, int]) -> None:
        with self._lock:
            self._values[shard] = dict(values)

    def forget(self, shard: str) -> None:
        with self._lock:
            self._values.pop(shard, None)

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(*self._family, labels=self.labels)
        with self._lock:
            for shard, values in self._values.items():
                for label, value in values.items():
                    family.add_metric([shard, label], value)
        yield family


class LogLines:
    """The counter of log lines that this process has dropped."""

    labels: tuple[str, ...] = ()

    def collect(self) -> Iterator[CounterMetricFamily]:
        name = "sweeperd_log_lines_dropped_total"
        yield CounterMetricFamily(name, "Log lines dropped because the log was read too slowly", dropped_lines())


class ReconcileMetrics:
    """Metrics of the daily walks. Not `lasting`: for a single run, which makes no walks."""

    def __init__(self, registry: CollectorRegistry, *, lasting: bool) -> None:
        counter = functools.partial(Counter, registry=registry if lasting else None)
        gauge = functools.partial(Gauge, registry=registry if lasting else None)
        self.findings = gauge("sweeperd_reconcile_findings", "Findings of the last walk", [*SWEEP, "finding"])
        self.last = gauge(
            "sweeperd_reconcile_last_timestamp_seconds", "When the last walk over a kind's entries ended", SWEEP
        )
        self.foreign_expiries = gauge(
            "sweeperd_foreign_expiries", "Entries expired by another sweeper, as of the last walk", SWEEP
        )
        self.runs = counter("sweeperd_reconcile_runs_total", "Walks of this process by result", [*SWEEP, "result"])

    def announce(self, shard: str, kind: str) -> None:
        """Create the series of a kind's walks at 0. The findings appear after the first walk."""
        for result in ("ok", "error"):
            self.runs.labels(shard, kind, result)

    def reconciled(self, shard: str, kind: str, counts: dict[str, int], finished_at: float) -> None:
        """Set the findings of the last walk of any process. `finished_at`: Unix time."""
        for finding, count in counts.items():
            self.findings.labels(shard, kind, finding).set(count)
        self.last.labels(shard, kind).set(finished_at)

    def retain(self, shard: str, kinds: Collection[str]) -> None:
        """
        Keep only the series of these kinds. The findings of other kinds would never change again, and their counts of
        walks would make an alert wait for the next walk.
        """
        _remove(shard, self.findings, self.last, self.runs, self.foreign_expiries, kept=kinds)


def _remove(label: str, *metrics: Gauge | Counter, kept: Collection[str] = ()) -> None:
    """Remove the series with this first label, a shard or an endpoint, except those whose second label is kept."""
    for metric in metrics:
        for labels in {tuple(each.labels.values()) for family in metric.collect() for each in family.samples}:
            if labels[0] == label and not set(labels[1:2]) & set(kept):
                with contextlib.suppress(KeyError):  # another thread has removed it
                    metric.remove(*labels)


class WebhookMetrics:
    """Metrics of deliveries. Not `lasting`: for a single run."""

    def __init__(self, registry: CollectorRegistry, *, lasting: bool) -> None:
        counter = functools.partial(Counter, registry=registry)
        gauge = functools.partial(Gauge, registry=registry)
        histogram = functools.partial(Histogram, registry=registry)
        self._lock = threading.Lock()
        #: Endpoint -> shard -> backlog, age of the oldest event, dead letters.
        self._waiting: dict[str, dict[str, tuple[int, float, int]]] = {}
        #: Endpoint -> shard -> state.
        self._states: dict[str, dict[str, str]] = {}
        self.attempts = counter("sweeperd_webhook_attempts_total", "Webhook requests by result", RESULT)
        self.events = counter("sweeperd_webhook_events_total", "Events sent, by result after immediate retries", RESULT)
        self.duration = histogram(
            "sweeperd_webhook_duration_seconds", "Duration of webhook requests", ENDPOINT, buckets=WEBHOOK_BUCKETS
        )
        self.pending = gauge("sweeperd_webhook_pending_events", "Undelivered events", ENDPOINT)
        self._deliverable = gauge(
            "sweeperd_webhook_deliverable_events", "Undelivered events that can be sent now, for autoscaling", ENDPOINT
        )
        self.oldest_pending = gauge(
            "sweeperd_webhook_oldest_pending_seconds", "Age of the oldest undelivered event", ENDPOINT
        )
        self._endpoint_state = gauge(
            "sweeperd_endpoint_state",
            "1 for the endpoint's current state in this process, else 0; the worst of all shards",
            ["endpoint", "state"],
            registry=registry if lasting else None,
        )
        self.dead_letters = counter("sweeperd_webhook_dead_letters_total", "Dead letters written", ENDPOINT)
        self.present_letters = gauge(
            "sweeperd_webhook_dead_letters_present",
            "Dead letters that an operator can replay or drop; up to 10,000 of each shard are counted",
            ENDPOINT,
        )
        self.transitions = counter(
            "sweeperd_endpoint_transitions_total",
            "Announcements that deliveries to an endpoint fail (failing) or work again (recovered)",
            ["endpoint", "to"],
        )
        self.groups_remade = counter(
            "sweeperd_groups_remade_total", "Lost consumer groups that were created again at their position", SHARD
        )
        self._group_oldest = gauge(
            "sweeperd_stream_group_oldest_seconds", "Age of the oldest event a group has not acknowledged", GROUP
        )
        self._group_trimmed = counter(
            "sweeperd_stream_group_trimmed_total", "Events trimmed before a group acknowledged them", GROUP
        )
        self.dropped_attempts = counter(
            "sweeperd_webhook_dropped_attempts_total", "Attempts that could not be recorded in Redis", ENDPOINT
        )
        self.rate_waits = counter("sweeperd_webhook_rate_waits_total", "Requests delayed by max_rate", ENDPOINT)
        self.order_waits = counter(
            "sweeperd_webhook_order_waits_total", "Events that waited for an earlier event of the same key", ENDPOINT
        )
        self.relay_waiting = gauge(
            "sweeperd_relay_waiting", "1 while events wait for Cycles' dispatcher, else 0", SHARD
        )
        self.sweep_waits = counter(
            "sweeperd_webhook_sweep_waits_total", "Events or relay batches delayed by a sweep of this process", ENDPOINT
        )

    def announce(self, endpoint: str) -> None:
        """Create an endpoint's series at 0."""
        for result in ("delivered", "rejected", "failed"):
            self.attempts.labels(endpoint, result)
            self.events.labels(endpoint, result)
        for to in ("failing", "recovered"):
            self.transitions.labels(endpoint, to)
        counters = (self.dead_letters, self.rate_waits, self.order_waits, self.sweep_waits, self.dropped_attempts)
        for metric in (self.duration, *counters):
            metric.labels(endpoint)

    def waiting(self, shard: str, endpoint: str, events: int, oldest_seconds: float, dead_letters: int = 0) -> None:
        """
        Set the backlog of an endpoint on one shard. The gauges show the sum, and the oldest, of each shard's latest
        measurement.
        """
        with self._lock:
            on_shards = self._waiting.setdefault(endpoint, {})
            on_shards[shard] = events, oldest_seconds, dead_letters
            self._show_waiting(endpoint, on_shards)

    def endpoint_state(self, shard: str, endpoint: str, state: str) -> None:
        """Set the state of an endpoint on one shard, one of ENDPOINT_STATES."""
        with self._lock:
            on_shards = self._states.setdefault(endpoint, {})
            on_shards[shard] = state
            self._show_state(endpoint, on_shards)
            if endpoint in self._waiting:
                self._show_waiting(endpoint, self._waiting[endpoint])

    def forget(self, endpoint: str) -> None:
        with self._lock:
            self._waiting.pop(endpoint, None)
            self._states.pop(endpoint, None)
            gauges = self.pending, self._deliverable, self.oldest_pending, self.present_letters, self._endpoint_state
            _remove(endpoint, *gauges)

    def stream_group(self, shard: str, group: str, oldest_seconds: float, trimmed: int) -> None:
        """Set the age of a group's oldest unacknowledged event, and count its trimmed events."""
        self._group_oldest.labels(shard, group).set(oldest_seconds)
        self._group_trimmed.labels(shard, group).inc(trimmed)

    def retain_groups(self, shard: str, groups: Collection[str]) -> None:
        _remove(shard, self._group_oldest, kept=groups)

    def forget_shard(self, shard: str) -> None:
        self.retain_groups(shard, ())
        with self._lock:
            for endpoint, on_shards in self._waiting.items():
                if on_shards.pop(shard, None) is not None:
                    self._show_waiting(endpoint, on_shards)
            for endpoint, states in self._states.items():
                if states.pop(shard, None) is not None:
                    self._show_state(endpoint, states)
        _remove(shard, self.relay_waiting)

    def _show_state(self, endpoint: str, on_shards: dict[str, str]) -> None:
        worst = max(on_shards.values(), key=ENDPOINT_STATES.index, default="")
        for state in ENDPOINT_STATES:
            self._endpoint_state.labels(endpoint, state).set(state == worst)

    def _show_waiting(self, endpoint: str, on_shards: dict[str, tuple[int, float, int]]) -> None:
        self.pending.labels(endpoint).set(sum(count for count, _, _ in on_shards.values()))
        states = self._states.get(endpoint, {})
        taken = [count for shard, (count, _, _) in on_shards.items() if states.get(shard, "delivering") == "delivering"]
        self._deliverable.labels(endpoint).set(sum(taken))
        self.oldest_pending.labels(endpoint).set(max((oldest for _, oldest, _ in on_shards.values()), default=0))
        self.present_letters.labels(endpoint).set(sum(letters for _, _, letters in on_shards.values()))


class RecentMaximum:
    """The maximum of the last one to two minutes, or 0. `clock`: monotonic, seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._window = 0.0
        self._present = self._before = 0.0

    def observe(self, value: float) -> None:
        with self._lock:
            self._turn()
            self._present = max(self._present, value)

    def value(self) -> float:
        with self._lock:
            self._turn()
            return max(self._present, self._before)

    def _turn(self) -> None:
        passed = self._clock() // _RECENT - self._window
        if passed:
            self._before = self._present if passed == 1 else 0.0
            self._present, self._window = 0.0, self._window + passed


class CyclesMetrics:
    """The metrics of the Cycles services' own expiry sweep, so that alerts on them keep working."""

    def __init__(self, registry: CollectorRegistry | None, tenants: TenantLabels, *, tenant_label: bool) -> None:
        counter = functools.partial(Counter, registry=registry)
        self._tenants = tenants if tenant_label else None
        tenant = ["tenant"] if tenant_label else []
        self._runs = counter("cycles_maintenance_runs_total", "Sweeps by outcome", ["job", "outcome"])
        # A timer of Micrometer: a count, a sum and a recent maximum.
        self._duration = Summary(
            "cycles_maintenance_duration_seconds",
            "Duration of sweeps, including their wait for the lease",
            ["job", "outcome"],
            registry=registry,
        )
        longest = Gauge(
            "cycles_maintenance_duration_seconds_max",
            "The longest sweep of the last one to two minutes",
            ["job", "outcome"],
            registry=registry,
        )
        self._longest = {outcome: RecentMaximum() for outcome in CYCLES_OUTCOMES}
        self._expired = counter("cycles_reservations_expired_total", "Reservations expired", tenant)
        self._quarantined = counter(
            "cycles_reservations_quarantined_total", "Reservations quarantined", [*tenant, "reason"]
        )
        for outcome, maximum in self._longest.items():
            self._runs.labels(_CYCLES_JOB, outcome)
            self._duration.labels(_CYCLES_JOB, outcome)
            longest.labels(_CYCLES_JOB, outcome).set_function(maximum.value)

    def expired(self, tenant: str, count: int = 1) -> None:
        """Count expired reservations of a tenant. The Cycles services skip those without one."""
        if tenant:
            labels = self._tenant(tenant)
            (self._expired.labels(*labels) if labels else self._expired).inc(count)

    def quarantined(self, tenant: str, reason: str) -> None:
        self._quarantined.labels(*self._tenant(tenant), reason).inc()

    def ran(self, outcome: str, seconds: float) -> None:
        """Count a sweep: `success`, `failed`, or `skipped_locked` if another process holds a lease."""
        self._runs.labels(_CYCLES_JOB, outcome).inc()
        self._duration.labels(_CYCLES_JOB, outcome).observe(seconds)
        self._longest[outcome].observe(seconds)

    def _tenant(self, tenant: str) -> list[str]:
        if not self._tenants:
            return []
        return [self._tenants.label(tenant) if tenant.strip() else CYCLES_NO_TENANT]


class SweepMetrics:
    def __init__(self, registry: CollectorRegistry, tenants: TenantLabels, *, tenant_label: bool, cycles: bool) -> None:
        counter = functools.partial(Counter, registry=registry)
        gauge = functools.partial(Gauge, registry=registry)
        histogram = functools.partial(Histogram, registry=registry)
        self._tenant_label = tenant_label
        self._tenants = tenants
        self.cycles = CyclesMetrics(registry if cycles else None, tenants, tenant_label=tenant_label and cycles)
        self.sweeps = counter("sweeperd_sweeps_total", "Sweeps by result", [*SWEEP, "result"])
        self.sweep_duration = histogram(
            "sweeperd_sweep_duration_seconds", "Duration of sweeps", SWEEP, buckets=SWEEP_BUCKETS
        )
        self.pipeline_depth = gauge("sweeperd_pipeline_depth", "Script calls in flight in the last sweep", SWEEP)
        self.candidates = counter("sweeperd_candidates_total", "Decided index entries by outcome", [*SWEEP, "outcome"])
        self._expired = counter(
            "sweeperd_expired_total", "Entries expired", ["kind", "tenant"] if tenant_label else ["kind"]
        )
        self.expiry_lag = histogram(
            "sweeperd_expiry_lag_seconds", "From the end of the grace to the expiry", SWEEP, buckets=LAG_BUCKETS
        )
        self.alive_entries = gauge("sweeperd_alive_entries", "Entries in the index", SWEEP)
        self.due_entries = gauge("sweeperd_due_entries", "Index entries past their deadline", SWEEP)
        self.oldest_due = gauge("sweeperd_oldest_due_seconds", "How overdue the oldest deadline is", SWEEP)
        self.quarantined_entries = gauge("sweeperd_quarantined_entries", "Entries in quarantine", SWEEP)
        self.far_ahead = gauge(
            "sweeperd_far_ahead_entries", "Entries due in over 100 years, so probably not in milliseconds", SWEEP
        )
        self.protected_entries = gauge(
            "sweeperd_protected_entries", "Overdue entries that `unless` protects from expiry", SWEEP
        )
        self.oldest_protected = gauge(
            "sweeperd_oldest_protected_seconds", "How overdue the oldest protected entry is", SWEEP
        )
        self.held_entries = gauge(
            "sweeperd_held_entries", "Due entries held back because their kind is unproven", SWEEP
        )
        self.deferred_entries = gauge(
            "sweeperd_deferred_entries", "Overdue entries that wait because Redis is above sweep.memory_limit", SWEEP
        )
        self._memory_used = gauge("sweeperd_redis_memory_used_bytes", "Memory of Redis, as maxmemory counts it", SHARD)
        self._memory_limit = gauge("sweeperd_redis_memory_limit_bytes", "maxmemory of Redis, if there is one", SHARD)
        self.unproven = gauge("sweeperd_unproven_kind", "1 until an entry of the kind is seen alive, else 0", SWEEP)
        self.unexpected = counter(
            "sweeperd_unexpected_outcomes_total",
            "Entries with an unknown end state (`skipped`), or without a hash in bulk (`not_found`)",
            [*SWEEP, "outcome"],
        )
        self.missing_budgets = counter(
            "sweeperd_missing_budgets_total", "Budgets and counters missing at expiry", SWEEP
        )
        self.expiry_spikes = counter("sweeperd_expiry_spikes_total", "Spikes of a tenant's expiry rate", SWEEP)
        self.closed_budgets = counter("sweeperd_closed_budgets_total", "Scopes with a closed budget at expiry", SWEEP)
        self.quarantined = counter("sweeperd_quarantined_total", "Entries quarantined by reason", [*SWEEP, "reason"])
        self.leases_lost = counter("sweeperd_leases_lost_total", "Leases lost during a sweep", SWEEP)
        self.redis_up = gauge("sweeperd_redis_up", "1 if Redis responds and accepts writes, else 0", SHARD)

    def announce(self, shard: str, kind: str, outcomes: list[str], reasons: list[str]) -> None:
        """Create the series of a kind on a shard at 0, so that rates include the first event."""
        for result in ("ok", "error", "standby"):
            self.sweeps.labels(shard, kind, result)
        for outcome in outcomes:
            self.candidates.labels(shard, kind, outcome)
        for outcome in ("skipped", "not_found"):
            self.unexpected.labels(shard, kind, outcome)
        for reason in reasons:
            self.quarantined.labels(shard, kind, reason)
        counters = (self.missing_budgets, self.closed_budgets, self.expiry_spikes, self.leases_lost)
        for metric in (self.sweep_duration, self.expiry_lag, *counters):
            metric.labels(shard, kind)
        self.redis_up.labels(shard)

    def expired(self, kind: str, tenant: str, count: int = 1) -> None:
        """Count expiries, by tenant if `tenant_label` is set."""
        if self._tenant_label:
            self._expired.labels(kind, self._tenants.label(tenant)).inc(count)
        else:
            self._expired.labels(kind).inc(count)

    def set_memory(self, shard: str, used: int | None, limit: int | None) -> None:
        """Set the memory of Redis and its maxmemory, bytes. None: unknown, or no maxmemory."""
        for gauge, value in ((self._memory_used, used), (self._memory_limit, limit)):
            if value is None:
                _remove(shard, gauge)
            else:
                gauge.labels(shard).set(value)

    def retain(self, shard: str, kinds: Collection[str]) -> None:
        """Drop the gauges, and the counts of sweeps, of all kinds except these."""
        backlog = (self.alive_entries, self.due_entries, self.oldest_due, self.quarantined_entries, self.far_ahead)
        more = (self.protected_entries, self.oldest_protected, self.held_entries, self.unproven, self.deferred_entries)
        # A count of sweeps would not grow, as if nothing swept the kind.
        _remove(shard, self.pipeline_depth, self.sweeps, *backlog, *more, kept=kinds)

    def forget_shard(self, shard: str) -> None:
        self.retain(shard, ())
        _remove(shard, self.redis_up, self._memory_used, self._memory_limit)


class Metrics:
    """All metrics of one process in their own registry. Not `lasting`: only those that a single run can fill."""

    def __init__(
        self,
        *,
        tenant_label: bool = True,
        tenant_limit: int = 1000,
        tenant_length: int = 64,
        cycles: bool = False,
        lasting: bool = True,
    ) -> None:
        """`cycles`: also count under the names of the Cycles services. The rest are the settings of `[metrics]`."""
        self.registry = registry = CollectorRegistry()
        tenants = TenantLabels(tenant_limit, tenant_length)
        self.sweep = SweepMetrics(registry, tenants, tenant_label=tenant_label, cycles=cycles)
        self.webhooks = WebhookMetrics(registry, lasting=lasting)
        self.reconcile = ReconcileMetrics(registry, lasting=lasting)
        self.reloads = Counter(
            "sweeperd_reloads_total", "Reloads of the settings", ["result"], registry=registry if lasting else None
        )
        for result in ("ok", "refused"):
            self.reloads.labels(result)
        self._silent = Gauge(
            "sweeperd_process_silent_seconds",
            "Time since the last heartbeat of a process that counts as dead; absent for all others",
            ["shard", "process"],
            registry=registry if lasting else None,
        )
        self.operator_actions = KeptCounter(
            "sweeperd_operator_actions_total", "Operator actions, counted in Redis", ["shard", "action"]
        )
        self.operator_changes = KeptCounter(
            "sweeperd_operator_changes_total", "Entries and events changed by operators", ["shard", "action"]
        )
        if lasting:
            registry.register(self.operator_actions)
            registry.register(self.operator_changes)
            registry.register(LogLines())
            # node_exporter has its own series of these names, and rejects a file that contains them.
            ProcessCollector(registry=registry)
        build_info = Gauge("sweeperd_build_info", "The running version", ["version"], registry=registry)
        build_info.labels(__version__).set(1)

    def set_silent_processes(self, shard: str, ages: Mapping[str, float]) -> None:
        """Set the time since the last heartbeat of each silent process, seconds, and drop all others of the shard."""
        _remove(shard, self._silent, kept=ages)
        for process, age in ages.items():
            self._silent.labels(shard, process).set(age)

    def retain(self, shard: str, kinds: Collection[str], groups: Collection[str]) -> None:
        self.sweep.retain(shard, kinds)
        self.webhooks.retain_groups(shard, groups)

    def forget_shard(self, shard: str) -> None:
        """Drop the series of a shard that is no longer configured, except counters of events."""
        self.sweep.forget_shard(shard)
        self.webhooks.forget_shard(shard)
        self.reconcile.retain(shard, ())
        _remove(shard, self._silent)
        self.operator_actions.forget(shard)
        self.operator_changes.forget(shard)
