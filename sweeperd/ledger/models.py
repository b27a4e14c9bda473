"""Converts the ledger's arguments for the scripts, and the scripts' replies to results."""

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sweeperd.ledger.errors import InvalidReservation

Result = TypeVar("Result")

#: An id, tenant, scope, unit or idempotency key, as bytes or text. Answers have text, in which invalid UTF-8 becomes
#: lone surrogates (`surrogateescape`), and the same text is accepted back.
Name = str | bytes
#: The types of a name. Checked at run time, because bytes() of an int is that many NUL bytes.
_NAMES = (str, bytes, bytearray, memoryview)
INT64_MAX = 2**63 - 1
#: The greatest `max_extensions`, because the scripts count exactly up to here.
MAX_EXTENSIONS = 2**53
#: The shortest `audit_retention`, ms.
LEAST_RETENTION = 3_600_000
#: The most scopes of one operation, which bounds the run time of a script.
MAX_SCOPES = 256
#: The most thresholds of a budget, and the greatest, %.
MAX_THRESHOLDS, MAX_THRESHOLD = 32, 1000


class OveragePolicy(StrEnum):
    """What happens if a charge exceeds the reserved or the remaining amount."""

    #: Refuse the operation.
    REJECT = "REJECT"
    #: Charge as much as every scope has, and mark the scopes that have less as over their limit.
    ALLOW_IF_AVAILABLE = "ALLOW_IF_AVAILABLE"
    #: Charge everything. What a scope does not have becomes its debt, up to its overdraft limit. A scope without an
    #: overdraft limit follows ALLOW_IF_AVAILABLE.
    ALLOW_WITH_OVERDRAFT = "ALLOW_WITH_OVERDRAFT"


@dataclass(frozen=True)
class Balance:
    """
    One budget: remaining = allocated - spent - reserved - debt.

    `spent` is the funded part of all charges. The rest is `debt`, which may make `remaining` negative.
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
    #: ACTIVE, FROZEN or CLOSED, unless another service has written another text.
    status: str


@dataclass(frozen=True)
class Reserved:
    """A new reservation, which holds `amount`."""

    reservation_id: str
    amount: int
    created_at: int
    expires_at: int
    #: The budgets after the change, outermost scope first.
    balances: tuple[Balance, ...]
    #: The scopes without a budget; they were skipped.
    unbudgeted: tuple[str, ...]
    #: The time left until `expires_at`, ms, up to date even in a repeated answer; 0 if the reservation is no longer
    #: ACTIVE. With it a heartbeat needs only a monotonic clock.
    remaining_ttl_ms: int = field(compare=False)


@dataclass(frozen=True)
class Committed:
    """A committed reservation: every budget was charged `charged`, and the rest was released."""

    reservation_id: str
    charged: int
    #: The part of the charge that became debt, summed over all budgets.
    debt_incurred: int
    committed_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Settled:
    """A settled reservation: every budget was charged `charged`."""

    reservation_id: str
    charged: int
    #: The part of the charge that became debt, as in `Committed`, or as in `Debited` if late.
    debt_incurred: int
    settled_at: int
    #: Whether the hold had expired, so that the amount was charged without it.
    late: bool
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """A released reservation: `amount` returned to every budget."""

    reservation_id: str
    amount: int
    released_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Extended:
    """An extended reservation with a new deadline."""

    reservation_id: str
    expires_at: int
    #: How often the reservation was extended, up to date even in a repeated answer.
    extension_count: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[str, ...]
    #: As in `Reserved`.
    remaining_ttl_ms: int = field(compare=False)


@dataclass(frozen=True)
class Debited:
    """A debit without a reservation: every budget was charged `charged`."""

    charged: int
    #: The part of the charge that became debt, in the budget with the most debt.
    debt_incurred: int
    debited_at: int
    balances: tuple[Balance, ...]
    #: The scopes without a budget; they were skipped.
    unbudgeted: tuple[str, ...]


@dataclass(frozen=True)
class Reservation:
    """The current state of a reservation. Times and durations are ms, on Redis's clock."""

    reservation_id: str
    tenant: str
    #: ACTIVE, COMMITTED, RELEASED or EXPIRED.
    state: str
    #: The reserved amount in each of the scopes.
    amount: int
    unit: str
    #: The scopes with the amount reserved, outermost first.
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int
    #: None for the default grace.
    grace_ms: int | None
    extension_count: int
    overage_policy: str
    #: The amount charged by a commit or a settlement.
    charged: int | None
    subject: Mapping[str, Any] | None
    action: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None


#: The fields of a reservation's hash.
RESERVATION_FIELDS = """
    tenant state estimate_amount estimate_unit budgeted_scopes affected_scopes created_at expires_at grace_ms
    extension_count overage_policy settled_amount charged_amount subject_json action_json metadata_json
    """.split()  # noqa: SIM905


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


#: The field of a result -> its different name in the answer.
_IN_ANSWERS = {"debt_incurred": "debt", "unbudgeted": "missing"} | dict.fromkeys(
    ("committed_at", "settled_at", "released_at", "debited_at"), "at"
)


class LedgerAnswer:
    """A script's JSON answer. Numbers are decimal text, because Lua would encode them as doubles."""

    def __init__(self, text: bytes, remaining_ttl: bytes = b"0") -> None:
        self._fields: dict[str, Any] = json.loads(text.decode("utf-8", "surrogateescape"))
        self.remaining_ttl_ms = int(remaining_ttl)

    @property
    def balances(self) -> tuple[Balance, ...]:
        """The budgets after the operation, in scope order."""
        return tuple(_balance(self._fields["unit"], *row) for row in self._fields["balances"])

    def result(self, kind: type[Result], **given: Any) -> Result:
        """A result with the fields `given`, and all others from the answer."""
        given |= {"balances": self.balances, "remaining_ttl_ms": self.remaining_ttl_ms}
        names: Any = fields(kind)  # type: ignore[arg-type]
        return kind(**{each.name: given[each.name] if each.name in given else self._read(each) for each in names})

    def _read(self, field: Field[Any]) -> Any:
        value = self._fields[_IN_ANSWERS.get(field.name, field.name)]
        if field.type is int:
            return int(value)
        return tuple(value) if isinstance(value, list | dict) else value  # Lua encodes an empty list as an object


def _balance(unit: str, scope: str, *rest: Any) -> Balance:
    *amounts, is_over_limit, status = rest
    values: list[Any] = [scope, unit, *map(int, amounts), is_over_limit, status]
    return Balance(*values)


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def name(what: str, value: Name) -> bytes:
    """A name as bytes. Raises TypeError if it is neither text nor bytes, ValueError if it is empty."""
    if not isinstance(value, _NAMES):
        raise TypeError(f"{what} is a {type(value).__name__}, neither str nor bytes")
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
    if not raw:
        raise ValueError(f"{what} is empty")
    return raw


def scope_list(scopes: Sequence[Name]) -> list[bytes]:
    """Scopes as bytes. Raises TypeError unless they are a sequence of names, ValueError for none or too many."""
    if isinstance(scopes, _NAMES):
        raise TypeError("scopes is one name, not a sequence of names")
    if not isinstance(scopes, Sequence):
        raise TypeError(f"scopes is a {type(scopes).__name__}, not a sequence of names")
    if not 0 < len(scopes) <= MAX_SCOPES:
        raise ValueError(f"scopes must be 1 to {MAX_SCOPES}, not {len(scopes)}")
    return [name("scope", scope) for scope in scopes]


def thresholds(percentages: Iterable[int]) -> bytes:
    """Percentages as text, ascending and each once. Raises TypeError, ValueError."""
    found = sorted({operator.index(value) for value in percentages})
    if len(found) > MAX_THRESHOLDS or not all(0 < value <= MAX_THRESHOLD for value in found):
        raise ValueError(f"thresholds must be up to {MAX_THRESHOLDS} percentages from 1 to {MAX_THRESHOLD}: {found}")
    return b",".join(b"%d" % value for value in found)


def amount(what: str, value: int) -> bytes:
    """A whole number from 0 to 2^63-1 as decimal text. Raises TypeError, ValueError."""
    return whole(what, value, most=INT64_MAX)


def whole(what: str, value: int, *, most: int) -> bytes:
    """A whole number from 0 to `most` as decimal text. Raises TypeError, ValueError."""
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{what} must be from 0 to {most}: {value}")
    return b"%d" % value


def milliseconds(what: str, duration: timedelta, *, least: int) -> int:
    """A duration in whole ms, rounded down. Raises ValueError if the duration is shorter than `least` ms."""
    rounded = duration // timedelta(milliseconds=1)
    if rounded < least:
        raise ValueError(f"{what} is shorter than {least} ms: {duration}")
    return rounded


def json_text(mapping: Mapping[str, Any] | None) -> bytes:
    """A mapping as JSON with sorted keys; empty for None. Raises ValueError for NaN and infinity."""
    if mapping is None:
        return b""
    return json.dumps(dict(mapping), separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def request_hash(*request: str | bytes) -> bytes:
    """The SHA-256 of a request. Each part is prefixed with its length, so that different requests never collide."""
    digest = hashlib.sha256()
    for part in request:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.hexdigest().encode()
