"""The body of a webhook, made from one entry of the outbox."""

import functools
import hashlib
import json
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from sweeperd.config import Format
from sweeperd.text import decode, decode_list, rfc3339

#: The type of an event that names none: a reservation's.
EVENT_TYPE = "reservation.expired"
#: What the names of a configured kind's own fields begin with in the stream.
DATA = b"data."

#: The fields of one entry of the outbox.
Fields = dict[bytes, bytes]

_as_json = json.JSONEncoder(separators=(",", ":")).encode


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
    event_id = _event_id(origin, fields)
    return Message(event_id, event_type(fields), _trace_id(fields), _as_json(_event("", event_id, "", fields)).encode())


class EventEncoder:
    """
    Encodes the entries of one shard's outbox as messages of one format. Threads may share it.

    Nearly all entries differ in a few plain values only, which a template of bytes takes at a quarter of the cost. An
    entry that does not fit the template (a field is absent or odd) is encoded from the dict.
    """

    def __init__(self, shard: str, origin: bytes, format: Format = "event") -> None:
        self._shard = shard
        self._origin = origin
        self._build = _BUILDERS[format]
        self._template, self._in_places = _template(self._build)

    def __call__(self, stream_id: bytes, fields: Fields) -> Message:
        """The message of the entry with this id in the stream."""
        event_id = _event_id(self._origin, fields)
        sequence = f"{self._shard}:{_sortable(stream_id)}"
        body = self.fill(event_id, sequence, fields) or self.encode(event_id, sequence, fields)
        return Message(event_id, event_type(fields), _trace_id(fields), body, sequence)

    def encode(self, event_id: str, sequence: str, fields: Fields) -> bytes:
        """The body of any entry."""
        return _as_json(self._build(self._shard, event_id, sequence, fields)).encode()

    def fill(self, event_id: str, sequence: str, fields: Fields) -> bytes | None:
        """The same body from the template; None where the entry does not fit it."""
        row = _plain_row(fields)
        if row is None:
            return None
        return self._template % self._in_places((*row, event_id.encode(), sequence.encode(), self._shard.encode()))


# ---- the two formats


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
            "trace_id": _trace_id(fields) or None,
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
            "sequence": sequence,
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


def _event_id(origin: bytes, fields: Fields) -> str:
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
    hashed = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return "evt_" + hashlib.sha256(hashed).hexdigest()[:32]


def _sortable(stream_id: bytes) -> str:
    """A stream id with both halves padded to 20 digits, so that the order of texts is the order of the stream."""
    milliseconds, _, number = stream_id.partition(b"-")
    return (milliseconds.zfill(20) + b"-" + number.zfill(20)).decode()


def _trace_id(fields: Fields) -> str:
    return decode(fields.get(b"trace_id", b""))


def _text(fields: Fields, name: bytes) -> str | None:
    return decode(fields[name]) if fields.get(name) else None


def _list(fields: Fields, name: bytes) -> tuple[str, ...] | None:
    try:
        return decode_list(fields.get(name, b"[]"))
    except ValueError:
        return None


def _integer(fields: Fields, name: bytes) -> int | None:
    text = fields.get(name, b"")
    return int(text) if text.isdigit() and len(text) <= 19 else None


def _time(fields: Fields, name: bytes) -> str | None:
    milliseconds = _integer(fields, name)
    try:
        return None if milliseconds is None else rfc3339(milliseconds)
    except (OverflowError, ValueError):
        return None


# ---- the template

_TEXTS = (b"id", b"tenant", b"scope", b"unit", b"trace_id")
_INTEGERS = (b"amount", b"grace_ms", b"extensions")
_TIMES = (b"created_at", b"expires_at", b"expired_at")
_LISTS = (b"missing", b"closed")
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


def _template(build: _Builder) -> tuple[bytes, Callable[[_Row], _Row]]:
    """
    A body with `%b` in place of each value, and a function that takes the values from a row in the order of these
    places. It is made from an event whose values are found again in its JSON.
    """
    marked = {name: b"<%b>" % name for name in _TEXTS}
    marked |= {name: b"%d" % (10**18 + number) for number, name in enumerate(_INTEGERS)}
    marked |= {name: b"%d" % (10**12 + 1001 * number**2) for number, name in enumerate(_TIMES)}
    row = (*_row(marked), b"<event_id>", b"<sequence>", b"<shard>")
    columns = {value: column for column, value in enumerate(row)}
    body = _as_json(build("<shard>", "<event_id>", "<sequence>", marked)).encode()
    marks = re.compile(b"|".join(map(re.escape, columns)))
    return marks.sub(b"%b", body), operator.itemgetter(*[columns[mark] for mark in marks.findall(body)])


def _plain_row(fields: Fields) -> _Row | None:
    """The values for the template; None where one is absent, or is not written in JSON as it stands."""
    if b"kind" in fields or any(fields.get(name, b"[]") != b"[]" for name in _LISTS):
        return None
    try:
        return _row(fields) if _plain(b"\n".join(_in_order(fields))) else None
    except KeyError:
        return None


def _row(fields: Fields) -> _Row:
    """Texts, integers, times and the difference of two times, each as it stands in JSON."""
    values = _in_order(fields)
    created_at, expires_at, expired_at = values[_FIRST_TIME:]
    ttl_ms = b"%d" % (int(expires_at) - int(created_at))
    return (*values[:_FIRST_TIME], _rfc3339(created_at), _rfc3339(expires_at), _rfc3339(expired_at), ttl_ms)


def _rfc3339(milliseconds: bytes) -> bytes:
    return _second(milliseconds[:-3]) + milliseconds[-3:] + b"Z"


@functools.lru_cache(maxsize=1024)
def _second(seconds: bytes) -> bytes:
    return rfc3339(int(seconds) * 1000)[:20].encode()
