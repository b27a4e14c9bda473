"""
From events of the outbox to the request that carries them: the body as bytes, and the headers that speak of the events.

Nearly all events are expired reservations that differ in a few plain values, which a template of bytes takes at a
quarter of the cost. An event that does not fit the template (another kind, a field that is absent or odd) is encoded by
`payload`, and so is every event where the two would differ: a property test holds them together.
"""

import functools
import hashlib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeperd.config import Format
from sweeperd.delivery import payload
from sweeperd.delivery.outbox import OutboxEntry
from sweeperd.delivery.payload import EVENT_TYPE, Fields, Message, hash_part
from sweeperd.text import rfc3339

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
    headers = _headers(message, _CONTENT_TYPES[form, False])
    headers |= {"X-Cycles-Event-Id": message.event_id, "X-Cycles-Event-Type": message.event_type}
    if message.trace_id:
        headers["X-Cycles-Trace-Id"] = message.trace_id
    return WebhookRequest(message.event_id, message.body, headers, message.event_id, [message.trace_id])


def batch_request(messages: Sequence[Message], form: Format) -> WebhookRequest:
    """
    The request with these events as a JSON array, even of a single one. Its webhook id is made of the events' ids in
    order, so the same batch has the same id again. `messages` is not empty, and is in the order of the stream.
    """
    body = b"[" + b",".join([message.body for message in messages]) + b"]"
    ids = ",".join([message.event_id for message in messages]).encode()
    webhook_id = "batch_" + hashlib.sha256(ids).hexdigest()[:32]
    first = messages[0]
    headers = _headers(first, _CONTENT_TYPES[form, True])
    return WebhookRequest(webhook_id, body, headers, first.event_id, [message.trace_id for message in messages])


def _headers(first: Message, content_type: str) -> dict[str, str]:
    headers = {"Content-Type": content_type}
    if first.sequence:
        headers["X-Sweeperd-Sequence"] = first.sequence
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
        self._template, self._in_places = _template(form)
        self._origin_part = hash_part(origin)
        self._shard_bytes = shard.encode()
        #: Whether each event carries its place in the stream. Of a batch of plain events only the request does.
        self._numbered = form == "cloudevents" or not batches

    def request(self, entries: Sequence[OutboxEntry]) -> WebhookRequest:
        """The request with these entries, as `webhook_request` makes it."""
        messages = [self(entry.id, entry.fields) for entry in entries]
        if not self._numbered:
            messages[0] = messages[0]._replace(sequence=self._sequence(entries[0].id))
        return webhook_request(messages, self._form, batches=self._batches)

    def __call__(self, stream_id: bytes, fields: Fields) -> Message:
        """The message of the entry with this id in the stream."""
        return self.plain(stream_id, fields) or self.general(stream_id, fields)

    def general(self, stream_id: bytes, fields: Fields) -> Message:
        """The message of any entry."""
        sequence = self._sequence(stream_id) if self._numbered else ""
        return payload.encode(self._form, self._shard, self._origin, sequence, fields)

    def plain(self, stream_id: bytes, fields: Fields) -> Message | None:
        """The same message from the template; None where the entry does not fit it."""
        values = _plain_values(fields)
        if values is None:
            return None
        name, tenant, _, _, trace_id, _, _, _, created_at, expires_at, expired_at = values
        hashed = self._origin_part + hash_part(tenant) + hash_part(name) + hash_part(expired_at)
        event_id = "evt_" + hashlib.sha256(hashed).hexdigest()[:32]
        sequence = self._sequence(stream_id) if self._numbered else ""
        row = (
            *values[:_FIRST_TIME],
            _second(created_at[:-3]) + created_at[-3:],
            _second(expires_at[:-3]) + expires_at[-3:],
            _second(expired_at[:-3]) + expired_at[-3:],
            b"%d" % (int(expires_at) - int(created_at)),
            event_id.encode(),
            sequence.encode(),
            self._shard_bytes,
        )
        return Message(event_id, EVENT_TYPE, trace_id.decode(), self._template % self._in_places(row), sequence)

    def _sequence(self, stream_id: bytes) -> str:
        """Shard and stream id, padded so that the order of texts is the order of the stream."""
        milliseconds, _, number = stream_id.partition(b"-")
        return f"{self._shard}:{milliseconds.zfill(20).decode()}-{number.zfill(20).decode()}"


# ---- the template

_TEXTS = (b"id", b"tenant", b"scope", b"unit", b"trace_id")
_INTEGERS = (b"amount", b"grace_ms", b"extensions")
_TIMES = (b"created_at", b"expires_at", b"expired_at")
_NAMES = _TEXTS + _INTEGERS + _TIMES

_FIRST_TIME = _NAMES.index(_TIMES[0])
_Row = tuple[bytes, ...]

_in_order: Callable[[Fields], _Row] = operator.itemgetter(*_NAMES)
#: The values in order, a line each, where JSON writes every one of them as it stands: printable ASCII without quote and
#: backslash, numbers without leading zeros, times from 2001 to 2286.
_plain = re.compile(
    rb"\n".join(
        [rb"[ !#-\[\]-~]+"] * len(_TEXTS)
        + [rb"(?:0|[1-9][0-9]{0,18})"] * len(_INTEGERS)
        + [rb"[1-9][0-9]{12}"] * len(_TIMES)
    )
).fullmatch


def _template(form: Format) -> tuple[bytes, Callable[[_Row], _Row]]:
    """
    A body with `%b` in place of each value, and a function that takes the values from a row in the order of these
    places. It is made from an event whose values are found again in its JSON.
    """
    marked = {name: b"<%b>" % name for name in _TEXTS}
    marked |= {name: b"%d" % (10**18 + number) for number, name in enumerate(_INTEGERS)}
    marked |= {name: b"%d" % (10**12 + 1001 * number**2) for number, name in enumerate(_TIMES)}
    times = [_second(marked[name][:-3]) + marked[name][-3:] for name in _TIMES]
    ttl_ms = b"%d" % (int(marked[b"expires_at"]) - int(marked[b"created_at"]))
    texts_and_integers = _in_order(marked)[:_FIRST_TIME]
    row = (*texts_and_integers, *times, ttl_ms, b"<event_id>", b"<sequence>", b"<shard>")
    columns = {value: column for column, value in enumerate(row)}
    body = payload.as_json(form, "<shard>", "<event_id>", "<sequence>", marked)
    marks = re.compile(b"|".join(map(re.escape, columns)))
    return marks.sub(b"%b", body), operator.itemgetter(*[columns[mark] for mark in marks.findall(body)])


def _plain_values(fields: Fields) -> _Row | None:
    """The values for the template; None where one is absent, or is not written in JSON as it stands."""
    if fields.get(b"missing", b"[]") != b"[]" or fields.get(b"closed", b"[]") != b"[]":
        return None
    if not fields.keys().isdisjoint(_OF_OTHERS):
        return None
    try:
        values = _in_order(fields)
    except KeyError:
        return None
    return values if _plain(b"\n".join(values)) else None


#: Fields that no expired reservation has: of another kind, or of an event that is no expiry.
_OF_OTHERS = frozenset({b"kind", b"type", b"data"})


@functools.lru_cache(maxsize=1024)
def _second(seconds: bytes) -> bytes:
    """A time in RFC 3339, up to the dot before its milliseconds. The template has the `Z` that ends it."""
    return rfc3339(int(seconds) * 1000)[:20].encode()
