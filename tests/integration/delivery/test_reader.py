"""The reader of an endpoint: heartbeats, parked events, faults, and how soon it notices what is written in Redis."""

import json
import threading
import time
from collections import Counter
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import DEFAULT_TIMING, ShardContext, Timing
from sweeperd.delivery import circuit
from sweeperd.delivery.circuit import Redelivery
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.delivery.in_flight import InFlight
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.scan import PAGES_PER_STEP, DueScan
from sweeperd.metrics import Metrics
from sweeperd.outbox import PAGE, PARKED, PARKED_ALONE, EndpointStateStore, EventEncoder, Pending
from sweeperd.store import Shard
from sweeperd.store.operations import run
from tests.support.builders import make_lane
from tests.support.deliveries import EVENTS, Deliver, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver, Request


def test_events_in_hand_have_a_heartbeat(client: redis.Redis, deliver: Deliver) -> None:
    """Without one, another replica would take them after a while and send them again."""
    timing = Timing(heartbeat_every=0.1, block=0.1)
    with (
        Receiver(lambda *_: Answer(delay=2.5)) as receiver,
        deliver(receiver.url, timeout="10s", timing=timing) as delivery,
    ):
        expire(client, "slow")
        receiver.wait_for(lambda requests: len(requests) == 1)
        idle = []
        until = time.monotonic() + 2
        while time.monotonic() < until:
            idle += [idle_ms for _, _, idle_ms in delivery.pending().values()]
            time.sleep(0.02)
        assert len(idle) > 0
        assert max(idle) < 1500
        settled(delivery)
    assert len(receiver.requests) == 1


def test_the_heartbeat_goes_on_while_the_last_requests_end(client: redis.Redis, deliver: Deliver) -> None:
    idle = [0]

    def refreshed() -> bool:
        """Whether the event in hand is idle for a shorter time than when it was looked at before."""
        ((_, _, idle_ms),) = delivery.pending().values()
        idle.append(idle_ms)
        return idle[-1] < idle[-2]

    answered = threading.Event()

    def answer(*_: object) -> Answer:
        answered.wait(30)
        return Answer()

    with (
        Receiver(answer) as receiver,
        deliver(receiver.url, timeout="60s", timing=Timing(heartbeat_every=0.1)) as delivery,
    ):
        expire(client, "slow")
        receiver.wait_for(lambda requests: len(requests) == 1)
        delivery.stop.set()
        eventually(refreshed)
        eventually(refreshed)
        answered.set()
        settled(delivery)


def test_events_in_hand_are_not_taken_again(client: redis.Redis, deliver: Deliver) -> None:
    """Not even where the heartbeat is late: the process knows what it has in hand."""
    timing = Timing(take_over_after=0.2, heartbeat_every=60)
    with (
        Receiver(lambda *_: Answer(delay=1.5)) as receiver,
        deliver(receiver.url, 2, timeout="10s", timing=timing) as delivery,
    ):
        expire(client, "slow")
        receiver.wait_for(lambda requests: len(requests) == 1)
        expire(client, "next")  # ends the wait for new events
        eventually(lambda: delivery.attempts("delivered") == 2)
        settled(delivery)
    assert len(receiver.requests) == 2


def test_what_is_parked_while_a_heartbeat_is_under_way_waits_for_its_next_delivery(
    client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A fifth of the events is refused. Were one of them taken back by a heartbeat, it would be in the hands of a process
    that knows nothing of it, and would be sent again as that of a dead process, long before its wait is over.
    """
    timing = Timing(heartbeat_every=0.0, block=0.02, take_over_after=0.5)
    monkeypatch.setattr(circuit, "REFUSED_TO_FAIL", 10**6)  # the circuit stays closed
    listed = InFlight.ids

    def slowly(in_flight: InFlight) -> list[bytes]:
        ids = listed(in_flight)
        time.sleep(0.01)  # the process is busy, and the list grows old
        return ids

    monkeypatch.setattr(InFlight, "ids", slowly)

    def poisoned(request: Request, _: int) -> Answer:
        bad = [event for event in json.loads(request.body) if event["data"]["reservation_id"].startswith("bad")]
        return Answer(422 if bad else 200)

    waits: dict[str, Any] = {"redelivery_initial": "1h", "redelivery_max": "1h", "timing": timing}
    with Receiver(poisoned) as receiver, deliver(receiver.url, 4, {"batch_size": 20}, **waits) as delivery:
        expire(client, *(f"{'good' if number % 5 else 'bad'} {number}" for number in range(200)))
        eventually(lambda: delivery.events("delivered") == 160)
        once_each = [(PARKED_ALONE, 1)] * 40
        eventually(lambda: [row[:2] for row in delivery.pending().values()] == once_each)
        until = time.monotonic() + 2 * 0.5 + 1
        while time.monotonic() < until:
            assert [row[:2] for row in delivery.pending().values()] == once_each
            time.sleep(0.05)
        refused_alone = [len(json.loads(request.body)) == 1 and b"bad" in request.body for request in receiver.requests]
        assert sum(refused_alone) == 40


def test_an_event_that_cannot_be_encoded_waits_for_its_next_time(
    client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of sweeperd's own: the circuit does not move, and the event is parked."""

    def broken(*_: object) -> None:
        raise AssertionError

    with Receiver() as receiver, deliver(receiver.url, redelivery_initial="300ms", redelivery_max="300ms") as delivery:
        monkeypatch.setattr(EventEncoder, "__call__", broken)
        expire(client, "odd")
        eventually(lambda: [owner for owner, _, _ in delivery.pending().values()] == [PARKED])
        assert (delivery.attempts("failed"), delivery.dispatcher.lanes[0].circuit.failures) == (0, 0)
        monkeypatch.undo()
        eventually(lambda: delivery.attempts("delivered") == 1)
        settled(delivery)


def test_an_event_that_can_never_be_encoded_becomes_a_dead_letter(
    client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(EventEncoder, "__call__", broken)
    with deliver("http://127.0.0.1:9/", endpoint={"max_age": "600ms"}) as delivery:
        expire(client, "odd")
        eventually(lambda: delivery.dead_letters() == 1)
        settled(delivery)


def test_retry_after_is_capped_by_max_age(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    with Receiver(lambda *_: Answer(503, {"Retry-After": "99999999"})) as receiver, deliver(receiver.url, max_age="5s"):
        expire(client, "one")
        state = EndpointStateStore(shard)
        eventually(lambda: state.read("hook").muted_until)
        assert state.read("hook").muted_until <= shard.read_clock() + 5000


def test_other_events_wait_too_while_a_quick_retry_waits(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    """Twenty seconds are less than `backoff_max`, so the first event stays in hand for a quick retry."""
    with (
        Receiver(lambda *_: Answer(429, {"Retry-After": "20"})) as receiver,
        deliver(receiver.url, attempts=3) as delivery,
    ):
        expire(client, "one")
        eventually(lambda: delivery.attempts("rejected") == 1)
        expire(client, "two")
        time.sleep(0.5)
        assert len(receiver.requests) == len(delivery.pending()) == 1, "the other one is not even taken"


def test_a_shorter_retry_after_does_not_end_a_longer_one(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    """Two requests are in flight; the one that is answered later asks for a second only."""
    both, state = threading.Barrier(2), EndpointStateStore(shard)

    def later(request: Request, _: int) -> Answer:
        both.wait(20)
        if request.event["data"]["reservation_id"] == "long":
            return Answer(503, {"Retry-After": "600"})
        eventually(lambda: state.read("hook").muted_until)
        return Answer(503, {"Retry-After": "1"})

    with Receiver(later) as receiver, deliver(receiver.url, 2) as delivery:
        expire(client, "long", "short")
        eventually(lambda: delivery.attempts("failed") == 2)
        eventually(lambda: [owner for owner, _, _ in delivery.pending().values()] == [PARKED] * 2)
        assert state.read("hook").muted_until > shard.read_clock() + 500_000
        assert delivery.dispatcher.lanes[0].resting


def test_a_pause_is_noticed_within_seconds_however_long_the_waits(
    client: redis.Redis, shard: Shard, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as receiver, deliver(receiver.url, redelivery_initial="72h", redelivery_max="72h"):
        EndpointStateStore(shard).pause("hook", "moving house")
        eventually(lambda: "the endpoint is paused; its events wait" in caplog.text, limit=8)


def test_a_pause_and_its_end_are_logged_once(
    client: redis.Redis, shard: Shard, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    state = EndpointStateStore(shard)
    told = ["the endpoint is paused; its events wait", "the endpoint is resumed"]

    def logged() -> list[str]:
        return [message for message in caplog.messages if message in told]

    with Receiver() as receiver, deliver(receiver.url) as delivery:
        expire(client, "before")
        eventually(lambda: delivery.attempts("delivered") == 1)
        assert logged() == []
        state.pause("hook", "moving house")
        eventually(lambda: logged() == told[:1])
        state.resume("hook")
        eventually(lambda: logged() == told)


# ---- parked events


def parked(client: redis.Redis, count: int, idle_ms: int = 0) -> list[bytes]:
    """Events of the group `hook` that were delivered in vain ten times."""
    client.xgroup_create(EVENTS, "hook", "$", mkstream=True)
    ids = expire(client, *map(str, range(count)))
    client.xreadgroup("hook", "dead", {EVENTS: ">"}, count=count)
    for start in range(0, count, 1000):
        part: Any = ids[start : start + 1000]
        client.xclaim(EVENTS, "hook", PARKED.decode(), 0, part, idle=idle_ms, retrycount=10, justid=True)
    return ids


class Scan(DueScan):
    """Each step runs alone."""

    def __init__(self, lane: Lane) -> None:
        super().__init__(lane)
        self._client = lane.shard.client

    def found_by_step(self, count: int) -> list[Pending]:
        return run(self._client, self.step(count))


def scan(shard: Shard, longest: float = 3600) -> Scan:
    return Scan(make_lane(shard, redelivery=Redelivery(30, longest, 10**9)))


def test_a_step_over_parked_events_is_bounded_and_the_next_goes_on(shard: Shard, client: redis.Redis) -> None:
    per_step = PAGE * PAGES_PER_STEP
    ids = parked(client, 2 * per_step + 10)
    last: Any = ids[-1:]
    client.xclaim(EVENTS, "hook", PARKED.decode(), 0, last, idle=10**8, retrycount=10, justid=True)
    client.config_resetstat()
    steps = scan(shard)
    for _ in range(2):
        assert steps.found_by_step(100) == []
        assert not steps.at_start
    calls = client.info("commandstats")["cmdstat_xpending"]["calls"]
    assert calls == 2 * PAGES_PER_STEP
    assert [pending.id for pending in steps.found_by_step(100)] == last
    assert steps.at_start


def test_a_step_that_found_enough_goes_on_after_the_last(shard: Shard, client: redis.Redis) -> None:
    ids = parked(client, 25, idle_ms=10**8)
    steps = scan(shard)
    found = [steps.found_by_step(10) for _ in range(3)]
    assert [pending.id for page in found for pending in page] == ids


def test_what_was_parked_before_the_process_learnt_that_an_operator_ended_all_waits_is_due(
    shard: Shard, client: redis.Redis
) -> None:
    """It was sent before the receiver was back, and would wait for an hour."""
    ids = parked(client, 2, idle_ms=20_000)
    steps = scan(shard)
    assert steps.found_by_step(10) == []
    steps.end_waits()
    later: Any = ids[1:]
    client.xclaim(EVENTS, "hook", PARKED.decode(), 0, later, idle=0, retrycount=10, justid=True)
    assert [pending.id for pending in steps.found_by_step(10)] == ids[:1], "no event that is sent after that in vain"


def test_new_events_are_not_held_up_by_due_ones(client: redis.Redis, deliver: Deliver) -> None:
    parked(client, 3000, idle_ms=10**8)
    with Receiver(lambda *_: Answer(delay=0.01)) as receiver, deliver(receiver.url, 4) as delivery:
        receiver.wait_for(lambda requests: len(requests) > 20)
        expire(client, "new")
        before = len(receiver.requests)
        requests = receiver.wait_for(
            lambda requests: any(request.event["data"]["reservation_id"] == "new" for request in requests)
        )
        assert len(requests) - before < 500
        assert len(delivery.pending()) > 1000


# ---- a run that ends when nothing is left


def test_a_run_does_not_wait_for_another_process_where_the_endpoint_rests(client: redis.Redis, shard: Shard) -> None:
    with Receiver() as receiver:
        settings = Settings.model_validate({"webhooks": {"endpoints": [{"name": "hook", "url": receiver.url}]}})
        dispatcher = Dispatcher(
            ShardContext(settings, shard, Metrics(), threading.Event(), concurrency=2, until_idle=True)
        )
        dispatcher.prepare()
        expire(client, "one")
        client.xreadgroup("hook", "another", {EVENTS: ">"})  # it has the event in hand
        EndpointStateStore(shard).pause("hook", "moving house")
        dispatcher.start()
        # To wait for the other process takes longer than DEFAULT_TIMING.take_over_after.
        assert dispatcher.join(time.monotonic() + DEFAULT_TIMING.take_over_after - 5)
        assert not receiver.requests


# ---- connections


def test_all_requests_are_for_endpoints_that_have_events(client: redis.Redis, shard: Shard) -> None:
    """One of two is paused: the other has all of them, and shares them again."""
    at_once = Counter[str]()
    lock = threading.Lock()

    def behaviour(*_: object) -> Answer:
        with lock:
            at_once["now"] += 1
            at_once["most"] = max(at_once["most"], at_once["now"])
        time.sleep(0.02)
        with lock:
            at_once["now"] -= 1
        return Answer()

    with Receiver(behaviour) as receiver:
        endpoints = [{"name": name, "url": receiver.url} for name in ("hook", "paused")]
        stop = threading.Event()
        settings = Settings.model_validate({"webhooks": {"endpoints": endpoints}})
        dispatcher = Dispatcher(ShardContext(settings, shard, Metrics(), stop, concurrency=8))
        dispatcher.prepare()
        EndpointStateStore(shard).pause("paused", "moving house")
        dispatcher.start()
        try:
            eventually(lambda: dispatcher.lanes[1].resting)
            expire(client, *map(str, range(40)))
            receiver.wait_for(lambda requests: len(requests) >= 40)
            expire(client, *map(str, range(40, 140)))
            receiver.wait_for(lambda requests: len(requests) >= 140)
            assert at_once["most"] == 8
            assert dispatcher.complete
            EndpointStateStore(shard).resume("paused")
            eventually(lambda: not dispatcher.lanes[1].resting, limit=10)
            receiver.wait_for(lambda requests: len(requests) >= 280)
            at_once["most"] = 0
            eventually(lambda: not client.xpending(EVENTS, "hook")["pending"])
            expire(client, *map(str, range(140, 180)))
            receiver.wait_for(lambda requests: len(requests) >= 360)
            assert at_once["most"] <= 8
        finally:
            stop.set()
            assert dispatcher.join(time.monotonic() + 20)
