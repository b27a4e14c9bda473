"""Repairs the `reserved` of one budget."""

from sweeperd.config import SweepSettings
from sweeperd.ops.reconcile.budgets import DRIFT, BudgetRepair, Difference, judge_budget
from sweeperd.ops.reconcile.throttle import Interrupted, Throttle
from sweeperd.store.lease import Lease, holder
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: Only the holder of `sweeperd:lease:repair-budget` may repair a budget of the shard.
LEASE_JOB = "repair-budget"
LEASE_LOST = "the lease of the repair was lost, so another repair may have been made: look again"


def repair_budget(
    shard: Shard, settings: SweepSettings, budget: bytes, agreed: Difference | None = None, rate: float | None = None
) -> BudgetRepair:
    """
    Judge a budget, given by key, and move the drift from `reserved` to `remaining`, in one step. `agreed`: the operator
    was shown this drift, and no other drift is ended.

    Two repairs of a shard cannot both write: walks and write happen under one lease, and the write compares the token
    of the lease. Raises RedisUnavailable, redis.RedisError.
    """
    lease = Lease(shard, LEASE_JOB, settings.lease_ttl)
    with shard.reaching():
        if not lease.acquire():
            return BudgetRepair(f"another repair of a budget is under way: {holder(shard, LEASE_JOB) or 'just ended'}")
        if lease.token is None:
            return BudgetRepair("redis is full and refuses the lease of the repair")
        with lease.kept() as lost:
            try:
                judged = judge_budget(shard, settings, budget, Throttle(rate, lost))
            except Interrupted:
                return BudgetRepair(LEASE_LOST)
            found = judged.difference
            if found is None or judged.result != DRIFT:
                return judged
            if agreed is not None and found.least != agreed.least:
                return BudgetRepair(f"the drift is {found.least} by now, it was {agreed.least}: look again", found)
            args = ["-" if found.least < 0 else "+", str(abs(found.least)), lease.token]
            reply = Script("ops/repair_budget").run(shard.client, Call([budget, shard.keys.lease(LEASE_JOB)], args))
            result = reply.decode()
            return BudgetRepair(LEASE_LOST if result == "LEASE_LOST" else result, found)
