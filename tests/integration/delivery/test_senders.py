"""What is sent of a batch and what its result means for its events, the circuit and the state; and the threads."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sweeperd.config import EndpointSettings
from sweeperd.delivery.acknowledger import Disposition, Settlement
from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker, EndpointStateCache, Redelivery
from sweeperd.delivery.dispatcher import EndpointDelivery, join
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import Batch, BatchLimits
from sweeperd.delivery.senders import BatchSender
from sweeperd.metrics import Metrics
from sweeperd.outbox import (
    CircuitState,
    CircuitStateStore,
    EndpointStateStore,
    EventEncoder,
    OutboxEntry,
    Subscription,
    WebhookRequest,
)
from sweeperd.store import Shard
from tests.support.builders import StillClock, batch_limits, make_lane
from tests.support.harness import eventually

NOW = 1_795_000_000_000
MAX_AGE_MS = 60_000
BATCHES = batch_limits(events=100)

DELIVERED = DeliveryResult(Result.DELIVERED, "HTTP 200", 200)
FAILED = DeliveryResult(Result.FAILED, "HTTP 500", 500)
#: Refused for what is in it: a smaller batch may be accepted.
REFUSED = DeliveryResult(Result.REJECTED, "HTTP 422", 422)
#: Refused for the events, but no smaller batch is tried.
CONFLICT = DeliveryResult(Result.REJECTED, "HTTP 409", 409)
GONE = DeliveryResult(Result.REJECTED, "HTTP 410", 410)


class Client:
    """Takes requests in the place of HTTP. It gives these results in turn, the last one again and again."""

    def __init__(self, *results: DeliveryResult) -> None:
        self.results = list(results)
        self.requests: list[WebhookRequest] = []
        #: Called before each request, as long as its turn has not come.
        self.wait: Callable[[], bool] = lambda: True
        #: Called with each result.
        self.observe: Callable[[DeliveryResult], None] = lambda _: None
        self.closed = False

    def deliver(
        self, request: WebhookRequest, attempts: int | None = None, may_send: Callable[[], bool] | None = None
    ) -> DeliveryResult:
        self.requests.append(request)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        self.observe(result)
        return result

    def await_turn(self) -> bool:
        return self.wait()

    def close(self) -> None:
        self.closed = True


class Sending:
    """A sender of the endpoint `hook` with what it moves."""

    def __init__(self, shard: Shard, *results: DeliveryResult, limits: BatchLimits = BATCHES, **parts: Any) -> None:
        self.client = Client(*(results or [DELIVERED]))
        self.circuit = CircuitBreaker(30, 3600)
        self.state = EndpointStateCache(shard, "hook")
        self.stop = threading.Event()
        self.metrics = Metrics()
        #: What other replicas know.
        self.saved = EndpointStateStore(shard)
        self._circuits = CircuitStateStore(shard)
        self.encoder = EventEncoder("default", b"", batches=limits.events > 1)
        self.lane = make_lane(
            shard,
            circuit=self.circuit,
            state=self.state,
            redelivery=Redelivery(30, 3600, MAX_AGE_MS),
            limits=limits,
            metrics=self.metrics,
            stop=self.stop,
            **parts,
        )
        self.sender = BatchSender(self.lane, self.client, self.encoder.request)

    def send(self, entries: Sequence[OutboxEntry], *, probe: bool = False) -> list[Settlement]:
        return self.sender.send(Batch(tuple(entries), probe))

    @property
    def published(self) -> CircuitState:
        """The circuit, as operators see it."""
        return self._circuits.read("hook")

    def counted(self, result: Result) -> float | None:
        """The counter of events."""
        labels = {"endpoint": "hook", "result": result}
        return self.metrics.registry.get_sample_value("sweeperd_webhook_events_total", labels)


@pytest.fixture(autouse=True)
def _clock(shard: Shard) -> None:
    """Redis's clock stands still at NOW."""
    shard.clock = StillClock(NOW)


def entries(count: int, added_ms: int = NOW, **fields: bytes) -> list[OutboxEntry]:
    """So many events."""
    own = {name.encode(): value for name, value in fields.items()}
    return [OutboxEntry.of(b"%d-%d" % (added_ms, number), 1, {b"id": b"r%d" % number} | own) for number in range(count)]


def acts(settlements: Sequence[Settlement]) -> list[tuple[Disposition, list[bytes]]]:
    """What happens to which events."""
    return [(settlement.action, settlement.ids) for settlement in settlements]


def ids(events: Sequence[OutboxEntry]) -> list[bytes]:
    return [entry.id for entry in events]


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    """The fields of each line with this message."""
    return [vars(record) for record in caplog.records if record.message == message]


# ---- what is sent


def test_a_body_of_exactly_batch_bytes_is_sent_whole(shard: Shard) -> None:
    events = entries(4)
    size = len(EventEncoder("default", b"", batches=True).request(events).body)
    whole = Sending(shard, limits=batch_limits(events=100, size=size))
    assert acts(whole.send(events)) == [(Disposition.ACKNOWLEDGE, ids(events))]
    assert [request.events for request in whole.client.requests] == [4]
    halved = Sending(shard, limits=batch_limits(events=100, size=size - 1))
    assert len(halved.send(events)) == 2
    assert [request.events for request in halved.client.requests] == [2, 2]
    longer = Sending(shard, limits=batch_limits(events=100, size=10))
    assert acts(longer.send(events[:1])) == [(Disposition.ACKNOWLEDGE, ids(events[:1]))], "an event has no half"


def test_a_refused_batch_is_sent_in_halves_in_order(shard: Shard) -> None:
    sending = Sending(shard, REFUSED, DELIVERED)
    events = entries(5)
    assert acts(sending.send(events)) == [
        (Disposition.ACKNOWLEDGE, ids(events[:3])),
        (Disposition.ACKNOWLEDGE, ids(events[3:])),
    ]
    assert (sending.counted(Result.REJECTED), sending.counted(Result.DELIVERED)) == (5, 5)


def test_what_was_held_back_while_it_waited_for_its_turn_is_not_sent(shard: Shard) -> None:
    """The circuit opens, or the endpoint is paused, by another request during the wait."""
    for event in (lambda one: open_circuit(one.circuit), lambda one: one.state.pause("moving house")):
        sending = Sending(shard)

        def wait(sending: Sending = sending, event: Callable[[Sending], object] = event) -> bool:
            event(sending)
            return True

        sending.client.wait = wait
        events = entries(2)
        assert acts(sending.send(events)) == [(Disposition.RELEASE, ids(events))]
        assert not sending.client.requests


def test_a_stop_during_the_wait_for_its_turn_releases_the_events(shard: Shard) -> None:
    sending = Sending(shard)
    sending.client.wait = lambda: False
    assert acts(sending.send(entries(1))) == [(Disposition.RELEASE, ids(entries(1)))]
    assert not sending.client.requests


def open_circuit(circuit: CircuitBreaker) -> None:
    for number in range(FAILURES_TO_OPEN):
        circuit.failed(b"%d-1" % number, "HTTP 500")


@pytest.mark.parametrize("probe", [False, True])
def test_while_the_circuit_is_open_only_a_probe_is_sent(shard: Shard, probe: bool) -> None:
    sending = Sending(shard)
    open_circuit(sending.circuit)
    ((action, _),) = acts(sending.send(entries(1), probe=probe))
    assert action is (Disposition.ACKNOWLEDGE if probe else Disposition.RELEASE)
    assert len(sending.client.requests) == probe


def test_close_closes_the_client(shard: Shard) -> None:
    sending = Sending(shard)
    sending.sender.close()
    assert sending.client.closed


# ---- what a failure means for the events


@pytest.mark.parametrize("result", [FAILED, REFUSED])
def test_an_event_of_exactly_the_greatest_age_is_tried_again(shard: Shard, result: DeliveryResult) -> None:
    """And each event is settled once."""
    oldest = NOW - MAX_AGE_MS
    for age, action in ((oldest - 1, Disposition.DEAD_LETTER), (oldest, Disposition.NACK), (NOW, Disposition.NACK)):
        events = entries(1, age)
        (settlement,) = Sending(shard, result).send(events)
        assert (settlement.action, settlement.ids, settlement.reason) == (action, ids(events), result.reason)
    both = [*entries(2, oldest - 1), *entries(2, oldest)]
    assert acts(Sending(shard, FAILED).send(both)) == [
        (Disposition.DEAD_LETTER, ids(both[:2])),
        (Disposition.NACK, ids(both[2:])),
    ]


@pytest.mark.parametrize(
    ("result", "count", "limit", "alone"),
    [
        (REFUSED, 1, 100, True),
        (CONFLICT, 1, 100, True),
        (FAILED, 1, 100, False),
        (CONFLICT, 3, 100, False),
        (FAILED, 3, 100, False),
        # Without batches each event is alone anyway.
        (REFUSED, 1, 1, False),
    ],
)
def test_only_an_event_that_was_refused_alone_travels_alone(
    shard: Shard, result: DeliveryResult, count: int, limit: int, alone: bool
) -> None:
    events = entries(count)
    (settlement,) = Sending(shard, result, limits=batch_limits(events=limit)).send(events)
    assert (settlement.action, settlement.ids) == (Disposition.NACK, ids(events))
    assert [entry.alone for entry in settlement.entries] == [alone] * count


# ---- what a result means for the endpoint


@pytest.mark.parametrize(
    ("result", "count", "failures"), [(FAILED, 1, 1), (FAILED, 2, 1), (CONFLICT, 2, 1), (CONFLICT, 1, 0)]
)
def test_only_a_refusal_of_a_single_event_is_no_failure_of_the_endpoint(
    shard: Shard, result: DeliveryResult, count: int, failures: int
) -> None:
    sending = Sending(shard, result)
    sending.send(entries(count))
    assert sending.circuit.failures == failures


def test_a_410_pauses_the_endpoint_on_all_replicas_at_once(shard: Shard) -> None:
    sending = Sending(shard, GONE)
    events = entries(2)
    (settlement,) = sending.send(events)
    assert (settlement.action, settlement.ids, settlement.reason) == (Disposition.NACK, ids(events), "")
    assert sending.saved.read("hook").reason == "the receiver answered 410"
    assert sending.circuit.failures == 0
    assert sending.published.processes == 1


@pytest.mark.parametrize(("asked", "muted_ms"), [(7.0, 7_000), (60.0, 60_000), (61.0, 60_000), (0.0, 0), (None, 0)])
def test_retry_after_mutes_the_endpoint_on_all_replicas_at_once(
    shard: Shard, asked: float | None, muted_ms: int
) -> None:
    """For no longer than MAX_AGE_MS."""
    sending = Sending(shard, DeliveryResult(Result.FAILED, "HTTP 503", 503, asked))
    sending.client.observe = lambda result: sending.lane.obey(result.retry_after)
    sending.send(entries(1))
    assert sending.saved.read("hook").muted_until == (NOW + muted_ms if muted_ms else 0)
    assert sending.state.resting is bool(muted_ms)
    assert sending.circuit.failures == 1


def test_the_circuit_is_published_where_it_opens_and_where_it_closes(
    shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    sending = Sending(shard, FAILED)
    for number in range(FAILURES_TO_OPEN):
        assert sending.published.processes == 0, "nothing has changed"
        assert not logged(caplog, "the endpoint fails; its events wait")
        sending.send(entries(1, NOW + number))
    assert sending.published.open_on == 1
    assert len(logged(caplog, "the endpoint fails; its events wait")) == 1
    sending.send(entries(1), probe=True)
    assert sending.published.failures == FAILURES_TO_OPEN + 1, "the wait for the next probe is longer"
    assert len(logged(caplog, "the endpoint fails; its events wait")) == 1
    sending.client.results = [DELIVERED]
    sending.send(entries(1), probe=True)
    assert (sending.published.processes, sending.published.open_on) == (1, 0)
    assert len(logged(caplog, "the endpoint answers again")) == 1


def test_a_success_while_the_circuit_is_closed_is_no_news(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    """A round trip to Redis for each request would cost as much as the request."""
    sending = Sending(shard)
    sending.send(entries(1))
    assert sending.circuit.successes == 1
    assert sending.published.processes == 0
    assert not logged(caplog, "the endpoint answers again")


# ---- what the log says


def test_the_log_says_of_a_failure_why_and_of_what(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    sending = Sending(shard, FAILED)
    sending.send(entries(1))
    sending.send(entries(2, only_for=b"hook"))
    one, two = logged(caplog, "not delivered")
    assert (one["endpoint"], one["reason"], one["hand_overs"]) == ("hook", "HTTP 500", 1)
    assert one["event_id"] == sending.client.requests[0].event_id
    assert not {"events", "replay"} & one.keys()
    assert (two["reason"], two["events"], two["replay"]) == ("HTTP 500", 2, True)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
def test_each_delivery_is_logged_for_debugging_only(shard: Shard, caplog: pytest.LogCaptureFixture, level: int) -> None:
    caplog.set_level(level, "sweeperd.delivery.senders")
    Sending(shard).send(entries(2))
    told = [(line["status"], line["events"]) for line in logged(caplog, "delivered")]
    assert told == ([(200, 2)] if level == logging.DEBUG else [])


# ---- the threads


class Threads:
    """The threads of a delivery whose requests end when `answered` is set: two of them send. No reader is started."""

    def __init__(self, shard: Shard, name: str) -> None:
        self.answered = threading.Event()
        self.sending = Sending(shard, limits=batch_limits(), senders=2)
        self.sending.client.wait = lambda: self.answered.wait(20)
        self.lane = replace(self.sending.lane, subscription=named(name), shard=shard)
        sender = BatchSender(self.lane, self.sending.client, self.sending.encoder.request)
        self.delivery = EndpointDelivery(self.lane, sender)
        self.prefix = f"send-{shard.name}-{name}-"

    @property
    def senders(self) -> list[threading.Thread]:
        """The sending threads, started or not."""
        return [thread for thread in self.delivery.threads if thread.name.startswith(self.prefix)]

    def start(self) -> None:
        """Start the sending threads that were not started yet."""
        for thread in self.senders:
            if thread.ident is None:
                thread.start()

    def put(self, count: int) -> None:
        """Queue so many events, one after the other."""
        events = entries(count, NOW + len(self.sending.client.requests))
        self.lane.in_flight.add(events)
        self.lane.batches.put(events)

    @property
    def alive(self) -> list[str]:
        """The names of the sending threads that run."""
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(self.prefix))


def named(name: str) -> Subscription:
    return Subscription(EndpointSettings.model_validate({"name": name, "url": "http://127.0.0.1:1/"}))


@pytest.fixture
def threads(shard: Shard, request: pytest.FixtureRequest) -> Iterator[Threads]:
    """Threads that have not started; they end with the test."""
    made = Threads(shard, f"t-{request.node.originalname[-40:]}")
    yield made
    made.answered.set()
    made.lane.batches.close()


def test_there_are_as_many_threads_as_were_asked_for(threads: Threads) -> None:
    assert not threads.delivery.complete
    threads.start()
    assert threads.alive == [f"{threads.prefix}1", f"{threads.prefix}2"]
    threads.delivery.lend(1)
    threads.start()
    assert len(threads.alive) == 2
    threads.delivery.lend(3)
    assert len(threads.alive) == 2, "it hands them up to be started"
    threads.start()
    assert threads.alive[2:] == [f"{threads.prefix}3"]
    assert not threads.delivery.complete, "its reader does not run"
    threads.lane.batches.close()
    eventually(lambda: not threads.alive)
    assert not threads.delivery.complete


def test_all_that_is_queued_is_sent_and_settled_before_the_threads_end(shard: Shard, threads: Threads) -> None:
    threads.answered.set()
    threads.start()
    threads.put(20)
    eventually(lambda: len(threads.sending.client.requests) == 20)
    threads.put(20)
    threads.lane.batches.close()
    assert join(threads.senders, None)
    assert len(threads.sending.client.requests) == 40
    threads.delivery.abandon()
    acknowledging, *_ = threads.delivery.threads
    acknowledging.start()
    assert join([acknowledging], None)
    assert len(threads.lane.in_flight) == 0


def test_no_longer_than_its_deadline_does_a_join_wait(threads: Threads) -> None:
    threads.start()
    threads.put(2)
    threads.lane.batches.close()
    late = threading.Timer(10, threads.answered.set)
    late.daemon = True
    late.start()
    assert not threads.delivery.join(time.monotonic() + 0.01), "the requests are still on their way"
    assert not threads.answered.is_set()
    late.cancel()


def test_without_a_deadline_a_join_waits_for_the_last_request(threads: Threads) -> None:
    threads.start()
    threads.put(2)
    threads.lane.batches.close()
    assert not threads.delivery.join(time.monotonic() - 1)
    threading.Timer(0.1, threads.answered.set).start()
    assert threads.delivery.join(None)
    assert not threads.alive
    assert threads.sending.client.closed


def test_what_the_system_gives_no_threads_for_ends(threads: Threads) -> None:
    """The reader, which would end the others, does not run."""
    acknowledging, *others, reading = threads.delivery.threads
    for thread in (acknowledging, *others):
        thread.start()
    threads.delivery.abandon()
    assert threads.delivery.join(time.monotonic() + 5)
    assert reading.ident is None
