"""Builds reservations, the built-in kind, with the check of the rights that its script needs."""

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from sweeperd.config import SweepSettings
from sweeperd.config.types import milliseconds
from sweeperd.errors import KindRefused
from sweeperd.store.errors import REFUSED, describe
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.kind import Budgets, GraceScan, Kind, Labels
from sweeperd.text import decode

#: The name of the kind, which its keys and events do not contain.
RESERVATIONS = "reservations"
#: The reasons for a quarantine in expire.lua, with their meaning for the operator.
REASONS: Mapping[str, str] = {
    "WRONG_TYPE": "the reservation's key is not a hash",
    "INVALID_STATE": "state is missing or none of ACTIVE, COMMITTED, RELEASED, EXPIRED",
    "INVALID_EXPIRY": "expires_at, or grace_ms if present, is not a plain whole number of milliseconds",
    "INVALID_ESTIMATE": "estimate_amount is not a plain whole number from 0 to 2^63-1, or estimate_unit is missing",
    "MISSING_SCOPES": "there is neither budgeted_scopes nor affected_scopes",
    "MALFORMED_SCOPES": "the scopes are not a JSON array of strings, or it is empty, or one of them is",
    "TOO_MANY_SCOPES": "there are more than 256 scopes",
    "INVALID_BUDGET": "the budget of a scope is not a hash, or its reserved or remaining is not a whole number",
    "RESERVED_UNDERFLOW": "the budget of a scope has less reserved than is to be given back",
    "BUDGET_OVERFLOW": "remaining of a scope's budget would leave the range of 64 bits",
}

_LABELS = Labels("reservation", "reservation_id", "reservations", "missing_budgets", "budget for")
_RIGHTS = Script("sweep/rights")


def kind_of_event(fields: Mapping[bytes, bytes]) -> str:
    return decode(fields.get(b"kind", RESERVATIONS.encode()))


def kind_option(name: str) -> tuple[str, ...]:
    """The option `--kind` of a command; none for reservations, the default."""
    return () if name == RESERVATIONS else ("--kind", name)


def reservations(keys: Keys, settings: SweepSettings, *, balances: bool = False) -> Kind:
    """`balances`: each event has the balances after the release."""
    grace_ms = milliseconds(settings.grace)
    retention_ms = milliseconds(settings.audit_retention)
    # Hashes that expired together must not all end at the same moment, when Redis would free them at once.
    spread_ms = int(retention_ms * settings.audit_spread)
    index, events, quarantine, budget_stem = keys.reservation_index, keys.events, keys.quarantine, keys.budget_stem
    stem = keys.reservation(b"")
    #: No argument for what is off, because Redis handles each argument of each call.
    flags = {False: ("1",) if balances else (), True: ("1" if balances else "", "1")}

    def call(entry: bytes, trace_id: str, _proven: bool = True, defers: bool = False, /) -> Call:
        retention = retention_ms + int(random.random() * spread_ms)  # noqa: S311
        args = [entry, budget_stem, grace_ms, retention, trace_id, *flags[defers]]
        return Call([stem + entry, index, events, quarantine], args)

    # The commands on hashes are tried on the index, because no hash is known yet.
    rights = {
        index: ("ZCOUNT", "ZRANGE", "ZMSCORE", "ZREM", "ZADD", "EXISTS", "HGET", "HMGET", "HSET", "PEXPIRE"),
        events: ("XADD",),
        quarantine: ("ZCARD", "ZADD"),
    }
    return Kind(
        name=RESERVATIONS,
        labels=_LABELS,
        index=index,
        quarantine=quarantine,
        ticks=keys.ticks,
        stem=stem,
        deadline="expires_at",
        tenant="tenant",
        active={"state": ["ACTIVE"]},
        lease_job="sweep",
        counters=Budgets(budget_stem),
        grace_ms=grace_ms,
        reasons=REASONS,
        cycles=True,
        script=Script("sweep/expire"),
        explainer=Script("ops/explain"),
        index_check=Script("ops/reconcile_entry"),
        call=call,
        grace_scan=GraceScan(Script("sweep/grace_scan"), [stem, grace_ms]),
        check=functools.partial(_check_rights, rights),
    )


def _check_rights(needed: Mapping[bytes, Sequence[str]], client: "redis.Redis") -> None:
    """Raises KindRefused, which names the missing rights, or redis.RedisError."""
    replies = _RIGHTS.run_many(client, [Call([key], commands) for key, commands in needed.items()])
    missing = [problem for key, reply in zip(needed, replies, strict=True) if (problem := _missing(key, reply))]
    if missing:
        raise KindRefused(f"{RESERVATIONS}: this user of Redis has no right to {', '.join(missing)}")


def _missing(key: bytes, reply: Any) -> str:
    if isinstance(reply, REFUSED):
        return f"use {decode(key)} in a script ({describe(reply)})"
    if isinstance(reply, Exception):
        raise reply
    return f"run {', '.join(map(decode, reply))} on {decode(key)}" if reply else ""
