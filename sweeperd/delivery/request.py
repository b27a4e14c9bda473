"""
From events of the outbox to the request that carries them: the body as bytes, and the headers that speak of the events.

Nearly all events fit a template of bytes. An event that does not (another kind, a field that is absent or odd) is
encoded by `payload`, and so is every event where the two would differ: a property test holds them together.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd.config import Format
from sweeperd.delivery import payload
from sweeperd.delivery.outbox import OutboxEntry
from sweeperd.delivery.payload import Message
from sweeperd.delivery.template import Template

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
    #: The id of the first event.
    event_id: str
    #: The trace of each event, in order; empty where it has none.
    trace_ids: Sequence[str]

    @property
    def trace_id(self) -> str:
        """The trace of the first event."""
        return self.trace_ids[0]

    @property
    def events(self) -> int:
        """How many events are in it."""
        return len(self.trace_ids)


def webhook_request(messages: Sequence[Message], form: Format, *, batches: bool) -> WebhookRequest:
    """The request with these events, at least one; with exactly one where the endpoint takes no batches."""
    if batches:
        return batch_request(messages, form)
    (message,) = messages
    return single_request(message, form)


def single_request(message: Message, form: Format) -> WebhookRequest:
    """The request with one event as an object."""
    headers = _headers(message.sequence, _CONTENT_TYPES[form, False])
    headers |= {"X-Cycles-Event-Id": message.event_id, "X-Cycles-Event-Type": message.event_type}
    if message.trace_id:
        headers["X-Cycles-Trace-Id"] = message.trace_id
    return WebhookRequest(message.event_id, message.body, headers, message.event_id, [message.trace_id])


def batch_request(messages: Sequence[Message], form: Format) -> WebhookRequest:
    """
    The request with these events as a JSON array, even of a single one. Its webhook id is made of the events' ids in
    order, so the same batch has the same id again. `messages` is not empty, and is in the order of the stream.
    """
    event_ids, trace_ids = [message.event_id for message in messages], [message.trace_id for message in messages]
    return _batch(event_ids, trace_ids, b",".join([message.body for message in messages]), messages[0].sequence, form)


def _batch(
    event_ids: Sequence[str], trace_ids: Sequence[str], elements: bytes, sequence: str, form: Format
) -> WebhookRequest:
    """`elements`: the events' JSON, with commas between. `sequence`: that of the first event."""
    webhook_id = "batch_" + hashlib.sha256(",".join(event_ids).encode()).hexdigest()[:32]
    headers = _headers(sequence, _CONTENT_TYPES[form, True])
    return WebhookRequest(webhook_id, b"[%b]" % elements, headers, event_ids[0], trace_ids)


def _headers(sequence: str, content_type: str) -> dict[str, str]:
    headers = {"Content-Type": content_type}
    if sequence:
        headers["X-Sweeperd-Sequence"] = sequence
    return headers


class EventEncoder:
    """
    Encodes the entries of one shard's outbox for one endpoint. `origin` identifies the shard. `batches`: whether a
    request is an array of events. Threads may share it.
    """

    def __init__(self, shard: str, origin: bytes, form: Format = "event", *, batches: bool = False) -> None:
        self._shard = shard
        self._origin = origin
        self._form: Format = form
        self._batches = batches
        self._template = Template(shard, origin, form)
        #: Whether each event carries its place in the stream. Of a batch of plain events only the request does.
        self._numbered = form == "cloudevents" or not batches

    def request(self, entries: Sequence[OutboxEntry]) -> WebhookRequest:
        """The request with these entries, as `webhook_request` makes it."""
        if not self._batches:
            (entry,) = entries
            return single_request(self(entry), self._form)
        sequence, expiries = self._sequence(entries[0].id), [entry.expiry for entry in entries]
        if filled := self._template.fill(expiries, [self._event_sequence(entry.id) for entry in entries]):
            return _batch(filled.event_ids, filled.trace_ids, filled.body, sequence, self._form)
        messages = list(map(self, entries))
        messages[0] = messages[0]._replace(sequence=sequence)
        return batch_request(messages, self._form)

    def __call__(self, entry: OutboxEntry) -> Message:
        """The message of this entry."""
        return self.plain(entry) or self.general(entry)

    def general(self, entry: OutboxEntry) -> Message:
        """The message of any entry."""
        return payload.encode(self._form, self._shard, self._origin, self._event_sequence(entry.id), entry.fields)

    def plain(self, entry: OutboxEntry) -> Message | None:
        """The same message from the template; None where the entry does not fit it."""
        values = entry.expiry
        return self._template.message(values, self._event_sequence(entry.id)) if values else None

    def _event_sequence(self, stream_id: bytes) -> str:
        return self._sequence(stream_id) if self._numbered else ""

    def _sequence(self, stream_id: bytes) -> str:
        """Shard and stream id, padded so that the order of texts is the order of the stream."""
        milliseconds, _, number = stream_id.partition(b"-")
        return f"{self._shard}:{milliseconds.zfill(20).decode()}-{number.zfill(20).decode()}"
