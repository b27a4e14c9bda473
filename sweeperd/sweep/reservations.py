"""Reservations as a kind: how expire.lua is called, and what its reply says."""

import functools
import random
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.kind import RESERVATIONS, Decision, GraceScan, Kind, Outcome, check_rights
from sweeperd.text import decode_list


def reservations(keys: Keys, settings: SweepSettings) -> Kind:
    """Reservations, as `sweep.Sweeper` takes them."""
    grace_ms = milliseconds(settings.grace)
    retention_ms = milliseconds(settings.audit_retention)
    # Hashes that were expired together must not all end together: Redis would have to free them in the same moment.
    spread_ms = int(retention_ms * settings.audit_spread)
    index, events, quarantine, budget_stem = keys.reservation_index, keys.events, keys.quarantine, keys.budget_stem
    stem = keys.reservation(b"")

    def call(entry: bytes, trace_id: str) -> Call:
        return Call(
            [stem + entry, index, events, quarantine],
            [entry, budget_stem, grace_ms, retention_ms + int(random.random() * spread_ms), trace_id],  # noqa: S311
        )

    # The hashes' commands are tried on the index, because no hash is known beforehand.
    rights = {
        index: ("ZCOUNT", "ZRANGE", "ZREM", "ZADD", "EXISTS", "HGET", "HMGET", "HSET", "PEXPIRE"),
        events: ("XADD",),
        quarantine: ("ZCARD", "ZADD"),
    }
    return Kind(
        RESERVATIONS,
        index,
        quarantine,
        Script("sweep/expire"),
        call,
        _decision,
        GraceScan(Script("sweep/grace_scan"), [stem, grace_ms]),
        functools.partial(check_rights, RESERVATIONS, rights),
    )


def _decision(entry: bytes, reply: Any) -> Decision:
    """The decision in a reply of expire.lua; the script's header lists the shapes."""
    outcome = Outcome(reply[0].decode())
    if outcome is Outcome.EXPIRED:
        _, tenant, lag_ms, missing, closed = reply
        return Decision(
            entry, outcome, tenant=tenant, lag_ms=lag_ms, missing=decode_list(missing), closed=decode_list(closed)
        )
    if outcome is Outcome.QUARANTINED:
        return Decision(entry, outcome, reply[1].decode(), tenant=reply[2])
    if outcome is Outcome.SKIPPED:
        return Decision(entry, outcome, reply[1].decode())
    if outcome is Outcome.IN_GRACE:
        return Decision(entry, outcome, grace_end_ms=reply[1])
    return Decision(entry, outcome)
