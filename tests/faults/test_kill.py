"""Kills the daemon with `kill -9` during drains: nothing is lost or done twice."""

import json
import os
import random
import signal
import socket
from collections import Counter
from typing import Any

import pytest
import redis

from tests.faults.subscribers import Subscribers
from tests.support.books import Property, check, read
from tests.support.harness import BATCHES_IN_HAND, IN_HAND, budget, environment, eventually, once, reserve, started
from tests.support.servers import Server
from tests.support.streams import entries

#: How often it is killed. Set it to 50 for the full size: two minutes on two cores.
KILLS = int(os.environ.get("SWEEPERD_TEST_KILLS", "3"))
TOTAL = 400 * KILLS
#: A killed process leaves its lease, and the next run would wait until it has run out.
LEASE = "sweeperd:lease:sweep"


def in_hand(client: redis.Redis, group: str, process: int) -> int:
    """How many events a process has taken and not acknowledged."""
    consumers: Any = client.xinfo_consumers("sweeperd:events", group)
    own = f"{socket.gethostname()}-{process}-".encode()
    return sum(consumer["pending"] for consumer in consumers if consumer["name"].startswith(own))


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_once_is_killed_again_and_again(server: Server, client: redis.Redis) -> None:
    """Only what was in hand at a kill comes twice: single events at the one endpoint, batches at the other."""
    chance = random.Random(TOTAL)
    with Subscribers() as subscribers:
        deliveries = subscribers.counters
        env = environment(
            server.url, endpoints=subscribers.endpoints, webhooks__redelivery_initial="100ms", sweep__pipeline_depth=10
        )
        once(env)
        reserve(client, [f"id {number}" for number in range(TOTAL)])

        def progress() -> int:
            """Steps done, of three for each reservation: expired, delivered to each endpoint."""
            return client.xlen("sweeperd:events") + sum(len(each.counts) for each in deliveries.values())

        lost: Counter[str] = Counter()
        for kills in range(KILLS):
            # Somewhere on the way that is left, so that each run gets a little further and none to the end.
            left = 3 * TOTAL - progress()
            target = progress() + left / (KILLS - kills + 1) * chance.uniform(0.1, 1.8)
            process = started(["--once", "--json", "--log-level", "error"], env, [0, 1, 2])
            eventually(lambda target=target: progress() >= target, limit=180)
            process.kill()
            assert process.wait() == -signal.SIGKILL, "it was through before"
            lost.update({name: in_hand(client, name, process.pid) for name in deliveries})
            client.delete(LEASE)

        # What the dead had in hand is taken over after they have been silent for a while, within one run.
        last = once(env, limit=300)
        assert last.code == 0, last.errors

        events = entries(client, "sweeperd:events")
        ids = [fields[b"id"] for _, fields in events]
        assert len(ids) == len(set(ids)) == TOTAL
        for name, each in deliveries.items():
            assert each.reservations == set(ids)
            assert len(each.counts) == TOTAL
            print(f"{name}: {each.doubled} events came again, {lost[name]} were in hand at {KILLS} kills")
            assert each.doubled <= lost[name]
            assert client.xpending("sweeperd:events", name)["pending"] == 0
        assert lost["hook"] <= KILLS * IN_HAND
        assert lost["batches"] <= KILLS * BATCHES_IN_HAND
        assert lost["hook"] + lost["batches"] > 0
        assert subscribers.requests("batches") < TOTAL / 2, "they came in batches"
        assert client.zcard("reservation:ttl") == 0
        assert budget(client) == (0, 5 * TOTAL)
        check(read(client), set(Property))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_relay_is_killed_again_and_again(server: Server, client: redis.Redis) -> None:
    """Each event and each delivery of a Cycles installation is written exactly once."""
    chance, total, lives = random.Random(TOTAL), 400 * KILLS, max(1, KILLS // 2)
    subscriptions = [f"whsub_{number}" for number in range(4)]
    for subscription in subscriptions:
        record = {"subscription_id": subscription, "status": "ACTIVE", "event_types": ["reservation.expired"]}
        client.set(f"webhook:{subscription}", json.dumps(record))
        client.sadd("webhooks:acme", subscription)
    env = environment(
        server.url, cycles__enabled="true", cycles__dispatch_backlog=0, webhooks__redelivery_initial="100ms"
    )
    once(env)
    reserve(client, [f"id {number}" for number in range(total)])

    def made() -> int:
        return client.llen("dispatch:pending")

    for kills in range(lives):
        left = 4 * total - made()
        target = made() + left / (lives - kills + 1) * chance.uniform(0.1, 1.8)
        process = started(["--once", "--json", "--log-level", "error"], env, [0, 1, 2])
        # The relay writes thousands of records a second once the sweep has ended.
        eventually(lambda target=target: made() >= target, limit=60, pause=0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it was through before"
        client.delete(LEASE)
    last = once(env, limit=300)
    assert last.code == 0, last.errors

    assert client.zcard("events:_all") == client.zcard("events:acme") == total == client.xlen("sweeperd:events")
    assert len(client.keys("event:*")) == total
    queued = client.lrange("dispatch:pending", 0, -1)
    assert len(queued) == len(set(queued)) == 4 * total
    assert [client.zcard(f"deliveries:{subscription}") for subscription in subscriptions] == [total] * 4
    assert len(client.keys("delivery:*")) == 4 * total
    assert client.xpending("sweeperd:events", "_cycles")["pending"] == 0
