"""Encodes the events of the outbox as the bodies of webhooks."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from sweeperd.config import Format
from sweeperd.store.streams import milliseconds
from sweeperd.text import decode, decode_list, timestamp, whole

#: The type of an event without a type: the expiry of a reservation.
EVENT_TYPE = "reservation.expired"
#: The prefix, in the stream, of the fields of a configured kind.
DATA = b"data."

#: The fields of one entry of the outbox.
Fields = dict[bytes, bytes]
#: The fields of an expired reservation, in the order of expire.lua.
EXPIRY_FIELDS = (
    b"id tenant scope unit amount created_at expires_at expired_at grace_ms extensions missing closed trace_id".split()
)

#: The last field of an expired reservation with `events.balances`: JSON, scope to `remaining` and `reserved`.
BALANCES = b"balances"

#: The field of a replayed event: the only endpoint to receive the event. Such an entry is no expiry.
ONLY_FOR = b"only_for"
_as_json = json.JSONEncoder(separators=(",", ":")).encode
#: The ASCII character beyond the printable characters, escaped by the standard library, but not by orjson.
_DELETE = b"\x7f"
#: As the traces of OpenTelemetry are written.
_is_trace_id = re.compile(rb"[0-9a-f]{32}").fullmatch


class OutboxEntry(NamedTuple):
    """One event taken by a group. A plain tuple: after an outage there are millions of entries."""

    id: bytes
    #: How many times the event was taken for delivery, this time included.
    deliveries: int
    #: Names and values of the fields in turn, as in Redis's reply; empty if the event is in the stream no more.
    pairs: Sequence[bytes]
    #: If the event was refused alone, the event travels alone from then on.
    alone: bool = False
    #: The length of names and values, bytes.
    size: int = 0

    @classmethod
    def of(cls, entry: bytes, deliveries: int, fields: Fields, alone: bool = False) -> "OutboxEntry":
        """The entry with this id and these fields."""
        pairs = [part for pair in fields.items() for part in pair]
        return cls(entry, deliveries, pairs, alone, len(b"".join(pairs)))

    @property
    def fields(self) -> Fields:
        """The fields as a dict, made at each call: costs as much as the rest of a read."""
        return dict(zip(*[iter(self.pairs)] * 2, strict=True))

    @property
    def is_plain_expiry(self) -> bool:
        """Whether the fields are exactly EXPIRY_FIELDS, as for nearly all events. BALANCES may follow."""
        names = self.pairs[::2]
        return names == EXPIRY_FIELDS or (names[-1:] == [BALANCES] and names[:-1] == EXPIRY_FIELDS)

    @property
    def added_ms(self) -> int:
        """When the event was added, ms on Redis's clock: the first half of the id."""
        return milliseconds(self.id)

    @property
    def only_for(self) -> str | None:
        """If an operator has replayed the event, the only endpoint to receive the event; None: every endpoint."""
        names = self.pairs[::2]
        return decode(self.pairs[2 * names.index(ONLY_FOR) + 1]) if ONLY_FOR in names else None


class Message(NamedTuple):
    """An event, ready to be sent. `body`: JSON in the format of the endpoint."""

    event_id: str
    event_type: str
    trace_id: str
    body: bytes
    #: The event's place in the stream, sortable as text; empty if the event is in no stream.
    sequence: str = ""

    def __repr__(self) -> str:
        # The body stays out of logs.
        return f"Message({self.event_id})"


def message(origin: bytes, fields: Fields) -> Message:
    """
    The webhook of an entry of the event stream, in the format `event`, without balances. `origin` identifies the shard.
    If a field is absent or malformed, the body has no such field.
    """
    if BALANCES in fields:
        fields = {name: value for name, value in fields.items() if name != BALANCES}
    return encode("event", "", origin, "", fields)


def encode(form: Format, shard: str, origin: bytes, sequence: str, fields: Fields) -> Message:
    """The same in this format, with the event's place in the stream of its shard."""
    name = event_id(origin, fields)
    return Message(name, event_type(fields), trace_id(fields), as_json(form, shard, name, sequence, fields), sequence)


def as_json(form: Format, shard: str, event_id: str, sequence: str, fields: Fields) -> bytes:
    """
    The body of an event with this id, as JSON in ASCII: what is not ASCII is escaped.

    orjson writes most bodies, in a twentieth of the standard library's time. The standard library writes what orjson
    cannot write in the same bytes: other characters, a number beyond 64 bits, the JSON of an event that is no expiry.
    """
    event = _BUILDERS[form](shard, event_id, sequence, fields)
    if b"data" not in fields:
        try:
            body = orjson.dumps(event)
        except orjson.JSONEncodeError:
            body = _DELETE
        if body.isascii() and _DELETE not in body:
            return body
    return _as_json(event).encode()


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
    """The type of an event, by default EVENT_TYPE."""
    return _text(fields, b"type") or EVENT_TYPE


def is_expiry(fields: Fields) -> bool:
    """Whether something expired. All other events are about the sweep or about deliveries."""
    return event_type(fields).endswith(".expired")


def category(fields: Fields) -> str:
    """The category of an event: the type up to the dot; for a configured kind the name of the kind."""
    return event_type(fields).partition(".")[0]


def _data(fields: Fields) -> dict[str, Any]:
    if b"data" in fields:  # an event that is no expiry
        try:
            data = json.loads(fields[b"data"])
        except ValueError:
            data = None
        return data if isinstance(data, dict) else {}
    return _reservation_data(fields) if b"kind" not in fields else _kind_data(fields)


def _kind_data(fields: Fields) -> dict[str, Any]:
    """The data of a configured kind: the fields of the kind as texts, and the fields of every kind."""
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
            "balances": _balances(fields),
        }
    )


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def event_id(origin: bytes, fields: Fields) -> str:
    """
    The same for every attempt, endpoint and replica, because the id is a hash of the reservation and the expiry only.
    If a reservation id is used again, the expiry has another time, and so the event has another id. For a configured
    kind the name is hashed too: two kinds may use the same id.
    """
    parts = [origin, fields.get(b"tenant", b""), fields.get(b"id", b""), fields.get(b"expired_at", b"")]
    if b"kind" in fields:
        parts.append(fields[b"kind"])
    if b"data" in fields:  # no expiry: content and time make the event unique
        parts += [fields.get(b"type", b""), fields.get(b"at", b""), fields[b"data"]]
    hashed = b"".join(map(hash_part, parts))
    return "evt_" + hashlib.sha256(hashed).hexdigest()[:32]


def hash_part(part: bytes) -> bytes:
    """A part of the hashed bytes, after the length of the part: so no other parts make the same bytes."""
    return len(part).to_bytes(4, "big") + part


def trace_id(fields: Fields) -> str:
    """The trace of the sweep that made the event; empty if there is none, or if the field is no trace id."""
    found = fields.get(b"trace_id", b"")
    return found.decode() if _is_trace_id(found) else ""


def _text(fields: Fields, name: bytes) -> str | None:
    return decode(fields[name]) if fields.get(name) else None


def _list(fields: Fields, name: bytes) -> tuple[str, ...] | None:
    try:
        return decode_list(fields.get(name, b"[]"))
    except ValueError:
        return None


def _balances(fields: Fields) -> dict[str, dict[str, int]] | None:
    """Scope to amounts after the release. Absent without `events.balances`."""
    if BALANCES not in fields:
        return None
    try:
        found = json.loads(fields[BALANCES].decode("utf-8", "surrogateescape")).items()
    except (ValueError, AttributeError):
        return None
    return {decode(scope.encode("utf-8", "surrogateescape")): amounts for scope, amounts in found}


def _integer(fields: Fields, name: bytes) -> int | None:
    return whole(fields.get(name, b""))


def _time(fields: Fields, name: bytes) -> str | None:
    return moment(fields.get(name, b""))


@functools.lru_cache(maxsize=1024)
def moment(value: bytes) -> str | None:
    """
    The RFC 3339 of a field in ms; None if the field is no time. Cached: an event has the time of its expiry several
    times, and so have the next events.
    """
    return timestamp(whole(value))
