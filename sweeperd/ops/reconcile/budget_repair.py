"""Moves the drift of one budget from `reserved` to `remaining`."""

from dataclasses import replace

from sweeperd.config import SweepSettings
from sweeperd.ops.reconcile.budgets import DRIFT, BudgetRepair, Difference, judge_budget
from sweeperd.ops.reconcile.throttle import Interrupted, Throttle
from sweeperd.store.lease import Lease, holder
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: Only the holder of this lease may repair a budget of the shard.
LEASE_JOB = "repair-budget"
LEASE_LOST = "the lease of the repair was lost, so another repair may have run: run it again"


def repair_budget(
    shard: Shard, settings: SweepSettings, budget: bytes, agreed: Difference | None = None, rate: float | None = None
) -> BudgetRepair:
    """
    Judges a budget and repairs it in one step. If the operator has `agreed` to a drift, no other drift is repaired.

    Of two concurrent repairs only one can write: walks and write run under one lease, whose token the write compares.
    """
    lease = Lease(shard, LEASE_JOB, settings.lease_ttl)
    with shard.reaching():
        if not lease.acquire():
            return BudgetRepair(f"another repair of a budget is running: {holder(shard, LEASE_JOB) or 'just ended'}")
        if lease.token is None:
            return BudgetRepair("Redis is full and refuses the lease of the repair")
        with lease.kept() as lost:
            try:
                judged = judge_budget(shard, settings, budget, Throttle(rate, lost))
            except Interrupted:
                return BudgetRepair(LEASE_LOST)
            found = judged.difference
            if found is None or judged.result != DRIFT:
                return judged
            if agreed is not None and found.least != agreed.least:
                return BudgetRepair(f"the drift is now {found.least}, it was {agreed.least}: run it again", found)
            keys = [budget, shard.keys.lease(LEASE_JOB), shard.keys.events]
            args = ["-" if found.least < 0 else "+", str(abs(found.least)), lease.token, shard.keys.budget_stem]
            reply = Script("ops/repair_budget").run(shard.client, Call(keys, args))
            result = reply.decode()
            return replace(judged, result=LEASE_LOST if result == "LEASE_LOST" else result)
