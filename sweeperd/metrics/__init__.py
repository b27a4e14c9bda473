"""Every metric, declared once. A counter goes up where its effect is known to have happened."""

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics

from sweeperd import __version__
from sweeperd.metrics.kept import KeptCounter
from sweeperd.metrics.reconcile import ReconcileMetrics
from sweeperd.metrics.sweep import SweepMetrics
from sweeperd.metrics.tenants import TenantLabels
from sweeperd.metrics.webhooks import WebhookMetrics

# A `_created` series for each counter would double the size of a scrape, and nothing here uses it.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """
    The metrics of one process, in a registry of their own. Not `lasting`: of a run that ends, without the metrics that
    only a process that stays can fill.
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
        tenants = TenantLabels(tenant_limit, tenant_length)
        self.sweep = SweepMetrics(registry, tenants, tenant_label=tenant_label, cycles=cycles)
        self.webhooks = WebhookMetrics(registry, lasting=lasting)
        self.reconcile = ReconcileMetrics(registry, lasting=lasting)
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
            # node_exporter has series of these names itself, and refuses a file that has them too.
            ProcessCollector(registry=registry)
        build_info = Gauge("sweeperd_build_info", "The running version", ["version"], registry=registry)
        build_info.labels(__version__).set(1)

    def forget_shard(self, shard: str) -> None:
        """A shard that is configured no more has no gauges; its counters stay where they are, but those of walks."""
        self.sweep.forget_shard(shard)
        self.webhooks.forget_shard(shard)
        self.reconcile.forget_shard(shard)
        self.operator_actions.forget(shard)
