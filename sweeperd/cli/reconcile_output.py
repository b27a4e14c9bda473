"""The reports of walks as a table and as JSON, and the progress of a walk on a terminal."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from sweeperd.cli.output import Cell, Output, printable, timestamp
from sweeperd.ops.reconcile import Fault, WalkProgress, WalkStage
from sweeperd.store.shard import Shard

#: The report of one walk, as JSON has it.
Document = dict[str, Any]

_COLUMNS = ("shard", "kind", "fault", "what", "found", "expected", "difference", "done")


def document(shard: Shard, report: Document) -> Document:
    """The report of a walk on this shard."""
    return {"shard": shard.name, "address": shard.address, **report}


def show(output: Output, documents: Sequence[Document], down: Sequence[dict[str, str]], *, repair: bool) -> None:
    """Print the reports: one JSON document; or a table of the findings, and a few lines for each walk."""
    if output.as_json:
        output.json(
            {
                "repair": repair,
                "found": sum(sum(each["found"].values()) for each in documents),
                "remaining": sum(each["remaining"] for each in documents),
                "truncated": any(each["truncated"] for each in documents),
                "shards": list(map(_with_times, documents)),
                "down": down,
            }
        )
        return
    rows = [row for each in documents for row in _rows(each)]
    if rows or not output.terminal:
        output.table(_COLUMNS, rows)
    for each in documents:
        click.echo(summary(each), err=not output.terminal)


def summary(report: Document) -> str:
    """A few lines about one walk, as any terminal can show them."""
    return "\n".join(map(printable, _lines(report)))


def _with_times(report: Document) -> Document:
    """The same with its moments as RFC 3339."""
    return report | {key: timestamp(report[key]) for key in ("started_at", "finished_at") if key in report}


def _rows(report: Document) -> Iterator[Sequence[object]]:
    for finding in report["findings"]:
        counter = "field" in finding
        yield (
            report["shard"],
            report["kind"],
            Cell(finding["fault"], "green" if finding["mended"] else "red"),
            f"{finding['key']} {finding['field']}" if counter else finding["id"],
            finding["holds"] if counter else finding["score"],
            finding["sum"] if counter else finding["deadline"],
            _difference(finding) if counter else None,
            "mended" if finding["mended"] else None,
        )


def _difference(finding: Document) -> str:
    least, most = finding["difference_least"], finding["difference_most"]
    return f"{least:+d}" if least == most else f"{least:+d} to {most:+d}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {fault}" for fault, count in counts.items() if count) or "nothing"


def _lines(report: Document) -> Iterator[str]:
    name, found = f"{report['shard']}: {report['kind']}", report["found"]
    yield (
        f"{name}: {report['hashes']} hashes, {report['index_entries']} index entries and {report['counters']} counters "
        f"in {report['duration_seconds']:.1f} s; found {_counts(found)}"
    )
    if any(report["mended"].values()):
        yield f"{name}: mended {_counts(report['mended'])}"
    yield from (f"  {fault.value}: {fault.says}" for fault in Fault if found.get(fault.value))
    if report["truncated"]:
        yield f"  only the first {len(report['findings'])} are shown; see --limit"
    if report["resumed"]:
        yield "  the walk went on from the place of an earlier walk that was interrupted"
    if report["counters_unjudged"]:
        yield f"  {report['counters_unjudged']} counters not judged: too much happened, or something cannot be read"
    if report["unreadable"]:
        yield (
            f"  what {report['unreadable']} active hashes hold cannot be read: "
            "their budgets are not judged, and sums lack the amounts"
        )
    if report["dismissed"]:
        yield f"  {report['dismissed']} reservations were dismissed from the quarantine and still hold their amounts"
    if report["foreign_expiries"]:
        names = ", ".join(report["foreign_expired_ids"][:3])
        yield f"  {report['foreign_expiries']} reservations were expired by another sweeper, without an event: {names}"


@contextlib.contextmanager
def shown_progress(shard: str) -> Iterator[WalkProgress]:
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
