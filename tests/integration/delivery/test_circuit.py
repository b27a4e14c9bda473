"""The circuit of an endpoint in operation: which results move it, which event is the probe, and what is given up on."""

import itertools
from typing import Any

import pytest
import redis

from sweeperd.context import Timing
from sweeperd.delivery import circuit as circuit_breaker
from sweeperd.outbox import PARKED
from tests.support.deliveries import EVENTS, Deliver, Delivery, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Behaviour, Receiver, Request
from tests.support.streams import entries


def name(request: Request) -> str:
    return str(request.event["data"]["reservation_id"])


def poisoned(status: int) -> Behaviour:
    """Answers with this status to events named `bad…`, and takes all others."""
    return lambda request, _: Answer(status if name(request).startswith("bad") else 200)


@pytest.mark.parametrize("status", [422, 500])
def test_one_poisoned_event_holds_up_no_other(status: int, client: redis.Redis, deliver: Deliver) -> None:
    """It fails often enough to open the circuit, if it moves it; the next event is the next probe."""
    with (
        Receiver(poisoned(status)) as receiver,
        deliver(receiver.url, redelivery_max="400ms", max_age="1h") as delivery,
    ):
        expire(client, "bad")
        receiver.wait_for(lambda requests: len(requests) >= 6)
        good = [f"good {number}" for number in range(20)]
        expire(client, *good)
        eventually(lambda: delivery.attempts("delivered") == 20)
        assert delivery.dead_letters() == 0
        assert {name(request) for request in receiver.requests} == {"bad", *good}


def test_events_are_not_given_up_on_untried_while_the_circuit_rests_on_one(
    client: redis.Redis, deliver: Deliver
) -> None:
    """Probes are rare here, and `max_age` is over before the next one."""
    with Receiver(poisoned(500)) as receiver:
        with deliver(receiver.url, redelivery_initial="3s", redelivery_max="3s", max_age="1s") as delivery:
            circuit = delivery.dispatcher.lanes[0].circuit
            for _ in range(circuit_breaker.FAILURES_TO_OPEN):
                circuit.failed(b"0-1", "HTTP 500")
            assert circuit.rests_on_one_event
            expire(client, "good 1", "good 2", "good 3")
            eventually(lambda: delivery.attempts("delivered") == 3)
            settled(delivery)
            assert delivery.dead_letters() == 0


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 408, 429, 500, 503])
def test_a_failure_of_the_endpoint_opens_it(status: int, client: redis.Redis, deliver: Deliver) -> None:
    with (
        Receiver(lambda *_: Answer(status)) as receiver,
        deliver(receiver.url, redelivery_initial="30s", redelivery_max="30s") as delivery,
    ):
        expire(client, *map(str, range(20)))
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
        eventually(lambda: all(owner == PARKED for owner, _, _ in delivery.pending().values()))
        assert len(receiver.requests) <= circuit_breaker.FAILURES_TO_OPEN + 2


def test_five_different_events_refused_alone_open_it(client: redis.Redis, deliver: Deliver) -> None:
    with (
        Receiver(lambda *_: Answer(400)) as receiver,
        deliver(receiver.url, redelivery_initial="30s", redelivery_max="30s") as delivery,
    ):
        ids = expire(client, "a", "b", "c", "d")
        eventually(lambda: [owner for owner, _, _ in delivery.pending().values()] == [PARKED] * len(ids))
        assert not delivery.dispatcher.lanes[0].circuit.open
        expire(client, *map(str, range(20)))
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)


def test_probes_rotate(client: redis.Redis, deliver: Deliver) -> None:
    """Not the same event twice running, new ones too."""
    with (
        Receiver(lambda *_: Answer(503)) as receiver,
        deliver(receiver.url, 1, redelivery_initial="50ms", redelivery_max="50ms") as delivery,
    ):
        expire(client, "a", "b")
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
        receiver.clear()
        receiver.wait_for(lambda requests: len(requests) >= 6)
        probes = [name(request) for request in receiver.requests]
        assert all(first != second for first, second in itertools.pairwise(probes)), probes
        expire(client, "new")
        receiver.wait_for(lambda requests: name(requests[-1]) == "new")


def test_an_event_that_the_endpoint_does_not_want_is_no_probe(client: redis.Redis, deliver: Deliver) -> None:
    """Such a probe would say nothing, and as long as other tenants have events, the circuit would stay open."""
    down = [True]
    with Receiver(lambda *_: Answer(503 if down[0] else 200)) as receiver:
        slow = {"redelivery_initial": "1s", "redelivery_max": "1s"}
        with deliver(receiver.url, endpoint={"tenants": ["acme"]}, **slow) as delivery:
            expire(client, *map(str, range(circuit_breaker.FAILURES_TO_OPEN)))
            eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
            expire(client, *map(str, range(100)), tenant="other")
            down[0] = False
            eventually(lambda: delivery.attempts("delivered") == circuit_breaker.FAILURES_TO_OPEN)
            settled(delivery)
        assert {request.event["tenant_id"] for request in receiver.requests} == {"acme"}


def test_an_open_circuit_without_a_wanted_event_passes_the_others(client: redis.Redis, deliver: Deliver) -> None:
    """The probe stays due until an event comes that the endpoint wants."""
    with Receiver() as receiver:
        slow = {"redelivery_initial": "1h", "redelivery_max": "1h"}
        with deliver(receiver.url, endpoint={"tenants": ["acme"]}, **slow) as delivery:
            circuit = delivery.dispatcher.lanes[0].circuit
            for _ in range(circuit_breaker.FAILURES_TO_OPEN):
                circuit.failed(b"0-1", "HTTP 500")
            circuit.return_probe()
            expire(client, *map(str, range(3)), tenant="other")
            settled(delivery)
            expire(client, "mine")
            receiver.wait_for(lambda requests: [name(request) for request in requests] == ["mine"])
            eventually(lambda: not circuit.open)


def test_a_probe_is_one_request_without_retries(client: redis.Redis, deliver: Deliver) -> None:
    with (
        Receiver(lambda *_: Answer(503)) as receiver,
        deliver(receiver.url, 1, attempts=3, redelivery_initial="300ms", redelivery_max="300ms") as delivery,
    ):
        expire(client, "a")
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open, limit=30)
        receiver.clear()
        requests = receiver.wait_for(lambda requests: len(requests) >= 4)
        gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(requests)]
        assert min(gaps) >= 0.25, gaps


def test_what_is_queued_when_it_opens_is_not_sent(client: redis.Redis, deliver: Deliver) -> None:
    """It is released: not counted as a delivery, and there for the next probe."""
    with (
        Receiver(lambda *_: Answer(503)) as receiver,
        deliver(receiver.url, 1, redelivery_initial="30s", redelivery_max="30s") as delivery,
    ):
        expire(client, *map(str, range(20)))
        eventually(lambda: delivery.dispatcher.lanes[0].circuit.open)
        eventually(lambda: all(owner == PARKED for owner, _, _ in delivery.pending().values()))
        assert len(receiver.requests) == circuit_breaker.FAILURES_TO_OPEN
        assert sorted(deliveries for _, deliveries, _ in delivery.pending().values())[-5:] == [1] * 5
        assert sum(deliveries for _, deliveries, _ in delivery.pending().values()) == circuit_breaker.FAILURES_TO_OPEN


# ---- quick retries, and odd events


@pytest.mark.parametrize("rest", ["paused", "muted", "open"])
def test_no_quick_retry_is_sent_while_the_endpoint_rests(client: redis.Redis, deliver: Deliver, rest: str) -> None:
    with Receiver(lambda *_: Answer(500)) as receiver, deliver(receiver.url, attempts=3) as delivery:
        lane = delivery.dispatcher.lanes[0]

        def answer(*_: object) -> Answer:
            if rest == "paused":
                lane.state.pause("moving house")
            elif rest == "muted":
                lane.obey(600)
            else:
                for number in range(circuit_breaker.FAILURES_TO_OPEN):
                    lane.circuit.failed(b"%d-1" % number, "HTTP 500")
            return Answer(500)

        receiver.behaviour = answer
        expire(client, "one")
        eventually(lambda: [owner for owner, _, _ in delivery.pending().values()] == [PARKED])
        assert (len(receiver.requests), delivery.attempts("failed")) == (1, 1)


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


#: A process without a heartbeat counts as dead soon.
SOON_DEAD = Timing(take_over_after=1.0, heartbeat_every=0.1)


def taken_by_another(client: redis.Redis) -> bytes:
    """The only event of the endpoint, which another process has in hand when it dies."""
    client.xgroup_create(EVENTS, "hook", "$", mkstream=True)
    (event,) = expire(client, "only")
    client.xreadgroup("hook", "another", {EVENTS: ">"})
    return event


def open_circuit(delivery: Delivery) -> None:
    for number in range(circuit_breaker.FAILURES_TO_OPEN):
        delivery.dispatcher.lanes[0].circuit.failed(b"0-%d" % number, "HTTP 503")


def test_an_open_circuit_delivers_what_another_process_had_when_it_died(
    client: redis.Redis, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    taken_by_another(client)
    with Receiver() as receiver, deliver(receiver.url, max_age="1h", timing=SOON_DEAD) as delivery:
        open_circuit(delivery)
        eventually(lambda: delivery.attempts("delivered") == 1)
        settled(delivery)
        assert not delivery.dispatcher.lanes[0].circuit.open
    assert [name(request) for request in receiver.requests] == ["only"]
    assert "events that no process has in hand are taken back" in caplog.messages


def test_an_open_circuit_gives_up_on_what_another_process_had_when_it_died(
    client: redis.Redis, deliver: Deliver
) -> None:
    """No probe is due before `max_age` is over."""
    event = taken_by_another(client)
    waits: dict[str, Any] = {"redelivery_initial": "1h", "redelivery_max": "1h", "max_age": "2s"}
    with deliver("http://127.0.0.1:9/", timing=SOON_DEAD, **waits) as delivery:
        open_circuit(delivery)
        eventually(lambda: delivery.dead_letters() == 1)
        settled(delivery)
    ((_, letter),) = entries(client, "sweeperd:dead-letters")
    assert (letter[b"event"], letter[b"reason"], letter[b"attempts"]) == (event, b"HTTP 503", b"1")
