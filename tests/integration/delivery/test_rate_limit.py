"""`max_rate`: how many requests an endpoint gets from all processes together."""

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, Counter

from sweeperd.config import Settings
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.delivery.rate_limit import AHEAD, BURST, RateLimit
from sweeperd.metrics import Metrics
from sweeperd.store.context import ShardContext
from sweeperd.store.embedded import Server
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from tests.integration.delivery.conftest import Deliver, expire
from tests.integration.delivery.test_replays import add, begin, ended, refreshed
from tests.support.fixtures import a_shard, full
from tests.support.harness import eventually, server_time
from tests.support.receiver import Answer, Receiver, Request

#: How long the replicas are watched, seconds. The full size is 30.
SECONDS = float(os.environ.get("SWEEPERD_TEST_RATE_SECONDS", "2"))
PACE = "sweeperd:pace"
HOUR = 3_600_000


def counter() -> Counter:
    return Counter("waits", "of the test", registry=CollectorRegistry())


def take(client: redis.Redis, rate: float, burst: int, wanted: int) -> tuple[int, float]:
    """One run of the script: how many tokens, and the wait in seconds."""
    call = Call([PACE.encode()], ["hook", repr(1e6 / rate), burst, wanted])
    taken, micros = Script("delivery/take_tokens").run(client, call)
    return int(taken), int(micros) / 1e6


# ---- the bucket


def test_a_burst_and_then_one_by_one(client: redis.Redis) -> None:
    assert take(client, 2, 5, 3) == (3, 0)
    assert take(client, 2, 5, 10) == (2, 0)
    taken, wait = take(client, 2, 5, 10)
    assert taken == 0
    assert 0.3 < wait <= 0.5
    time.sleep(wait)
    assert take(client, 2, 5, 10) == (1, 0)


def test_a_clock_that_was_set_back_or_a_lower_rate_holds_nothing_up(client: redis.Redis) -> None:
    client.hset(PACE, "hook", "9" * 17)
    taken, wait = take(client, 10, 3, 1)
    assert taken == 0
    assert wait <= 0.11
    client.hset(PACE, "hook", "written by hand")
    assert take(client, 10, 3, 1) == (1, 0)


def test_in_a_full_redis(own_shard: Shard) -> None:
    with full(own_shard):
        assert take(own_shard.client, 10, 3, 5) == (3, 0)
        assert take(own_shard.client, 10, 3, 5)[0] == 0


def test_a_stop_ends_the_wait_and_where_redis_fails_nothing_is_sent(shard: Shard, client: redis.Redis) -> None:
    limit, stop, waits = RateLimit(shard, "hook", 0.01, counter()), threading.Event(), counter()
    assert limit.burst == 1
    assert limit.take(stop)
    threading.Timer(0.2, stop.set).start()
    assert not limit.take(stop)
    client.set(PACE, "no hash")
    stop.clear()
    limit = RateLimit(shard, "hook", 1000, waits)
    threading.Timer(0.2, lambda: client.delete(PACE)).start()
    assert limit.take(stop), "it goes on when Redis does"
    assert next(iter(waits.collect())).samples[0].value == 1


def test_tokens_are_taken_in_advance(shard: Shard, client: redis.Redis) -> None:
    limit, stop = RateLimit(shard, "hook", 1000, counter()), threading.Event()
    client.config_resetstat()
    for _ in range(500):
        assert limit.take(stop)
    commands: Any = client.info("commandstats")
    runs = commands["cmdstat_evalsha"]["calls"] + commands.get("cmdstat_eval", {"calls": 0})["calls"]
    assert runs < 500 * 0.5, runs


# ---- replicas


def test_three_replicas_share_the_rate(server: Server, client: redis.Redis) -> None:
    """Never above it, but for one burst, by Redis's clock. How near they come is printed: it depends on the machine."""
    rate, stop, threads = 200.0, threading.Event(), []
    taken = [0] * 6
    with contextlib.ExitStack() as stack:
        limits = [RateLimit(stack.enter_context(a_shard(server)), "hook", rate, counter()) for _ in range(3)]

        def work(number: int) -> None:
            while limits[number % 3].take(stop):
                taken[number] += 1

        began = server_time(client)
        for number in range(6):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
        time.sleep(SECONDS)
        stop.set()
        for thread in threads:
            thread.join()
        seconds = (server_time(client) - began) / 1000
    assert sum(taken) <= rate * seconds + limits[0].burst + 1
    assert sum(taken) > 2 * limits[0].burst, "tokens come back"
    assert min(taken[number] + taken[number + 3] for number in range(3)) > 0
    print(f"{sum(taken)} tokens in {seconds:.2f} s: {sum(taken) / seconds / rate:.4f} of {rate:.0f} a second")


def _kinds(requests: Sequence[Request]) -> set[str]:
    """The ids of all events without their numbers."""
    bodies: list[Any] = [request.event for request in requests]
    return {event["data"]["reservation_id"].rstrip("0123456789") for body in bodies for event in body}


def test_three_processes_keep_to_the_rate_with_a_replay_and_a_backfill(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    """Batches, new events, a backfill and a replay together; a request with ten events counts once."""
    rate, now = 40, server_time(client)
    endpoint = {"max_rate": rate, "start": "1h", "batch_size": 10, "batch_wait": "10ms"}
    add(client, now - 2 * HOUR, 200 * int(SECONDS + 1), "old")
    add(client, now - HOUR // 2, 200 * int(SECONDS + 1), "backfilled")
    with (
        Receiver() as receiver,
        deliver(receiver.url, 4, endpoint) as one,
        deliver(receiver.url, 4, endpoint) as two,
        deliver(receiver.url, 4, endpoint) as three,
        refreshed(one, two, three),
    ):
        begin(shard, now - 3 * HOUR, now - HOUR)
        expire(client, *(f"new{number}" for number in range(100)))
        receiver.wait_for(lambda requests: len(requests) > 10)
        before, began = len(receiver.requests), time.monotonic()
        time.sleep(SECONDS)
        requests, seconds = receiver.requests, time.monotonic() - began
        in_advance = 3 * max(1, int(rate * AHEAD) + 1)
        assert len(requests) - before <= rate * seconds + int(rate * BURST) + in_advance
        print(f"{len(requests) - before} requests in {seconds:.2f} s, at {rate} a second")
        receiver.wait_for(lambda requests: _kinds(requests) == {"old", "backfilled", "new"}, 60)
        eventually(lambda: ended(client), 60)
        waits = [each.sample("sweeperd_webhook_rate_waits_total") for each in (one, two, three)]
        assert sum(waits) > 0


def test_quick_retries_and_probes_count(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    with (
        Receiver(lambda *_: Answer(500)) as receiver,
        deliver(receiver.url, 4, {"max_rate": 5}, attempts=3, backoff_initial="1ms", probe_max="1ms") as delivery,
    ):
        began = time.monotonic()
        expire(client, *(f"r{number}" for number in range(20)))
        receiver.wait_for(lambda requests: len(requests) >= 8)
        assert len(receiver.requests) <= 5 * (time.monotonic() - began) + 1 + 3
        assert delivery.sample("sweeperd_webhook_rate_waits_total") > 0


def test_a_pause_holds_what_waits_for_its_turn(client: redis.Redis, deliver: Deliver) -> None:
    with Receiver() as receiver, deliver(receiver.url, 4, {"max_rate": 2}) as delivery:
        expire(client, *(f"r{number}" for number in range(10)))
        receiver.wait_for(lambda requests: len(requests) == 1)
        delivery.dispatcher.endpoints[0]._state.pause("test")
        time.sleep(1.2)
        assert len(receiver.requests) <= 2, "one may have been on its way"
        assert not client.exists("sweeperd:dead-letters")


@pytest.fixture
def settings() -> Settings:
    shards = [{"name": name, "url": f"redis://{name}.example.com/"} for name in ("a", "b")]
    endpoints = [
        {"name": "hook", "url": "http://hook.example.com/", "max_rate": 100},
        {"name": "free", "url": "http://f/"},
    ]
    return Settings.model_validate({"shards": shards, "webhooks": {"endpoints": endpoints}})


def test_each_shard_gets_an_equal_part(shard: Shard, settings: Settings) -> None:
    context = ShardContext(settings, shard, Metrics(), threading.Event(), 4)
    limits = Dispatcher(context)._limits
    assert {name: (limit.per_second, limit.burst) for name, limit in limits.items()} == {"hook": (50, 12)}
