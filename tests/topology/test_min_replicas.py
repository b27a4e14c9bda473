"""Checks that a primary without its replicas (`min-replicas-to-write`) is not ready and is never swept in part."""

from pathlib import Path

import pytest
import redis

from tests.support.books import Property, check, read
from tests.support.harness import budget, daemon, environment, eventually, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server
from tests.topology.load import delivered


@pytest.mark.every_redis
def test_a_primary_that_refuses_writes_is_not_ready(own_server: Server, tmp_path: Path) -> None:
    with redis.Redis.from_url(own_server.url, protocol=2) as client, Receiver() as receiver:
        env = environment(own_server.url, sweep__interval="100ms", endpoints=[{"name": "hook", "url": receiver.url}])
        reserve(client, [str(number) for number in range(100)])
        client.config_set("min-replicas-to-write", 1)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="error") >= 2)
            status, why = running.get("/readyz")
            assert status == 503
            assert "Not enough good replicas" in why
            assert running.metric("sweeperd_redis_up", shard="default") == 0
            assert running.metric("sweeperd_candidates_total", outcome="error") == 0
            assert budget(client) == (500, 0)
            client.config_set("min-replicas-to-write", 0)
            eventually(lambda: client.zcard("reservation:ttl") == 0)
            eventually(lambda: delivered(client))
            assert running.get("/readyz")[0] == 200
            assert running.terminate() == 0
        check(read(client), set(Property))
        assert len(receiver.requests) == 100
