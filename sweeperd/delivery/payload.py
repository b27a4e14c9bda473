"""The body of a webhook, made from one entry of the outbox."""

import hashlib
import json
from dataclasses import dataclass

from sweeperd.text import decode, decode_list, rfc3339

EVENT_TYPE = "reservation.expired"

_as_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Message:
    """One event, ready to be sent. `body` is the exact bytes that are signed."""

    event_id: str
    event_type: str
    trace_id: str
    tenant: bytes
    body: bytes

    def __repr__(self) -> str:
        # The body stays out of logs.
        return f"Message({self.event_id})"


def message(origin: bytes, fields: dict[bytes, bytes]) -> Message:
    """
    The webhook of one entry of the event stream. `origin` identifies the shard. A field that is absent or malformed is
    left out of the body.
    """
    event_id = _event_id(origin, fields)
    tenant, scope = fields.get(b"tenant", b""), _text(fields, b"scope")
    created_at, expires_at = _integer(fields, b"created_at"), _integer(fields, b"expires_at")
    expired_at = _time(fields, b"expired_at")
    trace_id = decode(fields.get(b"trace_id", b""))
    data = {
        "reservation_id": _text(fields, b"id"),
        "scope": scope,
        "unit": _text(fields, b"unit"),
        "estimated_amount": _integer(fields, b"amount"),
        "created_at": _time(fields, b"created_at"),
        "expires_at": _time(fields, b"expires_at"),
        "expired_at": expired_at,
        "ttl_ms": None if created_at is None or expires_at is None else expires_at - created_at,
        "grace_ms": _integer(fields, b"grace_ms"),
        "extensions_used": _integer(fields, b"extensions"),
        "missing_budgets": _list(fields, b"missing"),
    }
    body = {
        "event_id": event_id,
        "event_type": EVENT_TYPE,
        "category": "reservation",
        "timestamp": expired_at,
        "tenant_id": _text(fields, b"tenant"),
        "scope": scope,
        "actor": {"type": "system"},
        "source": "sweeperd",
        "data": {key: value for key, value in data.items() if value is not None},
        "trace_id": trace_id or None,
    }
    known = {key: value for key, value in body.items() if value is not None}
    return Message(event_id, EVENT_TYPE, trace_id, tenant, _as_json(known).encode())


def _event_id(origin: bytes, fields: dict[bytes, bytes]) -> str:
    """
    The id is the same for every attempt, endpoint and replica, because only the reservation and its expiry go into it.
    A reservation id that is used again expires at another time, and so gets another event id.
    """
    parts = (origin, fields.get(b"tenant", b""), fields.get(b"id", b""), fields.get(b"expired_at", b""))
    hashed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return "evt_" + hashlib.sha256(hashed).hexdigest()[:32]


def _text(fields: dict[bytes, bytes], name: bytes) -> str | None:
    return decode(fields[name]) if fields.get(name) else None


def _list(fields: dict[bytes, bytes], name: bytes) -> tuple[str, ...] | None:
    try:
        return decode_list(fields.get(name, b"[]"))
    except ValueError:
        return None


def _integer(fields: dict[bytes, bytes], name: bytes) -> int | None:
    text = fields.get(name, b"")
    return int(text) if text.isdigit() and len(text) <= 19 else None


def _time(fields: dict[bytes, bytes], name: bytes) -> str | None:
    milliseconds = _integer(fields, name)
    try:
        return None if milliseconds is None else rfc3339(milliseconds)
    except (OverflowError, ValueError):
        return None
