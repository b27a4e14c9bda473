"""`sweeperd reconcile`: compares index and budgets with the reservations, and repairs them on request."""

import sys
from collections.abc import Callable, Iterator, Sequence

import click
import redis

from sweeperd.cli.change import Change, Changed, changing
from sweeperd.cli.options import Exit
from sweeperd.cli.output import Cell, printable, stage_bars
from sweeperd.cli.shards import check_name, one_kind, warn
from sweeperd.ops.actions import Action
from sweeperd.ops.reconcile.budget_repair import repair_budget
from sweeperd.ops.reconcile.budgets import DRIFT, NO_DRIFT, BudgetRepair, judge_budget
from sweeperd.ops.reconcile.faults import Fault
from sweeperd.ops.reconcile.last_walk import LastWalk, WalkStore
from sweeperd.ops.reconcile.report import (
    FINDINGS,
    CounterFindingDocument,
    ReconcileDocument,
    ReconcileReport,
    RepairBudgetDocument,
    WalkedShardDocument,
)
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.ops.reconcile.walk import mend, reconcile
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.text import counted, span

_COLUMNS = ("shard", "kind", "fault", "what", "found", "expected", "difference", "done")


@click.command("reconcile")
@click.option("--repair", is_flag=True, help="Repair the index and TTLs afterwards; budgets are not changed.")
@click.option("--last", is_flag=True, help="Show what the last walks found, without a new walk.")
@click.option(
    "--repair-budget",
    "budget",
    metavar="BUDGET",
    help="Walk twice for one budget, <scope>:<unit>, and repair its drift if both walks agree.",
)
@click.option("--rate", type=click.IntRange(1), help="Up to this many keys per second.  [default: adapts to Redis]")
@click.option("--limit", type=click.IntRange(0, 100_000), default=FINDINGS, help="Show up to this many per shard.")
@click.option("--kind", metavar="NAME", help="This kind.  [default: reservations, or the only kind; with --last all]")
@changing
def command(
    change: Change, repair: bool, last: bool, budget: str | None, rate: int | None, limit: int, kind: str | None
) -> None:
    """
    Walk all reservations under live traffic, and report what the sweep cannot see.

    The walk finds ACTIVE reservations that the index lacks, index entries without a reservation, wrong scores, TTLs
    that end too early, reservations that another sweeper quarantined, and budgets whose reserved differs from what
    their reservations hold. For a configured kind (--kind) it compares the counters in `sums`; while the kind is
    unproven, --repair keeps index entries without a hash, and hashes in unknown states are not judged. The walk slows
    down when other clients use Redis.

    It counts as the last walk, so `status`, the status page and the alerts show what it found and left.

    Exit codes: 0 nothing found, or everything repaired; 1 something is left, or a shard could not be walked; 2 bad
    option or configuration; 3 with --last, no walk has run yet.
    """
    if (repair, last, budget is not None).count(True) > 1:
        raise click.UsageError("--repair, --last and --repair-budget exclude each other")
    if kind is not None and budget is not None:
        raise click.UsageError("--repair-budget is about reservations")
    if repair or budget is not None:
        change.output.check_consent("Repair what the walk finds?", yes=change.yes)
    if budget is not None:
        _repair_budget(change, budget, rate)
        return
    chosen = "" if last else one_kind(change.settings, kind)
    walks = _walk(change, chosen, rate, limit, repair) if chosen else _last(change, kind)
    others = [name for name in kind_names(change.settings) if name != chosen] if chosen and kind is None else []
    if walks and others and not change.output.as_json:
        click.echo(f"kinds are walked with --kind NAME: {', '.join(others)}", err=True)
    if any(walk.remaining or walk.held for walk in walks):
        sys.exit(Exit.FAILED)


def _last(change: Change, kind: str | None) -> list[WalkedShardDocument]:
    """Show what the last walks found, and exit if a walk is missing and nothing is wrong."""
    kinds = kind_names(change.settings)
    if kind is not None:
        check_name("kind", kind, kinds)
        kinds = [kind]

    def reports(shard: Shard) -> list[tuple[str, WalkedShardDocument | None]]:
        known = kinds_of(change.settings, shard)
        return [(name, WalkStore(shard, known[name].walk_suffix).report()) for name in kinds]

    found, unwalked = [], False
    for shard, kept in change.each(reports):
        for name, report in kept:
            if report is None:
                unwalked = True
                warn(f"shard {shard.name}: no walk over {name} has run yet; see `sweeperd reconcile`")
            else:
                found.append(report)
    _show(change, found, repair=False)
    if unwalked and not change.down and not any(walk.remaining or walk.held for walk in found):
        sys.exit(Exit.NOTHING_YET)
    return found


def _walk(change: Change, kind: str, rate: int | None, limit: int, repair: bool) -> list[WalkedShardDocument]:
    """Walk over a kind, show `limit` findings of each shard, and repair if `repair`."""
    reports, asked = dict[str, WalkedShardDocument](), False

    def walk(shard: Shard) -> ReconcileReport:
        subject = subject_of(shard, change.settings, kind, Throttle(rate))
        with stage_bars(lambda stage: f"{shard.name}: {stage}", show=sys.stderr.isatty()) as subject.progress:
            report = reconcile(subject, limit=limit)
        _keep(shard, report)
        reports[shard.name] = report.document(shard)
        return report

    def question(walked: Sequence[ReconcileReport]) -> str:
        nonlocal asked
        count = sum(len(report.mendable) for report in walked) if repair else 0
        if asked := count > 0 and not change.yes:
            _show(change, list(reports.values()), repair=True)
        return f"Repair {count} of these?" if count else ""

    def work(shard: Shard, report: ReconcileReport) -> Iterator[Changed]:
        if repair and report.mendable:
            mended = mend(subject_of(shard, change.settings, kind), report)
            _keep(shard, mended)
            reports[shard.name] = mended.document(shard)
            yield f"index of {kind}", mended.changed

    change.carry_out(
        Action.REPAIR, walk, question, work, lambda report: f"index of {kind}" if repair and report.mendable else ""
    )
    walks = list(reports.values())
    if asked:
        for each in walks:
            for line in _lines(each):
                change.output.say(line)
    else:
        _show(change, walks, repair=repair)
    return walks


def _keep(shard: Shard, report: ReconcileReport) -> None:
    _note(shard, lambda: WalkStore(shard, report.kind.walk_suffix).finish(LastWalk.of(shard, report), report))


def _note(shard: Shard, write: Callable[[], bool]) -> None:
    """Change what is kept of the last walk; `write` returns False if Redis is full."""
    try:
        problem = "" if write() else "Redis is full"
    except redis.ResponseError as error:
        if is_server_trouble(error):
            raise
        problem = describe(error)
    if problem:
        warn(f"shard {shard.name}: the last walk is not updated, so `status` still shows the one before: {problem}")


def _show(change: Change, walks: Sequence[WalkedShardDocument], *, repair: bool) -> None:
    """Print the reports as JSON, or as a table of findings with a summary of each walk."""
    output = change.output
    if output.as_json:
        document = {
            "repair": repair,
            "found": sum(sum(walk.found.values()) for walk in walks),
            "remaining": sum(walk.remaining for walk in walks),
            "truncated": any(walk.truncated for walk in walks),
            "shards": walks,
        }
        change.report(ReconcileDocument.model_validate(document))
        return
    rows = [row for walk in walks for row in _rows(walk)]
    if rows or not output.terminal:
        output.table(_COLUMNS, rows)
    for walk in walks:
        click.echo(_summary(walk), err=not output.terminal)


def _rows(walk: WalkedShardDocument) -> Iterator[Sequence[object]]:
    for finding in walk.findings:
        fault = Cell(finding.fault, "green" if finding.mended else "red")
        if isinstance(finding, CounterFindingDocument):
            least, most = finding.difference_least, finding.difference_most
            difference = f"{least:+d}" if least == most else f"{least:+d} to {most:+d}"
            cells: tuple[object, ...] = (f"{finding.key} {finding.field}", finding.holds, finding.sum, difference)
        else:
            cells = (finding.id, finding.score, finding.deadline, None)
            if finding.ttl_ms is not None:
                cells = (finding.id, f"TTL {span(finding.ttl_ms / 1000)}", finding.deadline, None)
        yield walk.shard, walk.kind, fault, *cells, "repaired" if finding.mended else None


def _summary(walk: WalkedShardDocument) -> str:
    return "\n".join(map(printable, _lines(walk)))


def _lines(walk: WalkedShardDocument) -> Iterator[str]:
    name, found = f"{walk.shard}: {walk.kind}", walk.found
    counter = "budget" if walk.kind == RESERVATIONS else "counter"
    entries = counted(walk.index_entries, "index entry", "index entries")
    yield (
        f"{name}: {counted(walk.hashes, 'hash', 'hashes')}, {entries} and {counted(walk.counters, counter)} "
        f"in {walk.duration_seconds:.1f} s; found {_counts(found)}"
    )
    if any(walk.mended.values()):
        yield f"{name}: repaired {_counts(walk.mended)}"
    yield from (f"  {fault.value}: {fault.meaning}" for fault in Fault if found.get(fault.value))
    if walk.truncated:
        yield f"  showing the first {len(walk.findings)} only; raise --limit for more"
    if walk.resumed:
        yield "  the walk resumed an earlier walk that was interrupted"
    if walk.counters_unjudged:
        yield f"  not judged: {counted(walk.counters_unjudged, counter)} that changed too much or cannot be read"
    if walk.unreadable:
        yield f"  unreadable: {_named(walk.unreadable, walk.unreadable_ids, 'active hash', 'active hashes')}"
        if walk.kind == RESERVATIONS:
            yield "  the budgets of unreadable hashes are not judged"
            yield "  repair such hashes, or dismiss them from the quarantine: then they are left out"
        else:
            yield "  the sums omit unreadable hashes: what they hold shows as drift until you repair them"
    if walk.left_out:
        names = _named(walk.left_out, walk.left_out_ids, "dismissed hash", "dismissed hashes")
        yield f"  left out: {names} that cannot be read; what they held shows as drift"
    if walk.held:
        hashes = counted(walk.held, "hash", "hashes")
        yield f"  not judged: {hashes}, because no entry of {walk.kind} was seen alive ({walk.held_because})"
        yield "  correct the settings of the kind; `sweeperd check` names the setting"
    if walk.far_ahead:
        unit = f", probably in {walk.far_ahead_unit} instead of milliseconds" if walk.far_ahead_unit else ""
        entries = counted(walk.far_ahead, "index entry", "index entries")
        yield f"  {entries} with a deadline more than 100 years ahead{unit}"
    if walk.dismissed:
        yield f"  {counted(walk.dismissed, 'reservation')} dismissed from the quarantine, with amounts still held"
    if walk.foreign_expiries:
        names = ", ".join(walk.foreign_expired_ids[:3])
        yield f"  {counted(walk.foreign_expiries, 'reservation')} expired by another sweeper, without an event: {names}"


def _named(count: int, ids: Sequence[str], one: str, many: str) -> str:
    more = f", and {count - len(ids)} more" if count > len(ids) else ""
    return f"{counted(count, one, many)} ({', '.join(ids)}{more})"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {fault}" for fault, count in counts.items() if count) or "nothing"


def _repair_budget(change: Change, name: str, rate: int | None) -> None:
    """Judge a budget before the question, and again before the repair, because it may change in between."""
    if len(change.shards) > 1:
        raise click.UsageError("there are several shards; choose the one with the budget by --shard")
    key, sweep = change.shards[0].keys.budget_stem + name.encode("utf-8", "surrogateescape"), change.settings.sweep

    def judge(shard: Shard) -> BudgetRepair:
        return BudgetRepair(DRIFT) if change.yes else judge_budget(shard, sweep, key, Throttle(rate))

    def work(shard: Shard, judged: BudgetRepair) -> Iterator[Changed]:
        done = judged
        if judged.result == DRIFT:
            done = repair_budget(shard, sweep, key, judged.difference, rate)
        if done.result == "repaired" and done.difference:
            yield f"{name} {done.difference.least:+d}", 1
            _note(shard, lambda: WalkStore(shard).budget_repaired(key))
        _report_budget(change, name, done)

    def question(found: Sequence[BudgetRepair]) -> str:
        for judged in found:
            if judged.result == DRIFT and (drift := judged.difference) is not None:
                _say_numbers(change, name, judged)
                source, target = ("remaining", "reserved") if drift.least < 0 else ("reserved", "remaining")
                return f"Move {abs(drift.least)} from {source} to {target} of {name}?"
        return ""

    change.carry_out(Action.REPAIR_BUDGET, judge, question, work, lambda _: name)


def _report_budget(change: Change, name: str, done: BudgetRepair) -> None:
    drift = done.difference
    if drift is not None and drift.is_drift:
        _say_numbers(change, name, done)
    change.output.say(f"{name}: {done.result}")
    numbers: dict[str, object] = {}
    if drift:
        numbers |= {"reserved": drift.reserved, "held": drift.held, "difference": drift.least}
    for field, named in (("unreadable", done.unreadable), ("left_out", done.left_out)):
        if named.count:
            numbers |= {field: named.count, f"{field}_ids": named.ids}
    change.report(RepairBudgetDocument.model_validate({"budget": name, "result": done.result, **numbers}))
    if done.result not in ("repaired", NO_DRIFT):
        judged = not done.result.startswith("not judged")
        change.fail(f"{name} was {'not changed: ' if judged else ''}{done.result}")


def _say_numbers(change: Change, name: str, judged: BudgetRepair) -> None:
    if drift := judged.difference:
        change.output.say(f"{name}: {drift.reserved} reserved, {drift.held} held by its reservations")
    if judged.left_out.count:
        change.output.say(f"{name}: not counted, because dismissed and unreadable: {judged.left_out}")
