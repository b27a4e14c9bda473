"""
The services of a Cycles installation around sweeperd: a rival that sweeps by their rules, their dispatcher, and the
subscriptions of their tenants.
"""

import contextlib
import itertools
import json
import random
from typing import Any

import redis

from proof.simulation import kernel as kernels
from proof.simulation.plan import Plan, ShardPlan
from sweeperd.config import RedisSettings
from sweeperd.store import Shard

#: The lease of the services, its life, ms, and seconds between two sweeps of the rival.
LEASE, LIFE, EVERY = "cycles:maintenance:lease:reservation_expiry", 30_000, 5.0
#: How long after the beginning sweeperd has the lease if nothing fails, seconds.
TAKEN = 15.0
#: Id -> the tenant of the subscription (of all: __system__) and the end of its record.
SUBSCRIPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sub-acme": ("acme", {"event_types": ["reservation.expired"]}),
    "sub-web": ("globex", {"scope_filter": "tenant:globex/*"}),
    "sub-all": ("__system__", {}),
    "sub-paused": ("__system__", {"status": "PAUSED"}),
}
#: Renews, or with an empty ARGV[2] releases, under the token.
UNDER_TOKEN = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
#: Expires a reservation that is due, and gives its amount back to the budgets that are open.
EXPIRE = """
local row = redis.call('HMGET', KEYS[1], 'state', 'expires_at', 'grace_ms', 'affected_scopes', 'budgeted_scopes',
  'estimate_unit', 'estimate_amount')
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local deadline, grace = tonumber(row[2] or ''), tonumber(row[3] or '0')
if row[1] ~= 'ACTIVE' or not deadline or not grace or deadline + grace >= now then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
for _, scope in ipairs(cjson.decode(row[5] or row[4])) do
  local budget = ARGV[2] .. scope .. ':' .. row[6]
  if redis.call('HGET', budget, 'status') == 'ACTIVE' then
    redis.call('HINCRBY', budget, 'reserved', row[7] == '0' and '0' or '-' .. row[7])
    redis.call('HINCRBY', budget, 'remaining', row[7])
  end
end
redis.call('HSET', KEYS[1], 'state', 'EXPIRED', 'expired_at', string.format('%d', now), 'expired_by', 'rival')
return 1
"""


def wanted(tenant: str, scope: str) -> set[str]:
    """The subscriptions that get the expiry of a reservation of this tenant with this scope."""
    web = tenant == "globex" and scope.startswith("tenant:globex/")
    return {"sub-all"} | ({"sub-acme"} if tenant == "acme" else set()) | ({"sub-web"} if web else set())


def subscribe(shard: Shard) -> None:
    """As the admin service. Raises redis.RedisError."""
    keys = shard.keys.cycles
    for name, (tenant, more) in SUBSCRIPTIONS.items():
        record = {"subscription_id": name, "tenant_id": tenant, "status": "ACTIVE", "url": "http://cycles/"} | more
        shard.client.set(keys.subscription(name.encode()), json.dumps(record))
        shard.client.sadd(keys.subscriptions(tenant.encode()).decode(), name)


class Rival:
    """
    One replica of the service on one shard. `manner`: `polite`, it sweeps under the lease; `blind`, it looks at no
    lease; `keeps`, it hangs with the lease in its hand.
    """

    def __init__(self, plan: Plan, shard: ShardPlan) -> None:
        self._plan = plan
        self._shard = Shard(RedisSettings.model_validate({"url": shard.url}), shard.prefix, shard.name)
        self._lease = shard.prefix + LEASE
        self._tokens = itertools.count(1)
        #: When it expired a reservation, as far as it knows; monotonic.
        self.expired: list[float] = []

    def run(self) -> None:
        """The work of a thread."""
        while True:
            with contextlib.suppress(redis.RedisError):
                self._round()
            kernels.KERNEL.pause(EVERY)

    def _round(self) -> None:
        client: Any = self._shard.client
        token = f"rival:{next(self._tokens)}"
        if self._plan.rival == "keeps":
            client.set(self._lease, token, nx=True, px=LIFE) or client.pexpire(self._lease, LIFE)
            return
        held = client.set(self._lease, token, nx=True, px=LIFE)
        if held or self._plan.rival == "blind":
            self._sweep(client)
        if held:
            client.eval(UNDER_TOKEN, 1, self._lease, token, "")

    def _sweep(self, client: Any) -> None:
        keys = self._shard.keys
        seconds, micros = client.time()
        now = seconds * 1000 + micros // 1000
        for entry in client.zrange(keys.reservation_index, "-inf", now, byscore=True, offset=0, num=20):
            names = [keys.reservation(entry), keys.reservation_index]
            if client.eval(EXPIRE, 2, *names, entry, keys.budget_stem):
                self.expired.append(kernels.KERNEL.now)


class CyclesDispatcher:
    """
    Takes pending deliveries of one shard, one after the other. Until the faults are healed, it stands still for a while
    now and then: with a small `dispatch_backlog`, hours would pass until all events have been taken.
    """

    def __init__(self, plan: Plan, shard: ShardPlan) -> None:
        self._shard = Shard(RedisSettings.model_validate({"url": shard.url}), shard.prefix, shard.name)
        self._random = random.Random(f"{plan.seed} dispatcher {shard.name}")
        #: The ids of the deliveries, in order.
        self.taken: list[bytes] = []
        self.healed = False

    def run(self) -> None:
        """The work of a thread."""
        subscribed = False
        while True:
            with contextlib.suppress(redis.RedisError):
                if not subscribed:
                    subscribe(self._shard)
                    subscribed = True
                for _ in range(self._random.randint(1, 20)):
                    taken: Any = self._shard.client.rpop(self._shard.keys.cycles.dispatch.decode())
                    if taken is None:
                        break
                    self.taken.append(taken)
            pauses = [0.2, 1.0, 1.0, 5.0, 90.0 * self._random.random()]
            kernels.KERNEL.pause(self._random.choice(pauses[:3] if self.healed else pauses))
