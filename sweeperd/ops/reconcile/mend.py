"""Mends what a walk found."""

from collections import Counter
from dataclasses import dataclass, replace

from sweeperd.config import SweepSettings
from sweeperd.ops.budget_drift import Difference
from sweeperd.ops.reconcile.budgets import judge_budget
from sweeperd.ops.reconcile.faults import CONFIRM, entry_call
from sweeperd.ops.reconcile.keyspace import Interrupted, Throttle
from sweeperd.ops.reconcile.report import Fault, ReconcileReport
from sweeperd.store.lease import Lease, holder
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: Who holds `sweeperd:lease:repair-budget` may repair a budget of the shard.
LEASE_JOB = "repair-budget"
LEASE_LOST = "the lease of the repair was lost, so another repair may have been made: look again"


def mend(shard: Shard, report: ReconcileReport, throttle: Throttle | None = None) -> ReconcileReport:
    """
    Mend the index where the report says that it is wrong, without another walk; returns the report with what was
    mended. Each entry is read and written in one step, so an entry that is right by now stays as it is, and counts as
    mended. No budget is changed. Raises RedisUnavailable, redis.RedisError, Interrupted.
    """
    throttle = throttle or Throttle()
    script, mended, done, changed = Script("ops/reconcile_entry"), Counter[Fault](), set[bytes](), 0
    with shard.reaching():
        for start in range(0, len(report.mendable), CONFIRM):
            part = report.mendable[start : start + CONFIRM]
            throttle.begin()
            replies = script.run_many(shard.client, [entry_call(shard.keys, entry, repair=True) for entry, _ in part])
            throttle.end(len(part))
            for (entry, fault), reply in zip(part, replies, strict=True):
                if isinstance(reply, Exception):
                    raise reply
                mended[fault] += 1
                done.add(entry)
                changed += bool(reply) and Fault(reply[0].decode()).mendable
    findings = tuple(
        replace(each, mended=True) if each.fault.mendable and each.subject in done else each for each in report.findings
    )
    return replace(report, mended=mended, findings=findings, changed=changed)


@dataclass(frozen=True, slots=True)
class BudgetRepair:
    """
    What became of one budget, and what it was judged by. `result`: `repaired`, `no drift`, `NO_BUDGET`, `CLOSED`,
    `INVALID_BUDGET`, `OUT_OF_BOUNDS`, or for people why nothing was changed.
    """

    result: str
    difference: Difference | None = None


def repair_budget(
    shard: Shard, settings: SweepSettings, budget: bytes, agreed: Difference | None = None, rate: float | None = None
) -> BudgetRepair:
    """
    Judge one budget, given by its key, and take its drift out of `reserved` and add it to `remaining`, in one step.
    `agreed`: the operator was shown this drift, and no other one is ended.

    Two repairs of one shard cannot both act on what they saw: the walks and the step that writes are under one lease,
    and that step compares the lease's token. Raises RedisUnavailable, redis.RedisError.
    """
    lease = Lease(shard, LEASE_JOB, settings.lease_ttl)
    with shard.reaching():
        if not lease.acquire():
            return BudgetRepair(f"another repair of a budget is under way: {holder(shard, LEASE_JOB) or 'just ended'}")
        if lease.token is None:
            return BudgetRepair("redis is full and refuses the lease of the repair")
        with lease.kept() as lost:
            try:
                verdict = judge_budget(shard, settings, budget, Throttle(rate, lost))
            except Interrupted:
                return BudgetRepair(LEASE_LOST)
            found = verdict.difference
            if found is None:
                return BudgetRepair(f"not judged: {verdict.reason}")
            if not found.is_drift:
                return BudgetRepair("no drift", found)
            if agreed is not None and found.least != agreed.least:
                return BudgetRepair(f"the drift is {found.least} by now, it was {agreed.least}: look again", found)
            args = ["-" if found.least < 0 else "+", str(abs(found.least)), lease.token]
            reply = Script("ops/repair_budget").run(shard.client, Call([budget, shard.keys.lease(LEASE_JOB)], args))
            result = reply.decode()
            return BudgetRepair(LEASE_LOST if result == "LEASE_LOST" else result, found)
