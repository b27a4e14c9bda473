"""
Reserves, charges and releases budgets: the reference ledger, whose reservations the sweep expires.

Each operation is one Lua script, atomic over all scopes, on Redis's clock, and safe to repeat with its idempotency key.

    >>> from contextlib import suppress
    >>> from datetime import timedelta
    >>> from sweeperd.ledger import BudgetExists, Ledger
    >>> with Ledger.from_url("redis://127.0.0.1:6379/0") as ledger:
    ...     with suppress(BudgetExists):
    ...         budget = ledger.open_budget("tenant:acme", "TOKENS", 10_000)
    ...     held = ledger.reserve(
    ...         "acme",
    ...         ["tenant:acme"],
    ...         "TOKENS",
    ...         500,
    ...         ttl=timedelta(minutes=1),
    ...         grace=timedelta(seconds=5),
    ...         idempotency_key="job 1",
    ...     )
    ...     done = ledger.commit("acme", held.reservation_id, 420, idempotency_key="job 1")
    >>> done.charged, done.balances[0].remaining
    (420, 9580)
"""

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger.client import AsyncLedger, Ledger
from sweeperd.ledger.errors import (
    AmountOverflow,
    BudgetClosed,
    BudgetExists,
    BudgetFrozen,
    DeadlineTooFar,
    DebtOutstanding,
    EstimateExceeded,
    IdempotencyMismatch,
    InsufficientBudget,
    InvalidBudget,
    InvalidReservation,
    InvalidTenant,
    LedgerError,
    MissingRight,
    NoBudget,
    OpenedByCycles,
    OverdraftLimitExceeded,
    OverLimit,
    RedisFull,
    ReservationExists,
    ReservationExpired,
    ReservationFinalized,
    ReservationNotFound,
    ReservedUnderflow,
    TenantClosed,
    TooManyExtensions,
    UnitMismatch,
)
from sweeperd.ledger.models import (
    INT64_MAX,
    MAX_EXTENSIONS,
    MAX_SCOPES,
    Balance,
    Committed,
    Debited,
    Extended,
    Name,
    OveragePolicy,
    Released,
    Reservation,
    Reserved,
    Settled,
)

__all__ = [
    "INT64_MAX",
    "MAX_EXTENSIONS",
    "MAX_SCOPES",
    "AmountOverflow",
    "AsyncLedger",
    "Balance",
    "BudgetClosed",
    "BudgetExists",
    "BudgetFrozen",
    "Committed",
    "DeadlineTooFar",
    "Debited",
    "DebtOutstanding",
    "EstimateExceeded",
    "Extended",
    "IdempotencyMismatch",
    "InsufficientBudget",
    "InvalidBudget",
    "InvalidReservation",
    "InvalidTenant",
    "Ledger",
    "LedgerError",
    "MissingRight",
    "Name",
    "NoBudget",
    "OpenedByCycles",
    "OverLimit",
    "OveragePolicy",
    "OverdraftLimitExceeded",
    "RedisFull",
    "RedisUnavailable",
    "Released",
    "Reservation",
    "ReservationExists",
    "ReservationExpired",
    "ReservationFinalized",
    "ReservationNotFound",
    "Reserved",
    "ReservedUnderflow",
    "Settled",
    "TenantClosed",
    "TooManyExtensions",
    "UnitMismatch",
]
