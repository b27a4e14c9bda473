"""One request to an endpoint: the body and the headers of a single event, or of a batch of events."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd.config import Format
from sweeperd.delivery.payload import Message

_CONTENT_TYPES = {
    ("event", False): "application/json",
    ("event", True): "application/json",
    ("cloudevents", False): "application/cloudevents+json",
    ("cloudevents", True): "application/cloudevents-batch+json",
}


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """What stays the same in each attempt: the signature, its time and the span id are made anew."""

    webhook_id: str
    body: bytes
    #: The headers that speak of the events.
    headers: dict[str, str]
    #: The trace of the first event; empty without one.
    trace_id: str
    #: How many events are in it.
    events: int


def single_request(message: Message, form: Format) -> WebhookRequest:
    """The request with one event as an object."""
    headers = _headers(message, _CONTENT_TYPES[form, False])
    headers |= {"X-Cycles-Event-Id": message.event_id, "X-Cycles-Event-Type": message.event_type}
    if message.trace_id:
        headers["X-Cycles-Trace-Id"] = message.trace_id
    return WebhookRequest(message.event_id, message.body, headers, message.trace_id, 1)


def batch_request(messages: Sequence[Message], form: Format) -> WebhookRequest:
    """
    The request with these events as a JSON array. Its webhook id is made of the events' ids in order, so the same batch
    has the same id again. `messages` is not empty, and is in the order of the stream.
    """
    body = b"[" + b",".join([message.body for message in messages]) + b"]"
    ids = ",".join([message.event_id for message in messages]).encode()
    webhook_id = "batch_" + hashlib.sha256(ids).hexdigest()[:32]
    first = messages[0]
    return WebhookRequest(webhook_id, body, _headers(first, _CONTENT_TYPES[form, True]), first.trace_id, len(messages))


def _headers(first: Message, content_type: str) -> dict[str, str]:
    headers = {"Content-Type": content_type}
    if first.sequence:
        headers["X-Sweeperd-Sequence"] = first.sequence
    return headers
