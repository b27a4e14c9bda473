"""A ledger on a real server, its clock frozen if a test asks for that, and a snapshot of the whole server."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from sweeperd.config import RedisSettings
from sweeperd.ledger import Balance, Committed, Debited, Extended, Ledger, Name, OveragePolicy, Released, Reserved
from sweeperd.store import Shard
from sweeperd.store.scripts import Script
from tests.lua.builders import NOW, SCOPES, World, frozen_text
from tests.support.servers import Server

MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000
DAY_MS = 86_400_000
GRACE = timedelta(seconds=5)
GRACE_MS = 5000
TOP, BOTTOM = SCOPES

AMOUNTS = ("allocated", "remaining", "reserved", "spent", "debt")


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


#: The scripts that do not ask what time it is.
TIMELESS = {"budget", "get", "open_budget"}


def frozen(name: str, at: int) -> Script:
    """The script on a clock that stands still."""
    script = Script(f"ledger/{name}")
    return frozen_text(at, script.name, script.source, readings=name not in TIMELESS)


class Book:
    """Calls the ledger with everyday arguments if a test gives none; every call has a fresh idempotency key."""

    def __init__(self, server: Server, prefix: str = "") -> None:
        self.shard = Shard(RedisSettings.model_validate({"url": server.url}), prefix)
        self.client: Any = self.shard.client
        self.keys = self.shard.keys
        self.ledger = Ledger(self.shard)
        self.world = World(self.client, prefix)
        self._keys_used = itertools.count()

    def freeze(self, at: int) -> None:
        """From now on it is this time, ms."""
        self.ledger.scripts = {name: frozen(name, at) for name in self.ledger.scripts}

    def fresh(self) -> bytes:
        return b"key-%d" % next(self._keys_used)

    def open(self, *scopes: Name, allocated: int = 1000, overdraft_limit: int = 0, **fields: object) -> None:
        """Open these budgets, and then set fields of them to what another service may have put there."""
        for scope in scopes:
            self.ledger.open_budget(scope, "TOKENS", allocated, overdraft_limit)
            if fields:
                self.client.hset(self.world.budget_key(scope), mapping=fields)

    def reserve(self, amount: int = 100, scopes: Sequence[Name] = SCOPES, **changes: Any) -> Reserved:
        request: dict[str, Any] = {"ttl": MINUTE, "grace": GRACE, "idempotency_key": self.fresh()} | changes
        return self.ledger.reserve("acme", scopes, "TOKENS", amount, **request)

    def commit(self, rid: Name, amount: int = 100, **changes: Any) -> Committed:
        return self.ledger.commit("acme", rid, amount, **({"idempotency_key": self.fresh()} | changes))

    def release(self, rid: Name, **changes: Any) -> Released:
        return self.ledger.release("acme", rid, **({"idempotency_key": self.fresh()} | changes))

    def extend(self, rid: Name, by: timedelta = MINUTE, **changes: Any) -> Extended:
        return self.ledger.extend("acme", rid, by, **({"idempotency_key": self.fresh()} | changes))

    def event(self, amount: int = 100, scopes: Sequence[Name] = SCOPES, **changes: Any) -> Debited:
        request: dict[str, Any] = {"idempotency_key": self.fresh(), "overage_policy": OveragePolicy.REJECT} | changes
        return self.ledger.event("acme", scopes, "TOKENS", amount, **request)

    def balance(self, scope: Name = TOP) -> Balance:
        return self.ledger.budget(scope, "TOKENS")

    def amounts(self, scope: Name = TOP) -> tuple[int, ...]:
        """remaining, reserved, spent, debt"""
        balance = self.balance(scope)
        return balance.remaining, balance.reserved, balance.spent, balance.debt

    def row(self, rid: bytes) -> dict[bytes, bytes]:
        row: dict[bytes, bytes] = self.client.hgetall(self.keys.reservation(rid))
        return row

    def deadline(self, rid: bytes) -> int | None:
        """The score in the index; None if it is not there."""
        score = self.client.zscore(self.keys.reservation_index, rid)
        return None if score is None else int(score)

    def record_ttl(self, operation: str, key: bytes, tenant: bytes = b"acme") -> int:
        ttl: int = self.client.pttl(self.keys.idempotency(tenant, operation, key))
        return ttl

    def expire(self, rid: bytes, at: int = NOW) -> list[Any]:
        return self.world.expire(rid, at=at)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """The block changes no key of the server."""
        before = self.world.snapshot()
        yield
        assert self.world.snapshot() == before

    def check_invariants(self) -> None:
        """Every budget adds up; index entries and ACTIVE reservations match one to one."""
        indexed = {}
        for key, content in self.world.snapshot().items():
            if key.startswith(self.keys.budget_stem):
                allocated, remaining, reserved, spent, debt = (int(content[name.encode()]) for name in AMOUNTS)
                assert remaining == allocated - spent - reserved - debt, key
                assert min(reserved, spent, debt, remaining + debt) >= 0, key
            elif key.startswith(self.keys.reservation(b"")) and content[b"state"] == b"ACTIVE":
                indexed[content[b"reservation_id"]] = int(content[b"expires_at"])
        assert dict(self.client.zrange(self.keys.reservation_index, 0, -1, withscores=True)) == indexed


@contextlib.contextmanager
def a_book(server: Server, prefix: str = "") -> Iterator[Book]:
    """A book on this server; what it has written by the end adds up."""
    book = Book(server, prefix)
    try:
        yield book
        book.check_invariants()
    finally:
        book.shard.close()
