"""What is sent of a batch and what its result means for its events, the circuit and the state."""

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sweeperd import progress
from sweeperd.delivery.batches import Batch, BatchLimits
from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker, EndpointStateCache, Redelivery
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.senders import BatchSender, Pace
from sweeperd.delivery.settler import Disposition, Settlement
from sweeperd.metrics import Metrics
from sweeperd.outbox import (
    CircuitState,
    CircuitStateStore,
    EndpointStateStore,
    EventEncoder,
    OutboxEntry,
    WebhookRequest,
)
from sweeperd.store import Shard
from tests.support.builders import StillClock, batch_limits, make_lane

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
    """Takes requests instead of HTTP. It gives these results in turn, the last one again and again."""

    def __init__(self, *results: DeliveryResult) -> None:
        self.results = list(results)
        self.requests: list[WebhookRequest] = []
        #: How many attempts each request may take.
        self.attempts: list[int | None] = []
        #: After each attempt that fails: how long to wait before the next one.
        self.pauses: list[float] = []
        #: Called with each result.
        self.observe: Callable[[DeliveryResult], None] = lambda _: None
        self.closed = self.tidied = False
        self.ended = 0

    def hand_over(self, request: WebhookRequest, attempts: int | None = None) -> "Handing":
        self.attempts.append(attempts)
        return Handing(self, request)

    def close(self) -> None:
        self.closed = True

    def tidy(self) -> None:
        self.tidied = True


class Handing:
    """One hand-over of the client."""

    def __init__(self, client: Client, request: WebhookRequest) -> None:
        self._client = client
        self.request = request
        self.result = DELIVERED

    def attempt(self) -> float | None:
        client = self._client
        client.requests.append(self.request)
        self.result = client.results.pop(0) if len(client.results) > 1 else client.results[0]
        client.observe(self.result)
        return client.pauses.pop(0) if client.pauses and not self.result.delivered else None

    def end(self) -> None:
        self._client.ended += 1


class Sending:
    """A sender of the endpoint `hook` with what it moves."""

    def __init__(self, shard: Shard, *results: DeliveryResult, limits: BatchLimits = BATCHES, **parts: Any) -> None:
        self.client = Client(*(results or [DELIVERED]))
        self.circuit = CircuitBreaker(30, 3600)
        self.state = EndpointStateCache(shard, "hook")
        self.metrics = Metrics()
        #: What other replicas know.
        self.saved = EndpointStateStore(shard)
        self._circuits = CircuitStateStore(shard)
        self.encoder = EventEncoder("default", b"", batches=limits.events > 1)
        self.lane = make_lane(
            shard,
            circuit=self.circuit,
            state=self.state,
            redelivery=Redelivery(30, 3600, MAX_AGE_MS, 0),
            limits=limits,
            metrics=self.metrics,
            **parts,
        )
        client: Any = self.client
        self.sender = BatchSender(self.lane, client, self.encoder.request)

    def send(self, entries: Sequence[OutboxEntry], *, probe: bool = False) -> list[Settlement]:
        """Send these events, with the batches that come of them, as the pool does."""
        settlements, batches = list[Settlement](), [Batch(tuple(entries), probe)]
        while batches:
            sent = self.sender.send(batches.pop(0))
            settlements += sent.settlements
            batches = [*sent.batches, *([sent.retry] if sent.retry else []), *batches]
        return settlements

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


def test_a_quick_retry_is_the_same_request_after_a_pause(shard: Shard) -> None:
    sending = Sending(shard, FAILED, FAILED, DELIVERED)
    sending.client.pauses = [0.25, 0.5]
    batch, pauses = Batch(tuple(entries(2))), []
    for _ in range(2):
        sent = sending.sender.send(batch)
        assert (sent.settlements, sent.batches, sent.retry) == ((), (), batch)
        pauses.append(sent.pause)
    assert pauses == [0.25, 0.5]
    assert acts(sending.sender.send(batch).settlements) == [(Disposition.ACKNOWLEDGE, ids(entries(2)))]
    assert len({id(request) for request in sending.client.requests}) == 1
    assert (len(sending.client.attempts), sending.client.ended) == (1, 1), "the hand-over ends once"
    assert sending.counted(Result.DELIVERED) == 2


@pytest.mark.parametrize("event", ["open", "paused", "muted", "stopped"])
def test_what_is_held_back_during_the_pause_is_not_sent_again(shard: Shard, event: str) -> None:
    """The circuit opens, or the endpoint is paused, by another request, or the lane stops: the last result stands."""
    sending = Sending(shard, FAILED)
    sending.client.pauses = [0.25]
    batch = Batch(tuple(entries(1)))
    assert sending.sender.send(batch).retry is batch
    hold_back(sending, event)
    assert sending.sender.wait(batch) == 0
    (settlement,) = sending.sender.send(batch).settlements
    assert (settlement.action, settlement.reason) == (Disposition.NACK, "HTTP 500")
    assert len(sending.client.requests) == 1


@pytest.mark.parametrize("event", ["open", "paused", "stopped"])
def test_what_is_held_back_before_it_is_sent_is_released(shard: Shard, event: str) -> None:
    sending = Sending(shard)
    hold_back(sending, event)
    events = entries(2)
    assert acts(sending.send(events)) == [(Disposition.RELEASE, ids(events))]
    assert not sending.client.requests


def hold_back(sending: Sending, event: str) -> None:
    if event == "open":
        open_circuit(sending.circuit)
    elif event == "paused":
        sending.state.pause("moving house")
    elif event == "muted":
        sending.lane.obey(60)
    else:
        sending.lane.stop.set()


def test_a_probe_and_the_halves_of_a_batch_are_sent_once(shard: Shard) -> None:
    sending = Sending(shard, REFUSED, DELIVERED)
    sending.send(entries(2))
    sending.send(entries(1), probe=True)
    assert sending.client.attempts == [None, 1, 1, 1]


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


def test_a_fault_of_ours_ends_the_hand_over_and_parks_the_events(shard: Shard) -> None:
    def fail(_: DeliveryResult) -> None:
        raise ValueError("a fault of ours")

    sending, events = Sending(shard), entries(2)
    sending.client.observe = fail
    (settlement,) = sending.send(events)
    assert (settlement.action, settlement.ids) == (Disposition.NACK, ids(events))
    assert [entry.alone for entry in settlement.entries] == [True, True]
    assert sending.client.ended == 1


def test_a_fault_of_ours_in_the_wait_keeps_no_batch(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    """The thread of the pool would end with the batch in hand."""

    class Limit:
        def take(self, *, first: bool) -> float:
            raise ValueError("a fault of ours")

    limit: Any = Limit()
    sending = Sending(shard)
    client: Any = sending.client
    sender = BatchSender(sending.lane, client, sending.encoder.request, Pace(limit=limit))
    assert sender.wait(Batch(tuple(entries(1)))) == 0.0
    assert "before its turn" in caplog.text


def test_each_request_that_waits_for_max_rate_is_counted_once() -> None:
    firsts, waits = list[bool](), [0.0, 0.5, 0.25, 0.0, 0.0]

    class Limit:
        def take(self, *, first: bool) -> float:
            firsts.append(first)
            return waits.pop(0)

    limit: Any = Limit()
    batch = Batch(tuple(entries(1)))
    assert [Pace(limit=limit).wait(batch) for _ in range(5)] == [0.0, 0.5, 0.25, 0.0, 0.0]
    assert firsts == [True, True, False, False, True]


@pytest.mark.parametrize(("begins", "counted"), [(0.0, 0), (7.5, 1)])
def test_a_batch_that_waits_for_a_sweep_is_counted_once(begins: float, counted: int) -> None:
    class Turns:
        limited = True

        def book(self) -> float:
            return begins

        def wait(self, begins: float) -> float:
            return begins

    turns: Any = Turns()
    told = list[bool]()
    pace, batch = Pace(turns, waits=lambda: told.append(True)), Batch(tuple(entries(1)))
    assert [pace.wait(batch), pace.wait(batch)] == [begins, begins]
    assert len(told) == counted


@pytest.mark.parametrize("limited", [False, True])
def test_a_batch_may_have_to_wait_only_while_a_sweep_runs(limited: bool) -> None:
    turns: Any = SimpleNamespace(limited=limited)
    assert (Pace(turns).holds, Pace().holds) == (limited, False)


def test_the_connections_are_those_of_the_client(shard: Shard) -> None:
    sending = Sending(shard)
    sending.sender.tidy()
    assert (sending.client.tidied, sending.client.closed) == (True, False)
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


def test_a_sender_that_publishes_may_take_as_long_as_redis_may(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, now, silent = Sending(shard, GONE), StillClock(0), list[float]()

    def save(_: EndpointStateCache) -> None:
        now.now += int(shard.patience)
        silent.append(work.silent_for)

    monkeypatch.setattr(EndpointStateCache, "save", save)
    with progress.working(progress.Progress(now.now_ms)) as work:
        sending.send(entries(1))
    assert silent == [0]


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
