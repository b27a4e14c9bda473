"""The body and the headers of a request with one event, and with a batch."""

import json

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from sweeperd.config import Format
from sweeperd.outbox import EventEncoder, Message, OutboxEntry
from sweeperd.outbox.request import webhook_request

ONE = Message("evt_1", "reservation.expired", "1" * 32, b'{"a":1}', "default:1-1")
TWO = Message("evt_2", "reservation.expired", "2" * 32, b'{"a":2}', "default:1-2")


@pytest.mark.parametrize(
    ("form", "content_type"), [("event", "application/json"), ("cloudevents", "application/cloudevents+json")]
)
def test_a_single_event(form: Format, content_type: str) -> None:
    request = webhook_request([ONE], form, batches=False)
    assert (request.webhook_id, request.body, request.trace_id, request.events) == ("evt_1", ONE.body, "1" * 32, 1)
    assert request.headers == {
        "Content-Type": content_type,
        "X-Sweeperd-Sequence": "default:1-1",
        "X-Cycles-Event-Id": "evt_1",
        "X-Cycles-Event-Type": "reservation.expired",
        "X-Cycles-Trace-Id": "1" * 32,
    }


def test_what_an_event_lacks_is_no_header() -> None:
    request = webhook_request([ONE._replace(trace_id="", sequence="")], "event", batches=False)
    assert set(request.headers) == {"Content-Type", "X-Cycles-Event-Id", "X-Cycles-Event-Type"}


@pytest.mark.parametrize("odd", ["a\r\nX-Other: 1", "a b", "\u20ac", "A" * 32, "a" * 33])
def test_what_cannot_stand_in_a_header_is_left_out(odd: str) -> None:
    """Another program may have written the event."""
    fields = {b"id": b"a", b"type": f"{odd}.expired".encode(), b"trace_id": odd.encode()}
    request = EventEncoder("default", b"").request([OutboxEntry.of(b"1-1", 1, fields)])
    sent = {"X-Cycles-Event-Type"} if odd.isalpha() and odd.isascii() else set()
    assert set(request.headers) == {"Content-Type", "X-Cycles-Event-Id", "X-Sweeperd-Sequence"} | sent
    event = json.loads(request.body)
    assert (event["event_type"], "trace_id" in event) == (f"{odd}.expired", False)


@pytest.mark.parametrize(
    ("form", "content_type"), [("event", "application/json"), ("cloudevents", "application/cloudevents-batch+json")]
)
def test_a_batch(form: Format, content_type: str) -> None:
    request = webhook_request([ONE, TWO], form, batches=True)
    assert json.loads(request.body) == [{"a": 1}, {"a": 2}]
    assert request.headers == {"Content-Type": content_type, "X-Sweeperd-Sequence": "default:1-1"}
    assert (request.trace_id, request.events) == ("1" * 32, 2)


def test_a_batch_of_one_is_an_array() -> None:
    request = webhook_request([ONE], "event", batches=True)
    assert json.loads(request.body) == [{"a": 1}]
    assert request.events == 1
    assert not [name for name in request.headers if name.startswith("X-Cycles-")]


def test_the_id_of_a_batch_comes_from_its_events() -> None:
    batches = [[ONE], [TWO], [ONE, TWO], [TWO, ONE]]
    ids = [webhook_request(batch, "event", batches=True).webhook_id for batch in batches]
    assert ids == [webhook_request(batch, "cloudevents", batches=True).webhook_id for batch in batches]
    assert len(set(ids)) == len(ids)
    assert webhook_request([ONE._replace(body=b"{}")], "event", batches=True).webhook_id == ids[0]


def test_each_element_of_a_batch_is_a_cloud_event() -> None:
    encoder = EventEncoder("default", b"", "cloudevents")
    messages = [encoder(OutboxEntry.of(b"1-%d" % number, 1, {b"id": b"r%d" % number})) for number in range(3)]
    elements = json.loads(webhook_request(messages, "cloudevents", batches=True).body)
    events = [JSONFormat().read(CloudEvent, json.dumps(element)) for element in elements]
    assert [event.get_subject() for event in events] == ["r0", "r1", "r2"]
    sequences = [event.get_extension("sequence") for event in events]
    assert sequences == sorted(sequences) == [message.sequence for message in messages]
