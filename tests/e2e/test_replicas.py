"""Several replicas on one shard: who sweeps, who takes over, and what a lost lease costs."""

from pathlib import Path

import pytest
import redis

from sweeperd.embedded import Server
from tests.books import Property, check, read
from tests.world import Daemon, budget, daemon, environment, eventually, reserve

LEASE = "sweeperd:lease:sweep"


def sweeps(running: Daemon, result: str) -> float:
    return running.metric("sweeperd_sweeps_total", shard="default", result=result)


@pytest.mark.parametrize("taken", [None, "another replica"], ids=["deleted", "taken"])
def test_a_lease_that_is_lost_in_the_middle_of_a_sweep(
    taken: str | None, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    total = 6000
    env = environment(server.url, sweep__interval="100ms", sweep__lease_ttl="1s", sweep__pipeline_depth=1)
    reserve(client, [str(number) for number in range(total)])
    with daemon(env, tmp_path) as running:
        eventually(lambda: client.xlen("sweeperd:events") > 0)
        if taken:
            client.set(LEASE, taken, px=3000)
        else:
            client.delete(LEASE)
        eventually(lambda: running.metric("sweeperd_leases_lost_total", shard="default") == 1)
        assert running.logged("the lease was lost during a sweep; nothing else is")[0]["shard"] == "default"
        if taken:
            eventually(lambda: sweeps(running, "standby") >= 1)
            assert sweeps(running, "ok") == 1, "the sweep has ended"
            left = client.zcard("reservation:ttl")
            assert left > 0, "in the middle of it"
            assert client.get(LEASE) == taken.encode()
        eventually(lambda: client.xlen("sweeperd:events") == total, limit=60)
        eventually(lambda: sweeps(running, "ok") >= 2)
        assert running.metric("sweeperd_leases_lost_total", shard="default") == 1
        assert sweeps(running, "error") == 0
    assert budget(client) == (0, 5 * total)
    check(read(client), set(Property))


def test_a_lease_is_kept_for_as_long_as_the_sweep_lasts(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """The sweep outlasts the lease's TTL several times over."""
    env = environment(server.url, sweep__interval="100ms", sweep__lease_ttl="1s", sweep__pipeline_depth=1)
    reserve(client, [str(number) for number in range(5000)])
    with daemon(env, tmp_path) as running:
        token = eventually(lambda: client.get(LEASE))
        while client.zcard("reservation:ttl") > 100:
            assert client.get(LEASE) == token
        eventually(lambda: sweeps(running, "ok") >= 2)
        assert running.metric("sweeperd_sweep_duration_seconds_sum", shard="default") > 1
        assert running.metric("sweeperd_leases_lost_total", shard="default") == 0
