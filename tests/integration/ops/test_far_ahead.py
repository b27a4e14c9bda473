"""Deadlines in microseconds or nanoseconds are never due: `check`, the walk and a gauge count them."""

import tomllib

import pytest
import redis
from pydantic import SecretStr

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.ops.check.findings import CheckFinding, CheckLevel
from sweeperd.ops.check.server import check_shard
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import reconcile
from sweeperd.store import Shard
from tests.integration.runtime.test_kind_sweep import kind_sweep_of
from tests.support.harness import server_time
from tests.support.kind_settings import SEAT_HOLD
from tests.support.servers import Server

#: Kind -> index, stem of the hashes, and the state of a living hash.
KINDS = {
    "reservations": ("reservation:ttl", "reservation:res_", "ACTIVE"),
    "seat-hold": ("seats:ttl", "seats:hold:", "HELD"),
}
#: A unit -> the factor of a millisecond.
UNITS = {"microseconds": 10**3, "nanoseconds": 10**6}
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def settings(server: Server) -> Settings:
    found = Settings.model_validate(tomllib.loads(SEAT_HOLD))
    return found.model_copy(update={"redis": found.redis.model_copy(update={"url": SecretStr(server.url)})})


def hold(client: redis.Redis, kind: str, entry: str, deadline: float) -> None:
    index, stem, state = KINDS[kind]
    client.hset(stem + entry, "state", state)
    client.hset(stem + entry, "expires_at", f"{deadline:.0f}")
    client.zadd(index, {entry: deadline})


def checked(shard: Shard, settings: Settings, kind: str) -> CheckFinding:
    name = "deadlines" if kind == "reservations" else f"kind {kind}"
    (found,) = [each for each in check_shard(shard, settings) if each.check == name]
    return found


def gauge(shard: Shard, settings: Settings, kind: str) -> float | None:
    metrics = Metrics()
    sweep = kind_sweep_of(shard, settings, metrics, kind)
    sweep.tick()
    sweep.measure()
    return metrics.registry.get_sample_value("sweeperd_far_ahead_entries", {"shard": "default", "kind": kind})


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS)
def test_deadlines_in_another_unit_are_counted(
    shard: Shard, client: redis.Redis, settings: Settings, kind: str, unit: str
) -> None:
    now = server_time(client)
    hold(client, kind, "right", now + 99 * YEAR_MS)
    for number in range(3):
        hold(client, kind, f"wrong {number}", (now + 60_000 + number) * UNITS[unit])
    found = checked(shard, settings, kind)
    assert found.level is CheckLevel.WARNING
    assert ("3 entries" in found.says, unit in found.says) == (True, True)
    document = reconcile(subject_of(shard, settings, kind, Throttle())).document(shard)
    assert (document.far_ahead, document.far_ahead_unit) == (3, unit)
    assert gauge(shard, settings, kind) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_far_ahead_in_no_unit(shard: Shard, client: redis.Redis, settings: Settings, kind: str) -> None:
    """A service may park an entry at infinity, or 150 years ahead."""
    hold(client, kind, "parked", server_time(client) + 150 * YEAR_MS)
    client.zadd(KINDS[kind][0], {"parked for good": "inf"})
    assert checked(shard, settings, kind).level is CheckLevel.WARNING
    document = reconcile(subject_of(shard, settings, kind, Throttle())).document(shard)
    assert (document.far_ahead, document.far_ahead_unit) == (2, "")
    assert gauge(shard, settings, kind) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_deadlines_are_not_counted(shard: Shard, client: redis.Redis, settings: Settings, kind: str) -> None:
    hold(client, kind, "soon", server_time(client) + 60_000)
    assert checked(shard, settings, kind).level is CheckLevel.OK
    document = reconcile(subject_of(shard, settings, kind, Throttle())).document(shard)
    assert (document.far_ahead, document.far_ahead_unit) == (0, "")
    assert gauge(shard, settings, kind) == 0
