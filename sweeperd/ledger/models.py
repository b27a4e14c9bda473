"""What the ledger answers with: immutable values. Amounts are whole numbers, times are ms since the epoch."""

from dataclasses import dataclass
from enum import StrEnum

#: An id, tenant, scope, unit or idempotency key: bytes, or text that stands for its UTF-8. Answers hold bytes.
Name = str | bytes


class OveragePolicy(StrEnum):
    """What happens when more is used than was reserved, or than there is."""

    #: The operation is refused.
    REJECT = "REJECT"
    #: As much is charged as every scope has. Each scope that has less is marked as over its limit.
    ALLOW_IF_AVAILABLE = "ALLOW_IF_AVAILABLE"
    #: All of it is charged. What a scope does not have becomes its debt, up to its overdraft limit. As long as a scope
    #: has no overdraft limit, it is as ALLOW_IF_AVAILABLE there.
    ALLOW_WITH_OVERDRAFT = "ALLOW_WITH_OVERDRAFT"


@dataclass(frozen=True)
class Balance:
    """
    One budget: remaining = allocated - spent - reserved - debt.

    `spent` is what was charged and funded. What was charged beyond that is `debt`, and may bring `remaining` below 0.
    """

    scope: bytes
    unit: bytes
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

    reservation_id: bytes
    amount: int
    created_at: int
    expires_at: int
    #: The budgets after the change, one for each scope that has one, outermost first.
    balances: tuple[Balance, ...]
    #: The scopes that have no budget, and were skipped.
    unbudgeted: tuple[bytes, ...]


@dataclass(frozen=True)
class Committed:
    """The reservation has ended, and every budget was charged `charged`; the rest was given back."""

    reservation_id: bytes
    charged: int
    #: How much of it became debt, in all budgets together.
    debt_incurred: int
    committed_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[bytes, ...]


@dataclass(frozen=True)
class Released:
    """The reservation has ended, and every budget has `amount` back."""

    reservation_id: bytes
    amount: int
    released_at: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[bytes, ...]


@dataclass(frozen=True)
class Extended:
    """The reservation has a new deadline."""

    reservation_id: bytes
    expires_at: int
    #: How often it was extended so far; in a repeated answer too.
    extension_count: int
    balances: tuple[Balance, ...]
    #: Scopes whose budget no longer exists.
    missing: tuple[bytes, ...]


@dataclass(frozen=True)
class Debited:
    """Every budget was charged `charged`, without a reservation."""

    charged: int
    #: How much of it became debt in the budget where that was the most.
    debt_incurred: int
    debited_at: int
    balances: tuple[Balance, ...]
    #: The scopes that have no budget, and were skipped.
    unbudgeted: tuple[bytes, ...]
