"""The heartbeat vouches for events that move, not for a process that lives."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.context import Timing
from sweeperd.delivery import lane
from sweeperd.delivery.http import Transport
from sweeperd.store import Shard
from tests.support.deliveries import Deliver, Delivery, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver

QUICK = Timing(block=0.05, take_over_after=1.0, heartbeat_every=0.1, refresh_every=0.2)
SHORT: dict[str, Any] = {"connect_timeout": "100ms", "timeout": "100ms", "attempts": 1, "timing": QUICK}


@pytest.fixture(autouse=True)
def _soon_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "LATE", 0.5)


class Hanging:
    """The first requests hang, as in a name server, whatever their deadline."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.ended = threading.Event()
        self.hanging = 0
        send = Transport.send

        def hang(transport: Transport, request: Any) -> Any:
            if self.hanging < count:
                self.hanging += 1
                self.ended.wait(60)
            return send(transport, request)

        monkeypatch.setattr(Transport, "send", hang)


@contextlib.contextmanager
def another(shard: Shard, url: str) -> Iterator[Delivery]:
    """A second process."""
    twin = shard.twin()
    delivery = Delivery(twin, url, 2, {}, **SHORT)
    delivery.dispatcher.start()
    try:
        yield delivery
    finally:
        delivery.stop.set()
        assert delivery.dispatcher.join(time.monotonic() + 20)
        twin.close()


@pytest.mark.parametrize("count", [1, 2], ids=["one of two senders", "each sender"])
def test_what_a_hanging_sender_has_in_hand_is_taken_over(
    count: int, shard: Shard, client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(monkeypatch, count)
    with Receiver() as receiver, deliver(receiver.url, 2, **SHORT) as delivery:
        try:
            expire(client, *map(str, range(4)))
            eventually(lambda: hanging.hanging == count)
            eventually(lambda: delivery.dispatcher.stuck == ["send thread of hook"])
            with another(shard, receiver.url) as other:
                settled(other)
                assert other.attempts("delivered") >= count
                assert other.dispatcher.stuck == []
            assert receiver.event_ids == {request.event_id for request in receiver.requests}
            assert len(receiver.event_ids) == 4
        finally:
            hanging.ended.set()
    assert delivery.dispatcher.stuck == []


def test_what_waits_for_max_rate_is_vouched_for(client: redis.Redis, deliver: Deliver) -> None:
    with Receiver() as receiver, deliver(receiver.url, 2, {"max_rate": 0.8}, **SHORT) as delivery:
        expire(client, "one", "two")
        receiver.wait_for(lambda requests: len(requests) == 1)
        until = time.monotonic() + 2 * lane.LATE
        while time.monotonic() < until:
            assert delivery.dispatcher.stuck == []
            time.sleep(0.05)
        receiver.wait_for(lambda requests: len(requests) == 2)
        settled(delivery)


def test_a_slow_request_is_no_silence(client: redis.Redis, deliver: Deliver) -> None:
    """It goes on for longer than LATE; neither it nor what is queued behind it is left without a heartbeat."""
    answered = threading.Event()

    def answer(*_: object) -> Answer:
        answered.wait(30)
        return Answer()

    with Receiver(answer) as receiver, deliver(receiver.url, 1, **SHORT | {"timeout": "60s"}) as delivery:
        expire(client, "slow", "queued")
        receiver.wait_for(lambda requests: len(requests) == 1)
        began, idle = time.monotonic(), [0]

        def refreshed() -> bool:
            """Whether both are idle for a shorter time than when they were looked at before."""
            assert delivery.dispatcher.stuck == []
            idle.append(max(idle for *_, idle in delivery.pending().values()))
            return idle[-1] < idle[-2]

        while time.monotonic() < began + 2 * lane.LATE:
            eventually(refreshed, pause=0.05)
        answered.set()
        settled(delivery)
    assert len(receiver.requests) == 2
