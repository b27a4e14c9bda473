"""The reasons of a quarantine, as expire.lua names them, and what each means for the operator who repairs."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from sweeperd.errors import KindRefused
from sweeperd.store.errors import REFUSED, describe
from sweeperd.store.scripts import Call, Script
from sweeperd.text import decode

REASONS: Mapping[str, str] = {
    "WRONG_TYPE": "the reservation's key is no hash",
    "INVALID_STATE": "state is missing or none of ACTIVE, COMMITTED, RELEASED, EXPIRED",
    "INVALID_EXPIRY": "expires_at, or grace_ms where there is one, is no plain whole number of milliseconds",
    "INVALID_ESTIMATE": "estimate_amount is no plain whole number from 0 to 2^63-1, or estimate_unit is missing",
    "MISSING_SCOPES": "there is neither budgeted_scopes nor affected_scopes",
    "MALFORMED_SCOPES": "the scopes are not a JSON array of strings, or it is empty, or one of them is",
    "TOO_MANY_SCOPES": "there are more than 256 scopes",
    "INVALID_BUDGET": "the budget of a scope is no hash, or its reserved or remaining is no whole number",
    "RESERVED_UNDERFLOW": "the budget of a scope has less reserved than is to be given back",
    "BUDGET_OVERFLOW": "remaining of a scope's budget would leave the range of 64 bits",
}


# ---- the rights that a sweep needs, checked before it begins: without one of them nothing may be moved at all


_RIGHTS = Script("sweep/rights")


def check_rights(kind: str, needed: Mapping[bytes, Sequence[str]], client: "redis.Redis") -> None:
    """
    Check that the user may run these commands on these keys, which are known beforehand. Raises KindRefused, which
    names what is missing, or redis.RedisError.
    """
    replies = _RIGHTS.run_many(client, [Call([key], commands) for key, commands in needed.items()])
    missing = [problem for key, reply in zip(needed, replies, strict=True) if (problem := _missing(key, reply))]
    if missing:
        raise KindRefused(f"{kind}: this user of Redis has no right to {', '.join(missing)}")


def _missing(key: bytes, reply: Any) -> str:
    if isinstance(reply, REFUSED):
        return f"use {decode(key)} in a script ({describe(reply)})"
    if isinstance(reply, Exception):
        raise reply
    return f"run {', '.join(map(decode, reply))} on {decode(key)}" if reply else ""


# ---- the values of a sweep: a kind (what is swept), a decision about one entry, and the report of a tick


class Outcome(enum.StrEnum):
    """What became of one index entry."""

    EXPIRED = "expired"
    SKIPPED = "skipped"
    IN_GRACE = "in_grace"
    NOT_DUE = "not_due"
    NOT_FOUND = "not_found"
    QUARANTINED = "quarantined"
    ERROR = "error"

    @property
    def stays(self) -> bool:
        """Whether the entry is still where it was in the index."""
        return self in (Outcome.IN_GRACE, Outcome.ERROR)


class Decision(NamedTuple):
    """What the script decided for one entry. A plain tuple: there are millions of them after an outage."""

    id: bytes
    outcome: Outcome
    #: The state of a skipped entry, the reason of a quarantine, the text of an error.
    detail: str = ""
    tenant: bytes = b""
    #: From the moment when it could be expired to the moment when it was, ms.
    lag_ms: int = 0
    #: When the grace of an entry in grace ends, ms on the server's clock; 0 where that is not known.
    grace_end_ms: int = 0
    #: The scopes whose budget should have got the amount back, and does not exist.
    missing: tuple[str, ...] = ()
    #: What exactly is wrong, where a quarantine of a configured kind says so.
    why: str = ""
    #: The scopes whose budget was closed and has less reserved than the amount, so that it was left alone.
    closed: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraceScan:
    """
    A script that reads a page of the index as page.lua does, and marks the entries that are in grace. Its arguments are
    the four of page.lua, then `args`. Its reply is described in grace_scan.lua.
    """

    script: Script
    args: Sequence[bytes | int]


#: The name of the kind that is built in. Its keys have no name of a kind in them.
RESERVATIONS = "reservations"


@dataclass(frozen=True)
class Kind:
    """One sort of thing that is swept. The sweep itself knows ids, an index and a script; the rest is in here."""

    name: str
    index: bytes
    quarantine: bytes
    script: Script
    #: (id, trace id) to a run of the script.
    call: Callable[[bytes, str], Call]
    #: (id, the script's reply) to the decision.
    decision: Callable[[bytes, Any], Decision]
    #: Marks the entries of a page that are in grace; None where the kind has no such script.
    grace_scan: GraceScan | None = None
    #: Checks that the kind can be swept on this server. Raises KindRefused or redis.RedisError.
    check: Callable[["redis.Redis"], None] = lambda _: None
    #: Whether an error of the script means that no entry can be decided until the kind's settings are mended.
    is_broken_by: Callable[[Exception], bool] = lambda _: False

    def hash_key(self, entry: bytes) -> bytes:
        """The name of the entry's hash."""
        return self.call(entry, "").keys[0]

    @property
    def lease_job(self) -> str:
        """The job whose lease a sweep of this kind holds."""
        return "sweep" if self.name == RESERVATIONS else f"sweep:{self.name}"


@dataclass(frozen=True)
class SweepReport:
    """One tick in numbers."""

    trace_id: str
    counts: Mapping[Outcome, int]
    #: False where the tick stopped before the end of the due entries.
    complete: bool
    duration_seconds: float
    #: How many of the entries in grace were passed by a remembered range, so that there is no decision about each.
    passed: int
    #: How many script calls were on their way to Redis at once, in the last batches of the tick.
    pipeline_depth: int
    #: Why the tick counts as failed although Redis answered; empty where it does not.
    failure: str = ""
    #: The error after which the kind must not be swept any more; empty where there was none.
    broken: str = ""

    @property
    def candidates(self) -> int:
        """How many entries were decided."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Backlog:
    """The entries that are due and still resident, and those in quarantine."""

    due: int
    oldest_due_seconds: float
    quarantined: int
