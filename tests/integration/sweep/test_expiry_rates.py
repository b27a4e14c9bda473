"""Tests when and how often a tenant's spike of expiries causes an event."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from sweeperd.config import CyclesSettings
from sweeperd.store import Shard
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep import Decision, Outcome
from sweeperd.sweep.expiry_rates import ExpiryRates
from tests.support.builders import StillClock
from tests.support.fixtures import full

WINDOW_MS = 60_000

Expire = Callable[..., int]


@pytest.fixture
def expire(shard: Shard) -> Expire:
    """Count so many expiries of a tenant at a moment, in windows of a minute from 0. Returns how many spikes began."""
    shard.clock = clock = StillClock(0)
    rates = ExpiryRates(shard, CyclesSettings.model_validate({"spike_factor": 5.0, "spike_window": "1m"}))

    def at(window: float, count: int, tenant: bytes = b"acme") -> int:
        clock.now = 1_795_000_000_000 + int(window * WINDOW_MS)
        rates.decided([Decision(b"r", Outcome.EXPIRED, tenant=tenant)] * count + [Decision(b"s", Outcome.SKIPPED)])
        return rates.record("f" * 32)

    return at


def spikes(client: redis.Redis) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in client.xrange("sweeperd:events")]  # type: ignore[union-attr, misc]


def data(event: dict[bytes, bytes]) -> Any:
    return json.loads(event[b"data"])


def test_one_event_for_each_episode(expire: Expire, client: redis.Redis) -> None:
    assert [expire(window, 10) for window in range(4)] == [0, 0, 0, 0]
    assert expire(4, 50) == 0, "as much as the threshold is not above it"
    assert expire(4.5, 1) == 1
    assert (expire(4.6, 500), expire(5.1, 100)) == (0, 0), "the episode goes on"
    (event,) = spikes(client)
    assert (event[b"type"], event[b"tenant"]) == (b"reservation.expiry_rate_spike", b"acme")
    assert data(event) == {
        "metric": "expiry_rate",
        "current_rate": pytest.approx(51),
        "threshold_rate": pytest.approx(50),
        "window_seconds": 60,
        "sample_count": 51,
    }
    # A quiet window ends it; then another rise is another episode.
    assert expire(6.2, 10) == 0
    assert expire(7.3, 10) == 0
    assert expire(8.4, 2000) == 1
    assert len(spikes(client)) == 2


@pytest.mark.parametrize(("window", "minutes"), [(timedelta(seconds=30), 0.5), (timedelta(minutes=5), 5)])
def test_rates_are_events_per_minute(shard: Shard, client: redis.Redis, window: timedelta, minutes: float) -> None:
    """cycles-governance-admin-v0.1.25.yaml, EventDataRateSpike: `current_rate` is in events per minute."""
    shard.clock = clock = StillClock(0)
    rates = ExpiryRates(shard, CyclesSettings(spike_factor=5, spike_window=window))
    for start, count in ((0, 10), (1, 51)):
        clock.now = 1_795_000_000_000 + int(start * window.total_seconds() * 1000)
        rates.decided([Decision(b"r", Outcome.EXPIRED, tenant=b"acme")] * count)
        assert rates.record("f" * 32) == start
    said = data(spikes(client)[0])
    assert (said["current_rate"], said["threshold_rate"]) == (pytest.approx(51 / minutes), pytest.approx(50 / minutes))
    assert (said["window_seconds"], said["sample_count"]) == (60 * minutes, 51)


def test_a_new_tenant_has_no_usual_rate_yet(expire: Expire, client: redis.Redis) -> None:
    assert expire(0, 100_000) == 0
    assert expire(0.9, 100_000) == 0
    assert spikes(client) == []


def test_tenants_are_counted_apart(expire: Expire, client: redis.Redis) -> None:
    for window in range(3):
        assert expire(window, 1000, b"large") == 0
        assert expire(window, 1, b"small \xff") == 0
    assert expire(3, 1000, b"large") == 0
    assert expire(3, 6, b"small \xff") == 1
    assert [event[b"tenant"] for event in spikes(client)] == [b"small \xff"]


def test_only_what_expired_is_counted_and_only_of_a_known_tenant(shard: Shard, client: redis.Redis) -> None:
    shard.clock = StillClock(0)
    rates = ExpiryRates(shard, CyclesSettings())
    others = [outcome for outcome in Outcome if outcome is not Outcome.EXPIRED]
    rates.decided([Decision(b"r", outcome, tenant=b"acme") for outcome in others])
    rates.decided([Decision(b"r", Outcome.EXPIRED)])
    assert rates.record("f" * 32) == 0
    assert not client.exists("sweeperd:rates")


def test_silence_lowers_the_usual_rate(expire: Expire) -> None:
    for window in range(3):
        expire(window, 100)
    assert expire(30, 5) == 0
    assert expire(30.5, 95) == 1, "after half an hour without expiries a hundred are many"


def test_an_episode_ends_with_a_window_that_is_at_the_threshold(expire: Expire, client: redis.Redis) -> None:
    expire(0, 10)
    assert expire(1, 51) == 1
    assert expire(2, 90) == 0, "18 are usual by now: 90 is the threshold"
    assert expire(3, 163) == 1, "32.4 are usual"
    assert len(spikes(client)) == 2


def test_no_more_tenants_are_counted_than_may_be(client: redis.Redis) -> None:
    def count(*tenants: str) -> None:
        pairs = [word for tenant in tenants for word in (tenant, 1)]
        call = Call([b"sweeperd:rates", b"sweeperd:events"], [1, WINDOW_MS, 5, 2, "type", "f" * 32, *pairs])
        assert Script("sweep/expiry_rates").run(client, call) == 0

    count("a", "b", "c")
    count("c", "a")
    rates = {tenant: row.split()[1] for tenant, row in client.hgetall("sweeperd:rates").items()}
    assert rates == {b"a": b"2", b"b": b"1"}


@pytest.mark.parametrize(("tenants", "silent"), [(10_050, 13), (5_000, 301)])
def test_tenants_without_expiries_make_room(expire: Expire, client: redis.Redis, tenants: int, silent: int) -> None:
    start = 1_795_000_000_000 - silent * WINDOW_MS
    client.hset("sweeperd:rates", mapping={f"gone-{number}": f"{start} 3 2.5 0" for number in range(tenants)})
    client.hset("sweeperd:rates", "odd", "no row")
    assert [expire(window, 1, b"new") for window in range(2)] == [0, 0]
    assert expire(2, 6, b"new") == 1
    assert [event[b"tenant"] for event in spikes(client)] == [b"new"]
    # 50 are looked at in each call; a crowd is thinned out until there is room.
    assert client.hlen("sweeperd:rates") <= max(tenants + 2 - 3 * 50, 9_952)


@pytest.mark.parametrize(("others", "silent", "stays"), [(0, 300, True), (10_000, 12, True), (0, 301, False)])
def test_a_tenant_is_remembered_for_a_day_or_an_hour_of_a_crowd(
    expire: Expire, client: redis.Redis, others: int, silent: int, stays: bool
) -> None:
    now = 1_795_000_000_000
    client.hset("sweeperd:rates", "quiet", f"{now - silent * WINDOW_MS} 3 2.5 0")
    if others:
        recent = f"{now - 12 * WINDOW_MS} 1 1 0"
        client.hset("sweeperd:rates", mapping={f"other-{number}": recent for number in range(others)})
    for _ in range(3):
        expire(0, 1, b"acme")
    assert client.hexists("sweeperd:rates", "quiet") is stays
    assert client.hlen("sweeperd:rates") >= others


def test_a_key_of_another_type_costs_the_counts_and_nothing_else(
    expire: Expire, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set("sweeperd:rates", "x")
    assert expire(0, 1) == 0
    assert "WRONGTYPE" in caplog.records[-1].__dict__["error"]


@pytest.mark.every_redis
def test_a_full_redis_counts_and_announces(expire: Expire, shard: Shard, client: redis.Redis) -> None:
    with full(shard):
        assert [expire(window, 1) for window in range(3)] == [0, 0, 0]
        assert expire(3, 100) == 1
    assert len(spikes(client)) == 1
