"""
What was asked of the ledger, when, and what it answered: the history that `proof.soak.order` judges.

Times are ms since the epoch. The load and Redis run on one machine, so the client's clock is the server's clock.
"""

import functools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import redis

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import Balance, Committed, Extended, InsufficientBudget, Ledger, LedgerError, Released, Reserved
from sweeperd.store import Keys
from tests.support.streams import entries

Answer = TypeVar("Answer", Reserved, Committed, Released, Extended)
#: remaining, reserved, spent, debt
Amounts = tuple[int, int, int, int]
#: The state in which a reservation ends, by the call that ends it.
ENDED = {"commit": b"COMMITTED", "release": b"RELEASED", "expire": b"EXPIRED"}
#: The clock of a call is read before sending and after the answer; Redis cuts its clock to whole ms.
SLACK_MS = 2.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the ledger, one expiry by the sweep, or one reading of a budget or a reservation."""

    operation: str
    #: The reservation's id; empty for a reserve that has no answer.
    reservation: bytes
    invoked: float
    #: Infinite if there is no answer: the call may have happened at any time since, or never.
    returned: float
    #: Tenant, operation and idempotency key; empty if there is none.
    key: str = ""
    #: The scopes that were asked for. Scopes without a budget are among them.
    scopes: tuple[bytes, ...] = ()
    #: What is reserved, committed, or given back by an expiry.
    amount: int = 0
    grace: int = 0
    #: By how much an extension moves the deadline.
    by: int = 0
    #: The deadline and the number of extensions in the answer.
    expires_at: int = 0
    extensions: int = 0
    #: Scope -> its budget in the answer.
    balances: Mapping[bytes, Amounts] | None = None
    #: The class of the refusal, and the scope that refused.
    refusal: str = ""
    refused_by: bytes = b""
    #: Of a reading of a reservation: its state, when it was made, and, as of an expiry, when it ended (0: it has not).
    state: bytes = b""
    created_at: int = 0
    ended_at: int = 0
    #: Of an expiry, its place in the stream of events: they happened in this order.
    turn: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether there is no answer."""
        return math.isinf(self.returned)


def now() -> float:
    """The clock of the calls, ms."""
    return time.time() * 1000


def amounts(balances: Iterable[Balance]) -> dict[bytes, Amounts]:
    """Scope -> amounts."""
    return {
        one.scope.encode("utf-8", "surrogateescape"): (one.remaining, one.reserved, one.spent, one.debt)
        for one in balances
    }


class Recorder:
    """The ledger for one thread, with every call of the judged tenants written down."""

    def __init__(self, ledger: Ledger, judged: Collection[str]) -> None:
        self._ledger = ledger
        self._judged = judged
        self.calls: list[Call] = []

    def reserve(
        self,
        tenant: str,
        scopes: Sequence[str],
        unit: str,
        amount: int,
        *,
        ttl: timedelta,
        grace: timedelta,
        idempotency_key: str,
    ) -> Reserved:
        call = functools.partial(
            self._ledger.reserve, tenant, scopes, unit, amount, ttl=ttl, grace=grace, idempotency_key=idempotency_key
        )
        asked = Call(
            "reserve",
            b"",
            now(),
            math.inf,
            f"{tenant} reserve {idempotency_key}",
            scopes=tuple(scope.encode() for scope in scopes),
            amount=amount,
            grace=grace // timedelta(milliseconds=1),
        )
        return self._write_down(tenant, asked, call)

    def commit(self, tenant: str, reservation: bytes, amount: int, *, idempotency_key: str) -> Committed:
        asked = Call("commit", reservation, now(), math.inf, f"{tenant} commit {idempotency_key}", amount=amount)
        call = functools.partial(self._ledger.commit, tenant, reservation, amount, idempotency_key=idempotency_key)
        return self._write_down(tenant, asked, call)

    def release(self, tenant: str, reservation: bytes, *, idempotency_key: str) -> Released:
        asked = Call("release", reservation, now(), math.inf, f"{tenant} release {idempotency_key}")
        call = functools.partial(self._ledger.release, tenant, reservation, idempotency_key=idempotency_key)
        return self._write_down(tenant, asked, call)

    def extend(self, tenant: str, reservation: bytes, by: timedelta, *, idempotency_key: str) -> Extended:
        by_ms = by // timedelta(milliseconds=1)
        asked = Call("extend", reservation, now(), math.inf, f"{tenant} extend {idempotency_key}", by=by_ms)
        call = functools.partial(self._ledger.extend, tenant, reservation, by, idempotency_key=idempotency_key)
        return self._write_down(tenant, asked, call)

    def _write_down(self, tenant: str, asked: Call, call: Callable[[], Answer]) -> Answer:
        if tenant not in self._judged:
            return call()
        done = asked
        try:
            answer = call()
            done = answered(asked, answer)
        except (RedisUnavailable, redis.RedisError):
            raise  # whether it has happened is not known
        except LedgerError as error:
            by = error.detail if isinstance(error, InsufficientBudget) else b""
            done = replace(asked, returned=now(), refusal=type(error).__name__, refused_by=by)
            raise
        finally:
            self.calls.append(done)
        return answer


def answered(asked: Call, answer: Reserved | Committed | Released | Extended) -> Call:
    """The call with its answer."""
    return replace(
        asked,
        reservation=answer.reservation_id.encode(),
        returned=now(),
        expires_at=answer.expires_at if isinstance(answer, Reserved | Extended) else 0,
        extensions=answer.extension_count if isinstance(answer, Extended) else 0,
        balances=amounts(answer.balances),
    )


def outcome(client: redis.Redis, keys: Keys, budgets: Iterable[Balance], judged: Collection[str]) -> list[Call]:
    """
    What happened without a call to the judged tenants, and how it ended: their expiries, and a reading of each budget
    and reservation.
    """
    read_at = now()
    tops = {f"tenant:{tenant}" for tenant in judged}
    found = [
        Call("read", b"", read_at, now(), balances=amounts([budget]))
        for budget in budgets
        if budget.scope.partition("/")[0] in tops
    ]
    stem = keys.reservation(b"")
    for key in client.scan_iter(match=stem + b"*", count=1000):
        row: Any = client.hgetall(key)
        if row[b"tenant"].decode() in judged:
            found.append(_reading(key.removeprefix(stem), row, read_at))
    for turn, (_, fields) in enumerate(entries(client, keys.events), 1):
        if fields[b"tenant"].decode() not in judged:
            continue
        scopes: Any = client.hget(keys.reservation(fields[b"id"]), "budgeted_scopes")
        at = int(fields[b"expired_at"])
        found.append(
            Call(
                "expire",
                fields[b"id"],
                at - SLACK_MS,
                at + SLACK_MS,
                ended_at=at,
                turn=turn,
                scopes=tuple(scope.encode() for scope in json.loads(scopes)),
                amount=int(fields[b"amount"]),
            )
        )
    return found


def _reading(entry: bytes, row: Mapping[bytes, bytes], read_at: float) -> Call:
    """The hash of a reservation at the end."""
    return Call(
        "end",
        entry,
        read_at,
        now(),
        f"{row[b'tenant'].decode()} reserve {row[b'idempotency_key'].decode()}",
        state=row[b"state"],
        created_at=int(row[b"created_at"]),
        ended_at=int(row.get(row[b"state"].lower() + b"_at", 0)),
    )


def resolved(calls: Sequence[Call]) -> list[Call]:
    """
    The calls, and of the ones without an answer what the readings at the end say: when it happened, or that it did not.
    Where there are no readings, and for an extension, both stays possible.
    """
    readings = {call.reservation: call for call in calls if call.operation == "end"}
    made = {call.key: call for call in readings.values()}
    kept = []
    for call in calls:
        end = made.get(call.key) if call.operation == "reserve" else readings.get(call.reservation)
        if not call.is_lost or call.operation == "extend" or not readings:
            kept.append(call)
        elif end and call.operation == "reserve":
            kept.append(replace(call, reservation=end.reservation, returned=end.created_at + SLACK_MS))
        elif end and ENDED[call.operation] == end.state:
            kept.append(replace(call, returned=end.ended_at + SLACK_MS))
    return kept


def merged(calls: Iterable[Call]) -> tuple[list[Call], list[str]]:
    """
    The calls with one for all that were accepted under one idempotency key: it happened once, after the first of them
    was sent and before the first of them was answered. Returns the calls, and the replays that were answered otherwise.
    """
    by_key: dict[str, list[Call]] = defaultdict(list)
    kept: list[Call] = []
    for call in calls:
        by_key[call.key].append(call) if call.key and call.operation != "end" else kept.append(call)
    wrong: list[str] = []
    for key, same in by_key.items():
        accepted = [call for call in same if not call.is_lost and not call.refusal]
        refused = [call for call in same if call.refusal]
        lost = [call for call in same if call.is_lost]
        kept += refused
        if not accepted:
            kept += [min(lost, key=lambda call: call.invoked)] if lost else []
            continue
        invoked, returned = min(call.invoked for call in accepted + lost), min(call.returned for call in accepted)
        kept.append(replace(accepted[0], invoked=invoked, returned=returned))
        if len({(call.reservation, call.expires_at, call.extensions, str(call.balances)) for call in accepted}) > 1:
            wrong.append(f"{key}: two answers")
        if any(call.invoked > returned for call in refused):
            wrong.append(f"{key}: refused after it was accepted")
    return kept, wrong
