"""The kinds of the settings, as the sweep takes them."""

import functools
import random
from collections.abc import Sequence
from typing import Any

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.sweep.kind_check import check_kind
from sweeperd.sweep.kind_script import FILE_FAILED, kind_script
from sweeperd.sweep.reservations import reservations
from sweeperd.text import decode, decode_list


def all_kinds(settings: Settings, keys: Keys) -> list[Kind]:
    """Reservations, where they are enabled, and each of `[[kinds]]`."""
    built_in = [reservations(keys, settings.sweep)] if settings.reservations.enabled else []
    return [*built_in, *(configured(kind, settings, keys) for kind in settings.kinds)]


def configured(kind: KindSettings, settings: Settings, keys: Keys) -> Kind:
    """One of `[[kinds]]`."""
    index, events, quarantine = keys.kind_index(kind.index), keys.events, keys.kind_quarantine(kind.name)
    # What expired together must not all end together: Redis would have to free it within the same moment.
    retention_ms, spread_ms = kind.retention_ms, int(kind.retention_ms * settings.sweep.audit_spread)
    script = Script(f"kind {kind.name}", kind_script(kind, settings.kinds, settings.reservations.enabled))

    def call(entry: bytes, trace_id: str) -> Call:
        retention = retention_ms + int(random.random() * spread_ms)  # noqa: S311
        return Call(
            [keys.kind_entry(kind.entry, entry), index, events, quarantine],
            [entry, keys.prefix, retention, trace_id],
        )

    check = functools.partial(check_kind, kind, script, index)
    return Kind(kind.name, index, quarantine, script, call, _decision, is_broken_by=_is_broken_by, check=check)


def _is_broken_by(error: Exception) -> bool:
    """Whether the user's file fails before its functions are called, or somebody has killed the script."""
    return FILE_FAILED in str(error) or "SCRIPT KILL" in str(error)


def _decision(entry: bytes, reply: Sequence[Any]) -> Decision:
    """The reply of a kind's script; its shapes are listed in kind_script.py."""
    outcome = Outcome(reply[0].decode())
    match outcome:
        case Outcome.EXPIRED:
            _, tenant, lag_ms, missing = reply
            return Decision(entry, outcome, tenant=tenant, lag_ms=lag_ms, missing=decode_list(missing))
        case Outcome.QUARANTINED:
            _, reason, tenant, why = reply
            return Decision(entry, outcome, decode(reason), tenant=tenant, why=decode(why))
        case Outcome.SKIPPED:
            return Decision(entry, outcome, decode(reply[1]))
        case Outcome.IN_GRACE:
            return Decision(entry, outcome, grace_end_ms=reply[1])
        case _:
            return Decision(entry, outcome)
