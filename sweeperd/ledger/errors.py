"""The refusals of the ledger. Each has its own class, with the code used by the scripts."""

from typing import ClassVar

from sweeperd.text import decode


class LedgerError(Exception):
    """
    The ledger refused, and nothing has changed.

    `code` names the refusal. `detail` is the scope that refused, or else the reason, in bytes; it may be empty.
    """

    code: ClassVar[str] = ""
    message: ClassVar[str] = "refused"

    def __init__(self, detail: bytes = b"") -> None:
        self.detail = detail
        super().__init__(f"{self.message}: {decode(detail)}" if detail else self.message)


class InsufficientBudget(LedgerError):
    """The remaining amount of a scope's budget is smaller than the requested amount."""

    code, message = "INSUFFICIENT_BUDGET", "the remaining budget does not suffice"


class EstimateExceeded(InsufficientBudget):
    """More was used than was reserved, and the reservation's overage policy is REJECT."""

    code, message = "ESTIMATE_EXCEEDED", "more was used than was reserved"


class OverdraftLimitExceeded(InsufficientBudget):
    """A scope's debt would pass its overdraft limit."""

    code, message = "OVERDRAFT_LIMIT_EXCEEDED", "the debt would pass the overdraft limit"


class BudgetFrozen(LedgerError):
    """The status of a scope's budget is FROZEN."""

    code, message = "BUDGET_FROZEN", "the budget is frozen"


class BudgetClosed(LedgerError):
    """The status of a scope's budget is CLOSED."""

    code, message = "BUDGET_CLOSED", "the budget is closed"


class DebtOutstanding(LedgerError):
    """A scope without an overdraft limit is in debt: nothing can be reserved in it."""

    code, message = "DEBT_OUTSTANDING", "the budget is in debt"


class OverLimit(LedgerError):
    """A scope is marked as over its limit: nothing can be reserved in it."""

    code, message = "OVER_LIMIT", "the budget is over its limit"


class NoBudget(LedgerError):
    """None of the scopes has a budget in this unit. `detail` is the last scope."""

    code, message = "NO_BUDGET", "no budget"


class UnitMismatch(NoBudget):
    """
    The unit is another one: not the unit of the committed reservation; or, if no scope has a budget in the requested
    unit, not the unit of a budget of the scope `detail`.
    """

    code, message = "UNIT_MISMATCH", "the unit is another one"


class TenantClosed(LedgerError):
    """The tenant's record says CLOSED."""

    code, message = "TENANT_CLOSED", "the tenant is closed"


class InvalidTenant(LedgerError):
    """The tenant's record is broken: no JSON object, or a status other than ACTIVE, SUSPENDED and CLOSED."""

    code, message = "INVALID_TENANT", "the record of the tenant is broken"


class BudgetExists(LedgerError):
    """The scope has a budget in this unit already."""

    code, message = "BUDGET_EXISTS", "there is a budget already"


class OpenedByCycles(LedgerError):
    """The ledger works beside a Cycles service, whose admin service opens the budgets and keeps a list of them."""

    code, message = "OPENED_BY_CYCLES", "the admin service of Cycles opens the budgets"


class InvalidBudget(LedgerError):
    """A scope's budget is broken: no hash, an amount that is no int64 or below 0, an unknown status."""

    code, message = "INVALID_BUDGET", "the budget is broken"


class ReservedUnderflow(InvalidBudget):
    """A scope's budget holds less than this reservation has reserved in it."""

    code, message = "RESERVED_UNDERFLOW", "the budget holds less than was reserved"


class AmountOverflow(LedgerError):
    """An amount of a scope's budget would leave int64."""

    code, message = "AMOUNT_OVERFLOW", "an amount would leave int64"


class ReservationNotFound(LedgerError):
    """The tenant has no such reservation."""

    code, message = "RESERVATION_NOT_FOUND", "no such reservation"


class ReservationFinalized(LedgerError):
    """The reservation was ended by another request. `detail` is COMMITTED, RELEASED or SETTLED."""

    code, message = "RESERVATION_FINALIZED", "the reservation has ended"


class ReservationExpired(LedgerError):
    """The deadline has passed; for a commit or a release, the grace too."""

    code, message = "RESERVATION_EXPIRED", "the reservation has expired"


class ReservationExists(LedgerError):
    """The id of the new reservation is taken."""

    code, message = "RESERVATION_EXISTS", "there is a reservation of that id already"


class InvalidReservation(LedgerError):
    """
    The reservation is broken, and `detail` is the reason, named as in the sweep's quarantine; or a Cycles service could
    not read the new reservation, and `detail` is the field.
    """

    code, message = "INVALID_RESERVATION", "the reservation is broken"


class TooManyExtensions(LedgerError):
    """The reservation was extended as often as permitted."""

    code, message = "TOO_MANY_EXTENSIONS", "the reservation was extended as often as it may be"


class DeadlineTooFar(LedgerError):
    """The deadline and the grace would lie beyond the numbers that a double holds exactly (2^53 ms)."""

    code, message = "DEADLINE_TOO_FAR", "the deadline would be too far in the future"


class IdempotencyMismatch(LedgerError):
    """The idempotency key was used for another request."""

    code, message = "IDEMPOTENCY_MISMATCH", "the idempotency key was used for another request"


class RedisFull(LedgerError):
    """Redis is at maxmemory and takes no writes."""

    code, message = "REDIS_FULL", "Redis is at maxmemory"


class MissingRight(LedgerError):
    """The user of Redis may not run a command of the ledger on a key. `detail` is the refusal of Redis."""

    code, message = "MISSING_RIGHT", "the user of Redis lacks a right"


_BY_CODE: dict[str, type[LedgerError]] = {
    refusal.code: refusal
    for base in (LedgerError, InsufficientBudget, InvalidBudget, NoBudget)
    for refusal in base.__subclasses__()
}


def refusal(code: bytes, detail: bytes) -> LedgerError:
    """The error for `{'refused', code, detail}`, the answer of a script."""
    return _BY_CODE[code.decode()](detail)
