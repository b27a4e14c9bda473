"""The reader of an endpoint: heartbeats, parked events, faults, and how soon it notices what is written in Redis."""

import threading
import time
from typing import Any

import pytest
import redis

from sweeperd.context import Timing
from sweeperd.delivery.circuit import Redelivery
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.scan import PAGES_PER_STEP, DueScan
from sweeperd.outbox import PAGE, PARKED, EndpointStateStore, EventEncoder, Pending
from sweeperd.store import Shard
from sweeperd.store.operations import run
from tests.support.builders import make_lane
from tests.support.deliveries import EVENTS, Deliver, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver


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
        deliver(receiver.url, timeout="60s", timing=Timing(heartbeat_every=0.1, block=0.1)) as delivery,
    ):
        expire(client, "slow")
        receiver.wait_for(lambda requests: len(requests) == 1)
        delivery.stop.set()
        eventually(refreshed)
        eventually(refreshed)
        answered.set()
        settled(delivery)


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


def test_other_events_wait_too_while_a_quick_retry_waits(client: redis.Redis, shard: Shard, deliver: Deliver) -> None:
    """
    Twenty seconds are less than `backoff_max`, so the first event stays in hand for a quick retry. The other one is not
    taken; a read that was under way when the answer came gives it back unsent.
    """
    with (
        Receiver(lambda *_: Answer(429, {"Retry-After": "20"})) as receiver,
        deliver(receiver.url, attempts=3) as delivery,
    ):
        expire(client, "one")
        eventually(lambda: delivery.attempts("rejected") == 1)
        expire(client, "two")
        time.sleep(0.5)
        in_hand = [owner for owner, _, _ in delivery.pending().values() if owner != PARKED]
        assert len(receiver.requests) == len(in_hand) == 1


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
    return Scan(make_lane(shard, redelivery=Redelivery(30, longest, 10**9, 0)))


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


# ---- a run that ends when nothing is left


# ---- connections
