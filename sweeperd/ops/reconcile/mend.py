"""Mends what a walk found."""

from collections import Counter
from dataclasses import replace

from sweeperd.ops.reconcile.faults import CONFIRM, entry_call
from sweeperd.ops.reconcile.report import Fault, ReconcileReport
from sweeperd.ops.throttle import Throttle
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard


def mend(shard: Shard, report: ReconcileReport, throttle: Throttle | None = None) -> ReconcileReport:
    """
    Mend the index where the report says that it is wrong, without another walk; returns the report with what was
    mended. Each entry is read and written in one step, so an entry that is right by now stays as it is, and counts as
    mended. No budget is changed. Raises RedisUnavailable, redis.RedisError, Interrupted.
    """
    throttle = throttle or Throttle()
    script, mended, done = Script("ops/reconcile_entry"), Counter[Fault](), set[bytes]()
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
    findings = tuple(
        replace(each, mended=True) if each.fault.mendable and each.subject in done else each for each in report.findings
    )
    return replace(report, mended=mended, findings=findings)


def repair_budget(shard: Shard, budget: bytes, difference: int) -> str:
    """
    Take `difference` (what is reserved less what is held) out of the budget's `reserved` and add it to `remaining`, in
    one step; `budget` is its key. Returns `repaired`, or why nothing was changed: `NO_BUDGET`, `CLOSED`,
    `INVALID_BUDGET`, `OUT_OF_BOUNDS`. Raises RedisUnavailable, redis.RedisError.
    """
    with shard.reaching():
        sign = "-" if difference < 0 else "+"
        reply = Script("ops/repair_budget").run(shard.client, Call([budget], [sign, str(abs(difference))]))
        return str(reply.decode())
