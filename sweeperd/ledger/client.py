"""
The reference ledger: reserves, commits, releases and extends what is swept, and debits without a reservation.

Every operation is one script, and so one atomic step and one round trip: all budgets of the scopes change, or none.
"""

import hashlib
import json
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar

import redis

from sweeperd.store.errors import is_full
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: An id, tenant, scope, unit or idempotency key: bytes, or text that stands for its UTF-8. Answers hold bytes.
Name = str | bytes

INT64_MAX = 2**63 - 1
#: The greatest `max_extensions`: up to here the scripts count exactly.
MAX_EXTENSIONS = 2**53

_SCRIPTS = ("reserve", "commit", "release", "extend", "event", "budget", "open_budget")


class OveragePolicy(StrEnum):
    """What happens when more is used than was reserved, or than there is."""

    #: It is refused.
    REJECT = "REJECT"
    #: As much is charged as every scope has. Scopes that have not all of it are marked as over their limit.
    ALLOW_IF_AVAILABLE = "ALLOW_IF_AVAILABLE"
    #: All of it is charged; what a scope has not becomes its debt, up to its overdraft limit.
    ALLOW_WITH_OVERDRAFT = "ALLOW_WITH_OVERDRAFT"


class LedgerError(Exception):
    """The ledger refused, and nothing has changed. `detail` is the scope that refused, or else the reason, or empty."""

    code: ClassVar[str] = ""
    says: ClassVar[str] = "refused"

    def __init__(self, detail: bytes = b"") -> None:
        self.detail = detail
        super().__init__(f"{self.says}: {decode(detail)}" if detail else self.says)


class InsufficientBudget(LedgerError):
    """A scope's remaining budget does not suffice."""

    code, says = "INSUFFICIENT_BUDGET", "the remaining budget does not suffice"


class EstimateExceeded(InsufficientBudget):
    """More was used than was reserved, and the reservation's overage policy is REJECT."""

    code, says = "ESTIMATE_EXCEEDED", "more was used than was reserved"


class OverdraftLimitExceeded(InsufficientBudget):
    """A scope's debt would pass its overdraft limit."""

    code, says = "OVERDRAFT_LIMIT_EXCEEDED", "the debt would pass the overdraft limit"


class BudgetFrozen(LedgerError):
    """The status of a scope's budget is FROZEN."""

    code, says = "BUDGET_FROZEN", "the budget is frozen"


class BudgetClosed(LedgerError):
    """The status of a scope's budget is CLOSED."""

    code, says = "BUDGET_CLOSED", "the budget is closed"


class DebtOutstanding(LedgerError):
    """A scope is in debt: nothing can be reserved in it."""

    code, says = "DEBT_OUTSTANDING", "the budget is in debt"


class OverLimit(LedgerError):
    """A scope is marked as over its limit: nothing can be reserved in it."""

    code, says = "OVER_LIMIT", "the budget is over its limit"


class NoBudget(LedgerError):
    """None of the scopes has a budget in this unit. `detail` is the last of them."""

    code, says = "NO_BUDGET", "no budget"


class BudgetExists(LedgerError):
    """The scope has a budget in this unit already."""

    code, says = "BUDGET_EXISTS", "there is a budget already"


class InvalidBudget(LedgerError):
    """A scope's budget is broken: no hash, an amount that is no int64 or below 0, a status that is none."""

    code, says = "INVALID_BUDGET", "the budget is broken"


class ReservedUnderflow(InvalidBudget):
    """A scope's budget holds less than this reservation has reserved in it."""

    code, says = "RESERVED_UNDERFLOW", "the budget holds less than was reserved"


class AmountOverflow(LedgerError):
    """An amount of a scope's budget would leave int64."""

    code, says = "AMOUNT_OVERFLOW", "an amount would leave int64"


class ReservationNotFound(LedgerError):
    """The tenant has no such reservation."""

    code, says = "RESERVATION_NOT_FOUND", "no such reservation"


class ReservationFinalized(LedgerError):
    """The reservation was ended by another request. `detail` is its state: COMMITTED or RELEASED."""

    code, says = "RESERVATION_FINALIZED", "the reservation has ended"


class ReservationExpired(LedgerError):
    """The deadline has passed; for a commit or a release, the grace too."""

    code, says = "RESERVATION_EXPIRED", "the reservation has expired"


class ReservationExists(LedgerError):
    """The id of the new reservation is taken."""

    code, says = "RESERVATION_EXISTS", "there is a reservation of that id already"


class InvalidReservation(LedgerError):
    """The reservation is broken. `detail` is the reason, as the sweep's quarantine names it."""

    code, says = "INVALID_RESERVATION", "the reservation is broken"


class TooManyExtensions(LedgerError):
    """The reservation was extended as often as it may be."""

    code, says = "TOO_MANY_EXTENSIONS", "the reservation was extended as often as it may be"


class DeadlineTooFar(LedgerError):
    """The deadline and its grace would lie beyond what a double holds exactly (2^53 ms)."""

    code, says = "DEADLINE_TOO_FAR", "the deadline would be too far in the future"


class IdempotencyMismatch(LedgerError):
    """The idempotency key was used for another request."""

    code, says = "IDEMPOTENCY_MISMATCH", "the idempotency key was used for another request"


class RedisFull(LedgerError):
    """Redis is at maxmemory and takes no writes."""

    code, says = "REDIS_FULL", "Redis is at maxmemory"


_REFUSALS: dict[str, type[LedgerError]] = {
    refusal.code: refusal
    for base in (LedgerError, InsufficientBudget, InvalidBudget)
    for refusal in base.__subclasses__()
}


@dataclass(frozen=True)
class Balance:
    """One budget: allocated = remaining + reserved + spent - debt."""

    scope: bytes
    unit: bytes
    allocated: int
    remaining: int
    reserved: int
    spent: int
    debt: int
    overdraft_limit: int
    is_over_limit: bool
    #: ACTIVE, FROZEN or CLOSED; bytes of another service that are none of these are shown.
    status: str


@dataclass(frozen=True)
class Reserved:
    """An amount is held. Times are ms since the epoch on Redis's clock."""

    reservation_id: bytes
    amount: int
    created_at: int
    expires_at: int
    #: The budgets after the change, one for each scope that has one, from the top.
    balances: tuple[Balance, ...]
    #: The scopes that have no budget, and were skipped.
    unbudgeted: tuple[bytes, ...]


@dataclass(frozen=True)
class Committed:
    """The reservation has ended, and every budget was charged `charged`; the rest was given back."""

    reservation_id: bytes
    charged: int
    #: How much of it became debt, at most, in one budget.
    debt_incurred: int
    committed_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget exists no more.
    missing: tuple[bytes, ...]


@dataclass(frozen=True)
class Released:
    """The reservation has ended, and every budget has `amount` back."""

    reservation_id: bytes
    amount: int
    released_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget exists no more.
    missing: tuple[bytes, ...]


@dataclass(frozen=True)
class Extended:
    """The reservation has a new deadline."""

    reservation_id: bytes
    expires_at: int
    #: How often it was extended by now.
    extension_count: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget exists no more.
    missing: tuple[bytes, ...]


@dataclass(frozen=True)
class Debited:
    """Every budget was charged `charged`, without a reservation."""

    charged: int
    #: How much of it became debt, at most, in one budget.
    debt_incurred: int
    debited_at: int
    balances: tuple[Balance, ...]
    #: The scopes that have no budget, and were skipped.
    unbudgeted: tuple[bytes, ...]


class Ledger:
    """
    The budgets and reservations of one shard.

    Amounts are whole numbers from 0 to 2^63-1. A scope that is named twice is charged twice, as the sweep releases it
    twice.

    Each change takes an idempotency key, which belongs to the tenant and the operation. The same request again gets the
    first one's answer, even when the reservation has ended since; this lasts for 24 hours, or for the TTL and the grace
    of the reservation where that is longer. A refusal is not kept: the same request may succeed later.

    Methods raise a LedgerError where the ledger refuses (nothing has changed then), ValueError or TypeError for
    arguments that are no such thing, RedisUnavailable where Redis cannot be worked with (what was done is not known:
    call again with the same idempotency key), and redis.RedisError for anything else that Redis refuses.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        default_grace: timedelta = timedelta(0),
        audit_retention: timedelta = timedelta(days=30),
        new_id: Callable[[], bytes] = lambda: str(uuid.uuid4()).encode(),
    ) -> None:
        """
        `default_grace` is for reservations that have no grace of their own: what `sweep.grace` is for the sweep.
        `audit_retention` is how long the hash of a reservation that has ended stays readable. `new_id` makes the id of
        a new reservation, different each time.
        """
        self.scripts = {name: Script(f"ledger/{name}") for name in _SCRIPTS}
        self._shard = shard
        self._keys = shard.keys
        self._default_grace_ms = _milliseconds("default_grace", default_grace, least=0)
        self._retention_ms = _milliseconds("audit_retention", audit_retention, least=1)
        self._new_id = new_id

    def open_budget(self, scope: Name, unit: Name, allocated: int, overdraft_limit: int = 0) -> Balance:
        """
        Open a budget of which nothing is spent. Raises BudgetExists where there is one: it has no idempotency key.
        """
        budget = _name("scope", scope), _name("unit", unit)
        amounts = _amount("allocated", allocated), _amount("overdraft_limit", overdraft_limit)
        if not self._run("open_budget", [self._keys.budget(*budget)], [*budget, *amounts]):
            raise BudgetExists(budget[0])
        whole, limit = map(int, amounts)
        return Balance(*budget, whole, whole, 0, 0, 0, limit, is_over_limit=False, status="ACTIVE")

    def budget(self, scope: Name, unit: Name) -> Balance:
        """Read a budget. Raises NoBudget, InvalidBudget."""
        scope, unit = _name("scope", scope), _name("unit", unit)
        answer = self._ask("budget", [self._keys.budget(scope, unit)], [scope])
        return _balances(answer, unit)[0]

    def reserve(
        self,
        tenant: Name,
        scopes: Sequence[Name],
        unit: Name,
        amount: int,
        *,
        ttl: timedelta,
        grace: timedelta | None = None,
        idempotency_key: Name,
        overage_policy: OveragePolicy = OveragePolicy.REJECT,
        max_extensions: int = 10,
        subject: Mapping[str, Any] | None = None,
        action: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Reserved:
        """
        Hold `amount` in the budget of every scope, or in none. `scopes` go from the top; the last is the one that the
        work is done in. Scopes without a budget are skipped.

        It lasts for `ttl` (at least 1 ms), and a late commit is accepted for `grace` more (None: the default grace).
        `subject`, `action` and `metadata` are kept with it as JSON.

        Raises NoBudget where no scope has one, BudgetFrozen, BudgetClosed, DebtOutstanding, OverLimit,
        InsufficientBudget, InvalidBudget, AmountOverflow, DeadlineTooFar, ReservationExists, IdempotencyMismatch,
        RedisFull.
        """
        tenant, unit = _name("tenant", tenant), _name("unit", unit)
        key, levels = _name("idempotency_key", idempotency_key), _scopes(scopes)
        reservation_id = _name("reservation id", self._new_id())
        request: list[bytes] = [
            unit,
            _amount("amount", amount),
            b"%d" % _milliseconds("ttl", ttl, least=1),
            b"" if grace is None else b"%d" % _milliseconds("grace", grace, least=0),
            OveragePolicy(overage_policy).encode(),
            _whole("max_extensions", max_extensions, most=MAX_EXTENSIONS),
            *(_json(mapping) for mapping in (subject, action, metadata)),
            *levels,
        ]
        answer = self._ask(
            "reserve",
            [
                self._keys.reservation(reservation_id),
                self._keys.reservation_index,
                self._keys.idempotency(tenant, "reserve", key),
                *(self._keys.budget(scope, unit) for scope in levels),
            ],
            [
                _digest("reserve", tenant, key, *request),
                reservation_id,
                tenant,
                key,
                b"%d" % self._default_grace_ms,
                *request,
            ],
        )
        return Reserved(
            _bytes(answer["reservation_id"]),
            amount,
            int(answer["created_at"]),
            int(answer["expires_at"]),
            _balances(answer),
            _missing(answer),
        )

    def commit(self, tenant: Name, reservation_id: Name, amount: int, *, idempotency_key: Name) -> Committed:
        """
        Charge what was really used, and give back the rest. Accepted until the end of the grace. More than was
        reserved follows the reservation's overage policy.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, EstimateExceeded,
        OverdraftLimitExceeded, InvalidBudget, AmountOverflow, IdempotencyMismatch, RedisFull; for what is above the
        estimate also BudgetFrozen, BudgetClosed.
        """
        reservation_id = _name("reservation id", reservation_id)
        answer = self._change("commit", tenant, reservation_id, idempotency_key, [_amount("amount", amount)])
        return Committed(
            reservation_id,
            int(answer["charged"]),
            int(answer["debt"]),
            int(answer["at"]),
            _balances(answer),
            _missing(answer),
        )

    def release(self, tenant: Name, reservation_id: Name, *, idempotency_key: Name) -> Released:
        """
        Give back everything. Accepted until the end of the grace.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, InvalidBudget,
        AmountOverflow, IdempotencyMismatch, RedisFull.
        """
        reservation_id = _name("reservation id", reservation_id)
        answer = self._change("release", tenant, reservation_id, idempotency_key, [])
        return Released(reservation_id, int(answer["amount"]), int(answer["at"]), _balances(answer), _missing(answer))

    def extend(self, tenant: Name, reservation_id: Name, by: timedelta, *, idempotency_key: Name) -> Extended:
        """
        Move the deadline by a duration (at least 1 ms). Accepted until the deadline; there is no grace.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, TooManyExtensions,
        DeadlineTooFar, InvalidBudget, IdempotencyMismatch, RedisFull.
        """
        tenant, reservation_id = _name("tenant", tenant), _name("reservation id", reservation_id)
        by_ms = b"%d" % _milliseconds("by", by, least=1)
        records = self._keys.idempotency(tenant, "reserve", b"")
        answer = self._change("extend", tenant, reservation_id, idempotency_key, [by_ms], [records])
        return Extended(
            reservation_id,
            int(answer["expires_at"]),
            int(answer["extension_count"]),
            _balances(answer),
            _missing(answer),
        )

    def event(
        self,
        tenant: Name,
        scopes: Sequence[Name],
        unit: Name,
        amount: int,
        *,
        idempotency_key: Name,
        overage_policy: OveragePolicy = OveragePolicy.REJECT,
    ) -> Debited:
        """
        Debit `amount` from the budget of every scope, or from none, without a reservation. Scopes without a budget are
        skipped. Debt, or a limit that was passed, do not keep it from being booked.

        Raises NoBudget where no scope has one, BudgetFrozen, BudgetClosed, InsufficientBudget, OverdraftLimitExceeded,
        InvalidBudget, AmountOverflow, IdempotencyMismatch, RedisFull.
        """
        tenant, unit = _name("tenant", tenant), _name("unit", unit)
        key, levels = _name("idempotency_key", idempotency_key), _scopes(scopes)
        request = [unit, _amount("amount", amount), OveragePolicy(overage_policy).encode(), *levels]
        answer = self._ask(
            "event",
            [self._keys.idempotency(tenant, "event", key), *(self._keys.budget(scope, unit) for scope in levels)],
            [_digest("event", tenant, key, *request), *request],
        )
        return Debited(
            int(answer["charged"]), int(answer["debt"]), int(answer["at"]), _balances(answer), _missing(answer)
        )

    def _change(
        self,
        script: str,
        tenant: Name,
        reservation_id: bytes,
        idempotency_key: Name,
        request: list[bytes],
        more: Sequence[bytes] = (),
    ) -> dict[str, Any]:
        """Run what changes a reservation; reservations.lua tells what these scripts take."""
        tenant, key = _name("tenant", tenant), _name("idempotency_key", idempotency_key)
        return self._ask(
            script,
            [
                self._keys.reservation(reservation_id),
                self._keys.reservation_index,
                self._keys.idempotency(tenant, script, key),
            ],
            [
                _digest(script, tenant, key, reservation_id, *request),
                reservation_id,
                tenant,
                key,
                self._keys.budget_stem,
                b"%d" % self._default_grace_ms,
                b"%d" % self._retention_ms,
                *request,
                *more,
            ],
        )

    def _ask(self, script: str, keys: list[bytes], args: list[bytes]) -> dict[str, Any]:
        """Run a script that answers {'ok', JSON} or {'refused', code, detail}."""
        status, *told = self._run(script, keys, args)
        if status != b"ok":
            code, detail = told
            raise _REFUSALS[code.decode()](detail)
        # Names need not be UTF-8: what is not becomes lone surrogates here, and bytes again in _bytes.
        answer: dict[str, Any] = json.loads(told[0].decode("utf-8", "surrogateescape"))
        return answer

    def _run(self, script: str, keys: list[bytes], args: list[bytes]) -> Any:
        try:
            with self._shard.reaching():
                return self.scripts[script].run(self._shard.client, Call(keys, args))
        except redis.RedisError as error:
            if is_full(error):
                raise RedisFull from error
            raise


def _balances(answer: dict[str, Any], unit: bytes | None = None) -> tuple[Balance, ...]:
    of = _bytes(answer["unit"]) if unit is None else unit
    return tuple(
        Balance(
            _bytes(scope),
            of,
            int(allocated),
            int(remaining),
            int(reserved),
            int(spent),
            int(debt),
            int(limit),
            is_over_limit,
            decode(_bytes(status)),
        )
        for scope, allocated, remaining, reserved, spent, debt, limit, is_over_limit, status in answer["balances"]
    )


def _missing(answer: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(map(_bytes, answer["missing"]))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _digest(*request: str | bytes) -> bytes:
    """What is the same for the same request only. The length of each part is told, so that no two run together."""
    digest = hashlib.sha256()
    for part in request:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.hexdigest().encode()


def _json(mapping: Mapping[str, Any] | None) -> bytes:
    """The same mapping gives the same text, whatever its order; None gives none."""
    return b"" if mapping is None else json.dumps(dict(mapping), separators=(",", ":"), sort_keys=True).encode()


def _name(what: str, value: Name) -> bytes:
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if not raw:
        raise ValueError(f"{what} is empty")
    return raw


def _scopes(scopes: Sequence[Name]) -> list[bytes]:
    if isinstance(scopes, str | bytes):
        raise TypeError("scopes is one name, not a sequence of names")
    if not scopes:
        raise ValueError("scopes is empty")
    return [_name("scope", scope) for scope in scopes]


def _amount(what: str, value: int) -> bytes:
    return _whole(what, value, most=INT64_MAX)


def _whole(what: str, value: int, *, most: int) -> bytes:
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{what} is not from 0 to {most}: {value}")
    return b"%d" % value


def _milliseconds(what: str, duration: timedelta, *, least: int) -> int:
    milliseconds = duration // timedelta(milliseconds=1)
    if milliseconds < least:
        raise ValueError(f"{what} is shorter than {least} ms: {duration}")
    return milliseconds
