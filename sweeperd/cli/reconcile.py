"""`sweeperd reconcile`: walk, and repair the index or one budget."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import Exit, Options, json_option, kind_of, shard_option, swept_names, yes_option
from sweeperd.cli.output import Output
from sweeperd.cli.reconcile_output import Document, document, show, shown_progress, summary
from sweeperd.cli.shards import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.ops.actions import Action
from sweeperd.ops.reconcile import (
    FINDINGS,
    BudgetRepair,
    ReconcileReport,
    Throttle,
    WalkStore,
    judge_budget,
    mend,
    reconcile,
    repair_budget,
    subject_of,
)
from sweeperd.ops.reconcile.counters import Difference
from sweeperd.store.shard import Shard
from sweeperd.sweep.reservations import RESERVATIONS

#: A shard with the report of its walk.
Walked = tuple[Shard, ReconcileReport]


@click.command("reconcile", short_help="Compare index and budgets with the reservations.")
@click.option("--repair", is_flag=True, help="Afterwards mend the index; budgets are not changed.")
@click.option("--last", is_flag=True, help="Walk nothing; show what the daemon's last walks found.")
@click.option(
    "--repair-budget",
    "budget",
    metavar="BUDGET",
    help="Walk twice for one budget, <scope>:<unit>, and end its drift if both walks agree on it.",
)
@click.option(
    "--rate", type=click.IntRange(1), help="Keys per second, at most.  [default: all that an idle Redis allows]"
)
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=FINDINGS, show_default=True, help="Findings shown for a shard."
)
@click.option("--kind", metavar="NAME", help="Walk this configured kind.  [default: reservations; with --last all]")
@shard_option
@yes_option
@json_option
@click.pass_obj
def command(
    options: Options,
    repair: bool,
    last: bool,
    budget: str | None,
    rate: int | None,
    limit: int,
    kind: str | None,
    shard: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Walk all reservations while traffic goes on, and report what the sweep cannot see.

    It finds ACTIVE reservations that the index lacks, index entries without a reservation, scores that differ from the
    reservation, reservations that another sweeper set aside, and budgets whose reserved is not what their reservations
    hold. The walk is fast if Redis is idle, and makes way for other clients. Of a configured kind (--kind) it finds
    hashes that the index lacks, index entries without a hash, scores that are too late, and counters of the kind's
    `sums` that are not what the active hashes hold.

    Exit codes: 0 nothing found, or all of it mended; 1 something is left, or a shard could not be walked; 2 bad option
    or configuration.
    """
    if (repair, last, budget is not None).count(True) > 1:
        raise click.UsageError("--repair, --last and --repair-budget exclude each other")
    if kind is not None and budget is not None:
        raise click.UsageError("--repair-budget is about reservations")
    output, troubles = Output(as_json=as_json), Troubles()
    if repair or budget is not None:
        output.check_consent("Mend what the walk finds?", yes=yes)
    with options.shards(shard) as (settings, shards):
        if kind not in (None, RESERVATIONS):
            kind_of(settings, kind)
        if last:
            left = _show_last(output, shards, [kind] if kind else swept_names(settings), troubles)
        elif budget is not None:
            left = _BudgetRepairs(output, settings, budget, rate, yes).run(shards, troubles)
        else:
            left = _Walks(settings, kind or RESERVATIONS, rate, limit).run(output, shards, troubles, repair, yes)
    troubles.end()
    sys.exit(Exit.FAILED if left else Exit.DONE)


@dataclass(frozen=True)
class _Walks:
    """The walks over one kind. `limit` findings of each are kept."""

    settings: Settings
    kind: str
    rate: int | None
    limit: int

    def run(self, output: Output, shards: Sequence[Shard], troubles: Troubles, repair: bool, yes: bool) -> bool:
        """Walk, show, and mend if asked to. Returns whether something that was found is left."""
        walked = for_each_shard(shards, self._walk, troubles)
        count = sum(len(report.mendable) for _, report in walked)
        asked = bool(repair and count and not yes)
        if asked:
            show(output, _documents(walked), troubles.down, repair=True)
            output.confirm(f"Mend {count} of these in the index?", yes=yes)
        if repair and count:
            walked = self._mend(walked, troubles)
        if asked:
            for each in _documents(walked):
                output.say(summary(each))
        else:
            show(output, _documents(walked), troubles.down, repair=repair)
        return any(report.remaining for _, report in walked)

    def _walk(self, shard: Shard) -> ReconcileReport:
        subject = subject_of(shard, self.settings, self.kind, Throttle(self.rate))
        with shown_progress(shard.name) as subject.progress:
            return reconcile(subject, limit=self.limit)

    def _mend(self, walked: Sequence[Walked], troubles: Troubles) -> list[Walked]:
        """The same, mended; a shard that fails keeps its report as it was."""
        reports = {shard.name: report for shard, report in walked}
        shards = [shard for shard, _ in walked]
        target = "index" if self.kind == RESERVATIONS else f"index of {self.kind}"

        def mended(shard: Shard) -> ReconcileReport:
            return mend(subject_of(shard, self.settings, self.kind), reports[shard.name])

        for shard, report in for_each_shard(shards, mended, troubles):
            reports[shard.name] = report
            leave_record(shard, Action.REPAIR, target, report.changed)
        return [(shard, reports[shard.name]) for shard in shards]


def _documents(walked: Sequence[Walked]) -> list[Document]:
    return [document(shard, report.as_dict()) for shard, report in walked]


def _show_last(output: Output, shards: Sequence[Shard], kinds: Sequence[str], troubles: Troubles) -> bool:
    """
    What the daemon's last walks over these kinds found. A shard without a report is a problem. Returns whether
    something that was found is left.
    """

    def read(shard: Shard) -> list[tuple[str, Document | None]]:
        return [(kind, WalkStore(shard, kind).report()) for kind in kinds]

    found = []
    for shard, reports in for_each_shard(shards, read, troubles):
        for kind, report in reports:
            if report is None:
                over = "" if kind == RESERVATIONS else f" over {kind}"
                troubles.fail(f"shard {shard.name}: the daemon has not finished a walk{over} yet")
            else:
                found.append(document(shard, report))
    show(output, found, troubles.down, repair=False)
    return any(report["remaining"] for report in found)


@dataclass(frozen=True)
class _BudgetRepairs:
    """
    Judges one budget on one shard and repairs it; unless `yes`, shows the numbers before, asks, and judges again,
    because traffic or another operator may have changed it in between.
    """

    output: Output
    settings: Settings
    name: str
    rate: int | None
    yes: bool

    def run(self, shards: Sequence[Shard], troubles: Troubles) -> bool:
        """Returns whether a drift is left."""
        if len(shards) > 1:
            raise click.UsageError("there are several shards; say with --shard where the budget is")
        for shard, done in for_each_shard(shards, self._repair, troubles):
            if done.result == "repaired" and done.difference:
                leave_record(shard, Action.REPAIR_BUDGET, f"{self.name} {done.difference.least:+d}")
            self._report(done)
            if done.result in ("repaired", "no drift"):
                return False
            judged = not done.result.startswith("not judged")
            troubles.fail(f"{self.name} was {'not changed: ' if judged else ''}{done.result}")
        return True

    def _repair(self, shard: Shard) -> BudgetRepair:
        key, sweep = shard.keys.budget_stem + self.name.encode("utf-8", "surrogateescape"), self.settings.sweep
        if self.yes:
            return repair_budget(shard, sweep, key, None, self.rate)
        verdict = judge_budget(shard, sweep, key, Throttle(self.rate))
        drift = verdict.difference
        if drift is None:
            return BudgetRepair(f"not judged: {verdict.reason}")
        if not drift.is_drift:
            return BudgetRepair("no drift", drift)
        self.output.say(self._numbers(drift))
        question = f"Take {drift.least} out of reserved of {self.name} and add it to remaining?"
        if drift.least < 0:
            question = f"Add {-drift.least} to reserved of {self.name} and take it from remaining?"
        self.output.confirm(question, yes=False)
        return repair_budget(shard, sweep, key, drift, self.rate)

    def _numbers(self, difference: Difference) -> str:
        return f"{self.name}: reserved {difference.reserved}, its reservations hold {difference.held}"

    def _report(self, done: BudgetRepair) -> None:
        difference = done.difference
        if difference is not None and difference.is_drift:
            self.output.say(self._numbers(difference))
        self.output.say(f"{self.name}: {done.result}")
        if self.output.as_json:
            numbers = difference and {
                "reserved": difference.reserved,
                "held": difference.held,
                "difference": difference.least,
            }
            self.output.json({"budget": self.name, "result": done.result, **(numbers or {})})
