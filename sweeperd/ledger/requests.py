"""Builds the script call of each ledger operation, with the parser of its reply."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sweeperd.ledger import cycles as beside_cycles
from sweeperd.ledger import models
from sweeperd.ledger.errors import OpenedByCycles, refusal
from sweeperd.ledger.models import (
    Balance,
    Committed,
    Debited,
    Extended,
    LedgerAnswer,
    Name,
    OveragePolicy,
    Released,
    Reservation,
    Reserved,
    Settled,
)
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call

SCRIPTS = ("reserve", "commit", "release", "extend", "settle", "event", "get", "budget", "open_budget")


Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """One run of a script."""

    script: str
    call: Call
    #: Parses the reply without its hash. Raises LedgerError for a refusal.
    answer: Callable[[list[Any]], Answer]

    def is_answered_by(self, reply: Any) -> bool:
        """Whether the reply ends with the hash of this request."""
        return isinstance(reply, list) and reply[-1:] == [self.call.args[0]]


class Requests:
    """The request of each operation. Each method raises ValueError or TypeError for an invalid argument."""

    def __init__(
        self, keys: Keys, default_grace_ms: int, retention_ms: int, cycles: bool, new_id: Callable[[], Name]
    ) -> None:
        self._keys = keys
        self._default_grace_ms = default_grace_ms
        self._retention_ms = retention_ms
        self._cycles = cycles
        self._new_id = new_id

    def open_budget(
        self,
        scope: Name,
        unit: Name,
        allocated: int,
        overdraft_limit: int = 0,
        *,
        thresholds: Iterable[int] | None = None,
    ) -> Request[Balance]:
        """
        Open a budget with nothing spent. `thresholds` are percentages of utilization, whole numbers from 1 to 1000, up
        to 32 of them: whenever a change crosses one, an event `budget.threshold_crossed` is added to the stream.

        If the budget exists and `thresholds` is given, the call replaces its thresholds (an empty sequence removes
        them), changes nothing else, and returns the budget as it is. Otherwise it raises BudgetExists.

        Raises BudgetExists, InvalidBudget, OpenedByCycles, RedisFull.
        """
        if self._cycles:
            raise OpenedByCycles
        budget = models.name("scope", scope), models.name("unit", unit)
        amounts = models.amount("allocated", allocated), models.amount("overdraft_limit", overdraft_limit)
        request = [*budget, *amounts, *([] if thresholds is None else [models.thresholds(thresholds)])]
        call = Call([self._keys.budget(*budget)], [models.request_hash("open_budget", *request), *request])
        return Request("open_budget", call, _json(lambda answer: answer.balances[0]))

    def budget(self, scope: Name, unit: Name) -> Request[Balance]:
        """Read a budget. Raises NoBudget, InvalidBudget."""
        scope, unit = models.name("scope", scope), models.name("unit", unit)
        call = Call([self._keys.budget(scope, unit)], [models.request_hash("budget", scope, unit), scope, unit])
        return Request("budget", call, _json(lambda answer: answer.balances[0]))

    def get(self, reservation_id: Name) -> Request[Reservation]:
        """
        Read the current state of a reservation. An overdue one stays ACTIVE until a sweep or a settlement expires it.
        Raises ReservationNotFound, InvalidReservation.
        """
        reservation_id = models.name("reservation id", reservation_id)
        arguments: list[bytes | str] = [models.request_hash("get", reservation_id), *models.RESERVATION_FIELDS]
        call = Call([self._keys.reservation(reservation_id)], arguments)
        return Request("get", call, lambda reply: models.reservation(reservation_id, _accepted(reply)[0]))

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
    ) -> Request[Reserved]:
        """
        Reserve `amount` in the budget of every scope, or in none. `scopes` start with the outermost. Scopes without a
        budget are skipped.

        The reservation lasts for `ttl` (1 ms or more), and a late commit is accepted for another `grace` (None for the
        default grace). `subject`, `action` and `metadata` are stored as JSON. Next to a Cycles service, `action` needs
        `kind` and `name`, the subject defaults to the levels of the last scope, and the unit must be one of the
        service's.

        Raises NoBudget if no scope has a budget, UnitMismatch if there is a budget in another unit, BudgetFrozen,
        BudgetClosed, OverLimit, DebtOutstanding, InsufficientBudget, InvalidBudget, AmountOverflow, TenantClosed,
        InvalidTenant, DeadlineTooFar, ReservationExists, IdempotencyMismatch, RedisFull; next to a Cycles service
        InvalidReservation.
        """
        tenant, unit = models.name("tenant", tenant), models.name("unit", unit)
        key, levels = models.name("idempotency_key", idempotency_key), models.scope_list(scopes)
        beside = list[bytes]()
        if self._cycles:
            beside_cycles.check_unit(unit)
            subject, action = beside_cycles.subject(levels[-1], subject), beside_cycles.action(action)
            service = self._keys.cycles
            beside += [service.created_index(tenant), service.created_metadata(tenant)]
            beside += [service.idempotency(tenant, operation, key) for operation in (b"reserve", b"dry_run")]
        reservation_id = models.name("reservation id", self._new_id())
        request: list[bytes] = [
            unit,
            models.amount("amount", amount),
            b"%d" % models.milliseconds("ttl", ttl, least=1),
            b"" if grace is None else b"%d" % models.milliseconds("grace", grace, least=0),
            OveragePolicy(overage_policy).encode(),
            models.whole("max_extensions", max_extensions, most=models.MAX_EXTENSIONS),
            *(models.json_text(mapping) for mapping in (subject, action, metadata)),
            *levels,
        ]
        keys = [
            self._keys.reservation(reservation_id),
            self._keys.reservation_index,
            self._keys.idempotency(tenant, "reserve", key),
            self._keys.tenant(tenant),
            self._keys.events,
            *(self._keys.budget(scope, unit) for scope in levels),
            *beside,
        ]
        arguments = [
            models.request_hash("reserve", tenant, key, *request),
            reservation_id,
            tenant,
            key,
            b"%d" % self._default_grace_ms,
            self._keys.budget_stem,
            *request,
        ]

        return Request("reserve", Call(keys, arguments), _json(lambda answer: answer.result(Reserved, amount=amount)))

    def commit(
        self, tenant: Name, reservation_id: Name, amount: int, *, unit: Name | None = None, idempotency_key: Name
    ) -> Request[Committed]:
        """
        Charge the used amount and release the rest. Accepted until the end of the grace, even if a budget is frozen or
        closed. The reservation's overage policy decides about an amount beyond the reserved one. `unit` is checked if
        given.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, UnitMismatch,
        EstimateExceeded, OverdraftLimitExceeded, InvalidBudget, AmountOverflow, TenantClosed, InvalidTenant,
        IdempotencyMismatch, RedisFull.
        """
        reservation_id = models.name("reservation id", reservation_id)
        request = [models.amount("amount", amount), b"" if unit is None else models.name("unit", unit)]
        return self._change("commit", tenant, reservation_id, idempotency_key, request, Committed)

    def release(self, tenant: Name, reservation_id: Name, *, idempotency_key: Name) -> Request[Released]:
        """
        Release the reserved amount. Accepted until the end of the grace.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, InvalidBudget,
        AmountOverflow, TenantClosed, InvalidTenant, IdempotencyMismatch, RedisFull.
        """
        reservation_id = models.name("reservation id", reservation_id)
        return self._change("release", tenant, reservation_id, idempotency_key, [], Released)

    def extend(self, tenant: Name, reservation_id: Name, by: timedelta, *, idempotency_key: Name) -> Request[Extended]:
        """
        Extend the deadline by a duration of 1 ms or more. Accepted until the deadline, without grace.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, TooManyExtensions,
        DeadlineTooFar, InvalidBudget, TenantClosed, InvalidTenant, IdempotencyMismatch, RedisFull.
        """
        tenant, reservation_id = models.name("tenant", tenant), models.name("reservation id", reservation_id)
        by_ms = b"%d" % models.milliseconds("by", by, least=1)
        records = self._keys.idempotency(tenant, "reserve", b"")
        return self._change("extend", tenant, reservation_id, idempotency_key, [by_ms], Extended, records)

    def settle(self, tenant: Name, reservation_id: Name, actual: int, *, idempotency_key: Name) -> Request[Settled]:
        """
        Charge the used amount whether or not the reservation has expired, at the end of a job that may be late, and on
        each retry. In time, this is a commit. Later, it first expires the reservation, with its event, unless the sweep
        has done so. Then it charges the amount as `event` does, in the reservation's scopes and by its overage policy.

        A repeated request gets the first answer while the reservation's hash is kept, and is refused afterwards
        (ReservationNotFound), so that no amount is charged twice. An `event` with the same key counts as the same
        charge and is refused.

        Raises what `commit` and `event` raise, except for ReservationExpired.
        """
        reservation_id = models.name("reservation id", reservation_id)
        amount, trace_id = models.amount("actual", actual), secrets.token_hex(16).encode()
        return self._change("settle", tenant, reservation_id, idempotency_key, [amount], Settled, trace_id)

    def event(
        self,
        tenant: Name,
        scopes: Sequence[Name],
        unit: Name,
        amount: int,
        *,
        idempotency_key: Name,
        overage_policy: OveragePolicy = OveragePolicy.REJECT,
    ) -> Request[Debited]:
        """
        Debit `amount` from the budget of every scope, or from none, without a reservation. Scopes without a budget are
        skipped. A budget in debt or over its limit is debited too.

        Raises NoBudget if no scope has a budget, UnitMismatch if there is a budget in another unit, BudgetFrozen,
        BudgetClosed, InsufficientBudget, OverdraftLimitExceeded, InvalidBudget, AmountOverflow, TenantClosed,
        InvalidTenant, IdempotencyMismatch, RedisFull.
        """
        tenant, unit = models.name("tenant", tenant), models.name("unit", unit)
        key, levels = models.name("idempotency_key", idempotency_key), models.scope_list(scopes)
        request = [unit, models.amount("amount", amount), OveragePolicy(overage_policy).encode()]
        keys = [
            self._keys.idempotency(tenant, "event", key),
            self._keys.tenant(tenant),
            self._keys.events,
            *(self._keys.budget(scope, unit) for scope in levels),
            *self._records(tenant, b"event", key),
        ]
        arguments = [
            models.request_hash("event", tenant, key, *request, *levels),
            self._keys.budget_stem,
            *request,
            tenant,
            key,
            *levels,
        ]
        return Request("event", Call(keys, arguments), _json(lambda answer: answer.result(Debited)))

    def _change(
        self,
        script: str,
        tenant: Name,
        reservation_id: bytes,
        idempotency_key: Name,
        request: list[bytes],
        result: type[Answer],
        *more: bytes,
    ) -> Request[Answer]:
        """The request of a commit, release, extension or settlement."""
        tenant, key = models.name("tenant", tenant), models.name("idempotency_key", idempotency_key)
        settles = script == "settle"
        keys = [
            self._keys.reservation(reservation_id),
            self._keys.reservation_index,
            self._keys.idempotency(tenant, "event" if settles else script, key),
            self._keys.tenant(tenant),
            self._keys.events,
        ]
        if settles:
            keys += self._records(tenant, b"event", key)
        elif script == "extend":
            keys += self._records(tenant, b"extend:" + reservation_id, key)
        arguments = [
            models.request_hash(script, tenant, key, reservation_id, *request),
            reservation_id,
            tenant,
            key,
            self._keys.budget_stem,
            b"%d" % self._default_grace_ms,
            b"%d" % self._retention_ms,
            *request,
            *more,
        ]
        names = {"reservation_id": models.text(reservation_id)}
        return Request(script, Call(keys, arguments), _json(lambda answer: answer.result(result, **names)))

    def _records(self, tenant: bytes, operation: bytes, key: bytes) -> list[bytes]:
        """The Cycles service's record for this key, if there is such a service."""
        return [self._keys.cycles.idempotency(tenant, operation, key)] if self._cycles else []


def _accepted(reply: Any) -> list[Any]:
    """The rest of a reply {'ok', ...}. Raises the LedgerError of {'refused', code, detail}."""
    status, *rest = reply
    if status != b"ok":
        raise refusal(*rest)
    return list(rest)


def _json(build: Callable[[LedgerAnswer], Answer]) -> Callable[[Any], Answer]:
    """Parse the JSON of a reply, and build the answer from it."""
    return lambda reply: build(LedgerAnswer(*_accepted(reply)))
