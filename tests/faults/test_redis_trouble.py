"""Stops, restarts, fills and demotes Redis: the daemon survives, and nothing is lost or doubled."""

from pathlib import Path

import pytest
import redis

from tests.faults.subscribers import Subscribers
from tests.support.books import Property, check, read
from tests.support.harness import budget, daemon, environment, eventually, reserve
from tests.support.servers import Binary, Server

#: What was answered was written to the file before; `kill -9` takes the process, not what it has written.
AOF = ("--appendonly", "yes", "--appendfsync", "everysec")


def connect(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url, protocol=2)


def test_redis_is_killed_and_restarted_while_it_drains(redis_binary: Binary, tmp_path: Path) -> None:
    total, kills = 1000, 2
    with Subscribers() as subscribers, Server(redis_binary, AOF) as server:
        env = environment(
            server.url, sweep__interval="100ms", sweep__pipeline_depth=10, endpoints=subscribers.endpoints
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            with connect(server) as client:
                reserve(client, [str(number) for number in range(total)])
                eventually(lambda: client.xlen("sweeperd:events") > 100)
            for _ in range(kills):
                server.kill()
                errors = running.metric("sweeperd_sweeps_total", result="error")
                eventually(lambda errors=errors: running.metric("sweeperd_sweeps_total", result="error") > errors)
                server.start()
                eventually(lambda: running.get("/readyz")[0] == 200)
            with connect(server) as client:
                subscribers.await_all(client, total)
                check(read(client), set(Property))
                assert budget(client) == (0, 5 * total)
                subscribers.check_doubled(kills)
            assert running.terminate() == 0


def test_a_full_redis_is_swept_and_delivered_from(own_server: Server, tmp_path: Path) -> None:
    with Subscribers() as subscribers, connect(own_server) as client:
        reserve(client, [str(number) for number in range(500)])
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("anything", "x")
        env = environment(own_server.url, sweep__interval="200ms", endpoints=subscribers.endpoints)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_candidates_total", outcome="expired") == 500)
            assert budget(client) == (0, 2500)
            # The last expiry is counted before its tick has ended.
            eventually(lambda: running.get("/readyz")[0] == 200)
            # The groups are made at maxmemory too, before the first sweep, so each of these events is delivered.
            subscribers.await_all(client, 500)
            check(read(client), set(Property))
            subscribers.check_doubled(0)


def test_a_primary_that_became_a_replica_is_not_written_to(own_server: Server, tmp_path: Path) -> None:
    with connect(own_server) as client, Server(own_server.binary) as primary:
        with daemon(environment(own_server.url, sweep__interval="100ms"), tmp_path) as running:
            eventually(lambda: running.get("/readyz")[0] == 200)
            client.replicaof("127.0.0.1", str(primary.port))
            eventually(lambda: running.get("/readyz")[0] == 503)
            assert running.metric("sweeperd_redis_up", shard="default") == 0
            client.replicaof("NO", "ONE")
            reserve(client, ["one"])
            eventually(lambda: running.metric("sweeperd_candidates_total", outcome="expired") == 1)
            eventually(lambda: running.get("/readyz")[0] == 200)
