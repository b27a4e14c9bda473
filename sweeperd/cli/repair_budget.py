"""`sweeperd reconcile --repair-budget`."""

from collections.abc import Sequence

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.output import Output
from sweeperd.cli.shards import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.ops import reconcile
from sweeperd.ops.actions import Action
from sweeperd.ops.budget_drift import Difference
from sweeperd.ops.reconcile import BudgetRepair
from sweeperd.ops.reconcile.keyspace import Throttle
from sweeperd.store.shard import Shard


def repair_budget(
    output: Output,
    settings: Settings,
    shards: Sequence[Shard],
    name: str,
    rate: int | None,
    troubles: Troubles,
    *,
    yes: bool,
) -> bool:
    """
    Judge one budget on one shard and repair it; unless `yes`, show the numbers before, ask, and judge again, because
    traffic or another operator may have changed it in between. Returns whether a drift is left.
    """
    if len(shards) > 1:
        raise click.UsageError("there are several shards; say with --shard where the budget is")
    (shard,) = shards
    key = shard.keys.budget_stem + name.encode("utf-8", "surrogateescape")
    for _, done in for_each_shard(
        shards, lambda shard: _repair(output, settings, shard, key, name, rate, yes), troubles
    ):
        if done.result == "repaired" and done.difference:
            leave_record(shard, Action.REPAIR_BUDGET, f"{name} {done.difference.least:+d}")
        _report(output, name, done)
        if done.result in ("repaired", "no drift"):
            return False
        judged = not done.result.startswith("not judged")
        troubles.fail(f"{name} was {'not changed: ' if judged else ''}{done.result}")
    return True


def _repair(
    output: Output, settings: Settings, shard: Shard, key: bytes, name: str, rate: int | None, yes: bool
) -> BudgetRepair:
    if yes:
        return reconcile.repair_budget(shard, settings.sweep, key, None, rate)
    verdict = reconcile.judge_budget(shard, settings.sweep, key, Throttle(rate))
    drift = verdict.difference
    if drift is None:
        return BudgetRepair(f"not judged: {verdict.reason}")
    if not drift.is_drift:
        return BudgetRepair("no drift", drift)
    output.say(_numbers(name, drift))
    question = f"Take {drift.least} out of reserved of {name} and add it to remaining?"
    if drift.least < 0:
        question = f"Add {-drift.least} to reserved of {name} and take it from remaining?"
    output.confirm(question, yes=yes)
    return reconcile.repair_budget(shard, settings.sweep, key, drift, rate)


def _numbers(name: str, difference: Difference) -> str:
    return f"{name}: reserved {difference.reserved}, its reservations hold {difference.held}"


def _report(output: Output, name: str, done: BudgetRepair) -> None:
    difference = done.difference
    if difference is not None and difference.is_drift:
        output.say(_numbers(name, difference))
    output.say(f"{name}: {done.result}")
    if output.as_json:
        numbers = difference and {
            "reserved": difference.reserved,
            "held": difference.held,
            "difference": difference.least,
        }
        output.json({"budget": name, "result": done.result, **(numbers or {})})
