"""`sweeperd reconcile`."""

import sys
from collections.abc import Sequence

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import Exit, Options, json_option, kind_of, shard_option, swept_names, yes_option
from sweeperd.cli.output import Output
from sweeperd.cli.reconcile_kind import KindWalks
from sweeperd.cli.reconcile_last import show_last, show_last_of_kind
from sweeperd.cli.reconcile_output import document, show, summary
from sweeperd.cli.reconcile_progress import shown_progress
from sweeperd.cli.repair_budget import repair_budget
from sweeperd.cli.shards import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.ops.actions import Action
from sweeperd.ops.reconcile import FINDINGS, ReconcileReport, mend, reconcile
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
    hold. It is fast where Redis is idle, and makes way for other clients. Of a configured kind (--kind) it finds hashes
    that the index lacks, index entries without a hash, scores that are too late, and counters of the kind's `sums` that
    are not what the active hashes hold.

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
        configured = None if kind == RESERVATIONS else kind_of(settings, kind)
        if last and configured is not None:
            left = show_last_of_kind(output, shards, configured.name, troubles)
        elif last:
            left = show_last(output, shards, [kind] if kind else swept_names(settings), troubles)
        elif configured is not None:
            walks = KindWalks(settings, configured, rate, limit)
            left = walks.run(output, shards, troubles, repair=repair, yes=yes)
        elif budget is not None:
            left = repair_budget(output, settings, shards, budget, rate, troubles, yes=yes)
        else:
            left = _walk_and_mend(output, settings, shards, rate, limit, troubles, repair=repair, yes=yes)
    troubles.end()
    sys.exit(Exit.FAILED if left else Exit.DONE)


def _walk_and_mend(
    output: Output,
    settings: Settings,
    shards: Sequence[Shard],
    rate: int | None,
    limit: int,
    troubles: Troubles,
    *,
    repair: bool,
    yes: bool,
) -> bool:
    """Returns whether something that was found is left."""

    def walk(shard: Shard) -> ReconcileReport:
        with shown_progress(shard.name) as progress:
            return reconcile(shard, settings.sweep, rate, limit=limit, progress=progress)

    walked = for_each_shard(shards, walk, troubles)
    count = sum(len(report.mendable) for _, report in walked)
    if repair and count:
        if not yes:
            show(output, [document(*each) for each in walked], troubles.down, repair=True)
            output.confirm(f"Mend {count} of these in the index?", yes=yes)
        mended = _mend(walked, troubles)
        if not yes:
            for each in mended:
                output.say(summary(document(*each)))
            return _left(mended)
        walked = mended
    show(output, [document(*each) for each in walked], troubles.down, repair=repair)
    return _left(walked)


def _left(walked: Sequence[Walked]) -> bool:
    return any(report.remaining for _, report in walked)


def _mend(walked: Sequence[Walked], troubles: Troubles) -> list[Walked]:
    """The same, mended; a shard that fails keeps its report as it was."""
    reports = {shard.name: report for shard, report in walked}
    shards = [shard for shard, _ in walked]
    for shard, report in for_each_shard(shards, lambda shard: mend(shard, reports[shard.name]), troubles):
        reports[shard.name] = report
        leave_record(shard, Action.REPAIR, "index", report.changed)
    return [(shard, reports[shard.name]) for shard in shards]
