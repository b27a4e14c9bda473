"""Replays: exactly the events of a span, to exactly one endpoint, again."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings, Settings
from sweeperd.context import Timing
from sweeperd.ops.endpoint_status import read_endpoints
from sweeperd.ops.endpoints import resume
from sweeperd.ops.processes import Processes
from sweeperd.outbox import CircuitStateStore, EndpointStateStore, Outbox, is_waiting
from sweeperd.outbox import replays as replay
from sweeperd.outbox.dead_letters import LetterCounts
from sweeperd.outbox.replays import (
    MARKS,
    ReplayNote,
    ReplayProgress,
    ReplaySpan,
    ReplayStore,
    replay_group,
)
from sweeperd.store import Shard, streams
from tests.support.deliveries import EVENTS, Deliver, Delivery, expire
from tests.support.harness import eventually, server_time
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server
from tests.support.streams import entries

HOUR = 3_600_000
GROUPS = "sweeperd:groups"
HOOK = EndpointSettings.model_validate({"name": "hook", "url": "http://hook.example.com/"})
ASKED = Settings.model_validate({"webhooks": {"endpoints": [HOOK]}})


def add(client: redis.Redis, at: int, count: int, name: str = "r", **fields: Any) -> list[str]:
    """Add so many events that expired at `at`, ms. Returns their reservations' ids."""
    names = [f"{name}{number}" for number in range(count)]
    with client.pipeline(transaction=False) as pipeline:
        for number, each in enumerate(names):
            entry: dict[Any, Any] = {"id": each, "tenant": "acme", "expired_at": at} | fields
            pipeline.xadd(EVENTS, entry, id=f"{at}-{number + 1}")
        pipeline.execute()
    return names


def begin(shard: Shard, since: int, until: int, endpoint: EndpointSettings = HOOK, **only: str) -> ReplayNote:
    """Count the events of a span and begin their replay."""
    result, note = replay.begin(shard, replay.count_events(shard, endpoint, ReplaySpan(since, until, **only)))
    assert result == "begun"
    return note


def seen(receiver: Receiver) -> Counter[str]:
    """How many times the receiver got each reservation's event."""
    return Counter(request.event["data"]["reservation_id"] for request in receiver.requests)


def ended(client: redis.Redis) -> bool:
    """Whether no replay has left a note or a group."""
    names: set[Any] = {*client.hkeys(GROUPS), *streams.groups(client, EVENTS.encode())}
    return not any(name.startswith(b"_replay.") for name in names)


@contextlib.contextmanager
def refreshed(*deliveries: Delivery) -> Iterator[None]:
    """While the block lasts, each of these looks for replays as the daemon does."""
    stop = threading.Event()

    def refresh() -> None:
        while not stop.wait(0.05):
            for delivery in deliveries:
                delivery.dispatcher.refresh_replays()

    thread = threading.Thread(target=refresh)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def held(delivery: Delivery) -> Iterator[None]:
    """While the block lasts, nothing is read."""
    reached, over = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        over.wait(10)

    delivery.dispatcher._engine.between_rounds(hold)
    assert reached.wait(10)
    try:
        yield
    finally:
        over.set()


def test_exactly_the_events_of_the_span_come_again(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    """By their time, not by their id; with the same webhook-id; and a replay that has ended leaves no mark."""
    now = server_time(client)
    with Receiver() as receiver, deliver(receiver.url, 4, {"start": "beginning"}) as delivery, refreshed(delivery):
        add(client, now - 3 * HOUR, 3, "old")
        add(client, now - 2 * HOUR, 40, "meant")
        add(client, now - 2 * HOUR + 500, 1, "other", tenant="globex")
        add(client, now - HOUR, 3, "young")
        # its id is ahead of the clock that its expiry was taken from
        late = {"id": "late", "tenant": "acme", "expired_at": now - 2 * HOUR + 900}
        client.xadd(EVENTS, late, id=f"{now - HOUR + 5000}-1")  # type: ignore[arg-type]
        copy = {"id": "copy", "tenant": "acme", "expired_at": now - 2 * HOUR, "only_for": "hook"}
        client.xadd(EVENTS, copy, id=f"{now - HOUR + 6000}-1")  # type: ignore[arg-type]
        receiver.wait_for(lambda requests: len(requests) == 49)
        first = {request.event_id for request in receiver.requests}
        receiver.clear()
        note = begin(shard, now - 2 * HOUR, now - 2 * HOUR + 1000)
        assert note.events == 41, "the event whose id is an hour ahead is beyond what is searched"
        eventually(lambda: ended(client))
        eventually(lambda: delivery.events("delivered") == 49 + 41)
        eventually(lambda: delivery.dispatcher.report().delivered == 49 + 41)
        assert seen(receiver) == Counter([*(f"meant{number}" for number in range(40)), "other0"])
        assert {request.event_id for request in receiver.requests} < first
        receiver.clear()
        begin(shard, now - 2 * HOUR, now - 2 * HOUR + 1000, tenant="globex", event_type="reservation")
        eventually(lambda: ended(client))
        assert seen(receiver) == Counter(["other0"])


def test_a_replay_while_the_clock_is_behind_the_stream(shard: Shard, client: redis.Redis) -> None:
    """Redis's clock was set back by an hour just now, so each new id is an hour ahead."""
    now = server_time(client)
    ahead = {"id": "ahead", "tenant": "acme", "expired_at": now - 20_000}
    client.xadd(EVENTS, ahead, id=f"{now + HOUR}-1")  # type: ignore[arg-type]
    assert replay.count_events(shard, HOOK, ReplaySpan(now - 60_000, now)).events == 1


def test_an_endpoint_gets_only_what_it_asks_for(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3, "acme")
    add(client, now - HOUR + 1, 2, "globex", tenant="globex")
    add(client, now - HOUR + 2, 2, "seat", type="seat-hold.expired", kind="seat-hold")
    span = ReplaySpan(now - HOUR, now)
    assert replay.count_events(shard, HOOK, span).events == 7
    asks = HOOK.model_copy(update={"tenants": ["acme"], "events": ["reservation"]})
    assert replay.count_events(shard, asks, span).events == 3
    assert replay.count_events(shard, HOOK, ReplaySpan(now - HOUR, now, None, "seat-hold")).events == 2
    assert replay.count_events(shard, HOOK, ReplaySpan(now - HOUR + 1, now - HOUR + 2)).events == 2


def test_the_age_counts_from_the_replay_and_what_fails_is_a_dead_letter_of_the_endpoint(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    now = server_time(client)
    add(client, now - 5 * HOUR, 6)

    def refuse_one(request: Request, _before: int) -> Answer:
        return Answer(400 if request.event["data"]["reservation_id"] == "r3" else 200)

    with (
        Receiver(refuse_one) as receiver,
        deliver(receiver.url, 2, max_age="1500ms", redelivery_initial="20ms", redelivery_max="50ms") as delivery,
        refreshed(delivery),
    ):
        note = begin(shard, now - 6 * HOUR, now - 4 * HOUR)
        receiver.wait_for(lambda _: seen(receiver)["r3"] > 2)
        assert delivery.dead_letters() == 0
        eventually(lambda: ReplayStore(shard).progress(note).only_waits)
        eventually(lambda: ended(client))
        assert delivery.dead_letters() == 1
        ((_, letter),) = entries(client, "sweeperd:dead-letters")
        assert (letter[b"endpoint"], letter[b"id"]) == (b"hook", b"r3")
        assert {name: count for name, count in seen(receiver).items() if name != "r3"} == dict.fromkeys(
            (f"r{number}" for number in range(6) if number != 3), 1
        )


def test_replicas_share_a_replay_beside_the_events_of_now(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    now = server_time(client)
    names = add(client, now - HOUR, 600)
    endpoint = {"batch_size": 10, "batch_wait": "10ms"}
    with (
        Receiver(lambda *_: Answer(delay=0.005)) as receiver,
        deliver(receiver.url, 4, endpoint) as one,
        deliver(receiver.url, 4, endpoint) as two,
        refreshed(one, two),
    ):
        begin(shard, now - 2 * HOUR, now)
        expire(client, *(f"new{number}" for number in range(100)))
        eventually(lambda: ended(client))
        eventually(lambda: one.events("delivered") + two.events("delivered") == 700)
        assert min(one.events("delivered"), two.events("delivered")) > 0
        bodies: Any = [request.event for request in receiver.requests]
        got = Counter(event["data"]["reservation_id"] for body in bodies for event in body)
    assert got == Counter([*names, *(f"new{number}" for number in range(100))])


def test_a_replay_is_not_in_the_rate_of_the_live_events(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    """By the rate an operator learns when the live backlog will be empty."""
    now, rates = server_time(client), set[float]()
    add(client, now - HOUR, 20)  # before the first start
    with Receiver(lambda *_: Answer(delay=0.03)) as receiver, deliver(receiver.url) as delivery, refreshed(delivery):
        begin(shard, now - HOUR, now - HOUR + 1)
        eventually(lambda: rates.add(CircuitStateStore(shard).read("hook").rate) or ended(client), pause=0.01)
        assert len(receiver.requests) == 20
    assert rates == {0.0}


def test_a_paused_endpoint_gets_nothing_until_it_is_resumed(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    """And the trimming leaves the events of its replay alone."""
    now = server_time(client)
    add(client, now - 5 * HOUR, 300)
    EndpointStateStore(shard).pause("hook", "test")
    with Receiver() as receiver, deliver(receiver.url, 2) as delivery, refreshed(delivery):
        note = begin(shard, now - 6 * HOUR, now)
        eventually(lambda: delivery.dispatcher._replays.lanes)
        assert replay.obstacle(shard, "hook").startswith("hook is paused")
        assert Outbox(shard, "us").groups.trim(["hook", note.group], HOUR, HOUR).removed == 0
        delivery.dispatcher._retention_ms = delivery.dispatcher._max_age_ms = HOUR
        delivery.dispatcher.maintain()
        assert client.xlen(EVENTS) == 300
        time.sleep(0.2)
        assert receiver.requests == []
        assert ReplayStore(shard).progress(note).left == 300
        resume(shard, "hook")
        eventually(lambda: ended(client))
        assert len(receiver.requests) == 300
        assert Outbox(shard, "us").groups.trim(["hook"], HOUR, HOUR).removed > 0


def test_a_cancelled_replay_ends(shard: Shard, client: redis.Redis, deliver: Deliver) -> None:
    now = server_time(client)
    add(client, now - HOUR, 500)
    with Receiver(lambda *_: Answer(delay=0.05)) as receiver, deliver(receiver.url, 2) as delivery, refreshed(delivery):
        note = begin(shard, now - 2 * HOUR, now)
        receiver.wait_for(lambda requests: len(requests) > 5)
        assert replay.cancel(shard, note)
        eventually(lambda: ended(client))
        assert not replay.cancel(shard, note)
        assert len(receiver.requests) < 200
        # Nothing of it is left in the way of the next one.
        receiver.behaviour = lambda *_: Answer()
        receiver.clear()
        begin(shard, now - 2 * HOUR, now)
        eventually(lambda: ended(client))
        eventually(lambda: len(receiver.event_ids) == 500)


def test_it_is_shown_and_only_one_runs_at_a_time(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    add(client, now - HOUR, 5 * MARKS)
    note = begin(shard, now - 2 * HOUR, now)
    assert replay.begin(shard, replay.count_events(shard, HOOK, ReplaySpan(now - 2 * HOUR, now)))[0] == "running"
    (status,) = read_endpoints(ASKED, shard, now, LetterCounts(), Processes())
    assert status.replay is not None
    assert (status.replay.since, status.replay.events, status.replay.left) == (now - 2 * HOUR, 250, 250)
    outbox = Outbox(shard, "us")
    taken = outbox.read(replay_group("hook"), 100)
    assert ReplayStore(shard).progress(note) == ReplayProgress(False, 250), "they are not delivered yet"
    outbox.acknowledge(replay_group("hook"), [entry.id for entry in taken])
    (status,) = read_endpoints(ASKED, shard, now, LetterCounts(), Processes())
    assert status.replay is not None
    assert 150 <= status.replay.left <= 150 + note.every
    outbox.read(replay_group("hook"), 150)
    assert ReplayStore(shard).progress(note) == ReplayProgress(False, 150)
    store = ReplayStore(shard)
    assert store.exhausted(note)
    assert not store.end(note), "events are pending"


def test_a_group_that_is_lost_is_made_again_unless_the_replay_has_ended(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    now = server_time(client)
    add(client, now - HOUR, 60)
    with Receiver(lambda *_: Answer(delay=0.02)) as receiver, deliver(receiver.url, 2) as delivery, refreshed(delivery):
        begin(shard, now - 2 * HOUR, now)
        receiver.wait_for(lambda requests: len(requests) > 5)
        client.xgroup_destroy(EVENTS, replay_group("hook"))
        eventually(lambda: ended(client), 40)
        assert len(receiver.event_ids) == 60
        receiver.clear()
        begin(shard, now - 2 * HOUR, now)
        receiver.wait_for(lambda requests: len(requests) > 5)
        client.delete(GROUPS)
        client.xgroup_destroy(EVENTS, replay_group("hook"))
        eventually(lambda: not delivery.dispatcher._replays.lanes)
        assert ended(client)


@pytest.mark.parametrize("count", [1, 2 * MARKS + 1, 1000])
def test_how_many_are_left_is_known_to_one_mark(shard: Shard, client: redis.Redis, count: int) -> None:
    now = server_time(client)
    add(client, now - HOUR, count)
    note = begin(shard, now - 2 * HOUR, now)
    assert len(note.marks) <= 2 * MARKS
    outbox, store, taken = Outbox(shard, "us"), ReplayStore(shard), 0
    while page := outbox.read(note.group, 7):
        taken += len(page)
        position = store.position(note)
        assert position is not None
        left = note.left(position)
        assert count - taken <= left <= count - taken + note.every
    assert taken == count


# ---- what one process does with a replay, at each time that it looks


def test_what_is_left_of_a_replay_counts_until_it_is_cancelled(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    add(client, now - HOUR, 300)
    dispatcher = Delivery(shard, "http://127.0.0.1:9/hook", 2, {}).dispatcher
    note = begin(shard, now - 2 * HOUR, now)
    outbox = Outbox(shard, "us")
    taken = [entry.id for entry in outbox.read(note.group, 300)]
    assert dispatcher.report().undelivered == 300
    outbox.acknowledge(note.group, taken[:3])
    assert dispatcher.report().undelivered == 297
    client.xgroup_destroy(EVENTS, note.group)
    assert dispatcher.report().undelivered == 300, "with a new group it begins anew"
    assert ReplayStore(shard).cancel(note)
    assert dispatcher.report().undelivered == 0


@pytest.fixture
def resting(shard: Shard, deliver: Deliver) -> Iterator[Delivery]:
    """A delivery to an endpoint that is paused: its replays begin and take nothing. It looks for them when told to."""
    EndpointStateStore(shard).pause("hook", "test")
    limited, slow = {"max_rate": 100}, {"redelivery_initial": "1m", "redelivery_max": "1m"}
    with deliver("http://127.0.0.1:9/hook", endpoint=limited, **slow) as delivery:
        yield delivery


def deliver_elsewhere(shard: Shard, note: ReplayNote) -> list[str]:
    """Another process takes and acknowledges what is left of a replay. Returns the reservations' ids."""
    outbox = Outbox(shard, "another")
    entries = outbox.read(note.group, 1000)
    outbox.acknowledge(note.group, [entry.id for entry in entries])
    return [entry.fields[b"id"].decode() for entry in entries]


def test_a_replay_that_others_have_delivered_stops_here(shard: Shard, client: redis.Redis, resting: Delivery) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3)
    note = begin(shard, now - 2 * HOUR, now)
    resting.dispatcher.refresh_replays()
    running, (live,) = resting.dispatcher._replays._running["hook"], resting.dispatcher.lanes
    assert not running.lane.stop.is_set()
    assert running.lane.circuit is live.circuit
    assert running.lane.sender.limit is live.sender.limit is not None, "both share the rate"
    deliver_elsewhere(shard, note)
    resting.dispatcher.refresh_replays()
    assert ended(client)
    assert running.lane.stop.is_set()


def test_a_replay_may_end_before_the_threads_have_begun(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3)
    dispatcher = Delivery(shard, "http://127.0.0.1:9/hook", 2, {}).dispatcher
    note = begin(shard, now - 2 * HOUR, now)
    dispatcher.refresh_replays()
    deliver_elsewhere(shard, note)
    dispatcher.refresh_replays()
    dispatcher.refresh_replays()
    assert dispatcher._replays.lanes == []


def test_a_replay_that_is_cancelled_does_not_wait_for_the_next_look(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3)
    EndpointStateStore(shard).pause("hook", "test")
    rarely: dict[str, Any] = {"timing": Timing(block=0.1, refresh_every=3600.0)}
    rarely |= dict.fromkeys(("redelivery_initial", "redelivery_max"), "4h")
    with deliver("http://127.0.0.1:9/hook", **rarely) as delivery:
        note = begin(shard, now - 2 * HOUR, now)
        delivery.dispatcher.refresh_replays()
        (lane,) = delivery.dispatcher._replays.lanes
        for _ in range(2):
            taken_up = threading.Event()
            delivery.dispatcher._engine.between_rounds(taken_up.set)
            assert taken_up.wait(10)
        assert replay.cancel(shard, note)
        delivery.dispatcher.refresh_replays()
        eventually(lane.ended.is_set, 10)


def test_a_process_that_has_not_begun_a_replay_keeps_its_events(
    shard: Shard, client: redis.Redis, resting: Delivery
) -> None:
    """After a start or a reload a process trims before it has looked for replays."""
    now = server_time(client)
    add(client, now - 3 * HOUR, 300)
    another = Outbox(shard, "another")
    assert another.acknowledge("hook", [entry.id for entry in another.read("hook", 300)]) == 300
    note = begin(shard, now - 4 * HOUR, now)
    taken = another.read(note.group, 100)
    resting.dispatcher._retention_ms = resting.dispatcher._max_age_ms = HOUR
    resting.dispatcher.maintain()
    assert client.xlen(EVENTS) == 300
    assert client.xpending(EVENTS, note.group)["pending"] == len(taken) == 100
    assert len(deliver_elsewhere(shard, note)) == 200


def test_a_replay_goes_on_until_a_later_one_has_begun(shard: Shard, client: redis.Redis, resting: Delivery) -> None:
    now = server_time(client)
    add(client, now - HOUR, 3)
    note, store = begin(shard, now - 2 * HOUR, now), ReplayStore(shard)
    for _ in range(3):
        resting.dispatcher.refresh_replays()
    first = resting.dispatcher._replays._running["hook"]
    assert not first.lane.stop.is_set()
    later = note.model_copy(update={"made_at": note.made_at + 1})
    assert store.end(note, by_force=True)
    assert store.begin(later) == "begun"
    resting.dispatcher.refresh_replays()
    assert first.lane.stop.is_set()
    eventually(first.lane.ended.is_set)
    resting.dispatcher.refresh_replays()
    assert resting.dispatcher._replays._running["hook"].note == later


def test_a_process_that_missed_the_end_of_a_replay_leaves_the_next_one_whole(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    """Both have the same group, and this process would judge the events of the later one by the earlier span."""
    now = server_time(client)
    (early,) = add(client, now - 3 * HOUR, 1, "early")
    (late,), (other,) = add(client, now - HOUR, 1, "late"), add(client, now - HOUR + 1, 1, "other", tenant="globex")
    with Receiver() as receiver, deliver(receiver.url, timing=Timing(block=0.1, refresh_every=0.1)) as delivery:
        note = begin(shard, now - 2 * HOUR, now)
        with held(delivery):
            delivery.dispatcher.refresh_replays()
        (lane,) = delivery.dispatcher._replays.lanes

        def replaced() -> ReplayNote | None:
            with held(delivery):  # the lane never finds that there is no group
                return begin(shard, now - 4 * HOUR, now, tenant="acme") if ReplayStore(shard).end(note) else None

        eventually(replaced)
        eventually(lane.stop.is_set)
        with refreshed(delivery):
            eventually(lambda: ended(client))
        assert seen(receiver) == {early: 1, late: 2, other: 1}
        assert delivery.attempts("delivered") == 4


def test_a_stop_without_redis_ends_what_replays(own_server: Server, own_shard: Shard) -> None:
    client = own_shard.client
    now = server_time(client)
    add(client, now - HOUR, 3)
    EndpointStateStore(own_shard).pause("hook", "test")
    begin(own_shard, now - 2 * HOUR, now)
    delivery = Delivery(own_shard, "http://127.0.0.1:9/hook", 2, {})
    delivery.dispatcher.start()
    delivery.dispatcher.refresh_replays()
    own_server.kill()
    delivery.stop.set()
    assert delivery.dispatcher.join(time.monotonic() + 10)


def test_a_stop_waits_for_the_request_in_hand_and_leaves_the_group(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    add(client, now - HOUR, 20)
    answering = threading.Event()

    def hold(_request: Request, _before: int) -> Answer:
        answering.wait(10)
        return Answer()

    with Receiver(hold) as receiver:
        delivery = Delivery(shard, receiver.url, 2, {})
        note = begin(shard, now - 2 * HOUR, now)
        delivery.dispatcher.start()
        delivery.dispatcher.refresh_replays()
        receiver.wait_for(lambda requests: len(requests) > 0)
        delivery.stop.set()
        timer = threading.Timer(0.1, answering.set)
        timer.start()
        assert delivery.dispatcher.join(time.monotonic() + 10)
        timer.join()
        assert delivery.dispatcher._replays.lanes == []
        owners = {row["name"] for row in client.xinfo_consumers(EVENTS, note.group)}
        assert all(map(is_waiting, owners)), "the events in hand wait for another process, and this one has left"
        assert len(receiver.requests) < 20
        assert ReplayStore(shard).read("hook") == note


def test_a_group_that_is_lost_is_not_made_where_an_earlier_replay_was(
    shard: Shard, client: redis.Redis, resting: Delivery
) -> None:
    now = server_time(client)
    early, _ = add(client, now - 3 * HOUR, 2, "early"), add(client, now - HOUR, 2, "late")
    note = begin(shard, now - 2 * HOUR, now)
    resting.dispatcher.refresh_replays()
    deliver_elsewhere(shard, note)
    resting.dispatcher.refresh_replays()
    (delivery,) = resting.dispatcher._replays.lanes
    eventually(delivery.ended.is_set)
    resting.dispatcher.refresh_replays()
    assert resting.dispatcher._replays.lanes == []
    again = begin(shard, now - 4 * HOUR, now - 2 * HOUR)
    client.xgroup_destroy(EVENTS, again.group)
    resting.dispatcher.refresh_replays()
    assert deliver_elsewhere(shard, again)[:2] == early
