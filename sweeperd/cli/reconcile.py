"""`sweeperd reconcile`."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import click
import redis

from sweeperd.cli.options import Exit, Options, json_option, shard_option, yes_option
from sweeperd.cli.output import Cell, Output
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.reconcile import FINDINGS, Fault, ReconcileReport, WalkProgress, WalkStage, kinds, reconcile
from sweeperd.store.errors import describe
from sweeperd.text import decode

#: Keys a second. Ten times what the daemon does: somebody is waiting.
RATE = 10_000


@click.command("reconcile", short_help="Hold the index and the budgets against the reservations; mend the index.")
@click.option("--repair", is_flag=True, help="Mend the index; budgets are never changed.")
@click.option("--rate", type=click.IntRange(1), default=RATE, show_default=True, help="Keys a second, at most.")
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=FINDINGS, show_default=True, help="Findings shown for a shard."
)
@shard_option
@yes_option
@json_option
@click.pass_obj
def command(options: Options, repair: bool, rate: int, limit: int, shard: str | None, yes: bool, as_json: bool) -> None:
    """
    Walk all reservations, beside live traffic, and tell what the sweep cannot see.

    It finds ACTIVE reservations that the index has lost, index entries without a reservation, scores that differ from
    the reservation, and budgets whose reserved is not what their reservations hold.

    Exit codes: 0 nothing found, or all of it mended; 1 something is left, or a shard could not be walked; 2 bad option
    or configuration.
    """
    output = Output(as_json=as_json)
    with options.shards(shard) as (settings, shards):
        if repair:
            names = ", ".join(each.name for each in shards)
            output.confirm(f"Mend the index of {names} where it is wrong?", yes=yes)
        reports: dict[str, ReconcileReport] = {}
        failures: dict[str, str] = {}
        for each in shards:
            with _progress(each.name) as progress:
                try:
                    reports[each.name] = reconcile(
                        each, settings.sweep, rate, repair=repair, limit=limit, progress=progress
                    )
                except (RedisUnavailable, redis.RedisError) as error:
                    # An index that is no sorted set, for one: the other shards are walked all the same.
                    failures[each.name] = describe(error)
    if as_json:
        output.json(_document(reports, failures, repair=repair))
    else:
        _show(output, reports)
    for name, problem in failures.items():
        click.echo(f"sweeperd: shard {name}: it could not be walked: {problem}", err=True)
    sys.exit(Exit.FAILED if failures or any(report.remaining for report in reports.values()) else Exit.DONE)


def _document(reports: dict[str, ReconcileReport], failures: dict[str, str], *, repair: bool) -> dict[str, Any]:
    walked = [{"shard": name, "down": None, **report.as_dict()} for name, report in reports.items()]
    down = [{"shard": name, "down": problem} for name, problem in failures.items()]
    return {
        "repair": repair,
        "found": sum(sum(report.found.values()) for report in reports.values()),
        "remaining": sum(report.remaining for report in reports.values()),
        "truncated": any(report.truncated for report in reports.values()),
        "shards": [*walked, *down],
    }


def _show(output: Output, reports: dict[str, ReconcileReport]) -> None:
    rows = [
        (
            name,
            Cell(finding.fault.value, "green" if finding.mended else "red"),
            decode(finding.subject),
            finding.found,
            finding.expected,
            _difference(finding.bounds),
            "mended" if finding.mended else "",
        )
        for name, report in reports.items()
        for finding in report.findings
    ]
    if rows or not output.terminal:
        output.table(("shard", "kind", "what", "found", "expected", "difference", "done"), rows)
    for name, report in reports.items():
        click.echo(_summary(name, report), err=not output.terminal)


def _difference(bounds: tuple[int, int] | None) -> str:
    if bounds is None:
        return ""
    least, most = bounds
    return f"{least:+d}" if least == most else f"{least:+d} to {most:+d}"


def _summary(name: str, report: ReconcileReport) -> str:
    lines = [
        f"{name}: {report.reservations} reservations, {report.entries} index entries and {report.budgets} budgets in "
        f"{report.duration_seconds:.1f} s; found {kinds(report.found)}"
    ]
    if any(report.mended.values()):
        lines.append(f"{name}: mended {kinds(report.mended)}")
    lines += [f"  {fault.value}: {fault.says}" for fault in Fault if report.found.get(fault)]
    if report.truncated:
        lines.append(f"  only the first {len(report.findings)} are shown; see --limit")
    if report.unjudged:
        lines.append(f"  {report.unjudged} budgets could not be judged: too much happened, or they cannot be read")
    if report.unreadable:
        lines.append(
            f"  what {report.unreadable} ACTIVE reservations hold cannot be read; it is missing from what is expected"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _progress(shard: str) -> Iterator[WalkProgress]:
    """A progress bar with an estimate, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    with contextlib.ExitStack() as bars:
        bar: Any = None
        at: WalkStage | None = None

        def progress(stage: WalkStage, done: int, total: int) -> None:
            nonlocal bar, at
            if stage is not at:
                bars.close()
                label = f"{shard}: {stage.value}"
                bar = bars.enter_context(click.progressbar(length=total, label=label, show_eta=True, file=sys.stderr))
                at = stage
            bar.length = total
            bar.update(min(done, total) - bar.pos)

        yield progress
