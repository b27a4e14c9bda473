"""The demo's budget service: what reserves, commits and releases, as the services do whose reservations are swept."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from sweeperd.shard import Shard


class TooLate(Exception):
    """The reservation is not ACTIVE any more, or its deadline and grace have passed."""


@dataclass(frozen=True)
class Book:
    """One budget's numbers."""

    scope: str
    unit: str
    allocated: int
    remaining: int
    reserved: int
    spent: int

    @property
    def balanced(self) -> bool:
        """Whether nothing was invented and nothing was lost."""
        return self.allocated == self.remaining + self.reserved + self.spent


def levels(scope: str) -> list[str]:
    """`tenant:a/team:b` is held in `tenant:a` and in `tenant:a/team:b`."""
    parts = scope.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


class Ledger:
    """
    The budgets and reservations of one shard. Each change is one MULTI/EXEC; a reservation that the sweep expires in
    the middle of a commit makes the transaction start again, and then it is too late. Methods raise redis.RedisError.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._keys = shard.keys

    def allocate(self, scope: str, unit: str, amount: int) -> None:
        """Set a budget up."""
        row: dict[Any, Any] = {"allocated": amount, "remaining": amount, "reserved": 0, "spent": 0}
        row |= {"debt": 0, "overdraft_limit": 0, "is_over_limit": 0, "status": "ACTIVE"}
        self._shard.client.hset(self._budget(scope, unit), mapping=row)

    def reserve(self, name: str, scope: str, unit: str, amount: int, ttl_ms: int, grace_ms: int) -> None:
        """Hold `amount` on every level of the scope. What is there suffices: the demo never asks for more."""
        now = self._shard.read_clock()
        scopes = json.dumps(levels(scope))
        row: dict[Any, Any] = {
            "reservation_id": name,
            "tenant": levels(scope)[0].removeprefix("tenant:"),
            "state": "ACTIVE",
            "estimate_amount": amount,
            "estimate_unit": unit,
            "scope_path": scope,
            "affected_scopes": scopes,
            "budgeted_scopes": scopes,
            "created_at": now,
            "expires_at": now + ttl_ms,
            "grace_ms": grace_ms,
            "extension_count": 0,
        }
        pipeline = self._shard.client.pipeline(transaction=True)
        for level in levels(scope):
            self._move(pipeline, level, unit, reserved=amount, remaining=-amount)
        pipeline.hset(self._keys.reservation(name.encode()), mapping=row)
        pipeline.zadd(self._keys.reservation_index, {name: now + ttl_ms})
        pipeline.execute()

    def commit(self, name: str, used: int) -> None:
        """Charge what was used and give the rest back. Raises TooLate."""
        self._settle(name, "COMMITTED", used)

    def release(self, name: str) -> None:
        """Give all of it back. Raises TooLate."""
        self._settle(name, "RELEASED", 0)

    def book(self, scope: str, unit: str) -> Book:
        """A budget as it is now."""
        fields = ("allocated", "remaining", "reserved", "spent")
        numbers: Sequence[Any] = self._shard.client.hmget(self._budget(scope, unit), fields)
        return Book(scope, unit, *(int(number) for number in numbers))

    def states(self, names: Sequence[str]) -> dict[str, str]:
        """The state of each reservation."""
        client = self._shard.client
        states: list[Any] = [client.hget(self._keys.reservation(name.encode()), "state") for name in names]
        return {name: (state or b"(gone)").decode() for name, state in zip(names, states, strict=True)}

    def indexed(self) -> int:
        """How many reservations are in the index."""
        return int(self._shard.client.zcard(self._keys.reservation_index))

    def _settle(self, name: str, state: str, used: int) -> None:
        key = self._keys.reservation(name.encode())

        def change(pipeline: "redis.client.Pipeline") -> None:
            row: dict[bytes, bytes] = pipeline.hgetall(key)  # type: ignore[assignment]
            deadline = int(row[b"expires_at"]) + int(row[b"grace_ms"])
            if row[b"state"] != b"ACTIVE" or self._shard.read_clock() > deadline:
                raise TooLate
            amount, unit = int(row[b"estimate_amount"]), row[b"estimate_unit"].decode()
            pipeline.multi()
            for level in json.loads(row[b"budgeted_scopes"]):
                self._move(pipeline, level, unit, reserved=-amount, remaining=amount - used, spent=used)
            pipeline.hset(key, "state", state)
            pipeline.zrem(self._keys.reservation_index, name)

        self._shard.client.transaction(change, key)

    def _move(self, pipeline: "redis.client.Pipeline", scope: str, unit: str, **changes: int) -> None:
        for field, change in changes.items():
            pipeline.hincrby(self._budget(scope, unit), field, change)

    def _budget(self, scope: str, unit: str) -> bytes:
        return self._keys.budget_stem + scope.encode() + b":" + unit.encode()
