"""The circuit of an endpoint in operation; `test_senders.py` and `test_reader_rounds.py` have the rules one by one."""

import pytest
import redis

from sweeperd.delivery import circuit as circuit_breaker
from sweeperd.outbox import PARKED
from tests.support.deliveries import EVENTS, Deliver, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver, Request


def name(request: Request) -> str:
    return str(request.event["data"]["reservation_id"])


def test_one_poisoned_event_holds_up_no_other(client: redis.Redis, deliver: Deliver) -> None:
    """It fails often enough to open the circuit; the next event is the next probe."""
    with (
        Receiver(lambda request, _: Answer(500 if name(request) == "bad" else 200)) as receiver,
        deliver(receiver.url, redelivery_initial="20ms", redelivery_max="40ms", max_age="1h") as delivery,
    ):
        expire(client, "bad")
        receiver.wait_for(lambda requests: len(requests) >= 6)
        good = [f"good {number}" for number in range(20)]
        expire(client, *good)
        eventually(lambda: delivery.attempts("delivered") == 20)
        assert delivery.dead_letters() == 0
        assert {name(request) for request in receiver.requests} == {"bad", *good}


@pytest.mark.parametrize("status", [404, 503])
def test_a_failure_of_the_endpoint_opens_it(status: int, client: redis.Redis, deliver: Deliver) -> None:
    with (
        Receiver(lambda *_: Answer(status)) as receiver,
        deliver(receiver.url, redelivery_initial="30s", redelivery_max="30s") as delivery,
    ):
        expire(client, *map(str, range(20)))
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
        eventually(lambda: all(owner == PARKED for owner, _, _ in delivery.pending().values()))
        assert len(receiver.requests) <= circuit_breaker.FAILURES_TO_OPEN + 2


def test_a_quick_retry_follows_when_its_own_retry_after_is_over(client: redis.Redis, deliver: Deliver) -> None:
    """The endpoint is muted as long as the retry waits, up to the error of a reading of Redis's clock."""
    asked = {"Retry-After": "1"}
    with (
        Receiver(lambda _, before: Answer(200) if before else Answer(429, asked)) as receiver,
        deliver(receiver.url, attempts=2, redelivery_initial="1h", redelivery_max="1h") as delivery,
    ):
        expire(client, "one")
        eventually(lambda: delivery.attempts("delivered") == 1)
        settled(delivery)
    assert len(receiver.requests) == 2


def test_an_odd_event_of_another_program_is_delivered(client: redis.Redis, deliver: Deliver) -> None:
    """The type and the trace of an event are headers too."""
    with Receiver() as receiver, deliver(receiver.url) as delivery:
        for odd in ("a\nb", "\u20ac"):
            client.xadd(EVENTS, {"id": odd, "type": f"{odd}.expired", "trace_id": odd})
        eventually(lambda: delivery.attempts("delivered") == 2)
        assert delivery.attempts("failed") == 0
    assert {request.event["event_type"] for request in receiver.requests} == {"a\nb.expired", "\u20ac.expired"}


# ---- a process that died with an event in hand
