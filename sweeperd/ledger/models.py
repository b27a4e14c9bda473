"""The values of the ledger: checked arguments of the scripts, the scripts' JSON answers, and results."""

import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sweeperd.ledger.errors import InvalidReservation

Result = TypeVar("Result")

#: An id, tenant, scope, unit or idempotency key: bytes, or text in place of its UTF-8 bytes. Answers hold text: bytes
#: that are not UTF-8 are lone surrogates there (`surrogateescape`), and the same text is accepted back.
Name = str | bytes
#: The types of a name at run time. (bytes() of an int is that many NUL bytes.)
_NAMES = (str, bytes, bytearray, memoryview)
INT64_MAX = 2**63 - 1
#: The greatest `max_extensions`: up to here the scripts count exactly.
MAX_EXTENSIONS = 2**53
#: The shortest `audit_retention`, ms.
LEAST_RETENTION = 3_600_000
#: The most scopes of one operation: a script stays bounded.
MAX_SCOPES = 256


class OveragePolicy(StrEnum):
    """The rule if more is used than was reserved, or than there is."""

    #: The operation is refused.
    REJECT = "REJECT"
    #: As much is charged as every scope has. If a scope has less, it is marked as over its limit.
    ALLOW_IF_AVAILABLE = "ALLOW_IF_AVAILABLE"
    #: All of it is charged. The part that a scope does not have becomes its debt, up to its overdraft limit. If a scope
    #: has no overdraft limit, the rule there is ALLOW_IF_AVAILABLE.
    ALLOW_WITH_OVERDRAFT = "ALLOW_WITH_OVERDRAFT"


@dataclass(frozen=True)
class Balance:
    """
    One budget: remaining = allocated - spent - reserved - debt.

    `spent` is the charged and funded amount. A charge beyond the funds is `debt`, and may bring `remaining` below 0.
    """

    scope: str
    unit: str
    allocated: int
    remaining: int
    reserved: int
    spent: int
    debt: int
    overdraft_limit: int
    is_over_limit: bool
    #: ACTIVE, FROZEN or CLOSED. Another service may have written any other text.
    status: str


@dataclass(frozen=True)
class Reserved:
    """An amount is held."""

    reservation_id: str
    amount: int
    created_at: int
    expires_at: int
    #: The budgets after the change, one for each scope with a budget, outermost first.
    balances: tuple[Balance, ...]
    #: The scopes without a budget; they were skipped.
    unbudgeted: tuple[str, ...]
    #: From the answer to `expires_at`, ms, made anew for a repeated answer too; 0 if the reservation is no longer
    #: ACTIVE. A heartbeat counts from here with a monotonic clock, and needs no clock of Redis.
    remaining_ttl_ms: int = field(compare=False)


@dataclass(frozen=True)
class Committed:
    """The reservation has ended, and every budget was charged `charged`; the rest was given back."""

    reservation_id: str
    charged: int
    #: The part of the charge that became debt, in all budgets together.
    debt_incurred: int
    committed_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Settled:
    """The used amount is charged: every budget was charged `charged`."""

    reservation_id: str
    charged: int
    #: The part of the charge that became debt: in time counted as in `Committed`, late as in `Debited`.
    debt_incurred: int
    settled_at: int
    #: The hold had expired, so the amount was charged without a hold.
    late: bool
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """The reservation has ended, and every budget has `amount` back."""

    reservation_id: str
    amount: int
    released_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Extended:
    """The reservation has a new deadline."""

    reservation_id: str
    expires_at: int
    #: How often the reservation was extended so far; in a repeated answer too.
    extension_count: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]
    #: As in `Reserved`.
    remaining_ttl_ms: int = field(compare=False)


@dataclass(frozen=True)
class Debited:
    """Every budget was charged `charged`, without a reservation."""

    charged: int
    #: The part of the charge that became debt, in the budget with the most debt.
    debt_incurred: int
    debited_at: int
    balances: tuple[Balance, ...]
    #: The scopes without a budget; they were skipped.
    unbudgeted: tuple[str, ...]


@dataclass(frozen=True)
class Reservation:
    """A reservation as it stands. Times and durations are ms, on Redis's clock."""

    reservation_id: str
    tenant: str
    #: ACTIVE, COMMITTED, RELEASED or EXPIRED.
    state: str
    #: The reserved amount in each of the scopes.
    amount: int
    unit: str
    #: The scopes whose budgets hold the amount, outermost first.
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int
    #: None: the default grace.
    grace_ms: int | None
    extension_count: int
    overage_policy: str
    #: What was charged by a commit or a settlement.
    charged: int | None
    subject: Mapping[str, Any] | None
    action: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


#: The fields of a hash that make a Reservation.
RESERVATION_FIELDS = (
    "tenant",
    "state",
    "estimate_amount",
    "estimate_unit",
    "budgeted_scopes",
    "affected_scopes",
    "created_at",
    "expires_at",
    "grace_ms",
    "extension_count",
    "overage_policy",
    "settled_amount",
    "charged_amount",
    "subject_json",
    "action_json",
    "metadata_json",
)


def _scopes(value: str) -> tuple[str, ...]:
    return tuple(map(str, json.loads(value)))


def reservation(reservation_id: bytes, values: Sequence[bytes | None]) -> Reservation:
    """The reservation with these values of RESERVATION_FIELDS. Raises InvalidReservation, which names the field."""
    row = dict(zip(RESERVATION_FIELDS, values, strict=True))

    def read(field: str, parse: Callable[[str], Any], default: Any = None) -> Any:
        raw = row[field]
        try:
            return default if raw is None else parse(text(raw))
        except (ValueError, TypeError) as error:
            raise InvalidReservation(field.encode()) from error

    def needed(field: str, parse: Callable[[str], Any]) -> Any:
        if row[field] is None:
            raise InvalidReservation(field.encode())
        return read(field, parse)

    def mapping(field: str) -> Any:
        return read(field, lambda value: json.loads(value) if value else None)

    return Reservation(
        text(reservation_id),
        read("tenant", str, ""),
        needed("state", str),
        needed("estimate_amount", int),
        needed("estimate_unit", str),
        read("budgeted_scopes", _scopes) or read("affected_scopes", _scopes, ()),
        needed("created_at", int),
        needed("expires_at", int),
        read("grace_ms", int),
        read("extension_count", int, 0),
        read("overage_policy", str, ""),
        read("settled_amount", int, read("charged_amount", int)),
        mapping("subject_json"),
        mapping("action_json"),
        mapping("metadata_json"),
    )


#: The field of a result -> the name of the field in the answer, if this is another one.
_IN_ANSWERS = {"debt_incurred": "debt", "unbudgeted": "missing"} | dict.fromkeys(
    ("committed_at", "settled_at", "released_at", "debited_at"), "at"
)


class LedgerAnswer:
    """The JSON answer of a script. Numbers are decimal text, because a JSON number of Lua is a double."""

    def __init__(self, text: bytes, remaining_ttl: bytes = b"0") -> None:
        self._fields: dict[str, Any] = json.loads(text.decode("utf-8", "surrogateescape"))
        self.remaining_ttl_ms = int(remaining_ttl)

    @property
    def balances(self) -> tuple[Balance, ...]:
        """The budgets after the operation, in the order of the scopes."""
        return tuple(_balance(self._fields["unit"], *row) for row in self._fields["balances"])

    def result(self, kind: type[Result], **given: Any) -> Result:
        """A result of this class: the fields `given`, and all other fields from the answer."""
        given |= {"balances": self.balances, "remaining_ttl_ms": self.remaining_ttl_ms}
        names: Any = fields(kind)  # type: ignore[arg-type]
        return kind(**{each.name: given[each.name] if each.name in given else self._read(each) for each in names})

    def _read(self, field: Field[Any]) -> Any:
        value = self._fields[_IN_ANSWERS.get(field.name, field.name)]
        if field.type is int:
            return int(value)
        return tuple(value) if isinstance(value, list | dict) else value  # an empty list of Lua is an object


def _balance(unit: str, scope: str, *rest: Any) -> Balance:
    *amounts, is_over_limit, status = rest
    values: list[Any] = [scope, unit, *map(int, amounts), is_over_limit, status]
    return Balance(*values)


def text(raw: bytes) -> str:
    """The text of a name in an answer."""
    return raw.decode("utf-8", "surrogateescape")


def name(what: str, value: Name) -> bytes:
    """The bytes of a name. Raises TypeError if the name is neither text nor bytes, ValueError if empty."""
    if not isinstance(value, _NAMES):
        raise TypeError(f"{what} is a {type(value).__name__}, neither str nor bytes")
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    if not raw:
        raise ValueError(f"{what} is empty")
    return raw


def scope_list(scopes: Sequence[Name]) -> list[bytes]:
    """
    The bytes of each scope. Raises TypeError for a single name and for what has no order, ValueError for none or more
    than MAX_SCOPES.
    """
    if isinstance(scopes, _NAMES):
        raise TypeError("scopes is one name, not a sequence of names")
    if not isinstance(scopes, Sequence):
        raise TypeError(f"scopes is a {type(scopes).__name__}, not a sequence of names")
    if not 0 < len(scopes) <= MAX_SCOPES:
        raise ValueError(f"scopes are from 1 to {MAX_SCOPES}, not {len(scopes)}")
    return [name("scope", scope) for scope in scopes]


def amount(what: str, value: int) -> bytes:
    """A whole number from 0 to 2^63-1 as decimal text. Raises TypeError, ValueError."""
    return whole(what, value, most=INT64_MAX)


def whole(what: str, value: int, *, most: int) -> bytes:
    """A whole number from 0 to `most` as decimal text. Raises TypeError, ValueError."""
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{what} is not from 0 to {most}: {value}")
    return b"%d" % value


def milliseconds(what: str, duration: timedelta, *, least: int) -> int:
    """A duration in whole ms, rounded down. Raises ValueError if the duration is shorter than `least` ms."""
    rounded = duration // timedelta(milliseconds=1)
    if rounded < least:
        raise ValueError(f"{what} is shorter than {least} ms: {duration}")
    return rounded


def json_text(mapping: Mapping[str, Any] | None) -> bytes:
    """
    A mapping as JSON with sorted keys, so that equal mappings give equal text; None gives the empty text. Raises
    ValueError for a number that JSON does not have.
    """
    if mapping is None:
        return b""
    return json.dumps(dict(mapping), separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def request_hash(*request: str | bytes) -> bytes:
    """The SHA-256 of a request. The length of each part goes in before the part: no two requests give the same text."""
    digest = hashlib.sha256()
    for part in request:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.hexdigest().encode()
