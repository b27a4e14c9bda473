"""Defines the refusals of the ledger, one class for each code of the scripts."""

import re
from typing import ClassVar

from sweeperd.text import decode


class LedgerError(Exception):
    """
    The ledger refused, and nothing has changed.

    `code` is the scripts' name of the refusal: BUDGET_FROZEN for BudgetFrozen. `detail` is the scope that refused, or
    the reason, as bytes. It may be empty.
    """

    code: ClassVar[str] = ""
    message: ClassVar[str] = "refused"

    def __init_subclass__(cls, *, message: str = "") -> None:
        if message:
            cls.code, cls.message = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper(), message

    def __init__(self, detail: bytes = b"") -> None:
        self.detail = detail
        super().__init__(f"{self.message}: {decode(detail)}" if detail else self.message)


class InsufficientBudget(LedgerError, message="the remaining budget is too small"):
    """The remaining amount of a scope's budget is smaller than the requested amount."""


class EstimateExceeded(InsufficientBudget, message="more was used than was reserved"):
    """More was used than was reserved, and the reservation's overage policy is REJECT."""


class OverdraftLimitExceeded(InsufficientBudget, message="the debt would exceed the overdraft limit"):
    """A scope's debt would exceed its overdraft limit."""


class BudgetFrozen(LedgerError, message="the budget is frozen"):
    """The status of a scope's budget is FROZEN."""


class BudgetClosed(LedgerError, message="the budget is closed"):
    """The status of a scope's budget is CLOSED."""


class DebtOutstanding(LedgerError, message="the budget is in debt"):
    """A scope without an overdraft limit is in debt, so nothing can be reserved in it."""


class OverLimit(LedgerError, message="the budget is over its limit"):
    """A scope is marked as over its limit, so nothing can be reserved in it."""


class NoBudget(LedgerError, message="no budget"):
    """None of the scopes has a budget in this unit. `detail` is the last scope."""


class UnitMismatch(NoBudget, message="the unit is different"):
    """The reservation has another unit, or the scope `detail` has a budget only in another unit."""


class TenantClosed(LedgerError, message="the tenant is closed"):
    """The status of the tenant is CLOSED."""


class InvalidTenant(LedgerError, message="the record of the tenant is malformed"):
    """The tenant's record is not a JSON object, or its status is not ACTIVE, SUSPENDED or CLOSED."""


class BudgetExists(LedgerError, message="the budget already exists"):
    """The scope already has a budget in this unit."""


class OpenedByCycles(LedgerError, message="the admin service of Cycles opens the budgets"):
    """Next to a Cycles service, its admin service opens the budgets and keeps a list of them."""


class InvalidBudget(LedgerError, message="the budget is malformed"):
    """A scope's budget is not a hash, or has an invalid amount or status."""


class ReservedUnderflow(InvalidBudget, message="the budget holds less than was reserved"):
    """A scope's budget holds less than this reservation has reserved in it."""


class AmountOverflow(LedgerError, message="an amount would exceed int64"):
    """An amount of a scope's budget would exceed int64."""


class ReservationNotFound(LedgerError, message="no such reservation"):
    """The tenant has no such reservation."""


class ReservationFinalized(LedgerError, message="the reservation has ended"):
    """Another request has ended the reservation. `detail` is COMMITTED, RELEASED or SETTLED."""


class ReservationExpired(LedgerError, message="the reservation has expired"):
    """The deadline has passed; for a commit or a release, the grace too."""


class ReservationExists(LedgerError, message="the reservation id already exists"):
    """The id of the new reservation is taken."""


class InvalidReservation(LedgerError, message="the reservation is malformed"):
    """The reservation is malformed: `detail` is the reason, or the field that a Cycles service could not parse."""


class TooManyExtensions(LedgerError, message="the reservation has no extensions left"):
    """The reservation has reached `max_extensions`."""


class DeadlineTooFar(LedgerError, message="the deadline would be too far in the future"):
    """The deadline and the grace would exceed 2^53 ms, the limit of exact doubles."""


class IdempotencyMismatch(LedgerError, message="the idempotency key was used for another request"):
    """The idempotency key was used for another request."""


class RedisFull(LedgerError, message="Redis is at maxmemory"):
    """Redis is at maxmemory and refuses writes."""


class MissingRight(LedgerError, message="the Redis user lacks a right"):
    """The Redis user may not run a command of the ledger on a key. `detail` is the error of Redis."""


_BY_CODE: dict[str, type[LedgerError]] = {
    refusal.code: refusal
    for base in (LedgerError, InsufficientBudget, InvalidBudget, NoBudget)
    for refusal in base.__subclasses__()
}


def refusal(code: bytes, detail: bytes) -> LedgerError:
    """The error for a script's reply `{'refused', code, detail}`."""
    return _BY_CODE[code.decode()](detail)
