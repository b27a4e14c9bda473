"""Reservations, the first kind of thing that is swept: how the script is called, what it answers, what is told."""

import hashlib
import json
import random
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.delivery.sender import Message
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Keys
from sweeperd.sweep.grace_cache import Look
from sweeperd.sweep.sweeper import Decision, Kind, Outcome
from sweeperd.text import rfc3339, shown, shown_list

EVENT_TYPE = "reservation.expired"

_as_json = json.JSONEncoder(separators=(",", ":")).encode


def reservations(keys: Keys, settings: SweepSettings) -> Kind:
    """Reservations, as `sweep.Sweeper` takes them."""
    grace_ms = int(settings.grace.total_seconds() * 1000)
    retention_ms = int(settings.audit_retention.total_seconds() * 1000)
    # What was expired together must not all end together: Redis would have to free it within the same moment.
    shortest_ms = max(1, retention_ms - int(retention_ms * settings.audit_spread))
    spread_ms = retention_ms - shortest_ms + 1
    index, events, quarantine, budget_stem = keys.reservation_index, keys.events, keys.quarantine, keys.budget_stem

    def call(entry: bytes, trace_id: str) -> Call:
        return Call(
            [keys.reservation(entry), index, events, quarantine],
            [entry, budget_stem, grace_ms, shortest_ms + int(random.random() * spread_ms), trace_id],  # noqa: S311
        )

    look = Look(Script("sweep/page_in_grace"), [keys.reservation(b""), grace_ms])
    return Kind("reservations", index, quarantine, Script("sweep/expire"), call, _decision, look)


def _decision(entry: bytes, reply: Any) -> Decision:
    """What expire.lua's reply says; the shapes are told at the top of the script."""
    outcome = Outcome(reply[0].decode())
    if outcome is Outcome.EXPIRED:
        _, tenant, lag_ms, missing = reply
        return Decision(entry, outcome, tenant=tenant, lag_ms=lag_ms, missing=shown_list(missing))
    if outcome is Outcome.QUARANTINED:
        return Decision(entry, outcome, reply[1].decode(), tenant=reply[2])
    if outcome is Outcome.SKIPPED:
        return Decision(entry, outcome, reply[1].decode())
    return Decision(entry, outcome)


def message(origin: bytes, fields: dict[bytes, bytes]) -> Message:
    """
    The webhook of one entry of the event stream of the shard with this `origin`. A field that the entry does not have,
    or has in a form that cannot be told, is left out.
    """
    event_id = _event_id(origin, fields)
    tenant, scope = fields.get(b"tenant", b""), _text(fields, b"scope")
    created_at, expires_at = _whole(fields, b"created_at"), _whole(fields, b"expires_at")
    expired_at = _time(fields, b"expired_at")
    trace_id = shown(fields.get(b"trace_id", b""))
    data = {
        "reservation_id": _text(fields, b"id"),
        "scope": scope,
        "unit": _text(fields, b"unit"),
        "estimated_amount": _whole(fields, b"amount"),
        "created_at": _time(fields, b"created_at"),
        "expires_at": _time(fields, b"expires_at"),
        "expired_at": expired_at,
        "ttl_ms": None if created_at is None or expires_at is None else expires_at - created_at,
        "grace_ms": _whole(fields, b"grace_ms"),
        "extensions_used": _whole(fields, b"extensions"),
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
    The same for every attempt, endpoint and replica, because it is made of nothing but the reservation and its expiry.
    An id that is used again later expires at another time, and so has another event.
    """
    parts = (origin, fields.get(b"tenant", b""), fields.get(b"id", b""), fields.get(b"expired_at", b""))
    told = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return "evt_" + hashlib.sha256(told).hexdigest()[:32]


def _text(fields: dict[bytes, bytes], name: bytes) -> str | None:
    return shown(fields[name]) if fields.get(name) else None


def _list(fields: dict[bytes, bytes], name: bytes) -> tuple[str, ...] | None:
    try:
        return shown_list(fields.get(name, b"[]"))
    except ValueError:
        return None


def _whole(fields: dict[bytes, bytes], name: bytes) -> int | None:
    text = fields.get(name, b"")
    return int(text) if text.isdigit() and len(text) <= 19 else None


def _time(fields: dict[bytes, bytes], name: bytes) -> str | None:
    milliseconds = _whole(fields, name)
    try:
        return None if milliseconds is None else rfc3339(milliseconds)
    except (OverflowError, ValueError):
        return None
