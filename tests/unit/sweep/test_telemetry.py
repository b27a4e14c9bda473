"""Checks that each outcome appears in exactly its counters and its log line."""

import dataclasses
import logging
import tomllib
from collections import Counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.store import Keys
from sweeperd.sweep import Backlog, Decision, Outcome, SweepReport
from sweeperd.sweep.reservations import REASONS
from sweeperd.sweep.telemetry import SweepTelemetry
from tests.support.builders import configured_kind, reservations_kind
from tests.support.kind_settings import SEAT_HOLD

TRACE = "0123456789abcdef0123456789abcdef"
SETTINGS = Settings.model_validate(tomllib.loads(SEAT_HOLD + 'give_back = ["HINCRBY seats:{show} free {qty}"]'))
KINDS = {
    "reservations": reservations_kind(Keys(), SETTINGS.sweep),
    "seat-hold": configured_kind(SETTINGS.kinds[0], SETTINGS, Keys()),
}

Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(registry: CollectorRegistry) -> Samples:
    """Every sample of ours by name and label values, buckets aside; what is 0 is left out."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith("sweeperd_") and not sample.name.endswith("_bucket") and sample.value
    }


class Told:
    """An audit, what its metrics went up by, and its log lines."""

    def __init__(self, caplog: pytest.LogCaptureFixture, *, tenant_label: bool = True) -> None:
        caplog.set_level(logging.DEBUG)
        self.metrics = Metrics(tenant_label=tenant_label)
        self.audit = SweepTelemetry(self.metrics, "s1", KINDS["reservations"])
        self._caplog = caplog
        self._before = samples(self.metrics.registry)

    def decided(self, *decisions: Decision) -> Samples:
        self.audit.decided(decisions, TRACE)
        self.audit.flush()
        return self.changes()

    def changes(self) -> Samples:
        now = samples(self.metrics.registry)
        return {key: value - self._before.get(key, 0) for key, value in now.items() if value != self._before.get(key)}

    @property
    def line(self) -> dict[str, Any]:
        """The only log line, its extras included."""
        (line,) = self.lines
        return line

    @property
    def lines(self) -> list[dict[str, Any]]:
        standard = vars(logging.makeLogRecord({}))
        return [
            {key: value for key, value in vars(record).items() if key not in standard}
            | {"message": record.getMessage(), "level": record.levelname}
            for record in self._caplog.records
        ]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


@pytest.mark.parametrize(
    ("decision", "level", "extras"),
    [
        (
            Decision(b"r1", Outcome.SKIPPED, "COMMITTED"),
            "INFO",
            {"reservations": [{"reservation_id": "r1", "state": "COMMITTED"}]},
        ),
        (Decision(b"r1", Outcome.IN_GRACE), "DEBUG", {"reservations": [{"reservation_id": "r1"}]}),
        (Decision(b"r1", Outcome.NOT_DUE), "INFO", {"reservations": [{"reservation_id": "r1"}]}),
        (Decision(b"r1", Outcome.NOT_FOUND), "INFO", {"reservations": [{"reservation_id": "r1"}]}),
        (
            Decision(b"r1", Outcome.QUARANTINED, "INVALID_STATE", tenant=b"acme"),
            "WARNING",
            {"reservation_id": "r1", "reason": "INVALID_STATE", "tenant": "acme"},
        ),
        (Decision(b"r1", Outcome.ERROR, "NOPERM no"), "ERROR", {"reservation_id": "r1", "error": "NOPERM no"}),
    ],
    ids=lambda value: value.outcome if isinstance(value, Decision) else "",
)
def test_an_outcome_counts_once_and_is_logged(
    decision: Decision, level: str, extras: dict[str, Any], told: Told
) -> None:
    changes = told.decided(decision)
    assert changes.pop(("sweeperd_candidates_total", ("s1", "reservations", decision.outcome))) == 1
    quarantined = {("sweeperd_quarantined_total", ("s1", "reservations", "INVALID_STATE")): 1.0}
    assert changes == (quarantined if decision.outcome is Outcome.QUARANTINED else {})
    assert told.line == extras | {
        "message": decision.outcome.replace("_", " "),
        "level": level,
        "shard": "s1",
        "outcome": decision.outcome,
        "trace_id": TRACE,
    }


def test_what_went_as_usual_shares_a_line(told: Told) -> None:
    told.decided(*(Decision(b"%d" % number, Outcome.NOT_FOUND) for number in range(120)))
    lines = [line["reservations"] for line in told.lines]
    assert [len(entries) for entries in lines] == [50, 50, 20], "a line that is too long is cut on its way"
    assert [entry["reservation_id"] for entries in lines for entry in entries] == [str(n) for n in range(120)]


def test_small_batches_of_a_tick_share_lines_and_its_end_leaves_none_out(told: Told) -> None:
    for batch in range(10):
        rows = [
            Decision(b"%d" % (7 * batch + number), Outcome.EXPIRED, tenant=b"acme", lag_ms=1) for number in range(7)
        ]
        told.audit.decided([*rows, Decision(b"gone", Outcome.NOT_FOUND)], TRACE)
    assert [len(line["reservations"]) for line in told.lines] == [50]
    told.audit.failed(redis_down=True)
    assert {line["outcome"]: len(line["reservations"]) for line in told.lines[1:]} == {"expired": 20, "not_found": 10}
    assert told.changes()[("sweeperd_expired_total", ("reservations", "acme"))] == 70


def test_expired(told: Told) -> None:
    changes = told.decided(Decision(b"r\xff1", Outcome.EXPIRED, tenant=b"acme", lag_ms=1500))
    assert changes == {
        ("sweeperd_candidates_total", ("s1", "reservations", "expired")): 1,
        ("sweeperd_expired_total", ("reservations", "acme")): 1,
        ("sweeperd_expiry_lag_seconds_count", ("s1", "reservations")): 1,
        ("sweeperd_expiry_lag_seconds_sum", ("s1", "reservations")): 1.5,
    }
    assert told.line == {
        "message": "expired",
        "level": "INFO",
        "shard": "s1",
        "outcome": "expired",
        "reservations": [{"reservation_id": "r\\xff1", "tenant": "acme", "lag_ms": 1500}],
        "trace_id": TRACE,
    }


@pytest.mark.parametrize("what", ["missing", "closed"])
def test_missing_and_closed_budgets(told: Told, what: str) -> None:
    more: dict[str, Any] = {what: ("a", "b")}
    changes = told.decided(Decision(b"r1", Outcome.EXPIRED, tenant=b"acme", **more))
    assert changes[(f"sweeperd_{what}_budgets_total", ("s1", "reservations"))] == 2
    assert (told.line["level"], told.line[f"{what}_budgets"]) == ("WARNING", ["a", "b"])


def test_a_quarantine_of_a_configured_kind_says_why(told: Told) -> None:
    told.decided(Decision(b"r1", Outcome.QUARANTINED, "SCRIPT_ERROR", why="line 3: attempt to index a nil value"))
    assert (told.line["reason"], told.line["why"]) == ("SCRIPT_ERROR", "line 3: attempt to index a nil value")


def test_a_batch(told: Told) -> None:
    outcomes = [outcome for number, outcome in enumerate(Outcome, 1) for _ in range(number)]
    changes = told.decided(*(Decision(b"x", outcome) for outcome in outcomes))
    counted = {labels[2]: value for (name, labels), value in changes.items() if name == "sweeperd_candidates_total"}
    assert counted == Counter(outcomes)


@pytest.mark.parametrize(("tenant", "label"), [(b"", ""), (b"\xff", "\\xff"), (b'a"b\n', 'a"b\n')])
def test_any_tenant(tenant: bytes, label: str, told: Told) -> None:
    changes = told.decided(Decision(b"x", Outcome.EXPIRED, tenant=tenant))
    assert changes[("sweeperd_expired_total", ("reservations", label))] == 1


def test_without_a_tenant_label(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog, tenant_label=False)
    changes = told.decided(*(Decision(b"x", Outcome.EXPIRED, tenant=tenant) for tenant in (b"acme", b"globex")))
    assert changes[("sweeperd_expired_total", ("reservations",))] == 2
    assert "acme" not in str(changes)


def report(passed: int = 0, **counts: int) -> SweepReport:
    return SweepReport(TRACE, {Outcome(name): count for name, count in counts.items()}, True, 0.25, passed, 25)


def test_a_tick(told: Told) -> None:
    told.audit.ticked(report(expired=2, in_grace=1, error=0))
    assert told.changes() == {
        ("sweeperd_sweeps_total", ("s1", "reservations", "ok")): 1,
        ("sweeperd_sweep_duration_seconds_count", ("s1", "reservations")): 1,
        ("sweeperd_sweep_duration_seconds_sum", ("s1", "reservations")): 0.25,
        ("sweeperd_pipeline_depth", ("s1", "reservations")): 25,
        ("sweeperd_redis_up", ("s1",)): 1,
    }
    expected = {"message": "swept", "shard": "s1", "trace_id": TRACE, "seconds": 0.25, "expired": 2, "in_grace": 1}
    assert told.line == expected | {"level": "INFO"}


def test_the_end_of_a_tick_leaves_no_decision_for_later(told: Told) -> None:
    told.audit.decided([Decision(b"r1", Outcome.NOT_FOUND)], TRACE)
    told.audit.ticked(report(not_found=1))
    assert [line["message"] for line in told.lines] == ["not found", "swept"]


def test_what_was_passed_by_without_a_look_is_counted_as_well(told: Told) -> None:
    told.audit.ticked(report(passed=7, in_grace=9))
    assert told.changes()[("sweeperd_candidates_total", ("s1", "reservations", "in_grace"))] == 7


def test_a_tick_without_anything_is_not_worth_a_line(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    told.audit.ticked(report())
    assert told.changes()[("sweeperd_sweeps_total", ("s1", "reservations", "ok"))] == 1
    assert caplog.records == []


def test_a_tick_that_has_failed(told: Told) -> None:
    told.audit.ticked(dataclasses.replace(report(error=3), failure="NOPERM no"))
    changes = told.changes()
    assert changes[("sweeperd_sweeps_total", ("s1", "reservations", "error"))] == 1
    assert ("sweeperd_sweeps_total", ("s1", "reservations", "ok")) not in changes
    assert [(line["level"], line.get("error")) for line in told.lines] == [("INFO", 3), ("ERROR", "NOPERM no")]


def test_a_failure_ends_where_another_replica_sweeps(told: Told) -> None:
    told.audit.ticked(dataclasses.replace(report(), failure="NOPERM no"))
    told.audit.stood_by()
    told.audit.stood_by()
    assert [line["message"] for line in told.lines] == ["sweep failed", "sweep goes on"]


def test_standby(told: Told) -> None:
    told.audit.stood_by()
    assert told.changes() == {
        ("sweeperd_sweeps_total", ("s1", "reservations", "standby")): 1,
        ("sweeperd_redis_up", ("s1",)): 1,
    }


def test_a_lease_that_was_lost(told: Told) -> None:
    told.audit.lost_lease()
    assert told.changes() == {("sweeperd_leases_lost_total", ("s1", "reservations")): 1}
    assert (told.line["level"], told.line["shard"]) == ("WARNING", "s1")


def test_tenants_whose_expiries_spiked(told: Told) -> None:
    told.audit.spiked(3)
    assert told.changes() == {("sweeperd_expiry_spikes_total", ("s1", "reservations")): 3}
    assert (told.line["level"], told.line["shard"], told.line["tenants"]) == ("WARNING", "s1", 3)


@pytest.mark.parametrize("down", [True, False])
def test_only_a_failure_of_redis_sets_redis_up_to_0(told: Told, down: bool) -> None:
    told.audit.ticked(report())
    told.audit.failed(redis_down=down)
    changes = told.changes()
    assert changes[("sweeperd_sweeps_total", ("s1", "reservations", "error"))] == 1
    assert changes.get(("sweeperd_redis_up", ("s1",)), 0) == (not down)
    told.audit.stood_by()
    assert told.changes()[("sweeperd_redis_up", ("s1",))] == 1


def test_backlog(told: Told) -> None:
    told.audit.set_backlog(Backlog(due=7, oldest_due_seconds=1.5, quarantined=3, far_ahead=2))
    assert told.changes() == {
        ("sweeperd_due_entries", ("s1", "reservations")): 7,
        ("sweeperd_oldest_due_seconds", ("s1", "reservations")): 1.5,
        ("sweeperd_quarantined_entries", ("s1", "reservations")): 3,
        ("sweeperd_far_ahead_entries", ("s1", "reservations")): 2,
    }
    told.audit.set_backlog(Backlog(due=0, oldest_due_seconds=0.0, quarantined=0))
    assert told.changes() == {}


def test_what_nobody_listens_to_is_not_logged(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    changes = told.decided(Decision(b"x", Outcome.EXPIRED), Decision(b"x", Outcome.SKIPPED, "COMMITTED"))
    assert changes[("sweeperd_candidates_total", ("s1", "reservations", "expired"))] == 1
    assert caplog.records == []


def test_a_configured_kind_is_counted_and_logged_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    audit = SweepTelemetry(metrics, "s1", KINDS["seat-hold"])
    with caplog.at_level("INFO"):
        audit.decided(
            [
                Decision(b"h1", Outcome.EXPIRED, tenant=b"c1", missing=("seats:s1",)),
                Decision(b"h2", Outcome.QUARANTINED, "INVALID_PLAN", why="below MIN 0"),
            ],
            "t",
        )
    value = metrics.registry.get_sample_value
    labels = {"shard": "s1", "kind": "seat-hold"}
    assert value("sweeperd_candidates_total", labels | {"outcome": "expired"}) == 1
    assert value("sweeperd_quarantined_total", labels | {"reason": "INVALID_PLAN"}) == 1
    assert value("sweeperd_missing_budgets_total", labels) == 1
    assert value("sweeperd_expired_total", {"kind": "seat-hold", "tenant": "c1"}) == 1
    expired, quarantined = caplog.records
    assert (vars(expired)["kind"], vars(expired)["id"], vars(expired)["missing"]) == ("seat-hold", "h1", ["seats:s1"])
    assert (vars(quarantined)["reason"], vars(quarantined)["why"]) == ("INVALID_PLAN", "below MIN 0")


SEAT_REASONS = {"WRONG_TYPE", "INVALID_STATE", "INVALID_EXPIRY", "MISSING_FIELD", "INVALID_PLAN"}


@pytest.mark.parametrize(("kind", "reasons"), [("reservations", set(REASONS)), ("seat-hold", SEAT_REASONS)])
def test_the_series_of_a_kind_are_shown_at_0_from_the_start(kind: str, reasons: set[str]) -> None:
    metrics = Metrics()
    SweepTelemetry(metrics, "s1", KINDS[kind])
    zeros = [
        (sample.name, sample.labels)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("kind") == kind and sample.value == 0
    ]
    assert ("sweeperd_sweeps_total", {"shard": "s1", "kind": kind, "result": "ok"}) in zeros
    assert {labels["outcome"] for name, labels in zeros if name == "sweeperd_candidates_total"} == set(Outcome)
    assert {labels["reason"] for name, labels in zeros if name == "sweeperd_quarantined_total"} == reasons


@pytest.mark.parametrize("kind", ["reservations", "seat-hold"])
def test_only_reservations_count_under_the_names_of_the_cycles_services(kind: str) -> None:
    metrics = Metrics(cycles=True)
    audit = SweepTelemetry(metrics, "s1", KINDS[kind])
    audit.decided(
        [
            Decision(b"r1", Outcome.EXPIRED, tenant=b"acme"),
            Decision(b"r2", Outcome.EXPIRED, tenant=b"acme"),
            Decision(b"r3", Outcome.QUARANTINED, "INVALID_STATE", tenant=b"acme"),
            Decision(b"r4", Outcome.SKIPPED, "COMMITTED", tenant=b"acme"),
        ],
        TRACE,
    )
    audit.ticked(report(expired=2, quarantined=1, skipped=1))
    audit.failed(redis_down=True)
    audit.stood_by()
    audit.stood_by()
    counts = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("cycles_") and sample.value and not sample.name.endswith(("_sum", "_max"))
    }
    expected = {
        ("cycles_reservations_expired_total", "acme"): 2,
        ("cycles_reservations_quarantined_total", "acme", "INVALID_STATE"): 1,
        ("cycles_maintenance_runs_total", "reservation_expiry", "success"): 1,
        ("cycles_maintenance_runs_total", "reservation_expiry", "failed"): 1,
        ("cycles_maintenance_runs_total", "reservation_expiry", "skipped_locked"): 2,
        ("cycles_maintenance_duration_seconds_count", "reservation_expiry", "success"): 1,
        ("cycles_maintenance_duration_seconds_count", "reservation_expiry", "failed"): 1,
        ("cycles_maintenance_duration_seconds_count", "reservation_expiry", "skipped_locked"): 2,
    }
    assert counts == (expected if kind == "reservations" else {})


def test_the_duration_of_a_run_begins_before_the_lease() -> None:
    metrics, now = Metrics(cycles=True), 100.0
    telemetry = SweepTelemetry(metrics, "s1", KINDS["reservations"], lambda: now)
    telemetry.begun()
    now += 1.5
    telemetry.begun()  # the tick, after the lease
    now += 0.5
    telemetry.ticked(report())
    telemetry.begun()
    now += 0.5
    telemetry.stood_by()
    telemetry.failed(redis_down=True)  # before the run began
    for outcome, seconds in (("success", 2.0), ("skipped_locked", 0.5), ("failed", 0)):
        labels = {"job": "reservation_expiry", "outcome": outcome}
        for name in ("sum", "max"):
            sample = metrics.registry.get_sample_value(f"cycles_maintenance_duration_seconds_{name}", labels)
            assert sample == seconds, (outcome, name)


def test_woken_ticks_share_a_line_with_the_next_by_the_interval(told: Told) -> None:
    for _ in range(3):
        told.audit.ticked(report(expired=2), woken=True)
    assert told.lines == []
    told.audit.ticked(report(in_grace=1))
    line = told.line
    assert (line["message"], line["ticks"], line["seconds"], line["expired"]) == ("swept", 4, 1.0, 6)
    assert (line["in_grace"], "trace_id" in line) == (1, False)
    told.audit.ticked(report(expired=1), woken=True)
    told.audit.stood_by()
    assert (told.lines[-1]["expired"], told.lines[-1]["trace_id"]) == (1, TRACE)
    told.audit.summarize()
    assert len(told.lines) == 2
