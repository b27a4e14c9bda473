"""Closes a tenant while its reservations expire, as Cycles does: no amount appears, and nothing is quarantined."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from tests.support.builders import reservations_kind
from tests.support.harness import SCOPES, eventually, reserve

COUNT, AMOUNT = 2_000, 5


class Sweeping:
    """A thread that sweeps again and again."""

    def __init__(self, shard: Shard) -> None:
        settings = Settings.model_validate({"sweep": {"batch_size": 50, "pipeline_depth": 4}})
        self.metrics = Metrics()
        self._stop = threading.Event()
        kind = reservations_kind(shard.keys, settings.sweep)
        self._sweep = KindSweep(ShardContext(settings, shard, self.metrics, threading.Event(), 1), kind)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sweep.tick()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def sweeping(shard: Shard) -> Iterator[Sweeping]:
    thread = Sweeping(shard)
    yield thread
    thread.stop()


def close_budgets(client: redis.Redis) -> list[dict[bytes, bytes]]:
    """Close the tenant's budgets as the admin service does. Returns what they hold from then on."""
    keys = [f"budget:{scope}:TOKENS" for scope in SCOPES]
    with client.pipeline() as pipeline:
        for key in keys:
            pipeline.hset(key, mapping={"status": "CLOSED", "reserved": 0})
        for key in keys:
            pipeline.hgetall(key)
        return list(pipeline.execute()[len(keys) :])


@pytest.mark.slow
def test_a_tenant_that_is_closed_under_load(shard: Shard, client: redis.Redis, sweeping: Sweeping) -> None:
    bystander = "tenant:globex"
    ids = [f"r{number}" for number in range(COUNT)]
    reserve(client, ids, amount=AMOUNT, overdue_by=-500)
    reserve(client, [f"b{number}" for number in range(200)], amount=AMOUNT, tenant="globex", scopes=[bystander])
    eventually(lambda: client.xlen("sweeperd:events") > 300)
    closed = close_budgets(client)
    eventually(lambda: client.zcard("reservation:ttl") == 0)
    sweeping.stop()

    assert client.zcard("sweeperd:quarantine") == 0
    assert [client.hgetall(f"budget:{scope}:TOKENS") for scope in SCOPES] == closed
    assert client.hmget(f"budget:{bystander}:TOKENS", "reserved", "remaining") == [b"0", b"%d" % (200 * AMOUNT)]
    rows: list[Any] = [client.hmget(f"reservation:res_{name}", "state", "expired_event") for name in ids]
    entries: Any = client.xrange("sweeperd:events")
    events = dict(entries)
    assert {events[stream_id][b"id"].decode() for _, stream_id in rows} == set(ids)
    assert {state for state, _ in rows} == {b"EXPIRED"}
    named = [json.loads(events[stream_id][b"closed"]) for _, stream_id in rows]
    settled = named.count(list(SCOPES))
    released = named.count([])
    assert settled + released == COUNT
    assert settled > 0
    assert int(closed[0][b"remaining"]) == released * AMOUNT
    assert sweeping.metrics.registry.get_sample_value(
        "sweeperd_closed_budgets_total", {"shard": shard.name, "kind": "reservations"}
    ) == settled * len(SCOPES)
