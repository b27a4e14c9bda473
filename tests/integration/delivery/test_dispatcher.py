"""All deliveries of one process and shard: a run that ends, the stop, and the maintenance of the outbox."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.config import RELAY, Settings
from sweeperd.context import ShardContext, Timing
from sweeperd.delivery.dispatcher import DeliveryReport, Dispatcher
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.outbox import EndpointStateStore, Outbox
from sweeperd.store import Shard
from tests.integration.delivery.test_relay import subscribe
from tests.integration.delivery.test_replays import add, begin, ended, seen
from tests.support.deliveries import EVENTS, QUICK, Deliver, Delivery, expire
from tests.support.harness import eventually, server_time
from tests.support.raw_server import raw_server
from tests.support.receiver import Answer, Behaviour, Receiver, Request

HOUR = 3_600_000
NOWHERE = "http://127.0.0.1:9/"
#: Waits that no test outlasts.
LONG: dict[str, Any] = {"redelivery_initial": "1h", "redelivery_max": "1h"}


def answering_after(answered: threading.Event) -> Behaviour:
    """Answers no request before that."""

    def answer(*_: object) -> Answer:
        answered.wait(30)
        return Answer()

    return answer


@contextlib.contextmanager
def at_the_end(answered: threading.Event) -> Iterator[None]:
    """All requests are answered when the block ends."""
    try:
        yield
    finally:
        answered.set()


def test_every_series_of_an_endpoint_is_there_from_the_start(shard: Shard) -> None:
    delivery = Delivery(shard, NOWHERE, 2, {})
    for name in ("rate_waits", "sweep_waits", "dead_letters", "dropped_attempts"):
        labels = {"endpoint": "hook"}
        assert delivery.metrics.registry.get_sample_value(f"sweeperd_webhook_{name}_total", labels) == 0


# ---- a run that ends when nothing is left


def test_a_run_that_ends_works_replays_off_and_leaves_nothing_behind(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3, "old")
    with Receiver() as receiver:
        delivery = Delivery(shard, receiver.url, 2, {}, until_idle=True)
        begin(shard, now - 2 * HOUR, now)
        expire(client, "new")
        assert not delivery.dispatcher.complete
        delivery.dispatcher.start()
        assert delivery.dispatcher.join(time.monotonic() + 20)
        assert seen(receiver) == Counter(["old0", "old1", "old2", "new"])
    assert delivery.dispatcher.report() == DeliveryReport(delivered=4, undelivered=0, dead_lettered=0)
    assert delivery.sample("sweeperd_webhook_duration_seconds_count") == 4
    assert ended(client)
    assert not client.xinfo_consumers(EVENTS, "hook")
    assert not delivery.dispatcher.complete


# ---- events that wait for the dispatcher of Cycles

LIMIT = 2


def expire_now(client: redis.Redis, count: int, tenant: str = "acme") -> None:
    """As an expiry of this moment does: an older event does not wait."""
    now = server_time(client)
    for number in range(count):
        client.xadd(EVENTS, {"id": f"{tenant} {number}", "tenant": tenant, "scope": "s", "expired_at": now})


def relaying(
    shard: Shard, *, until_idle: bool = False, limit: int = LIMIT
) -> tuple[Dispatcher, Metrics, threading.Event]:
    """A dispatcher with nothing but the relay."""
    metrics, stop = Metrics(), threading.Event()
    settings = Settings.model_validate({"cycles": {"enabled": True, "dispatch_backlog": limit, "dispatch_wait": "1s"}})
    timing = Timing(block=0.05, brake_pause=0.05)
    context = ShardContext(settings, shard, metrics, stop, 2, timing=timing, until_idle=until_idle)
    dispatcher = Dispatcher(context)
    dispatcher.prepare()
    return dispatcher, metrics, stop


def waits(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("sweeperd_relay_waiting", {"shard": "default"})


def test_the_first_relay_writes_what_has_expired_before(shard: Shard, client: redis.Redis) -> None:
    """Nobody else has: sweeperd ran beside the service, without the relay. It does not write what is too old."""
    add(client, server_time(client) - 4 * 24 * 3_600_000, 2, "old", tenant="forgotten")
    expire_now(client, 3)
    dispatcher, _, _ = relaying(shard, until_idle=True)
    dispatcher.start()
    assert dispatcher.join(time.monotonic() + 30)
    assert (client.zcard("events:acme"), client.zcard("events:_all")) == (3, 3)


def test_a_run_that_ends_leaves_what_waits_for_the_dispatcher_of_cycles(shard: Shard, client: redis.Redis) -> None:
    """It fills the list up to the limit. The next run takes what is left first, and none counts it as a failure."""
    subscribe(client, "whsub_1")
    left = 300 + LIMIT
    for run in range(2):
        dispatcher, metrics, _ = relaying(shard, until_idle=True)
        assert waits(metrics) == 0
        if not run:
            expire_now(client, left)
            expire_now(client, 7, "unmatched")
        dispatcher.start()
        assert dispatcher.join(time.monotonic() + 30)
        written = client.llen("dispatch:pending")
        assert 0 < written <= LIMIT
        left -= written
        dispatcher.maintain()
        report = dispatcher.report()
        assert (report.undelivered, report.dead_lettered) == (left, 0)
        assert waits(metrics) == 1
        assert (
            metrics.registry.get_sample_value(
                "sweeperd_webhook_events_total", {"endpoint": RELAY.name, "result": "failed"}
            )
            == 0
        )
        client.delete("dispatch:pending")
    assert client.zcard("events:unmatched") == 7
    taken = [row["times_delivered"] for row in client.xpending_range(EVENTS, RELAY.name, "-", "+", 1000)]
    assert taken == [0] * left
    assert client.hget("sweeperd:relay", "waiting")


def test_a_daemon_goes_on_as_the_dispatcher_of_cycles_does(shard: Shard, client: redis.Redis) -> None:
    """The list never has more than the limit, and the oldest events come first."""
    subscribe(client, "whsub_1")
    dispatcher, metrics, stop = relaying(shard, until_idle=False)
    expire_now(client, 40)
    dispatcher.start()
    (relay,) = dispatcher.lanes
    sent = list[bytes]()
    try:
        eventually(lambda: relay.brake.waiting)
        dispatcher.maintain()
        assert (relay.condition, waits(metrics)) == ("delivering", 1)
        while len(sent) < 40:
            assert client.llen("dispatch:pending") <= LIMIT
            if taken := client.rpop("dispatch:pending"):
                sent.append(taken)  # type: ignore[arg-type]
            else:
                time.sleep(0.01)
        eventually(lambda: not relay.brake.waiting)
        dispatcher.maintain()
        assert waits(metrics) == 0
    finally:
        stop.set()
        assert dispatcher.join(time.monotonic() + 20)
    assert len(set(sent)) == client.zcard("events:acme") == 40


def test_maintenance_sees_whether_another_process_has_found_room(shard: Shard, client: redis.Redis) -> None:
    dispatcher, metrics, _ = relaying(shard)
    (relay,) = dispatcher.lanes
    for waiting in ("5", ""):
        client.hset("sweeperd:relay", "waiting", waiting)
        relay.brake.hold()
        dispatcher.maintain()
        assert (waits(metrics), relay.brake.waiting) == (bool(waiting), bool(waiting))


def test_without_a_limit_the_note_of_a_time_with_one_goes(shard: Shard, client: redis.Redis) -> None:
    client.hset("sweeperd:relay", "waiting", "5")
    dispatcher, metrics, _ = relaying(shard, limit=0)
    dispatcher.maintain()
    assert waits(metrics) == 0
    assert client.hget("sweeperd:relay", "waiting") == b""


# ---- a daemon


def test_a_reload_keeps_the_positions_of_the_groups(shard: Shard, client: redis.Redis) -> None:
    """The positions count also if groups and notes are lost before the new dispatcher has looked at either."""
    before = Delivery(shard, NOWHERE, 2, {})
    (event,) = expire(client, "one")
    settings = Settings.model_validate({"webhooks": {"endpoints": [{"name": "hook", "url": NOWHERE}]}})
    after = Dispatcher(ShardContext(settings, shard, Metrics(), threading.Event(), 2))
    after.adopt(before.dispatcher)
    client.xgroup_destroy(EVENTS, "hook")
    client.delete("sweeperd:groups")
    after.prepare()
    assert [entry.id for entry in Outbox(shard, "test").read("hook", 10)] == [event]


@pytest.mark.parametrize("handed_over", [False, True])
def test_close_closes_the_connections_unless_another_dispatcher_has_them(
    shard: Shard, client: redis.Redis, handed_over: bool
) -> None:
    dispatcher = Delivery(shard, NOWHERE, 1, {}).dispatcher
    own = dispatcher._shard.client.client_id()
    dispatcher._handed_over = handed_over
    dispatcher.close()
    eventually(lambda: (own in {int(row["id"]) for row in client.client_list()}) is handed_over)


def test_maintenance_closes_connections_that_receivers_have_closed(shard: Shard) -> None:
    dispatcher, tidied = Delivery(shard, NOWHERE, 1, {}).dispatcher, list[bool]()
    dispatcher.lanes[0].sender.tidy = lambda: tidied.append(True)  # type: ignore[method-assign]
    dispatcher.maintain()
    assert tidied


def test_a_stop_ends_the_waits_of_endpoints_and_replays(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3)
    EndpointStateStore(shard).pause("hook", "moving house")
    with deliver(NOWHERE, timing=Timing(refresh_every=60, block=0.1), **LONG) as delivery:
        begin(shard, now - 2 * HOUR, now)
        delivery.dispatcher.refresh_replays()
        (live,), (replay,) = delivery.dispatcher.lanes, delivery.dispatcher._replays.lanes
        eventually(lambda: live.resting and replay.resting)
        delivery.stop.set()
        assert delivery.dispatcher.join(time.monotonic() + 20)


def test_a_join_ends_at_its_deadline_and_what_is_in_flight_stays_its_own(client: redis.Redis, deliver: Deliver) -> None:
    answered = threading.Event()
    with (
        Receiver(answering_after(answered)) as receiver,
        deliver(receiver.url, timeout="60s") as delivery,
        at_the_end(answered),
    ):
        assert delivery.dispatcher.complete
        expire(client, "slow")
        receiver.wait_for(lambda requests: len(requests) == 1)
        delivery.stop.set()
        assert not delivery.dispatcher.join(time.monotonic() + 0.1)
        assert len(delivery.pending()) == 1
        answered.set()
        assert delivery.dispatcher.join(time.monotonic() + 20)
        assert not delivery.pending()


def test_two_batches_for_each_request_are_in_hand(client: redis.Redis, deliver: Deliver) -> None:
    answered, most = threading.Event(), 2 * 2 * 3
    endpoint = {"batch_size": 3, "batch_wait": "10ms"}
    with (
        Receiver(answering_after(answered)) as receiver,
        deliver(receiver.url, 2, endpoint, timeout="60s") as delivery,
        at_the_end(answered),
    ):
        expire(client, *map(str, range(4 * most)))
        eventually(lambda: len(delivery.pending()) == most)
        receiver.wait_for(lambda requests: len(requests) == 2)
        assert len(delivery.pending()) == most


def test_an_endpoint_that_rested_gets_its_part_of_the_requests(shard: Shard, client: redis.Redis) -> None:
    """Though another one has all of them, and none of its requests ends."""
    stop, answered, state = threading.Event(), threading.Event(), EndpointStateStore(shard)
    with Receiver(answering_after(answered)) as receiver:
        endpoints = [{"name": name, "url": f"{receiver.url}?{name}"} for name in ("hook", "paused")]
        webhooks = {"endpoints": endpoints, "timeout": "60s", "redelivery_initial": "200ms"}
        settings = Settings.model_validate({"webhooks": webhooks})
        dispatcher = Dispatcher(ShardContext(settings, shard, Metrics(), stop, concurrency=4, timing=QUICK))
        dispatcher.prepare()
        state.pause("paused", "moving house")
        dispatcher.start()
        try:
            eventually(lambda: dispatcher.lanes[1].resting)
            expire(client, *map(str, range(40)))
            eventually(lambda: client.xpending(EVENTS, "hook")["pending"] == 2 * 4)
            receiver.wait_for(lambda requests: len(requests) == 4)
            state.resume("paused")
            eventually(lambda: client.xpending(EVENTS, "paused")["pending"] >= 2 * 2)
            receiver.wait_for(lambda requests: len(requests) >= 4 + 2)
            seen = Counter(each.path.partition("?")[2] for each in receiver.requests)
            assert seen["hook"] == 4
            assert 2 <= seen["paused"] <= 4
        finally:
            answered.set()
            stop.set()
            assert dispatcher.join(time.monotonic() + 20)


@pytest.mark.parametrize("held_up", [{}, {"max_rate": 0.01}])
def test_endpoints_that_are_held_up_lessen_nobodys_part(
    shard: Shard, client: redis.Redis, held_up: dict[str, Any]
) -> None:
    """Whether their receivers hang, or they wait for `max_rate`: another one has several requests in flight."""
    stop, answered, several, three = threading.Event(), threading.Event(), threading.Event(), threading.Semaphore(3)

    def answer(request: Request, _: int) -> Answer:
        if request.path.endswith("?busy"):
            if not three.acquire(blocking=False):
                several.set()
                return Answer()
            several.wait(0.5)  # on a busy machine all three may count as slow before the fourth begins
            three.release()
        elif not held_up:
            answered.wait(60)
        return Answer()

    with Receiver(answer) as receiver, at_the_end(answered):
        others = [{"name": f"other{n}", "url": f"{receiver.url}?other", "tenants": ["slow"]} for n in range(8)]
        busy = {"name": "busy", "url": f"{receiver.url}?busy", "tenants": ["quick"]}
        webhooks = {"endpoints": [busy, *(other | held_up for other in others)], "timeout": "60s"}
        settings = Settings.model_validate({"webhooks": webhooks})
        dispatcher = Dispatcher(ShardContext(settings, shard, Metrics(), stop, concurrency=8, timing=QUICK))
        dispatcher.prepare()
        dispatcher.start()
        try:
            # Of the second one each of them waits for `max_rate`.
            expire(client, "first", *(["second"] if held_up else []), tenant="slow")
            receiver.wait_for(lambda requests: len(requests) == len(others))
            expire(client, *map(str, range(300)), tenant="quick")
            assert several.wait(30)
        finally:
            several.set()
            answered.set()
            stop.set()
            assert dispatcher.join(time.monotonic() + 20)


def test_what_half_of_the_connections_have_sent_is_acknowledged_in_one_go(
    client: redis.Redis, deliver: Deliver
) -> None:
    """And an event waits no longer for others than until so many have come."""
    with Receiver() as receiver, deliver(receiver.url, 4, timing=Timing(gather_settlements=60, block=0.05)) as delivery:
        client.config_resetstat()
        expire(client, "one", "two")
        eventually(lambda: delivery.dispatcher.report().delivered == 2)
        assert client.info("commandstats")["cmdstat_xack"]["calls"] == 1


def test_the_end_closes_the_connections(client: redis.Redis, deliver: Deliver) -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (url, connections):
        with deliver(url) as delivery:
            expire(client, "one")
            eventually(lambda: delivery.attempts("delivered") == 1)
            (connection,) = connections
            assert connection.fileno() >= 0, "it is kept for the next request"
        eventually(lambda: connection.fileno() < 0)


def test_an_endpoint_rests_while_its_circuit_is_open(shard: Shard, client: redis.Redis) -> None:
    (endpoint,) = Delivery(shard, NOWHERE, 2, {}).dispatcher.lanes
    assert (endpoint.resting, endpoint.condition) == (False, "delivering")
    while not endpoint.circuit.failed(b"1-1", "HTTP 500"):
        pass
    assert (endpoint.resting, endpoint.condition) == (True, "open")


def test_a_muted_endpoint_is_counted_as_muted(shard: Shard, client: redis.Redis) -> None:
    delivery = Delivery(shard, NOWHERE, 2, {})
    EndpointStateStore(shard).mute("hook", 600)
    lane = delivery.dispatcher.lanes[0]
    lane.state.learn(client.hget("sweeperd:endpoints", "hook"), lane.state.changes)  # type: ignore[arg-type]
    delivery.dispatcher.maintain()
    assert delivery.sample("sweeperd_endpoint_state", state="muted") == 1
    assert delivery.sample("sweeperd_endpoint_state", state="delivering") == 0


def test_each_look_for_replays_reads_the_clock_of_redis(shard: Shard, client: redis.Redis) -> None:
    """Where Redis's clock was set, a mute ends by the new time."""
    delivery = Delivery(shard, NOWHERE, 2, {})
    shard.clock.set(1)
    delivery.dispatcher.refresh_replays()
    assert shard.clock.now_ms() == pytest.approx(server_time(client), abs=20_000)


# ---- maintenance


def test_the_groups_of_other_programs_are_measured(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    events = {"groups": ["warehouse"], "group_max_age": "40d"}
    settings = Settings.model_validate({"events": events})
    metrics = Metrics()
    dispatcher = Dispatcher(ShardContext(settings, shard, metrics, threading.Event(), 2))
    labels = {"shard": shard.name, "group": "warehouse"}
    client.xgroup_create(EVENTS, "warehouse", id="0", mkstream=True)
    add(client, server_time(client) - 35 * 24 * HOUR, 300)
    dispatcher.maintain()
    assert client.xlen(EVENTS) == 300, "older than events.retention"
    age = metrics.registry.get_sample_value("sweeperd_stream_group_oldest_seconds", labels)
    assert age is not None
    assert 34.9 < age / 86_400 < 35.1
    assert metrics.registry.get_sample_value("sweeperd_stream_group_trimmed_total", labels) == 0
    client.flushdb()
    client.xgroup_create(EVENTS, "warehouse", id="0", mkstream=True)
    add(client, server_time(client) - 45 * 24 * HOUR, 300)
    dispatcher.maintain()
    gone = 300 - client.xlen(EVENTS)
    assert gone > 0
    assert metrics.registry.get_sample_value("sweeperd_stream_group_trimmed_total", labels) == gone
    (warning,) = [record for record in caplog.records if "has not read" in record.message]
    assert (vars(warning)["group"], vars(warning)["events"]) == ("warehouse", gone)


@pytest.mark.parametrize("own", [[], [{"name": "other", "url": NOWHERE}]], ids=["no endpoint", "another endpoint"])
def test_a_process_without_an_endpoint_keeps_what_the_endpoint_has_not_read(
    own: list[dict[str, str]], shard: Shard, client: redis.Redis
) -> None:
    """While another process has it: settings may differ, and a pause may be longer than `max_age`."""
    settings = Settings.model_validate({"webhooks": {"endpoints": own}})

    def maintained() -> int:
        lacks_it = Dispatcher(ShardContext(settings, shard, Metrics(), threading.Event(), 2))
        lacks_it.prepare()
        lacks_it.maintain()
        return int(client.xlen(EVENTS))

    Delivery(shard, NOWHERE, 2, {}).dispatcher.prepare()
    add(client, server_time(client) - 35 * 24 * HOUR, 300)
    assert maintained() == 300
    if own:
        client.delete("sweeperd:filters")
    else:
        client.hset("sweeperd:filters", "answered", f"1 {server_time(client) - 73 * HOUR}")
    assert maintained() < 300, "nobody has it any more"


def test_maintenance(shard: Shard, client: redis.Redis) -> None:
    """Old events, silent consumers and notes of dead processes go; what waits is measured, by Redis's clock."""
    delivery = Delivery(shard, NOWHERE, 2, {}, timing=Timing(take_over_after=-1), until_idle=True)
    add(client, server_time(client) - 1000 * 24 * HOUR, 300)
    outbox = Outbox(shard, "dead")
    outbox.acknowledge("hook", [entry.id for entry in outbox.read("hook", 1000)])
    client.hset("sweeperd:circuits", "hook@dead", "{}")
    expire(client, "waiting", "too")
    for name in ("hook", "hook", "other"):
        client.xadd("sweeperd:dead-letters", {"endpoint": name})
    shard.clock.set(1)
    delivery.dispatcher.maintain()
    assert client.xlen(EVENTS) < 300
    assert not client.xinfo_consumers(EVENTS, "hook")
    assert not client.exists("sweeperd:circuits")
    assert delivery.sample("sweeperd_webhook_pending_events") == 2
    assert delivery.sample("sweeperd_webhook_dead_letters_present") == 2
    assert 0 <= delivery.sample("sweeperd_webhook_oldest_pending_seconds") < 60
    assert delivery.sample("sweeperd_endpoint_state", state="delivering") == 1
    EndpointStateStore(shard).pause("hook", "moving house")
    delivery.dispatcher.start()
    assert delivery.dispatcher.join(time.monotonic() + 20)
    delivery.dispatcher.maintain()
    assert delivery.sample("sweeperd_endpoint_state", state="paused") == 1


def test_where_redis_refuses_maintenance_what_waits_is_measured_all_the_same(own_shard: Shard) -> None:
    delivery = Delivery(own_shard, NOWHERE, 2, {})
    expire(own_shard.client, "waiting")
    own_shard.client.acl_setuser("default", commands=["-xtrim"])
    with pytest.raises(RedisUnavailable, match="XTRIM"):
        delivery.dispatcher.maintain()
    assert delivery.sample("sweeperd_webhook_pending_events") == 1


@pytest.mark.parametrize("note", [b"nonsense", b'"last":"2-b"'])
def test_the_note_of_a_replay_that_cannot_be_read_stops_nothing(
    client: redis.Redis, deliver: Deliver, caplog: pytest.LogCaptureFixture, note: bytes
) -> None:
    told = "the note of a replay cannot be read; `sweeperd replay --cancel` removes it"
    whole = b'{"endpoint":"hook","since_ms":0,"until_ms":9,"first":"1-1","last":"2-1","events":1,"marks":[],%b}'
    client.hset("sweeperd:groups", "_replay.hook", whole % note if b":" in note else note)
    with Receiver() as receiver, deliver(receiver.url) as delivery:
        delivery.dispatcher.refresh_replays()
        delivery.dispatcher.refresh_replays()
        expire(client, "one")
        eventually(lambda: delivery.attempts("delivered") == 1)
    assert caplog.messages.count(told) == 1
    assert client.hexists("sweeperd:groups", "_replay.hook"), "an operator may mend the field"
