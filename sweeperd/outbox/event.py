"""Encodes the events of the outbox as the bodies of webhooks."""

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from sweeperd.config import Format
from sweeperd.store.streams import milliseconds
from sweeperd.text import decode, decode_list, strings, timestamp, whole

#: The type of an event without the field `type`.
EVENT_TYPE = "reservation.expired"
#: The prefix of a configured kind's own fields in the stream.
DATA = b"data."

#: The fields of a stream entry.
Fields = dict[bytes, bytes]
#: The fields of an expired reservation, in the order of expire.lua.
EXPIRY_FIELDS = (
    b"id tenant scope unit amount created_at expires_at expired_at grace_ms extensions missing closed trace_id".split()
)

#: With `events.balances`, the last field of an expired reservation: JSON, scope -> `remaining` and `reserved`.
BALANCES = b"balances"

#: In the replay of a dead letter, the only endpoint to receive the event. Such an entry is not an expiry.
ONLY_FOR = b"only_for"
_standard_json = json.JSONEncoder(separators=(",", ":")).encode
#: Bytes that are not UTF-8, as `surrogateescape` decodes them.
_INVALID = re.compile("[\udc80-\udcff]")
#: The only ASCII character that the standard library escapes and orjson does not.
_DELETE = b"\x7f"
#: Matches a trace id of OpenTelemetry.
_is_trace_id = re.compile(rb"[0-9a-f]{32}").fullmatch


class OutboxEntry(NamedTuple):
    """An event that a consumer group has read. A plain tuple, because an outage leaves millions of them."""

    id: bytes
    #: The delivery number, from 1.
    deliveries: int
    #: Field names and values in turn, as Redis replies; empty if the event was trimmed from the stream.
    pairs: Sequence[bytes]
    #: Whether the event was rejected on its own, so that no batch includes it any more.
    alone: bool = False
    #: The total length of names and values, bytes.
    size: int = 0

    @classmethod
    def of(cls, entry: bytes, deliveries: int, fields: Fields, alone: bool = False) -> "OutboxEntry":
        pairs = [part for pair in fields.items() for part in pair]
        return cls(entry, deliveries, pairs, alone, len(b"".join(pairs)))

    @property
    def fields(self) -> Fields:
        """The fields as a new dict. Building it costs as much as the rest of a read."""
        return dict(zip(*[iter(self.pairs)] * 2, strict=True))

    @property
    def is_plain_expiry(self) -> bool:
        """Whether the fields are exactly EXPIRY_FIELDS, optionally with BALANCES, as in nearly all events."""
        names = self.pairs[::2]
        return names == EXPIRY_FIELDS or (names[-1:] == [BALANCES] and names[:-1] == EXPIRY_FIELDS)

    @property
    def added_ms(self) -> int:
        return milliseconds(self.id)

    @property
    def only_for(self) -> str | None:
        """The only endpoint to receive a replayed event; None for every endpoint."""
        names = self.pairs[::2]
        return decode(self.pairs[2 * names.index(ONLY_FOR) + 1]) if ONLY_FOR in names else None


class Message(NamedTuple):
    """An encoded event. `body`: JSON in the format of the endpoint."""

    event_id: str
    event_type: str
    trace_id: str
    body: bytes
    #: The event's position in the stream, sortable as text; empty if the event is not in a stream.
    sequence: str = ""

    def __repr__(self) -> str:
        # Keeps the body out of logs.
        return f"Message({self.event_id})"


def message(origin: bytes, fields: Fields) -> Message:
    """Encode an entry in the format `event`, without balances and malformed fields. `origin` identifies the shard."""
    if BALANCES in fields:
        fields = {name: value for name, value in fields.items() if name != BALANCES}
    return encode("event", "", origin, "", fields)


def encode(form: Format, shard: str, origin: bytes, sequence: str, fields: Fields) -> Message:
    """Like `message`, in this format and with the event's position in its stream."""
    return encode_as(form, shard, event_id(origin, fields), sequence, fields)


def encode_as(form: Format, shard: str, event_id: str, sequence: str, fields: Fields) -> Message:
    """Like `encode`, with this event id."""
    kind, trace = event_type(fields), trace_id(fields)
    event = _BUILDERS[form](shard, Message(event_id, kind, trace, b"", sequence), fields)
    return Message(event_id, kind, trace, _as_json(event, plain=b"data" not in fields), sequence)


def _as_json(event: dict[str, Any], *, plain: bool) -> bytes:
    """
    Encode the body of an event as ASCII-only JSON. `plain`: it has no data of an operational event.

    orjson takes a twentieth of the standard library's time and encodes most bodies. The standard library takes over if
    orjson's bytes would differ: other characters, numbers beyond 64 bits, the data of operational events.
    """
    if plain:
        try:
            body = orjson.dumps(event)
        except orjson.JSONEncodeError:
            body = _DELETE
        if body.isascii() and _DELETE not in body:
            return body
    return _standard_json(event).encode()


def _event(_shard: str, event: Message, fields: Fields) -> dict[str, Any]:
    return _known(
        {
            "event_id": event.event_id,
            "event_type": event.event_type,
            "category": category(event.event_type),
            "timestamp": _time(fields, b"expired_at") or _time(fields, b"at"),
            "tenant_id": _text(fields, b"tenant"),
            "scope": _text(fields, b"scope"),
            "actor": {"type": "system"},
            "source": "sweeperd",
            "data": _data(fields),
            "trace_id": event.trace_id or None,
        }
    )


def _cloud_event(shard: str, event: Message, fields: Fields) -> dict[str, Any]:
    return _known(
        {
            "specversion": "1.0",
            "id": event.event_id,
            "source": f"/sweeperd/{shard}",
            "type": event.event_type,
            "subject": _text(fields, b"id"),
            "time": _time(fields, b"expired_at") or _time(fields, b"at"),
            "datacontenttype": "application/json",
            "sequence": event.sequence or None,  # None if the event is not in a stream
            "data": _known({"tenant_id": _text(fields, b"tenant")}) | _data(fields),
        }
    )


_BUILDERS: dict[Format, Callable[..., dict[str, Any]]] = {"event": _event, "cloudevents": _cloud_event}


def event_type(fields: Fields) -> str:
    return _text(fields, b"type") or EVENT_TYPE


def is_expiry(fields: Fields) -> bool:
    """Whether the event is an expiry. All others are operational events."""
    return event_type(fields).endswith(".expired")


def category(event_type: str) -> str:
    """The category of an event: its type up to the first dot. For a configured kind this is the kind's name."""
    return event_type.partition(".")[0]


def _data(fields: Fields) -> dict[str, Any]:
    if b"data" in fields:  # an operational event
        text = fields[b"data"].decode("utf-8", "surrogateescape")
        try:
            data = json.loads(_INVALID.sub(lambda byte: rf"\\x{ord(byte[0]) - 0xDC00:02x}", text))
        except (ValueError, RecursionError):
            data = None
        return data if isinstance(data, dict) else {}
    return _reservation_data(fields) if b"kind" not in fields else _kind_data(fields)


def entry_of(data: Mapping[str, Any]) -> str:
    """The id of the reservation, or of the entry of a kind, that the data of an event names; empty without one."""
    return str(data.get("reservation_id", data.get("id", "")))


def _kind_data(fields: Fields) -> dict[str, Any]:
    """The data of an expired entry of a configured kind: its own fields as text, and the fields of every kind."""
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
    The id of an event: a hash of the entry and the time of its expiry, so that every attempt, endpoint and replica
    sends the same id, and a reused reservation id gets a new one. The hash includes the name of a configured kind,
    because two kinds may use the same entry id.
    """
    parts = [origin, fields.get(b"tenant", b""), fields.get(b"id", b""), fields.get(b"expired_at", b"")]
    if b"kind" in fields:
        parts.append(fields[b"kind"])
    if b"data" in fields:  # an operational event is identified by its content and time
        parts += [fields.get(b"type", b""), fields.get(b"at", b""), fields[b"data"]]
    hashed = b"".join(map(hash_part, parts))
    return "evt_" + hashlib.sha256(hashed).hexdigest()[:32]


def hash_part(part: bytes) -> bytes:
    """One part of a hash, prefixed with its length so that different parts never give the same bytes."""
    return len(part).to_bytes(4, "big") + part


def trace_id(fields: Fields) -> str:
    """The trace id of the tick that produced the event; empty if missing or malformed."""
    found = fields.get(b"trace_id", b"")
    return found.decode() if _is_trace_id(found) else ""


def scopes(fields: Fields) -> tuple[bytes, ...]:
    """The scopes of an event. One about several budgets has the scope of each."""
    with contextlib.suppress(ValueError):
        return fields.get(b"scope", b""), *strings(fields.get(b"scopes", b"[]"))
    return (fields.get(b"scope", b""),)


def _text(fields: Fields, name: bytes) -> str | None:
    return decode(fields[name]) if fields.get(name) else None


def _list(fields: Fields, name: bytes) -> tuple[str, ...] | None:
    try:
        return decode_list(fields.get(name, b"[]"))
    except ValueError:
        return None


def _balances(fields: Fields) -> dict[str, dict[str, int]] | None:
    """Scope -> amounts after the release; None without `events.balances`."""
    if BALANCES not in fields:
        return None
    try:
        found = json.loads(fields[BALANCES].decode("utf-8", "surrogateescape")).items()
    except (ValueError, AttributeError, RecursionError):
        return None
    return {decode(scope.encode("utf-8", "surrogateescape")): amounts for scope, amounts in found}


def _integer(fields: Fields, name: bytes) -> int | None:
    return whole(fields.get(name, b""))


def _time(fields: Fields, name: bytes) -> str | None:
    return moment(fields.get(name, b""))


@functools.lru_cache(maxsize=1024)
def moment(value: bytes) -> str | None:
    """RFC 3339 of a field in ms; None if malformed. Cached, because an event and the ones after it repeat a time."""
    return timestamp(whole(value))
