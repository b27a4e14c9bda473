"""`sweeperd reconcile --repair-budget`."""

from collections.abc import Sequence

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.output import Output
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.ops import reconcile
from sweeperd.ops.actions import Action
from sweeperd.ops.budget_drift import Difference
from sweeperd.ops.reconcile import BudgetVerdict
from sweeperd.ops.throttle import Throttle
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
    """Judge one budget on one shard, show the numbers, ask, repair. Returns whether a drift is left."""
    if len(shards) > 1:
        raise click.UsageError("there are several shards; say with --shard where the budget is")
    (shard,) = shards
    key = shard.keys.budget_stem + name.encode("utf-8", "surrogateescape")

    def judge(shard: Shard) -> BudgetVerdict:
        return reconcile.judge_budget(shard, settings.sweep, key, Throttle(rate))

    for _, verdict in for_each_shard(shards, judge, troubles):
        difference = verdict.difference
        if difference is None:
            _report(output, name, None, f"not judged: {verdict.reason}")
            troubles.fail(f"{name} was not judged: {verdict.reason}")
            return True
        if not difference.is_drift:
            _report(output, name, difference, "no drift")
            return False
        return _repair(output, shard, key, name, difference, troubles, yes=yes)
    return True


def _repair(
    output: Output, shard: Shard, key: bytes, name: str, difference: Difference, troubles: Troubles, *, yes: bool
) -> bool:
    output.say(f"{name}: reserved {difference.reserved}, its reservations hold {difference.held}")
    question = f"Take {difference.least} out of reserved of {name} and add it to remaining?"
    if difference.least < 0:
        question = f"Add {-difference.least} to reserved of {name} and take it from remaining?"
    output.confirm(question, yes=yes)
    for _, result in for_each_shard(
        [shard], lambda shard: reconcile.repair_budget(shard, key, difference.least), troubles
    ):
        _report(output, name, difference, result)
        if result == "repaired":
            leave_record(shard, Action.REPAIR_BUDGET, f"{name} {difference.least:+d}")
            return False
        troubles.fail(f"{name} was not changed: {result}")
    return True


def _report(output: Output, name: str, difference: Difference | None, result: str) -> None:
    output.say(f"{name}: {result}")
    if output.as_json:
        numbers = difference and {
            "reserved": difference.reserved,
            "held": difference.held,
            "difference": difference.least,
        }
        output.json({"budget": name, "result": result, **(numbers or {})})
