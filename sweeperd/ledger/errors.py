"""The refusals of the ledger. Each has its own class, with the code used by the scripts."""

import re
from typing import ClassVar

from sweeperd.text import decode


class LedgerError(Exception):
    """
    The ledger refused, and nothing has changed.

    `code` names the refusal, as the scripts do: BUDGET_FROZEN is BudgetFrozen. `detail` is the scope that refused, or
    else the reason, in bytes; it may be empty.
    """

    code: ClassVar[str] = ""
    message: ClassVar[str] = "refused"

    def __init_subclass__(cls, *, message: str = "") -> None:
        if message:
            cls.code, cls.message = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper(), message

    def __init__(self, detail: bytes = b"") -> None:
        self.detail = detail
        super().__init__(f"{self.message}: {decode(detail)}" if detail else self.message)


class InsufficientBudget(LedgerError, message="the remaining budget does not suffice"):
    """The remaining amount of a scope's budget is smaller than the requested amount."""


class EstimateExceeded(InsufficientBudget, message="more was used than was reserved"):
    """More was used than was reserved, and the reservation's overage policy is REJECT."""


class OverdraftLimitExceeded(InsufficientBudget, message="the debt would pass the overdraft limit"):
    """A scope's debt would pass its overdraft limit."""


class BudgetFrozen(LedgerError, message="the budget is frozen"):
    """The status of a scope's budget is FROZEN."""


class BudgetClosed(LedgerError, message="the budget is closed"):
    """The status of a scope's budget is CLOSED."""


class DebtOutstanding(LedgerError, message="the budget is in debt"):
    """A scope without an overdraft limit is in debt: nothing can be reserved in it."""


class OverLimit(LedgerError, message="the budget is over its limit"):
    """A scope is marked as over its limit: nothing can be reserved in it."""


class NoBudget(LedgerError, message="no budget"):
    """None of the scopes has a budget in this unit. `detail` is the last scope."""


class UnitMismatch(NoBudget, message="the unit is another one"):
    """
    The unit is another one: not the unit of the committed reservation; or, if no scope has a budget in the requested
    unit, not the unit of a budget of the scope `detail`.
    """


class TenantClosed(LedgerError, message="the tenant is closed"):
    """The tenant's record says CLOSED."""


class InvalidTenant(LedgerError, message="the record of the tenant is broken"):
    """The tenant's record is broken: no JSON object, or a status other than ACTIVE, SUSPENDED and CLOSED."""


class BudgetExists(LedgerError, message="there is a budget already"):
    """The scope has a budget in this unit already."""


class OpenedByCycles(LedgerError, message="the admin service of Cycles opens the budgets"):
    """The ledger works beside a Cycles service, whose admin service opens the budgets and keeps a list of them."""


class InvalidBudget(LedgerError, message="the budget is broken"):
    """A scope's budget is broken: no hash, an amount that is no int64 or below 0, an unknown status."""


class ReservedUnderflow(InvalidBudget, message="the budget holds less than was reserved"):
    """A scope's budget holds less than this reservation has reserved in it."""


class AmountOverflow(LedgerError, message="an amount would leave int64"):
    """An amount of a scope's budget would leave int64."""


class ReservationNotFound(LedgerError, message="no such reservation"):
    """The tenant has no such reservation."""


class ReservationFinalized(LedgerError, message="the reservation has ended"):
    """The reservation was ended by another request. `detail` is COMMITTED, RELEASED or SETTLED."""


class ReservationExpired(LedgerError, message="the reservation has expired"):
    """The deadline has passed; for a commit or a release, the grace too."""


class ReservationExists(LedgerError, message="there is a reservation of that id already"):
    """The id of the new reservation is taken."""


class InvalidReservation(LedgerError, message="the reservation is broken"):
    """
    The reservation is broken, and `detail` is the reason, named as in the sweep's quarantine; or a Cycles service could
    not read the new reservation, and `detail` is the field.
    """


class TooManyExtensions(LedgerError, message="the reservation was extended as often as it may be"):
    """The reservation was extended as often as permitted."""


class DeadlineTooFar(LedgerError, message="the deadline would be too far in the future"):
    """The deadline and the grace would lie beyond the numbers that a double holds exactly (2^53 ms)."""


class IdempotencyMismatch(LedgerError, message="the idempotency key was used for another request"):
    """The idempotency key was used for another request."""


class RedisFull(LedgerError, message="Redis is at maxmemory"):
    """Redis is at maxmemory and takes no writes."""


class MissingRight(LedgerError, message="the user of Redis lacks a right"):
    """The user of Redis may not run a command of the ledger on a key. `detail` is the refusal of Redis."""


_BY_CODE: dict[str, type[LedgerError]] = {
    refusal.code: refusal
    for base in (LedgerError, InsufficientBudget, InvalidBudget, NoBudget)
    for refusal in base.__subclasses__()
}


def refusal(code: bytes, detail: bytes) -> LedgerError:
    """The error for `{'refused', code, detail}`, the answer of a script."""
    return _BY_CODE[code.decode()](detail)
