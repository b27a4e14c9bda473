"""Reservations as a kind: how expire.lua is called, and what its reply says."""

import random
from typing import Any

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.kind import RESERVATIONS, Decision, GraceScan, Kind, Outcome
from sweeperd.text import decode_list


def reservations(keys: Keys, settings: SweepSettings) -> Kind:
    """Reservations, as `sweep.Sweeper` takes them."""
    grace_ms = milliseconds(settings.grace)
    retention_ms = milliseconds(settings.audit_retention)
    # What was expired together must not all end together: Redis would have to free it within the same moment.
    shortest_ms = max(1, retention_ms - int(retention_ms * settings.audit_spread))
    spread_ms = retention_ms - shortest_ms + 1
    index, events, quarantine, budget_stem = keys.reservation_index, keys.events, keys.quarantine, keys.budget_stem

    def call(entry: bytes, trace_id: str) -> Call:
        return Call(
            [keys.reservation(entry), index, events, quarantine],
            [entry, budget_stem, grace_ms, shortest_ms + int(random.random() * spread_ms), trace_id],  # noqa: S311
        )

    look = GraceScan(Script("sweep/grace_scan"), [keys.reservation(b""), grace_ms])
    return Kind(RESERVATIONS, index, quarantine, Script("sweep/expire"), call, _decision, look)


def _decision(entry: bytes, reply: Any) -> Decision:
    """What expire.lua's reply says; the shapes are told at the top of the script."""
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
