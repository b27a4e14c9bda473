"""The report of a walk over a configured kind as a table and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from sweeperd.cli.output import Cell, Output
from sweeperd.cli.reconcile_output import printable_lines
from sweeperd.ops.reconcile import KindFault

#: The report of one shard, as JSON has it.
KindDocument = dict[str, Any]

_COLUMNS = ("shard", "kind", "fault", "what", "found", "expected", "difference", "done")


def show_kinds(output: Output, documents: Sequence[KindDocument]) -> None:
    """Print a table of the findings, and a few lines about each report."""
    rows = [row for each in documents for row in _rows(each)]
    if rows or not output.terminal:
        output.table(_COLUMNS, rows)
    for each in documents:
        click.echo(printable_lines("\n".join(_summary(each))), err=not output.terminal)


def _rows(report: KindDocument) -> Iterator[Sequence[object]]:
    for finding in report["findings"]:
        is_sum = "field" in finding
        yield (
            report["shard"],
            report["kind"],
            Cell(finding["fault"], "green" if finding["mended"] else "red"),
            f"{finding['key']} {finding['field']}" if is_sum else finding["id"],
            finding["holds"] if is_sum else finding["score"],
            finding["sum"] if is_sum else finding["deadline"],
            f"{finding['difference']:+d}" if is_sum else None,
            "mended" if finding["mended"] else None,
        )


def _summary(report: KindDocument) -> Iterator[str]:
    found = report["found"]
    counts = ", ".join(f"{count} {fault}" for fault, count in found.items() if count) or "nothing"
    yield (
        f"{report['shard']}: {report['kind']}: {report['hashes']} hashes and {report['index_entries']} index entries "
        f"in {report['duration_seconds']:.1f} s; found {counts}"
    )
    yield from (f"  {fault.value}: {fault.says}" for fault in KindFault if found.get(fault.value))
    if report["resumed"]:
        yield "  the walk went on where an earlier one was interrupted, so the sums were not compared"
    if report["unreadable"]:
        yield f"  {report['unreadable']} amounts of active hashes cannot be read, and are missing in the sums"
    if report["sums_unjudged"]:
        yield f"  {report['sums_unjudged']} sums not judged: they changed between the walks, or hold no number"
    if report["truncated"]:
        yield f"  only the first {len(report['findings'])} are shown; see --limit"
