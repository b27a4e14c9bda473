"""Builds the webhook requests that carry events."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd.config import Format
from sweeperd.outbox.event import BALANCES, Message, OutboxEntry, encode

_CONTENT_TYPES = {
    ("event", False): "application/json",
    ("event", True): "application/json",
    ("cloudevents", False): "application/cloudevents+json",
    ("cloudevents", True): "application/cloudevents-batch+json",
}

#: Matches a valid header value: visible ASCII without line breaks.
_is_token = re.compile("[!-~]+").fullmatch


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """The part of a request that all attempts share. Signature, timestamp and span id are new for each attempt."""

    webhook_id: str
    body: bytes
    #: The headers that describe the events.
    headers: dict[str, str]
    #: The id of the first event.
    event_id: str
    #: The trace id of each event in order; empty for an event without one.
    trace_ids: Sequence[str]

    @property
    def trace_id(self) -> str:
        return self.trace_ids[0]

    @property
    def events(self) -> int:
        return len(self.trace_ids)


def webhook_request(messages: Sequence[Message], form: Format, *, batches: bool) -> WebhookRequest:
    """The request with these events as a JSON array, or with one as an object. A retried batch keeps its webhook id."""
    first, headers = messages[0], {"Content-Type": _CONTENT_TYPES[form, batches]}
    if first.sequence:
        headers["X-Sweeperd-Sequence"] = first.sequence
    if batches:
        event_ids, trace_ids = [message.event_id for message in messages], [message.trace_id for message in messages]
        webhook_id = "batch_" + hashlib.sha256(",".join(event_ids).encode()).hexdigest()[:32]
        body = b"[%b]" % b",".join([message.body for message in messages])
        return WebhookRequest(webhook_id, body, headers, first.event_id, trace_ids)
    headers["X-Cycles-Event-Id"] = first.event_id
    if _is_token(first.event_type):
        headers["X-Cycles-Event-Type"] = first.event_type
    if first.trace_id:
        headers["X-Cycles-Trace-Id"] = first.trace_id
    return WebhookRequest(first.event_id, first.body, headers, first.event_id, [first.trace_id])


class EventEncoder:
    """
    Encodes the entries of one shard for one endpoint. `origin` identifies the shard. `batches`: whether a request is an
    array of events. `balances`: whether events include the balances of their entry. Thread-safe.
    """

    def __init__(
        self, shard: str, origin: bytes, form: Format = "event", *, batches: bool = False, balances: bool = False
    ) -> None:
        self._shard = shard
        self._origin = origin
        self._form: Format = form
        self._batches = batches
        self._balances = balances
        #: Whether each event carries its sequence. In a batch in the format `event`, only the request does.
        self._numbered = form == "cloudevents" or not batches

    def request(self, entries: Sequence[OutboxEntry]) -> WebhookRequest:
        """The request with these entries, as from `webhook_request`."""
        messages = list(map(self, entries))
        if self._batches:
            messages[0] = messages[0]._replace(sequence=self._sequence(entries[0].id))
        return webhook_request(messages, self._form, batches=self._batches)

    def __call__(self, entry: OutboxEntry) -> Message:
        sequence = self._sequence(entry.id) if self._numbered else ""
        fields = entry.fields
        if not self._balances:
            fields.pop(BALANCES, None)
        return encode(self._form, self._shard, self._origin, sequence, fields)

    def _sequence(self, stream_id: bytes) -> str:
        """Shard and stream id, zero-padded so that the text sorts in stream order."""
        milliseconds, _, number = stream_id.partition(b"-")
        return f"{self._shard}:{milliseconds.zfill(20).decode()}-{number.zfill(20).decode()}"
