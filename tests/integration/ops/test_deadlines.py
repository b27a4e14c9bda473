"""Entries that never expire or end too early: `check`, the walk and a gauge report them, the repair extends a TTL."""

import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from sweeperd.config import Settings
from sweeperd.ledger import Ledger
from sweeperd.metrics import Metrics
from sweeperd.ops.check.findings import CheckFinding, CheckLevel
from sweeperd.ops.check.server import check_shard
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.report import ReconcileReport
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store import Shard
from tests.integration.cli.test_schemas import check
from tests.integration.conftest import Sweeperd
from tests.integration.runtime.test_kind_sweep import kind_sweep_of
from tests.support.builders import make_reconciler
from tests.support.harness import server_time
from tests.support.kind_settings import SEAT_HOLD
from tests.support.servers import Server

#: Kind -> index, stem of the hashes, quarantine, and the states of a living and of an ended hash.
KINDS = {
    "reservations": ("reservation:ttl", "reservation:res_", "sweeperd:quarantine", "ACTIVE", "RELEASED"),
    "seat-hold": ("seats:ttl", "seats:hold:", "sweeperd:quarantine:seat-hold", "HELD", "SOLD"),
}
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR_MS = 365 * DAY
#: A unit -> the factor of a millisecond.
UNITS = {"microseconds": 10**3, "nanoseconds": 10**6}
GRACE = 10 * MINUTE
KIND_TEXT = f'{SEAT_HOLD}grace = "{GRACE // MINUTE}m"\n'


def settings_at(url: str, text: str = KIND_TEXT) -> Settings:
    found = Settings.model_validate(tomllib.loads(f'sweep.grace = "{GRACE // MINUTE}m"\n{text}'))
    return found.model_copy(update={"redis": found.redis.model_copy(update={"url": SecretStr(url)})})


@pytest.fixture
def settings(server: Server) -> Settings:
    return settings_at(server.url)


class Entries:
    """Entries of one kind, an hour before their deadline."""

    def __init__(self, client: redis.Redis, kind: str) -> None:
        self.client = client
        self.index, self.stem, self.quarantine, self.living, self.ended = KINDS[kind]
        self.deadline = server_time(client) + HOUR

    def add(
        self, entry: str, ttl: int | None, *, state: str = "", indexed: bool = True, deadline: int | None = None
    ) -> None:
        """`ttl`: from the deadline on, ms."""
        deadline = deadline or self.deadline
        self.client.hset(self.stem + entry, "state", state or self.living)
        self.client.hset(self.stem + entry, "expires_at", deadline)
        if ttl is not None:
            self.client.pexpireat(self.stem + entry, deadline + ttl)
        if indexed:
            self.client.zadd(self.index, {entry: deadline})

    def left(self, entry: str) -> int:
        """ms from the deadline to the end of the hash."""
        return server_time(self.client) + int(self.client.pttl(self.stem + entry)) - self.deadline


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def entries(client: redis.Redis, kind: str) -> Entries:
    return Entries(client, kind)


def walk(shard: Shard, settings: Settings, kind: str) -> ReconcileReport:
    return reconcile(subject_of(shard, settings, kind))


def checked(shard: Shard, settings: Settings, kind: str) -> CheckFinding:
    name = "deadlines" if kind == "reservations" else f"kind {kind}"
    (found,) = [each for each in check_shard(shard, settings) if each.check == name]
    return found


def test_a_ttl_that_ends_too_early_is_reported_and_mended(
    shard: Shard, settings: Settings, kind: str, entries: Entries
) -> None:
    entries.add("safety net", 1000)
    entries.add("within the day", GRACE + DAY - MINUTE)
    entries.add("after the day", GRACE + DAY + MINUTE)
    entries.add("none", None)
    entries.add("ended", 1000, state=entries.ended, indexed=False)
    found = checked(shard, settings, kind)
    assert (found.level, "2 of 4" in found.says) == (CheckLevel.WARNING, True)
    report = walk(shard, settings, kind)
    assert (dict(report.found), report.remaining) == ({Fault.SHORT_TTL: 2}, 2)
    assert {each.subject for each in report.findings} == {b"safety net", b"within the day"}
    assert entries.left("safety net") < MINUTE, "a walk changes nothing"

    mended = mend(subject_of(shard, settings, kind), report)
    assert (dict(mended.mended), mended.changed, mended.remaining) == ({Fault.SHORT_TTL: 2}, 2, 0)
    for entry in ("safety net", "within the day"):
        assert abs(entries.left(entry) - GRACE - 30 * DAY) < MINUTE
    assert GRACE + DAY < entries.left("after the day") < GRACE + DAY + 2 * MINUTE
    assert entries.client.pttl(entries.stem + "none") == -1
    assert entries.left("ended") < MINUTE
    assert dict(walk(shard, settings, kind).found) == {}
    assert checked(shard, settings, kind).level is CheckLevel.OK


def test_a_ttl_is_reported_beside_a_deadline_in_microseconds(
    shard: Shard, settings: Settings, kind: str, entries: Entries
) -> None:
    entries.add("short", 1_000)
    entries.deadline *= 1_000
    entries.add("never", None)
    says = checked(shard, settings, kind).says
    assert "microseconds" in says
    assert "1 of 2" in says


def test_a_ttl_beside_a_fault_of_the_index_is_mended_with_it(
    shard: Shard, settings: Settings, kind: str, entries: Entries
) -> None:
    entries.add("lost", 1000, indexed=False)
    entries.add("late", 1000)
    entries.client.zadd(entries.index, {"late": entries.deadline + 30 * DAY})
    report = walk(shard, settings, kind)
    assert dict(report.found) == {Fault.LOST: 1, Fault.WRONG_SCORE: 1}
    assert mend(subject_of(shard, settings, kind), report).remaining == 0
    assert min(entries.left("lost"), entries.left("late")) > GRACE + DAY
    assert dict(walk(shard, settings, kind).found) == {}


def test_what_is_in_quarantine_lives_too(shard: Shard, settings: Settings, kind: str, entries: Entries) -> None:
    entries.add("aside", 1000, indexed=False)
    entries.client.zadd(entries.quarantine, {"aside": 1})
    report = walk(shard, settings, kind)
    assert dict(report.found) == {Fault.SHORT_TTL: 1}
    mend(subject_of(shard, settings, kind), report)
    assert entries.left("aside") > GRACE + DAY


def test_what_has_ended_or_was_extended_since_the_walk_is_left_alone(
    shard: Shard, settings: Settings, kind: str, entries: Entries
) -> None:
    for entry in ("ended", "extended"):
        entries.add(entry, 1000)
    report = walk(shard, settings, kind)
    entries.client.hset(entries.stem + "ended", "state", entries.ended)
    entries.client.zrem(entries.index, "ended")
    entries.client.hset(entries.stem + "extended", "expires_at", entries.deadline + 1)
    entries.client.zadd(entries.index, {"extended": entries.deadline + 1})
    mended = mend(subject_of(shard, settings, kind), report)
    assert (mended.changed, mended.remaining) == (0, 1)
    assert max(entries.left("ended"), entries.left("extended")) < MINUTE


def test_the_grace_of_a_reservation_counts(shard: Shard, settings: Settings, client: redis.Redis) -> None:
    entries = Entries(client, "reservations")
    entries.add("long grace", GRACE + DAY + HOUR)
    assert dict(walk(shard, settings, "reservations").found) == {}
    client.hset("reservation:res_long grace", "grace_ms", GRACE + 2 * HOUR)
    assert dict(walk(shard, settings, "reservations").found) == {Fault.SHORT_TTL: 1}


@pytest.mark.parametrize("kind", ["seat-hold"])
def test_the_gauge_of_the_daily_walk_has_it(shard: Shard, settings: Settings, kind: str, entries: Entries) -> None:
    entries.add("safety net", 1000)
    metrics = Metrics()
    reconciler = make_reconciler(settings, shard, metrics)
    for _ in range(2):  # the first check of a process never walks
        reconciler.run_if_due()
    labels = {"shard": "default", "kind": kind, "finding": "short_ttl"}
    assert metrics.registry.get_sample_value("sweeperd_reconcile_findings", labels) == 1


@pytest.mark.parametrize("kind", ["seat-hold"])
def test_the_command_reports_and_repairs(
    server: Server, client: redis.Redis, sweeperd: Sweeperd, kind: str, entries: Entries, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(KIND_TEXT)
    entries.add("safety net", 1000)
    command = ("--config", str(tmp_path / "config.toml"), "reconcile", "--kind", kind, "--json")
    ran = sweeperd(*command)
    check("reconcile", ran.document)
    (shard,) = ran.document["shards"]
    (finding,) = shard["findings"]
    assert (ran.code, shard["found"]["short_ttl"], finding["fault"]) == (1, 1, "short_ttl")
    assert (finding["deadline"], finding["score"]) == (str(entries.deadline), None)
    assert HOUR - MINUTE < finding["ttl_ms"] <= HOUR + 1000
    repaired = sweeperd(*command, "--repair", "--yes")
    assert (repaired.code, repaired.document["shards"][0]["mended"]["short_ttl"]) == (0, 1)
    assert entries.left("safety net") > DAY


def test_a_reservation_of_the_ledger_has_no_ttl(shard: Shard, settings: Settings, client: redis.Redis) -> None:
    ledger, minute = Ledger(shard), timedelta(minutes=1)
    ledger.open_budget("acme", "TOKENS", 100)
    held = ledger.reserve("acme", ["acme"], "TOKENS", 10, ttl=minute, idempotency_key="1")
    ledger.extend("acme", held.reservation_id, minute, idempotency_key="2")
    assert client.pttl(f"reservation:res_{held.reservation_id}") == -1
    assert dict(walk(shard, settings, "reservations").found) == {}


def gauge(shard: Shard, settings: Settings, kind: str) -> float | None:
    metrics = Metrics()
    sweep = kind_sweep_of(shard, settings, metrics, kind)
    sweep.tick()
    sweep.measure()
    return metrics.registry.get_sample_value("sweeperd_far_ahead_entries", {"shard": "default", "kind": kind})


@pytest.mark.parametrize("unit", UNITS)
def test_deadlines_in_another_unit_are_counted(
    shard: Shard, client: redis.Redis, settings: Settings, kind: str, entries: Entries, unit: str
) -> None:
    now = server_time(client)
    entries.add("right", None, deadline=now + 99 * YEAR_MS)
    for number in range(3):
        entries.add(f"wrong {number}", None, deadline=(now + MINUTE + number) * UNITS[unit])
    found = checked(shard, settings, kind)
    assert found.level is CheckLevel.WARNING
    assert ("3 entries" in found.says, unit in found.says) == (True, True)
    document = walk(shard, settings, kind).document(shard)
    assert (document.far_ahead, document.far_ahead_unit) == (3, unit)
    assert gauge(shard, settings, kind) == 3


def test_a_deadline_far_ahead_in_no_unit(
    shard: Shard, client: redis.Redis, settings: Settings, kind: str, entries: Entries
) -> None:
    """A service may park an entry at infinity, or 150 years ahead."""
    entries.add("parked", None, deadline=server_time(client) + 150 * YEAR_MS)
    client.zadd(entries.index, {"parked for good": "inf"})
    assert checked(shard, settings, kind).level is CheckLevel.WARNING
    document = walk(shard, settings, kind).document(shard)
    assert (document.far_ahead, document.far_ahead_unit) == (2, "")
    assert gauge(shard, settings, kind) == 2
