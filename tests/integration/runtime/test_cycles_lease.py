"""Tests how the lease of the Cycles services is taken, renewed and given up."""

import logging
import threading
from datetime import timedelta

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.runtime import cycles_lease
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.once import run_once
from sweeperd.runtime.sweeps import kind_sweeps
from sweeperd.store import Shard
from tests.support.harness import eventually, reserve
from tests.support.servers import Server

KEY = "cycles:maintenance:lease:reservation_expiry"
CYCLES = {"cycles": {"enabled": True}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second in place of 30, and a renewal every 100 ms in place of 10 s."""
    monkeypatch.setattr(cycles_lease, "TTL", timedelta(milliseconds=500))
    monkeypatch.setattr(cycles_lease, "RENEW_EVERY", 0.1)
    monkeypatch.setattr(cycles_lease, "PATIENCE", 0.5)


def runs(metrics: Metrics, outcome: str) -> float | None:
    labels = {"job": "reservation_expiry", "outcome": outcome}
    return metrics.registry.get_sample_value("cycles_maintenance_runs_total", labels)


def test_all_replicas_hold_it_together_and_nobody_releases_it(client: redis.Redis, shard: Shard) -> None:
    one, two = CyclesLease(shard), CyclesLease(shard)
    for lease in (one, two):
        assert not lease.permits()
        lease.hold()
        assert lease.permits()
    assert client.get(KEY) == b"sweeperd"
    assert 29_000 < client.pttl(KEY) <= 30_000


def test_it_is_renewed_when_it_is_time(quick: None, client: redis.Redis, shard: Shard) -> None:
    lease = CyclesLease(shard)
    lease.hold()
    client.pexpire(KEY, 60)

    def renewed() -> bool:
        lease.hold()
        return client.pttl(KEY) > 400

    eventually(renewed)


def test_a_service_that_holds_it_is_waited_for_and_then_the_sweep_goes_on(
    quick: None, client: redis.Redis, shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    settings, metrics = Settings.model_validate(CYCLES), Metrics(cycles=True)
    reserve(client, ["one"])
    client.set(KEY, "service:1", px=60_000)
    lease = CyclesLease(shard)
    (sweep,) = kind_sweeps(ShardContext(settings, shard, metrics, threading.Event(), 1), cycles_lease=lease)
    lease.hold()
    sweep.run()
    assert (client.zcard("reservation:ttl"), runs(metrics, "skipped_locked"), runs(metrics, "success")) == (1, 1, 0)

    def swept() -> bool:
        lease.hold()
        sweep.run()
        return not client.zcard("reservation:ttl")

    with caplog.at_level(logging.WARNING):
        eventually(swept)
    assert runs(metrics, "success") == 1
    assert "sweeping without it" in caplog.text
    assert client.get(KEY) == b"service:1"
    client.delete(KEY)
    lease.hold()
    assert client.get(KEY) == b"sweeperd"


def test_one_that_redis_refuses_is_waited_for(quick: None, own_server: Server, own_shard: Shard) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        lease = CyclesLease(own_shard)
        client.config_set("maxmemory", 1)
        with pytest.raises(RedisUnavailable, match="maxmemory"):
            lease.hold()
        client.config_set("maxmemory", 0)
        client.rpush(KEY, "of another type")
        with pytest.raises(RedisUnavailable, match="WRONGTYPE"):
            lease.hold()
        eventually(lease.permits)
        client.delete(KEY)
        lease.hold()
        assert client.get(KEY) == b"sweeperd"


def test_one_that_could_not_be_renewed_is_missing_from_its_end_on(quick: None, own_shard: Shard) -> None:
    lease = CyclesLease(own_shard)
    lease.hold()
    assert lease.permits()
    eventually(lambda: not lease.permits())
    eventually(lease.permits)


def test_a_run_for_cron_holds_it_and_counts_under_the_names_of_cycles(server: Server, client: redis.Redis) -> None:
    settings = Settings.model_validate({"redis": {"url": server.url}, **CYCLES})
    metrics = Metrics(cycles=True)
    reserve(client, ["one", "two"], tenant="acme")
    reserve(client, ["broken"], tenant="acme")
    client.hdel("reservation:res_broken", "estimate_amount")
    run_once(settings, threading.Event(), metrics=metrics)
    assert client.get(KEY) == b"sweeperd"
    assert client.pttl(KEY) > 25_000
    sample = metrics.registry.get_sample_value
    assert sample("cycles_reservations_expired_total", {"tenant": "acme"}) == 2
    quarantined = {"tenant": "acme", "reason": "INVALID_ESTIMATE"}
    assert sample("cycles_reservations_quarantined_total", quarantined) == 1
    assert runs(metrics, "success") == 1


def test_a_run_for_cron_sweeps_without_one_that_redis_refuses(quick: None, server: Server, client: redis.Redis) -> None:
    client.rpush(KEY, "of another type")
    settings = Settings.model_validate({"redis": {"url": server.url}, **CYCLES})
    metrics = Metrics(cycles=True)
    reserve(client, ["one"], tenant="acme")
    report = run_once(settings, threading.Event(), metrics=metrics)
    assert client.hget("reservation:res_one", "state") == b"EXPIRED"
    assert runs(metrics, "success") == 1
    assert report.complete
