"""`max_rate`: how many requests an endpoint gets from all processes together."""

import contextlib
import os
import re
import threading
import time
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, Counter

from sweeperd import progress
from sweeperd.config import Settings
from sweeperd.context import DEFAULT_TIMING, ShardContext, Timing
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.delivery.rate_limit import AHEAD, BURST, LAPSE, RateLimit
from sweeperd.metrics import Metrics
from sweeperd.store import Shard
from sweeperd.store.scripts import Script
from tests.support.builders import run_script
from tests.support.deliveries import Deliver, expire
from tests.support.fixtures import a_shard, full
from tests.support.harness import eventually, server_time
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

#: How long the replicas are watched, seconds. The full size is 30.
SECONDS = float(os.environ.get("SWEEPERD_TEST_RATE_SECONDS", "2"))
PACE = "sweeperd:pace"
HOUR = 3_600_000


def counter() -> Counter:
    return Counter("waits", "of the test", registry=CollectorRegistry())


def value(waits: Counter) -> float:
    return next(iter(waits.collect())).samples[0].value


def runs(client: redis.Redis) -> int:
    """How often the script has run since the statistics were reset. The first call fails where it is not loaded."""
    commands: Any = client.info("commandstats")
    found = [commands[name] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in commands]
    return sum(each["calls"] - each["failed_calls"] for each in found)


def take(client: redis.Redis, rate: float, burst: int, wanted: int) -> tuple[int, float]:
    """One run of the script: how many tokens, and the wait in seconds."""
    arguments = ["hook", repr(1e6 / rate), burst, wanted]
    taken, micros = run_script("delivery/take_tokens", client, [PACE.encode()], arguments)
    return int(taken), int(micros) / 1e6


def token(limit: RateLimit, stop: threading.Event) -> bool:
    """Wait for a token, as a batch does. False: the stop came first."""
    first = True
    while not stop.is_set():
        wait = limit.take(first=first)
        if not wait:
            return True
        first = False
        stop.wait(wait)
    return False


# ---- the bucket


def test_a_burst_and_then_one_by_one(client: redis.Redis) -> None:
    assert take(client, 2, 5, 3) == (3, 0)
    for number in (2, 0):
        taken, wait = take(client, 2, 5, 10)
        assert taken == number
        assert 0.3 < wait <= 0.5
    time.sleep(wait)
    assert take(client, 2, 5, 10)[0] == 1


def test_a_clock_that_was_set_back_or_a_lower_rate_holds_nothing_up(client: redis.Redis) -> None:
    client.hset(PACE, "hook", "9" * 17)
    taken, wait = take(client, 10, 3, 1)
    assert taken == 0
    assert wait <= 0.11
    client.hset(PACE, "hook", "written by hand")
    assert take(client, 10, 3, 1) == (1, 0)


@pytest.mark.parametrize("rate", [10, 100])
def test_a_bucket_that_would_be_full_too_late_is_corrected_where_it_is_stored(rate: int, client: redis.Redis) -> None:
    """Redis's clock went back two hours; or the settings had a far lower rate before."""
    client.hset(PACE, "hook", f"{(server_time(client) + 2 * HOUR) * 1000}")
    taken, wait = take(client, rate, 3, 1)
    assert taken == 0
    assert int(client.hget(PACE, "hook") or 0) <= server_time(client) * 1000 + 1000 + 3e6 / rate
    time.sleep(wait)
    assert take(client, rate, 3, 1)[0] == 1


def test_an_empty_bucket_is_not_written(client: redis.Redis) -> None:
    assert take(client, 0.001, 1, 1)[0] == 1
    client.config_resetstat()
    assert take(client, 0.001, 1, 1)[0] == 0
    assert "cmdstat_hset" not in client.info("commandstats")


def test_a_higher_rate_after_a_reload_counts_at_once(shard: Shard) -> None:
    assert token(RateLimit(shard, "hook", 0.02, counter()), threading.Event())
    limit, stop = RateLimit(shard, "hook", 100, counter()), threading.Event()
    threading.Timer(5, stop.set).start()
    assert token(limit, stop)


def test_in_a_full_redis(own_shard: Shard) -> None:
    with full(own_shard):
        assert take(own_shard.client, 10, 3, 5)[0] == 3
        assert take(own_shard.client, 10, 3, 5)[0] == 0


def test_a_stop_ends_the_wait_and_where_redis_fails_nothing_is_sent(shard: Shard, client: redis.Redis) -> None:
    limit, stop, waits = RateLimit(shard, "hook", 0.01, counter()), threading.Event(), counter()
    assert limit.burst == 1
    assert token(limit, stop)
    threading.Timer(0.2, stop.set).start()
    assert not token(limit, stop)
    client.set(PACE, "no hash")
    stop.clear()
    limit = RateLimit(shard, "hook", 1000, waits)
    threading.Timer(0.2, lambda: client.delete(PACE)).start()
    assert token(limit, stop), "it goes on when Redis does"
    assert value(waits) == 1


def test_tokens_are_taken_in_advance(shard: Shard, client: redis.Redis) -> None:
    limit, stop = RateLimit(shard, "hook", 1000, counter()), threading.Event()
    client.config_resetstat()
    for _ in range(500):
        assert token(limit, stop)
    assert runs(client) < 500 * 0.5


class ManualClock:
    """A monotonic clock that stands still until it is moved; or each reading moves it by `step`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0
        self._readings = 0

    def __call__(self) -> float:
        self._readings += 1
        assert self._readings < 1000, "it waits for nothing"
        self.now += self.step
        return self.now


class StopInTheWait(threading.Event):
    """A stop that comes as soon as somebody waits for it, and keeps for how long they would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.set()
        return True


@pytest.fixture
def clock() -> ManualClock:
    """The process's clock, as RateLimit reads it. Redis has its own."""
    return ManualClock()


def test_where_there_is_no_token_one_thread_asks_and_all_wait(
    shard: Shard, client: redis.Redis, clock: ManualClock
) -> None:
    waits, stops = counter(), [StopInTheWait() for _ in range(4)]
    limit = RateLimit(shard, "hook", 0.1, waits, Timing(clock=clock))
    client.config_resetstat()
    assert token(limit, threading.Event())
    assert not any(token(limit, stop) for stop in stops[:3])
    assert runs(client) == 1, "the answer says when the next token comes"
    assert all(9.9 < (stop.waits[0] or 0) <= 10 for stop in stops[:3])
    assert value(waits) == 3
    clock.now += 10
    assert not token(limit, stops[3]), "when the wait is over Redis decides, not the clock of the process"
    assert runs(client) == 2


@pytest.mark.parametrize(("later", "asked"), [(LAPSE - 0.25, 1), (LAPSE, 2)])
def test_tokens_lapse(later: float, asked: int, shard: Shard, client: redis.Redis, clock: ManualClock) -> None:
    limit, stop = RateLimit(shard, "hook", 1000, counter(), Timing(clock=clock)), threading.Event()
    client.config_resetstat()
    assert token(limit, stop)
    clock.now += later
    assert token(limit, stop)
    assert runs(client) == asked


def test_no_more_is_taken_in_advance_than_a_round_trip_needs(
    shard: Shard, client: redis.Redis, clock: ManualClock
) -> None:
    """The rest of the bucket is left to other processes."""
    rate, burst, stop = 100, 25, threading.Event()
    limit = RateLimit(shard, "hook", rate, counter(), Timing(clock=clock))
    assert token(limit, stop)
    assert take(client, rate, burst, burst)[0] >= burst - rate * AHEAD
    client.delete(PACE)
    client.config_resetstat()
    limit = RateLimit(shard, "hook", rate, counter(), Timing(clock=clock))
    clock.step = 1 / 16  # so long a round trip takes
    for _ in range(2 + 7):
        assert token(limit, stop)
    assert runs(client) == 2, "the second time for as many as one round trip needs"
    assert take(client, rate, burst, burst)[0] >= burst - 2 - 7


def test_a_redis_that_fails_is_logged_once_and_asked_again_after_a_pause(
    shard: Shard, client: redis.Redis, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    limit, stops = RateLimit(shard, "hook", 1000, counter(), Timing(clock=clock)), [StopInTheWait() for _ in range(2)]
    client.set(PACE, "no hash")
    for stop in stops:
        assert not token(limit, stop)
        assert stop.waits == [DEFAULT_TIMING.recovery_pause]
        clock.now += DEFAULT_TIMING.recovery_pause
    assert [message for message in caplog.messages if "max_rate" in message] == ["max_rate waits for redis"]
    assert "WRONGTYPE" in str(limit.error)
    client.delete(PACE)
    assert token(limit, threading.Event())
    assert limit.error is None
    assert [message for message in caplog.messages if "max_rate" in message][1:] == ["max_rate goes on"]


def test_a_sender_that_asks_for_tokens_may_take_as_long_as_redis_may(
    shard: Shard, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = list[float]()

    def run(*_: object) -> tuple[int, int]:
        clock.now += shard.patience
        silent.append(work.silent_for)
        return 1, 0

    monkeypatch.setattr(Script, "run", run)
    limit = RateLimit(shard, "hook", 1000, counter(), Timing(clock=clock))
    with progress.working(progress.Progress(clock)) as work:
        assert token(limit, threading.Event())
    assert silent == [0]


@pytest.mark.parametrize("refused", [True, False])
def test_a_lane_whose_tokens_redis_refuses_says_so(
    shard: Shard, client: redis.Redis, deliver: Deliver, refused: bool
) -> None:
    """One that waits for its tokens is in no trouble."""
    if refused:
        client.set(PACE, "no hash")
    quick = Timing(block=0.1, recovery_pause=0.1)
    with Receiver() as receiver, deliver(receiver.url, endpoint={"max_rate": 8}, timing=quick) as delivery:
        expire(client, *map(str, range(5)))
        if refused:
            eventually(lambda: delivery.dispatcher.trouble, 10)
            assert re.match("hook: .*WRONGTYPE", delivery.dispatcher.trouble)
            client.delete(PACE)
        else:
            eventually(lambda: delivery.sample("sweeperd_webhook_rate_waits_total"), 10)
            assert delivery.dispatcher.trouble == ""
        receiver.wait_for(lambda requests: len(requests) == 5)


# ---- replicas


def test_three_replicas_share_the_rate(server: Server, client: redis.Redis) -> None:
    """Never above it, but for one burst, by Redis's clock. How near they come is printed: it depends on the machine."""
    rate, stop, threads = 200.0, threading.Event(), []
    taken = [0] * 6
    with contextlib.ExitStack() as stack:
        limits = [RateLimit(stack.enter_context(a_shard(server)), "hook", rate, counter()) for _ in range(3)]

        def work(number: int) -> None:
            while token(limits[number % 3], stop):
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


def test_quick_retries_and_probes_count(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    with (
        Receiver(lambda *_: Answer(500)) as receiver,
        deliver(receiver.url, 4, {"max_rate": 8}, attempts=3, backoff_initial="1ms", probe_max="1ms") as delivery,
    ):
        began = time.monotonic()
        expire(client, *(f"r{number}" for number in range(20)))
        receiver.wait_for(lambda requests: len(requests) >= 20)
        assert len(receiver.requests) <= 8 * (time.monotonic() - began + BURST) + 3
        eventually(lambda: delivery.sample("sweeperd_webhook_rate_waits_total"))


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
    limits = {lane.endpoint: lane.sender.limit for lane in Dispatcher(context).lanes}
    assert limits["free"] is None
    assert limits["hook"] is not None
    assert (limits["hook"].per_second, limits["hook"].burst) == (50, 12)
