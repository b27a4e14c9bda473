"""Batches: how they are gathered and ordered, how large they are, and what follows where one is not accepted."""

import json
import math
import time
from typing import Any

import redis

from sweeperd.delivery import circuit
from sweeperd.outbox import PARKED, PARKED_ALONE
from tests.support.deliveries import Deliver, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Behaviour, Receiver, Request


def names(request: Request) -> list[str]:
    """The reservations in a request, in order."""
    events: list[dict[str, Any]] = json.loads(request.body)
    return [event["data"]["reservation_id"] for event in events]


def poisoned(status: int) -> Behaviour:
    """Refuses each request with an event named `bad…`."""
    return lambda request, _: Answer(status if any(name.startswith("bad") for name in names(request)) else 200)


def many(count: int) -> list[str]:
    return [f"id {number:04}" for number in range(count)]


def test_full_batches_in_the_order_of_the_stream(client: redis.Redis, deliver: Deliver) -> None:
    with Receiver() as receiver, deliver(receiver.url, 4, {"batch_size": 100}) as delivery:
        expire(client, *many(1000))
        eventually(lambda: delivery.events("delivered") == 1000)
        settled(delivery)
        assert delivery.attempts("delivered") == len(receiver.requests) <= 30
        sent = [names(request) for request in receiver.requests]
        assert all(batch == sorted(batch) for batch in sent)
        assert sorted(name for batch in sent for name in batch) == many(1000)
        assert max(map(len, sent)) == 100


def test_a_refused_batch_is_halved_until_the_poisoned_event_is_alone(client: redis.Redis, deliver: Deliver) -> None:
    size = 64
    with (
        Receiver(poisoned(422)) as receiver,
        deliver(
            receiver.url, 2, {"batch_size": size}, attempts=3, redelivery_initial="1h", redelivery_max="1h"
        ) as delivery,
    ):
        expire(client, *many(40), "bad", *many(63)[40:])
        eventually(lambda: delivery.events("delivered") == size - 1)
        eventually(lambda: [owner for owner, _, _ in delivery.pending().values()] == [PARKED_ALONE])
        assert len(receiver.requests) - 1 <= 2 * math.log2(size)
        assert not delivery.dispatcher.lanes[0].circuit.failures


def test_a_batch_that_fails_while_the_endpoint_accepts_others_is_halved(client: redis.Redis, deliver: Deliver) -> None:
    def behaviour(request: Request, _: int) -> Answer:
        bad = "bad" in names(request)
        return Answer(500 if bad else 200, delay=0.3 if bad else 0)

    with Receiver(behaviour), Receiver(behaviour) as receiver:
        waits = {"redelivery_initial": "1h", "redelivery_max": "1h"}
        with deliver(receiver.url, 4, {"batch_size": 16, "batch_wait": "10ms"}, **waits) as delivery:
            expire(client, "bad", *many(15))
            receiver.wait_for(lambda requests: len(requests) == 1)
            until = time.monotonic() + 5
            number = 0
            while time.monotonic() < until and delivery.events("delivered") - number < 15:
                expire(client, f"other {number}")
                number += 1
                time.sleep(0.05)
            eventually(lambda: delivery.events("delivered") == 15 + number)
            eventually(lambda: len(delivery.pending()) == 1)  # an event is counted before it is acknowledged


def test_a_batch_that_fails_again_is_halved_though_nothing_else_is_sent(client: redis.Redis, deliver: Deliver) -> None:
    """Else an event at fault would take the others of its batch along, until all of them are dead letters."""
    waits = {"redelivery_initial": "20ms", "redelivery_max": "50ms", "probe_max": "50ms"}
    with (
        Receiver(poisoned(500)) as receiver,
        deliver(receiver.url, 2, {"batch_size": 64}, max_age="2s", **waits) as delivery,
    ):
        expire(client, *many(10), "bad", *many(40)[10:])
        eventually(lambda: delivery.dead_letters() == 1)
        settled(delivery)
        assert delivery.events("delivered") == 40
        assert delivery.dead_letters() == 1


def test_an_outage_does_not_turn_batches_into_single_requests(client: redis.Redis, deliver: Deliver) -> None:
    with Receiver(lambda *_: Answer(503)) as receiver:
        waits = {"redelivery_initial": "1h", "redelivery_max": "1h"}
        with deliver(receiver.url, 2, {"batch_size": 50}, **waits) as delivery:
            expire(client, *many(1000))
            eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
            eventually(lambda: all(owner == PARKED for owner, _, _ in delivery.pending().values()))
            assert len(receiver.requests) <= circuit.FAILURES_TO_OPEN + 2
            assert min(len(names(request)) for request in receiver.requests) > 1
            receiver.behaviour = lambda *_: Answer()
            delivery.dispatcher.lanes[0].circuit.close()
