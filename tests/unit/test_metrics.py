"""Values, labels and lifetimes of the metrics. Their names and types are in the generated page."""

import re
from collections import defaultdict

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sweeperd import __version__
from sweeperd.metrics import Metrics, RecentMaximum
from sweeperd.sweep import Outcome


def exposed(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def filled(*, tenant_label: bool = True) -> Metrics:
    """Metrics with a sample of each."""
    metrics = Metrics(tenant_label=tenant_label)
    metrics.sweep.announce("s1", "reservations", list(Outcome), ["WRONG_TYPE"])
    metrics.webhooks.announce("billing")
    metrics.webhooks.groups_remade.labels("s1")
    metrics.webhooks.relay_waiting.labels("s1")
    metrics.webhooks.stream_group("s1", "warehouse", 0.0, 0)
    metrics.sweep.expired("reservations", "acme")
    for gauge in (
        metrics.sweep.pipeline_depth,
        metrics.sweep.alive_entries,
        metrics.sweep.due_entries,
        metrics.sweep.oldest_due,
        metrics.sweep.quarantined_entries,
        metrics.sweep.far_ahead,
        metrics.sweep.protected_entries,
        metrics.sweep.oldest_protected,
        metrics.sweep.held_entries,
        metrics.sweep.unproven,
        metrics.sweep.deferred_entries,
    ):
        gauge.labels("s1", "reservations").set(1)
    metrics.sweep.set_memory("s1", 1, 1)
    metrics.webhooks.waiting("s1", "billing", 1, 1)
    metrics.webhooks.endpoint_state("s1", "billing", "delivering")
    metrics.reconcile.announce("s1", "reservations")
    metrics.reconcile.reconciled("s1", "reservations", {"lost": 1}, 1.0)
    metrics.reconcile.foreign_expiries.labels("s1", "reservations").set(0)
    metrics.set_silent_processes("s1", {"host-1": 60.0})
    metrics.operator_actions.set("s1", {"pause": 1})
    metrics.operator_changes.set("s1", {"pause": 1})
    return metrics


def test_the_tenant_label_can_be_turned_off() -> None:
    metrics = filled(tenant_label=False)
    assert metrics.registry.get_sample_value("sweeperd_expired_total", {"kind": "reservations"}) == 1


def test_the_limit_of_redis_is_absent_without_a_maxmemory_and_all_go_with_the_shard() -> None:
    metrics = Metrics()
    get = metrics.registry.get_sample_value
    names = [f"sweeperd_redis_memory_{name}_bytes" for name in ("used", "limit")]
    for use, shown in (((5, 10), [5, 10]), ((5, None), [5, None]), ((None, None), [None, None])):
        metrics.sweep.set_memory("eu", *use)
        assert [get(name, {"shard": "eu"}) for name in names] == shown
    metrics.sweep.set_memory("eu", 5, 10)
    metrics.forget_shard("eu")
    assert [get(name, {"shard": "eu"}) for name in names] == [None, None]


def test_no_created_series_and_a_help_for_each() -> None:
    text = exposed(filled())
    assert "_created" not in text
    assert not [line for line in text.splitlines() if line.startswith("# HELP") and len(line.split()) < 4]


def test_the_process_is_told_of() -> None:
    assert "process_resident_memory_bytes" in exposed(Metrics())


def test_series_are_there_before_anything_happens() -> None:
    """A rate over a counter that begins with its first event does not see that event."""
    metrics = Metrics()
    metrics.sweep.announce("s1", "reservations", list(Outcome), ["WRONG_TYPE"])
    metrics.webhooks.announce("billing")
    values: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name.startswith("sweeperd_") and sample.name.endswith("_total") and sample.value == 0:
                values[sample.name].append(tuple(sample.labels.values()))
    assert {name: sorted(labels) for name, labels in values.items()} == {
        "sweeperd_sweeps_total": [("s1", "reservations", result) for result in ("error", "ok", "standby")],
        "sweeperd_candidates_total": sorted(("s1", "reservations", outcome) for outcome in Outcome),
        "sweeperd_missing_budgets_total": [("s1", "reservations")],
        "sweeperd_unexpected_outcomes_total": [("s1", "reservations", each) for each in ("not_found", "skipped")],
        "sweeperd_closed_budgets_total": [("s1", "reservations")],
        "sweeperd_expiry_spikes_total": [("s1", "reservations")],
        "sweeperd_quarantined_total": [("s1", "reservations", "WRONG_TYPE")],
        "sweeperd_leases_lost_total": [("s1", "reservations")],
        "sweeperd_webhook_attempts_total": [("billing", "delivered"), ("billing", "failed"), ("billing", "rejected")],
        "sweeperd_webhook_events_total": [("billing", "delivered"), ("billing", "failed"), ("billing", "rejected")],
        "sweeperd_endpoint_transitions_total": [("billing", "failing"), ("billing", "recovered")],
        "sweeperd_webhook_dead_letters_total": [("billing",)],
        "sweeperd_webhook_dropped_attempts_total": [("billing",)],
        "sweeperd_webhook_order_waits_total": [("billing",)],
        "sweeperd_webhook_rate_waits_total": [("billing",)],
        "sweeperd_webhook_sweep_waits_total": [("billing",)],
        "sweeperd_reloads_total": [("ok",), ("refused",)],
        "sweeperd_log_lines_dropped_total": [()],
    }


def test_what_waits_is_the_sum_and_the_oldest_of_all_shards() -> None:
    metrics = Metrics()
    metrics.webhooks.waiting("eu", "billing", 3, 7.5, dead_letters=2)
    metrics.webhooks.waiting("us", "billing", 4, 60.0, dead_letters=1)
    metrics.webhooks.waiting("us", "audit", 1, 2.0)
    text = exposed(metrics)
    assert 'sweeperd_webhook_pending_events{endpoint="billing"} 7.0' in text
    assert 'sweeperd_webhook_oldest_pending_seconds{endpoint="billing"} 60.0' in text
    assert 'sweeperd_webhook_pending_events{endpoint="audit"} 1.0' in text
    assert 'sweeperd_webhook_dead_letters_present{endpoint="billing"} 3.0' in text
    metrics.webhooks.waiting("us", "billing", 0, 0.0)
    text = exposed(metrics)
    assert 'sweeperd_webhook_pending_events{endpoint="billing"} 3.0' in text
    assert 'sweeperd_webhook_oldest_pending_seconds{endpoint="billing"} 7.5' in text


def test_what_can_be_delivered_leaves_out_endpoints_that_take_nothing() -> None:
    metrics = Metrics()

    def deliverable() -> float | None:
        return metrics.registry.get_sample_value("sweeperd_webhook_deliverable_events", {"endpoint": "billing"})

    metrics.webhooks.waiting("eu", "billing", 3, 7.5)
    metrics.webhooks.waiting("us", "billing", 4, 60.0)
    assert deliverable() == 7
    for state in ("muted", "stalled", "open", "paused"):
        metrics.webhooks.endpoint_state("us", "billing", state)
        assert deliverable() == 3
        metrics.webhooks.waiting("us", "billing", 5, 60.0)
        assert deliverable() == 3
    metrics.webhooks.endpoint_state("us", "billing", "delivering")
    assert deliverable() == 8
    metrics.forget_shard("us")
    assert deliverable() == 3
    metrics.webhooks.forget("billing")
    assert deliverable() is None


def test_a_run_that_ends_tells_nothing_that_node_exporter_tells_itself() -> None:
    names = {family.name for family in Metrics(lasting=False).registry.collect()}
    assert names
    assert all(name.startswith("sweeperd_") for name in names)
    assert "sweeperd_reloads" not in names


def test_a_shard_that_is_forgotten_has_nothing_that_waits() -> None:
    metrics = Metrics()
    for shard in ("eu", "us"):
        metrics.sweep.announce(shard, "lock", [], [])
        metrics.sweep.redis_up.labels(shard).set(1)
        metrics.sweep.due_entries.labels(shard, "lock").set(1)
        metrics.webhooks.waiting(shard, "billing", 3, 7.5)
    metrics.forget_shard("us")
    metrics.forget_shard("never seen")
    text = exposed(metrics)
    assert 'sweeperd_webhook_pending_events{endpoint="billing"} 3.0' in text
    assert 'sweeperd_redis_up{shard="eu"} 1.0' in text
    assert 'sweeperd_due_entries{kind="lock",shard="eu"} 1.0' in text
    assert 'sweeperd_due_entries{kind="lock",shard="us"}' not in text
    assert 'sweeperd_redis_up{shard="us"}' not in text


def test_a_kind_and_a_group_that_are_configured_no_more_have_no_gauges() -> None:
    metrics = Metrics()
    for kind in ("lock", "seat"):
        metrics.sweep.announce("eu", kind, [], [])
        metrics.sweep.oldest_due.labels("eu", kind).set(600)
    for group in ("warehouse", "kafka"):
        metrics.webhooks.stream_group("eu", group, 600.0, 2)
    for _ in range(2):
        metrics.retain("eu", ["seat", "reservations"], ["kafka"])
    metrics.retain("never seen", [], [])
    text = exposed(metrics)
    assert re.findall(r"(?m)^sweeperd_oldest_due_seconds{.*", text) == [
        'sweeperd_oldest_due_seconds{kind="seat",shard="eu"} 600.0'
    ]
    assert re.findall(r"(?m)^sweeperd_stream_group_oldest_seconds{.*", text) == [
        'sweeperd_stream_group_oldest_seconds{group="kafka",shard="eu"} 600.0'
    ]
    assert 'sweeperd_stream_group_trimmed_total{group="warehouse",shard="eu"} 2.0' in text, "counters stay"
    assert 'sweeperd_sweeps_total{kind="lock"' not in text, "or it would look as if nothing swept it"
    metrics.forget_shard("eu")
    assert "} 600.0" not in exposed(metrics)


def test_an_endpoint_that_is_forgotten_has_nothing_that_waits() -> None:
    metrics = filled()
    metrics.webhooks.forget("billing")
    metrics.webhooks.forget("never measured")
    text = exposed(metrics)
    assert 'sweeperd_webhook_pending_events{endpoint="billing"}' not in text
    assert 'sweeperd_webhook_oldest_pending_seconds{endpoint="billing"}' not in text
    assert 'sweeperd_webhook_attempts_total{endpoint="billing",result="failed"} 0.0' in text


def test_the_version() -> None:
    assert f'sweeperd_build_info{{version="{__version__}"}} 1.0' in exposed(Metrics())


@pytest.mark.parametrize("tenant", ["", "a b", 'a"b', "a\nb", "a\\xff", "größe"])
def test_any_tenant_can_be_exposed(tenant: str) -> None:
    metrics = Metrics()
    metrics.sweep.expired("reservations", tenant)
    families = {family.name: family for family in text_string_to_metric_families(exposed(metrics))}
    (sample,) = families["sweeperd_expired"].samples
    assert (sample.labels, sample.value) == ({"kind": "reservations", "tenant": tenant}, 1.0)


def tenants(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["tenant"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "sweeperd_expired_total"
    }


def test_tenants_beyond_the_limit_share_a_label() -> None:
    metrics = Metrics(tenant_limit=2)
    for tenant in ("a", "b", "c", "d", "a"):
        metrics.sweep.expired("reservations", tenant)
    assert tenants(metrics) == {"a": 2, "b": 1, "_other": 2}


def test_the_label_of_a_long_name_is_cut_and_still_its_own() -> None:
    metrics = Metrics(tenant_length=16)
    for tenant in ("x" * 16, "x" * 17, "x" * 1000, "x" * 17):
        metrics.sweep.expired("reservations", tenant)
    found = tenants(metrics)
    assert found.pop("x" * 16) == 1
    assert sorted(found.values()) == [1, 2]
    assert all(len(label) == 16 and label.startswith("xxxxxxx~") for label in found)


def test_cycles_names_are_there_where_cycles_is() -> None:
    def names(metrics: Metrics) -> set[str]:
        return {family.name for family in metrics.registry.collect() if family.name.startswith("cycles_")}

    metrics = Metrics(cycles=True, tenant_limit=1)
    for tenant in ("a", "b"):
        metrics.sweep.cycles.expired(tenant, 2)
    metrics.sweep.cycles.expired("")  # emitExpiredEvent of the runtime returns before its counter
    metrics.sweep.cycles.expired(" ")
    metrics.sweep.cycles.quarantined("a", "INVALID_EXPIRY")
    metrics.sweep.cycles.quarantined("", "INVALID_EXPIRY")
    metrics.sweep.cycles.ran("skipped_locked", 0.25)
    text = exposed(metrics)
    for line in (
        'cycles_reservations_expired_total{tenant="a"} 2.0',
        'cycles_reservations_expired_total{tenant="_other"} 2.0',
        'cycles_reservations_expired_total{tenant="UNKNOWN"} 1.0',
        'cycles_reservations_quarantined_total{reason="INVALID_EXPIRY",tenant="a"} 1.0',
        'cycles_reservations_quarantined_total{reason="INVALID_EXPIRY",tenant="UNKNOWN"} 1.0',
        'cycles_maintenance_runs_total{job="reservation_expiry",outcome="skipped_locked"} 1.0',
        *(
            f'cycles_maintenance_runs_total{{job="reservation_expiry",outcome="{outcome}"}} 0.0'
            for outcome in ("success", "failed", "skipped_disabled", "lease_error", "lease_lost")
        ),
        "# TYPE cycles_maintenance_duration_seconds summary",
        'cycles_maintenance_duration_seconds_count{job="reservation_expiry",outcome="skipped_locked"} 1.0',
        'cycles_maintenance_duration_seconds_sum{job="reservation_expiry",outcome="skipped_locked"} 0.25',
        "# TYPE cycles_maintenance_duration_seconds_max gauge",
        'cycles_maintenance_duration_seconds_max{job="reservation_expiry",outcome="skipped_locked"} 0.25',
        'cycles_maintenance_duration_seconds_max{job="reservation_expiry",outcome="success"} 0.0',
    ):
        assert line in text
    assert names(metrics) == {
        "cycles_maintenance_duration_seconds",
        "cycles_maintenance_duration_seconds_max",
        "cycles_maintenance_runs",
        "cycles_reservations_expired",
        "cycles_reservations_quarantined",
    }
    without = Metrics()
    without.sweep.cycles.expired("a")
    without.sweep.cycles.ran("success", 1)
    assert not names(without)


def test_cycles_names_tell_no_tenants_apart_if_the_label_is_off() -> None:
    """As with CYCLES_METRICS_TENANT_TAG_ENABLED=false in the docker-compose.prod.yml of cycles-server."""
    metrics = Metrics(cycles=True, tenant_label=False)
    for tenant in ("acme", "globex", ""):
        metrics.sweep.cycles.expired(tenant, 2)
        metrics.sweep.cycles.quarantined(tenant, "INVALID_EXPIRY")
    text = exposed(metrics)
    assert "cycles_reservations_expired_total 4.0" in text
    assert 'cycles_reservations_quarantined_total{reason="INVALID_EXPIRY"} 3.0' in text
    assert "tenant" not in "".join(line for line in text.splitlines() if line.startswith("cycles_"))


def test_the_longest_of_the_last_minutes_is_forgotten() -> None:
    now = 0.0
    longest = RecentMaximum(lambda: now)
    longest.observe(5)
    longest.observe(3)
    seen = []
    for now in (59, 60, 119, 120, 500):  # noqa: B007 - the clock reads it
        seen.append(longest.value())
    assert seen == [5, 5, 5, 0, 0]
    longest.observe(2)
    assert longest.value() == 2


def test_the_state_of_an_endpoint_is_the_worst_on_any_shard() -> None:
    metrics = Metrics()

    def states() -> dict[str, float]:
        return {
            sample.labels["state"]: sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "sweeperd_endpoint_state"
        }

    metrics.webhooks.endpoint_state("eu", "hook", "delivering")
    assert states() == {"delivering": 1, "muted": 0, "stalled": 0, "open": 0, "paused": 0}
    metrics.webhooks.endpoint_state("us", "hook", "paused")
    metrics.webhooks.endpoint_state("asia", "hook", "open")
    assert states() == {"delivering": 0, "muted": 0, "stalled": 0, "open": 0, "paused": 1}
    metrics.forget_shard("us")
    assert states() == {"delivering": 0, "muted": 0, "stalled": 0, "open": 1, "paused": 0}
    metrics.webhooks.forget("hook")
    assert not states()


def test_what_is_walked_no_more_shows_nothing() -> None:
    """A count of walks that stays would keep an alert waiting for the first one."""
    metrics = Metrics()

    def walked() -> dict[str, set[str]]:
        return {
            family.name: {sample.labels.get("kind", "") for sample in family.samples}
            for family in metrics.registry.collect()
            if family.name.startswith(("sweeperd_reconcile", "sweeperd_foreign")) and family.samples
        }

    for kind in ("reservations", "lock"):
        metrics.reconcile.announce("eu", kind)
        metrics.reconcile.reconciled("eu", kind, {"lost": 1}, 1.0)
    metrics.reconcile.foreign_expiries.labels("eu", "reservations").set(1)
    names = ("findings", "last_timestamp_seconds", "runs")
    metrics.reconcile.retain("eu", ["reservations"])
    assert walked() == {"sweeperd_foreign_expiries": {"reservations"}} | {
        f"sweeperd_reconcile_{name}": {"reservations"} for name in names
    }
    metrics.forget_shard("eu")
    metrics.forget_shard("eu")
    assert walked() == {}
