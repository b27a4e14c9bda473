"""Clients of the ledger, which use all that it offers and call again when a reply is lost."""

import contextlib
import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import redis

from proof.simulation import kernel as kernels
from proof.simulation.kernel import Failure
from proof.simulation.plan import Plan, ShardPlan
from sweeperd.config import RedisSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import BudgetExists, InvalidReservation, Ledger, LedgerError
from sweeperd.store import Shard

UNIT = "TOKENS"
ACTION = {"kind": "llm.completion", "name": "gpt"}
TENANTS = ("acme", "globex", "initech")


@dataclass
class Client:
    """One client on one shard. `stop`: it makes nothing new."""

    tenants: ClassVar[tuple[str, ...]] = TENANTS

    plan: Plan
    shard: ShardPlan
    number: int
    random: random.Random
    stop: bool = False
    held: list[tuple[str, bytes]] = field(default_factory=list)
    made: int = 0
    #: How many were settled after their time; the first such call expires what no sweep has.
    late: int = 0

    def run(self) -> None:
        """The work of a thread."""
        ledger = self._open()
        keys = itertools.count(1)
        while not self.stop:
            kernels.KERNEL.pause(self.random.expovariate(self.plan.rate))
            if not self.stop:
                self._act(ledger, f"k-{self.number}-{next(keys)}")

    def _open(self) -> Ledger:
        """The ledger, with a budget for each scope."""
        settings = RedisSettings.model_validate({"url": self.shard.url})
        ids = itertools.count(1)
        shard = Shard(settings, self.shard.prefix, self.shard.name)
        ledger, administration = (
            Ledger(
                shard, cycles=cycles, new_id=lambda: b"r-%b-%d-%d" % (self.shard.name.encode(), self.number, next(ids))
            )
            for cycles in (self.plan.settings.cycles.enabled, False)
        )
        for tenant in self.tenants:
            for scope in self._scopes(tenant):
                with contextlib.suppress(BudgetExists):
                    self._try(functools.partial(administration.open_budget, scope, UNIT, 10**12))
        return ledger

    def _act(self, ledger: Ledger, key: str) -> None:
        tenant = self.random.choice(TENANTS)
        what = self.random.random()
        if what < 0.6 or not self.held:
            ttl = timedelta(seconds=self.random.uniform(1, self.plan.longest_ttl))
            grace = timedelta(seconds=self.random.choice([0, 0, 1, 3]))
            amount = self.random.choice([0, 1, 7, 10**6, self.random.randint(1, 10**9)])
            scopes = self._scopes(tenant)[: self.random.randint(1, 2)]
            held: Any = self._try(
                lambda: ledger.reserve(
                    tenant, scopes, UNIT, amount, ttl=ttl, grace=grace, idempotency_key=key, action=ACTION
                )
            )
            if held is not None:
                self.made += 1
                self.held = [*self.held[-20:], (tenant, held.reservation_id.encode())]
            return
        tenant, reservation = self.random.choice(self.held)
        spent = self.random.randint(0, 5)
        if what < 0.7:
            self._try(lambda: ledger.commit(tenant, reservation, spent, idempotency_key=key))
        elif what < 0.8:
            settled: Any = self._try(lambda: ledger.settle(tenant, reservation, spent, idempotency_key=key))
            self.late += settled is not None and settled.late
        elif what < 0.9:
            by = timedelta(seconds=self.random.uniform(1, 20))
            self._try(lambda: ledger.extend(tenant, reservation, by, idempotency_key=key))
        elif what < 0.95:
            self._try(lambda: ledger.event(tenant, self._scopes(tenant), UNIT, spent, idempotency_key=key))
        else:
            self._try(lambda: ledger.release(tenant, reservation, idempotency_key=key))

    def _scopes(self, tenant: str) -> list[str]:
        return [f"tenant:{tenant}", f"tenant:{tenant}/app:web"]

    def _try(self, call: Callable[[], Any]) -> Any:
        """Call again while Redis cannot be reached; after a refusal, give up."""
        for _ in range(6):
            try:
                return call()
            except LedgerError as error:
                # An operator may have broken a reservation.
                if isinstance(error, InvalidReservation) and "quarantine" not in self.plan.operations:
                    raise Failure("the ledger takes what is right", str(error)) from error
                return None
            except (RedisUnavailable, redis.RedisError):
                kernels.KERNEL.pause(self.random.uniform(0.1, 2))
        return None


class Trickle(Client):
    """First some reservations that every endpoint wants, then, steadily, those of a tenant that no filter names."""

    tenants: ClassVar[tuple[str, ...]] = ("acme", "hooli")
    number_wanted: ClassVar[int] = 12

    def _act(self, ledger: Ledger, key: str) -> None:
        tenant, count = ("hooli", 1) if self.made else ("acme", self.number_wanted)
        second = timedelta(seconds=1)
        for scope in [f"tenant:{tenant}"] * count:
            reserve = functools.partial(ledger.reserve, tenant, [scope], UNIT, 1, ttl=second, action=ACTION)
            self._try(functools.partial(reserve, idempotency_key=f"{key}-{self.made}"))
            self.made += 1


class Wanted(Client):
    """Makes reservations that every endpoint wants; they expire after a second."""

    tenants: ClassVar[tuple[str, ...]] = ("acme",)

    @functools.cached_property
    def ledger(self) -> Ledger:
        """Opened at the first use."""
        return self._open()

    def expire(self, count: int) -> None:
        """Make this many."""
        for _ in range(count):
            self.made += 1
            second, key = timedelta(seconds=1), f"wanted-{self.number}-{self.made}"
            reserve = functools.partial(self.ledger.reserve, "acme", self._scopes("acme"), UNIT, 1, ttl=second)
            self._try(functools.partial(reserve, idempotency_key=key, action=ACTION))


#: Holds seats in one step, once for each id. Every third hold is being paid for twice as long as it is held.
HOLD = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local now = redis.call('TIME')
local deadline = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[3])
redis.call('HSET', KEYS[1], 'state', 'HELD', 'show', ARGV[1], 'qty', ARGV[2], 'expires_at', deadline)
redis.call('ZADD', KEYS[2], deadline, ARGV[4])
if ARGV[5] == '0' then redis.call('SET', KEYS[4], '1', 'PX', 2 * ARGV[3]) end
redis.call('HINCRBY', KEYS[3], 'free', -ARGV[2])
redis.call('HINCRBY', KEYS[3], 'held', ARGV[2])
return 1
"""


class SeatClient(Client):
    """A service that holds seats: the entries of a declared kind."""

    def run(self) -> None:
        """The work of a thread."""
        shard = Shard(RedisSettings.model_validate({"url": self.shard.url}), self.shard.prefix, self.shard.name)
        prefix = self.shard.prefix
        for number in itertools.count(1):
            kernels.KERNEL.pause(self.random.expovariate(self.plan.rate / 2))
            if self.stop:
                return
            entry, show = f"s-{self.shard.name}-{number}", self.random.choice(["hamlet", "othello"])
            names = (f"hold:{entry}", "ttl", show, f"paying:{entry}")
            keys = [f"{prefix}seats:{name}" for name in names]
            ttl = int(self.random.uniform(1, self.plan.longest_ttl) * 1000)
            arguments: list[Any] = [show, self.random.randint(1, 9), ttl, entry, number % 3]
            self._try(functools.partial(shard.client.eval, HOLD, 4, *keys, *arguments))
