"""The client of the ledger. Each operation is a script: one atomic step and one round trip."""

import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import redis

from sweeperd.config import RedisSettings, check_prefix
from sweeperd.ledger import cycles as beside_cycles
from sweeperd.ledger import models
from sweeperd.ledger.errors import BudgetExists, MissingRight, OpenedByCycles, RedisFull, refusal
from sweeperd.ledger.models import (
    Balance,
    Committed,
    Debited,
    Extended,
    LedgerAnswer,
    Name,
    OveragePolicy,
    Released,
    Reserved,
    Settled,
)
from sweeperd.store.errors import describe, is_full, is_refused
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.tracing import ledger_call

_SCRIPTS = ("reserve", "commit", "release", "extend", "settle", "event", "budget", "open_budget")
#: The most connections of a ledger: if all are in use, a call opens one more.
_CONNECTIONS = 10_000
_NO_GRACE = timedelta(0)
_AUDIT_RETENTION = timedelta(days=30)


class Ledger:
    """
    The budgets and reservations of one shard. Use it as a context manager, or call `close()` at the end.

    Amounts are whole numbers from 0 to 2^63-1. An operation takes 1 to 256 scopes. If a scope is named twice, it is
    charged twice, as the sweep releases it twice.

    Each change takes an idempotency key, valid for the tenant and the operation. The same request again gets the first
    answer, even if the reservation has ended since. The answer is kept for 24 hours, or for the TTL and the grace of
    the reservation if these are longer. A refusal is not kept: the same request may succeed later.

    Methods raise a LedgerError if the ledger refuses (nothing has changed then), MissingRight among them if the user of
    Redis lacks a right; ValueError or TypeError if an argument cannot be used; RedisUnavailable if Redis cannot be
    reached (the change may or may not have happened: call again with the same idempotency key); and redis.RedisError
    for any other error of Redis.

    A Ledger may be shared by threads. It has as many connections as threads have called it at the same time.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        default_grace: timedelta = _NO_GRACE,
        audit_retention: timedelta = _AUDIT_RETENTION,
        cycles: bool = False,
        new_id: Callable[[], bytes] = lambda: str(uuid.uuid4()).encode(),
    ) -> None:
        """
        `default_grace` is for reservations without their own grace: set it to the sweep's `sweep.grace`.
        `audit_retention` is how long the hash of an ended reservation stays readable, 1 h at least: `sweeperd
        reconcile` compares budgets with these hashes. `cycles`: a Cycles service works on the same keys, so each new
        reservation has all that the service reads, and budgets are not opened here. `new_id` makes the id of a new
        reservation, different each time.
        """
        self.scripts = {name: Script(f"ledger/{name}") for name in _SCRIPTS}
        self._shard = shard
        self._keys = shard.keys
        self._default_grace_ms = models.milliseconds("default_grace", default_grace, least=0)
        self._retention_ms = models.milliseconds("audit_retention", audit_retention, least=models.LEAST_RETENTION)
        self._cycles = cycles
        self._new_id = new_id

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "",
        default_grace: timedelta = _NO_GRACE,
        audit_retention: timedelta = _AUDIT_RETENTION,
        cycles: bool = False,
    ) -> Self:
        """
        The ledger of a Redis, with a URL as in sweeperd's `redis.url`: `redis://127.0.0.1:6379/0`, `rediss://`,
        `unix://`, `redis+sentinel://` or `redis+cluster://`. `prefix` is `keys.prefix`. Nothing connects before the
        first call.

        Raises ValueError if the URL cannot be used, and for a Cluster if the prefix has no hash tag.
        """
        settings = RedisSettings.model_validate({"url": url})
        check_prefix(settings.url, prefix)
        shard = Shard(settings, prefix, connections=_CONNECTIONS)
        return cls(shard, default_grace=default_grace, audit_retention=audit_retention, cycles=cycles)

    def close(self) -> None:
        """Close the connections to Redis."""
        self._shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open_budget(self, scope: Name, unit: Name, allocated: int, overdraft_limit: int = 0) -> Balance:
        """Open a budget with nothing spent. Raises BudgetExists if there is one, OpenedByCycles, RedisFull."""
        if self._cycles:
            raise OpenedByCycles
        budget = models.name("scope", scope), models.name("unit", unit)
        amounts = models.amount("allocated", allocated), models.amount("overdraft_limit", overdraft_limit)
        if not self._run("open_budget", [self._keys.budget(*budget)], [*budget, *amounts]):
            raise BudgetExists(budget[0])
        whole, limit = map(int, amounts)
        return Balance(*budget, whole, whole, 0, 0, 0, limit, is_over_limit=False, status="ACTIVE")

    def budget(self, scope: Name, unit: Name) -> Balance:
        """Read a budget. Raises NoBudget, InvalidBudget."""
        scope, unit = models.name("scope", scope), models.name("unit", unit)
        return self._ask("budget", [self._keys.budget(scope, unit)], [scope, unit]).balances[0]

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
        Hold `amount` in the budget of every scope, or in none. `scopes` are ordered from the outermost to the scope of
        the work. Scopes without a budget are skipped.

        The reservation lasts for `ttl` (at least 1 ms), and a late commit is accepted for `grace` more (None: the
        default grace). `subject`, `action` and `metadata` are kept with the reservation as JSON. Beside a Cycles
        service, `action` has `kind` and `name`, the subject is by default made of the last scope, and the unit is one
        of the service's.

        Raises NoBudget if no scope has a budget, UnitMismatch if there is a budget in another unit, BudgetFrozen,
        BudgetClosed, OverLimit, DebtOutstanding, InsufficientBudget, InvalidBudget, AmountOverflow, TenantClosed,
        InvalidTenant, DeadlineTooFar, ReservationExists, IdempotencyMismatch, RedisFull; beside a Cycles service
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
        answer = self._ask(
            "reserve",
            [
                self._keys.reservation(reservation_id),
                self._keys.reservation_index,
                self._keys.idempotency(tenant, "reserve", key),
                self._keys.tenant(tenant),
                *(self._keys.budget(scope, unit) for scope in levels),
                *beside,
            ],
            [
                models.request_hash("reserve", tenant, key, *request),
                reservation_id,
                tenant,
                key,
                b"%d" % self._default_grace_ms,
                self._keys.budget_stem,
                *request,
            ],
        )
        return Reserved(
            answer.name("reservation_id"),
            amount,
            answer.number("created_at"),
            answer.number("expires_at"),
            answer.balances,
            answer.missing,
            answer.remaining_ttl_ms,
        )

    def commit(
        self,
        tenant: Name,
        reservation_id: Name,
        amount: int,
        *,
        unit: Name | None = None,
        idempotency_key: Name,
    ) -> Committed:
        """
        Charge the amount really used, and give back the rest. Accepted until the end of the grace, even if a budget is
        frozen or closed. More than was reserved follows the reservation's overage policy. `unit` is checked if given.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, UnitMismatch,
        EstimateExceeded, OverdraftLimitExceeded, InvalidBudget, AmountOverflow, TenantClosed, InvalidTenant,
        IdempotencyMismatch, RedisFull.
        """
        reservation_id = models.name("reservation id", reservation_id)
        request = [models.amount("amount", amount), b"" if unit is None else models.name("unit", unit)]
        answer = self._change("commit", tenant, reservation_id, idempotency_key, request)
        return Committed(
            reservation_id,
            answer.number("charged"),
            answer.number("debt"),
            answer.number("at"),
            answer.balances,
            answer.missing,
        )

    def release(self, tenant: Name, reservation_id: Name, *, idempotency_key: Name) -> Released:
        """
        Give back everything. Accepted until the end of the grace.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, InvalidBudget,
        AmountOverflow, TenantClosed, InvalidTenant, IdempotencyMismatch, RedisFull.
        """
        reservation_id = models.name("reservation id", reservation_id)
        answer = self._change("release", tenant, reservation_id, idempotency_key, [])
        return Released(reservation_id, answer.number("amount"), answer.number("at"), answer.balances, answer.missing)

    def extend(self, tenant: Name, reservation_id: Name, by: timedelta, *, idempotency_key: Name) -> Extended:
        """
        Move the deadline by a duration (at least 1 ms). Accepted until the deadline; there is no grace.

        Raises ReservationNotFound, ReservationFinalized, ReservationExpired, InvalidReservation, TooManyExtensions,
        DeadlineTooFar, InvalidBudget, TenantClosed, InvalidTenant, IdempotencyMismatch, RedisFull.
        """
        tenant, reservation_id = models.name("tenant", tenant), models.name("reservation id", reservation_id)
        by_ms = b"%d" % models.milliseconds("by", by, least=1)
        records = self._keys.idempotency(tenant, "reserve", b"")
        answer = self._change("extend", tenant, reservation_id, idempotency_key, [by_ms], [records])
        return Extended(
            reservation_id,
            answer.number("expires_at"),
            answer.number("extension_count"),
            answer.balances,
            answer.missing,
            answer.remaining_ttl_ms,
        )

    def settle(self, tenant: Name, reservation_id: Name, actual: int, *, idempotency_key: Name) -> Settled:
        """
        Charge the amount really used, whatever has become of the hold: for the end of a job that may be late, and for
        each retry of it. In time, this is a commit. Later, the hold is expired first, with its event, if the sweep has
        not come by; then the amount is charged as by `event`, in the reservation's scopes and by its overage policy.

        The same request gets the first answer as long as the hash of the reservation is kept, and is refused
        afterwards (ReservationNotFound): never is an amount charged twice. An `event` under the same key counts as the
        same charge, and is refused.

        Raises what `commit` and `event` raise, except for ReservationExpired.
        """
        reservation_id = models.name("reservation id", reservation_id)
        amount, trace_id = models.amount("actual", actual), secrets.token_hex(16).encode()
        answer = self._change("settle", tenant, reservation_id, idempotency_key, [amount], [trace_id])
        return Settled(
            reservation_id,
            answer.number("charged"),
            answer.number("debt"),
            answer.number("at"),
            answer.flag("late"),
            answer.balances,
            answer.missing,
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
        skipped. The debit is booked even if a budget is in debt or over its limit.

        Raises NoBudget if no scope has a budget, UnitMismatch if there is a budget in another unit, BudgetFrozen,
        BudgetClosed, InsufficientBudget, OverdraftLimitExceeded, InvalidBudget, AmountOverflow, TenantClosed,
        InvalidTenant, IdempotencyMismatch, RedisFull.
        """
        tenant, unit = models.name("tenant", tenant), models.name("unit", unit)
        key, levels = models.name("idempotency_key", idempotency_key), models.scope_list(scopes)
        request = [unit, models.amount("amount", amount), OveragePolicy(overage_policy).encode(), *levels]
        answer = self._ask(
            "event",
            [
                self._keys.idempotency(tenant, "event", key),
                self._keys.tenant(tenant),
                *(self._keys.budget(scope, unit) for scope in levels),
                *self._records(tenant, b"event", key),
            ],
            [models.request_hash("event", tenant, key, *request), self._keys.budget_stem, *request],
        )
        return Debited(
            answer.number("charged"), answer.number("debt"), answer.number("at"), answer.balances, answer.missing
        )

    def _change(
        self,
        script: str,
        tenant: Name,
        reservation_id: bytes,
        idempotency_key: Name,
        request: list[bytes],
        more: Sequence[bytes] = (),
    ) -> LedgerAnswer:
        """Run a script that changes a reservation: commit, release, extend or settle."""
        tenant, key = models.name("tenant", tenant), models.name("idempotency_key", idempotency_key)
        settles = script == "settle"
        keys = [
            self._keys.reservation(reservation_id),
            self._keys.reservation_index,
            self._keys.idempotency(tenant, "event" if settles else script, key),
            self._keys.tenant(tenant),
        ]
        if settles:
            keys += [self._keys.events, *self._records(tenant, b"event", key)]
        elif script == "extend":
            keys += self._records(tenant, b"extend:" + reservation_id, key)
        return self._ask(
            script,
            keys,
            [
                models.request_hash(script, tenant, key, reservation_id, *request),
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

    def _records(self, tenant: bytes, operation: bytes, key: bytes) -> list[bytes]:
        """The record of a Cycles service for this key, if the ledger works beside one."""
        return [self._keys.cycles.idempotency(tenant, operation, key)] if self._cycles else []

    def _ask(self, script: str, keys: list[bytes], args: list[bytes]) -> LedgerAnswer:
        """Run a script that answers {'ok', JSON} or {'refused', code, detail}."""
        status, *rest = self._run(script, keys, args)
        if status != b"ok":
            raise refusal(*rest)
        return LedgerAnswer(*rest)

    def _run(self, script: str, keys: list[bytes], args: list[bytes]) -> Any:
        with ledger_call(script), self._shard.reaching():
            try:
                return self.scripts[script].run(self._shard.client, Call(keys, args))
            except redis.RedisError as error:
                if is_full(error):
                    raise RedisFull from error
                if is_refused(error):
                    raise MissingRight(describe(error).encode()) from error
                raise
