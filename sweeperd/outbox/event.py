"""The message about one entry of the outbox: the JSON of its event, for any kind of event."""

import functools
import hashlib
import itertools
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sweeperd.config import Format
from sweeperd.store.streams import milliseconds
from sweeperd.text import decode, decode_list, rfc3339, whole

#: The type of an event that names none: a reservation's.
EVENT_TYPE = "reservation.expired"
#: What the names of a configured kind's own fields begin with in the stream.
DATA = b"data."

#: The fields of one entry of the outbox.
Fields = dict[bytes, bytes]
#: Those of an expired reservation, in the order in which expire.lua writes them.
EXPIRY_FIELDS = [
    b"id",
    b"tenant",
    b"scope",
    b"unit",
    b"amount",
    b"created_at",
    b"expires_at",
    b"expired_at",
    b"grace_ms",
    b"extensions",
    b"missing",
    b"closed",
    b"trace_id",
]

#: The field of a replayed event: the one endpoint that receives it. Such an entry is no expiry.
ONLY_FOR = b"only_for"

_as_json = json.JSONEncoder(separators=(",", ":")).encode


class OutboxEntry(NamedTuple):
    """One event that a group has taken. A plain tuple: there are millions of them after an outage."""

    id: bytes
    #: How many times it was taken for delivery, this time included.
    deliveries: int
    #: The names of its fields and their values in turn, as Redis replies them; empty where the stream has it no more.
    pairs: Sequence[bytes]
    #: Whether it was refused alone, and so travels alone from then on.
    alone: bool = False
    #: The length of its names and values, bytes.
    size: int = 0

    @classmethod
    def of(cls, entry: bytes, deliveries: int, fields: Fields, alone: bool = False) -> "OutboxEntry":
        """The entry with this id and these fields."""
        pairs = [part for pair in fields.items() for part in pair]
        return cls(entry, deliveries, pairs, alone, len(b"".join(pairs)))

    @property
    def fields(self) -> Fields:
        """A dict of its fields. It is made at each call, and costs as much as the rest of a read."""
        return dict(zip(*[iter(self.pairs)] * 2, strict=True))

    @property
    def expiry(self) -> Sequence[bytes] | None:
        """Its values in the order of EXPIRY_FIELDS, where it has exactly these fields, as nearly all events do."""
        return self.pairs[1::2] if self.pairs[::2] == EXPIRY_FIELDS else None

    @property
    def added_ms(self) -> int:
        """When it was added, ms on Redis's clock: the first half of its id."""
        return milliseconds(self.id)

    @property
    def only_for(self) -> str | None:
        """The one endpoint that receives it, because an operator has replayed it; None: every endpoint."""
        names = self.pairs[::2]
        return decode(self.pairs[2 * names.index(ONLY_FOR) + 1]) if ONLY_FOR in names else None


class Message(NamedTuple):
    """One event, ready to be sent. `body` is its JSON in the format of the endpoint."""

    event_id: str
    event_type: str
    trace_id: str
    body: bytes
    #: The event's place in its stream, sortable as text; empty for an event that is in no stream.
    sequence: str = ""

    def __repr__(self) -> str:
        # The body stays out of logs.
        return f"Message({self.event_id})"


def message(origin: bytes, fields: Fields) -> Message:
    """
    The webhook of one entry of the event stream, in the format `event`. `origin` identifies the shard. A field that is
    absent or malformed is left out of the body.
    """
    return encode("event", "", origin, "", fields)


def encode(form: Format, shard: str, origin: bytes, sequence: str, fields: Fields) -> Message:
    """The same in this format, with the event's place in the stream of its shard."""
    name = event_id(origin, fields)
    return Message(name, event_type(fields), trace_id(fields), as_json(form, shard, name, sequence, fields), sequence)


def as_json(form: Format, shard: str, event_id: str, sequence: str, fields: Fields) -> bytes:
    """The body of an event with this id, as JSON."""
    return _as_json(_BUILDERS[form](shard, event_id, sequence, fields)).encode()


def _event(_shard: str, event_id: str, _sequence: str, fields: Fields) -> dict[str, Any]:
    return _known(
        {
            "event_id": event_id,
            "event_type": event_type(fields),
            "category": category(fields),
            "timestamp": _time(fields, b"expired_at") or _time(fields, b"at"),
            "tenant_id": _text(fields, b"tenant"),
            "scope": _text(fields, b"scope"),
            "actor": {"type": "system"},
            "source": "sweeperd",
            "data": _data(fields),
            "trace_id": trace_id(fields) or None,
        }
    )


def _cloud_event(shard: str, event_id: str, sequence: str, fields: Fields) -> dict[str, Any]:
    return _known(
        {
            "specversion": "1.0",
            "id": event_id,
            "source": f"/sweeperd/{shard}",
            "type": event_type(fields),
            "subject": _text(fields, b"id"),
            "time": _time(fields, b"expired_at") or _time(fields, b"at"),
            "datacontenttype": "application/json",
            "sequence": sequence or None,  # an event that is in no stream has none
            "data": _known({"tenant_id": _text(fields, b"tenant")}) | _data(fields),
        }
    )


#: Shard, event id, sequence and the fields of an entry to the event as it stands in JSON.
_Builder = Callable[[str, str, str, Fields], dict[str, Any]]
_BUILDERS: dict[Format, _Builder] = {"event": _event, "cloudevents": _cloud_event}


def event_type(fields: Fields) -> str:
    """The type of an event."""
    return _text(fields, b"type") or EVENT_TYPE


def is_expiry(fields: Fields) -> bool:
    """Whether something expired. All other events are about the sweep or about deliveries."""
    return event_type(fields).endswith(".expired")


def category(fields: Fields) -> str:
    """The category of an event: its type up to the dot. A configured kind's name is its category."""
    return event_type(fields).partition(".")[0]


def _data(fields: Fields) -> dict[str, Any]:
    if b"data" in fields:  # an event that is no expiry
        data: dict[str, Any] = json.loads(fields[b"data"])
        return data
    return _reservation_data(fields) if b"kind" not in fields else _kind_data(fields)


def _kind_data(fields: Fields) -> dict[str, Any]:
    """The data of a configured kind: its own fields as texts, and what sweeperd knows of every kind."""
    own = {decode(name.removeprefix(DATA)): decode(value) for name, value in fields.items() if name.startswith(DATA)}
    return own | _known(
        {
            "id": _text(fields, b"id"),
            "expires_at": _time(fields, b"expires_at"),
            "expired_at": _time(fields, b"expired_at"),
            "missing": _list(fields, b"missing") or None,
        }
    )


def _reservation_data(fields: Fields) -> dict[str, Any]:
    created_at, expires_at = _integer(fields, b"created_at"), _integer(fields, b"expires_at")
    return _known(
        {
            "reservation_id": _text(fields, b"id"),
            "scope": _text(fields, b"scope"),
            "unit": _text(fields, b"unit"),
            "estimated_amount": _integer(fields, b"amount"),
            "created_at": _time(fields, b"created_at"),
            "expires_at": _time(fields, b"expires_at"),
            "expired_at": _time(fields, b"expired_at"),
            "ttl_ms": None if created_at is None or expires_at is None else expires_at - created_at,
            "grace_ms": _integer(fields, b"grace_ms"),
            "extensions_used": _integer(fields, b"extensions"),
            "missing_budgets": _list(fields, b"missing"),
            "closed_budgets": _list(fields, b"closed"),
        }
    )


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def event_id(origin: bytes, fields: Fields) -> str:
    """
    The id is the same for every attempt, endpoint and replica, because only the reservation and its expiry go into it.
    A reservation id that is used again expires at another time, and so gets another event id. Of a configured kind its
    name goes into it too: two kinds may use the same id.
    """
    parts = [origin, fields.get(b"tenant", b""), fields.get(b"id", b""), fields.get(b"expired_at", b"")]
    if b"kind" in fields:
        parts.append(fields[b"kind"])
    if b"data" in fields:  # no expiry: what it says, and when, makes it one event
        parts += [fields.get(b"type", b""), fields.get(b"at", b""), fields[b"data"]]
    hashed = b"".join(map(hash_part, parts))
    return "evt_" + hashlib.sha256(hashed).hexdigest()[:32]


def hash_part(part: bytes) -> bytes:
    """One part of what is hashed to an event id: with its length, so that no other parts make the same bytes."""
    return len(part).to_bytes(4, "big") + part


def trace_id(fields: Fields) -> str:
    """The trace of the sweep that made the event; empty where it has none."""
    return decode(fields.get(b"trace_id", b""))


def _text(fields: Fields, name: bytes) -> str | None:
    return decode(fields[name]) if fields.get(name) else None


def _list(fields: Fields, name: bytes) -> tuple[str, ...] | None:
    try:
        return decode_list(fields.get(name, b"[]"))
    except ValueError:
        return None


def _integer(fields: Fields, name: bytes) -> int | None:
    return whole(fields.get(name, b""))


def _time(fields: Fields, name: bytes) -> str | None:
    milliseconds = _integer(fields, name)
    try:
        return None if milliseconds is None else rfc3339(milliseconds)
    except (OverflowError, ValueError):
        return None


# ---- the bodies of ordinary events, filled into a template of bytes, at a fraction of the cost of dicts and JSON
# An ordinary event is an expired reservation that differs from other ones in a few plain values. Some of its values
# (tenant, scope, unit, trace) are those of many events, so the template is filled in two steps, and the result of the
# first one is kept. The second step fills all events of a batch at once, which costs less than one after the other.


#: So many results of the first step are kept.
KEPT = 256

#: The fields that many events have in common, and those that are an event's own.
_COMMON_TEXTS, _COMMON_INTEGERS = (b"tenant", b"scope", b"unit", b"trace_id"), (b"grace_ms", b"extensions")
_COMMON_LISTS = (b"missing", b"closed")
_COMMON = _COMMON_TEXTS + _COMMON_INTEGERS + _COMMON_LISTS
_TIMES = (b"created_at", b"expires_at", b"expired_at")
_OWN = (b"id", b"amount", *_TIMES)

Values = tuple[bytes, ...]
Choice = Callable[[Values], Values]

_common_values: Callable[[Sequence[bytes]], Values] = operator.itemgetter(*map(EXPIRY_FIELDS.index, _COMMON))
_own_values: Callable[[Sequence[bytes]], Values] = operator.itemgetter(*map(EXPIRY_FIELDS.index, _OWN))

#: Values, a line each, where JSON writes every one of them as it stands: printable ASCII without quote and backslash,
#: numbers without leading zeros, lists that are empty, times from 2001 to 2286.
_TEXT, _INTEGER, _LIST, _TIME = rb"[ !#-\[\]-~]+", rb"(?:0|[1-9][0-9]{0,18})", rb"\[\]", rb"[1-9][0-9]{12}"
_plain_common = re.compile(
    b"\n".join([_TEXT] * len(_COMMON_TEXTS) + [_INTEGER] * len(_COMMON_INTEGERS) + [_LIST] * len(_COMMON_LISTS))
).fullmatch
_plain_own = re.compile(b"\n".join([_TEXT, _INTEGER] + [_TIME] * len(_TIMES))).fullmatch
#: The length of a time, as `hash_part` writes it.
_TIME_LENGTH = len(b"1763712065000").to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class HalfFilled:
    """What events with the same common values share."""

    #: Has `%b` in place of each value that is an event's own.
    body: bytes
    #: What is hashed to the event id before the id of the reservation.
    hashed: bytes
    trace_id: str


@dataclass(frozen=True, slots=True)
class Filled:
    """Ordinary events: their ids and traces in order, and their JSON with a comma between two of them."""

    event_ids: list[str]
    trace_ids: list[str]
    body: bytes


class Template:
    """The bodies in one format of the ordinary events of one shard. `origin` identifies the shard."""

    def __init__(self, shard: str, origin: bytes, form: Format) -> None:
        self._shard = shard.encode()
        self._origin_part = hash_part(origin)
        self._body, self._common_places, self._own_places = _template(form)
        #: The first step; None where a value is odd.
        self._half = functools.lru_cache(KEPT)(self._half_filled)

    def fill(self, events: Sequence[Sequence[bytes] | None], sequences: Sequence[str]) -> Filled | None:
        """
        Events, each by its values in the order of EXPIRY_FIELDS, None where it has other fields; and the place of each
        in the stream. Returns None where one of them is not ordinary.
        """
        expiries = [values for values in events if values]
        own = [_own_values(values) for values in expiries]
        if len(own) < len(events) or not all(map(_plain_own, map(b"\n".join, own))):
            return None
        halves = [half for values in expiries if (half := self._half(_common_values(values)))]
        return self._filled(halves, own, sequences) if len(halves) == len(own) else None

    def message(self, values: Sequence[bytes], sequence: str) -> Message | None:
        """
        One event, by its values in the order of EXPIRY_FIELDS, and its place in the stream. Returns None where it is
        not ordinary. `fill` would take twice as long for a single one.
        """
        name, amount, created, expires, expired = own = _own_values(values)
        half = self._half(_common_values(values)) if _plain_own(b"\n".join(own)) else None
        if half is None:
            return None
        event_id, ttl_ms = _event_id(half.hashed, name, expired), b"%d" % (int(expires) - int(created))
        times = _digits(created), _digits(expires), _digits(expired)
        row = (name, amount, *times, ttl_ms, event_id.encode(), sequence.encode())
        return Message(event_id, EVENT_TYPE, half.trace_id, half.body % self._own_places(row), sequence)

    def _filled(self, halves: Sequence[HalfFilled], own: Sequence[Values], sequences: Sequence[str]) -> Filled:
        """The second step, with plain values."""
        names, amounts, created, expires, expired = zip(*own, strict=True)
        event_ids = [
            _event_id(half.hashed, name, expired_at)
            for half, name, expired_at in zip(halves, names, expired, strict=True)
        ]
        rows = zip(
            names,
            amounts,
            map(_digits, created),
            map(_digits, expires),
            map(_digits, expired),
            map(b"%d".__mod__, map(operator.sub, map(int, expires), map(int, created))),
            map(str.encode, event_ids),
            map(str.encode, sequences),
            strict=True,
        )
        values = tuple(itertools.chain.from_iterable(map(self._own_places, rows)))
        body = b",".join([half.body for half in halves]) % values
        return Filled(event_ids, [half.trace_id for half in halves], body)

    def _half_filled(self, values: Values) -> HalfFilled | None:
        if not _plain_common(b"\n".join(values)):
            return None
        tenant, _, _, trace_id, *_ = values
        row = tuple(value.replace(b"%", b"%%") for value in (*values[: -len(_COMMON_LISTS)], self._shard))
        body = self._body % self._common_places(row)
        return HalfFilled(body, self._origin_part + hash_part(tenant), trace_id.decode())


def _event_id(hashed: bytes, name: bytes, expired_at: bytes) -> str:
    parts = b"%b%b%b%b%b" % (hashed, len(name).to_bytes(4, "big"), name, _TIME_LENGTH, expired_at)
    return "evt_" + hashlib.sha256(parts).hexdigest()[:32]


def _digits(time: bytes) -> bytes:
    """A time in RFC 3339, without the `Z` that ends it in the template."""
    return _second(time[:-3]) + time[-3:]


def _template(form: Format) -> tuple[bytes, Choice, Choice]:
    """
    A body with `%b` in place of each common value, `%%b` in place of each own one, and two functions that take the
    values from a row in the order of these places. It is made from an event whose values are found again in its JSON.
    """
    marked = {name: b"<%b>" % name for name in (*_COMMON_TEXTS, b"id")}
    marked |= {name: b"%d" % number for number, name in enumerate((*_COMMON_INTEGERS, b"amount"), 10**18)}
    # Moments of which no two pairs lie equally far apart: a span of time is found in the JSON as well.
    marked |= zip(_TIMES, (b"1000000000000", b"1000000001001", b"1000000004004"), strict=True)
    ttl_ms = b"%d" % (int(marked[b"expires_at"]) - int(marked[b"created_at"]))
    common = (*(marked[name] for name in _COMMON_TEXTS + _COMMON_INTEGERS), b"<shard>")
    times = [_digits(marked[name]) for name in _TIMES]
    own = (marked[b"id"], marked[b"amount"], *times, ttl_ms, b"<event_id>", b"<sequence>")
    body = as_json(form, "<shard>", "<event_id>", "<sequence>", marked)
    marks = re.compile(b"|".join(map(re.escape, common + own)))
    found = marks.findall(body)
    return (
        marks.sub(lambda mark: b"%b" if mark[0] in common else b"%%b", body),
        operator.itemgetter(*[common.index(mark) for mark in found if mark in common]),
        operator.itemgetter(*[own.index(mark) for mark in found if mark in own]),
    )


@functools.lru_cache(maxsize=1024)
def _second(seconds: bytes) -> bytes:
    """A time in RFC 3339, up to the dot before its milliseconds. The template has the `Z` that ends it."""
    return rfc3339(int(seconds) * 1000)[:20].encode()


# ----
# From events of the outbox to the request that carries them: the body as bytes, and the headers that speak of the
# events.
#
# Nearly all events fit a template of bytes. An event that does not (another kind, a field that is absent or odd) is
# encoded by `payload`, and so is every event where the two would differ: a property test holds them together.


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
        return encode(self._form, self._shard, self._origin, self._event_sequence(entry.id), entry.fields)

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
