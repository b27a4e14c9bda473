"""The report of a walk as a table and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from sweeperd.cli.output import Cell, Output, printable, timestamp
from sweeperd.ops.reconcile import Fault, ReconcileReport
from sweeperd.store.shard import Shard

#: The report of one shard, as JSON has it. A stored one may lack newer fields.
Document = dict[str, Any]

_COLUMNS = ("shard", "fault", "what", "found", "expected", "difference", "done")


def document(shard: Shard, report: ReconcileReport) -> Document:
    """The report of one shard."""
    return {"shard": shard.name, "address": shard.address, **report.as_dict(), "remaining": report.remaining}


def show(output: Output, documents: Sequence[Document], down: Sequence[dict[str, str]], *, repair: bool) -> None:
    """Print the reports: one JSON document; or a table of the findings, and a few lines for each shard."""
    if output.as_json:
        shards = list(map(with_times, documents))
        output.json({"repair": repair, **totals(documents), "shards": shards, "down": down})
        return
    rows = [row for each in documents for row in _rows(each)]
    if rows or not output.terminal:
        output.table(_COLUMNS, rows)
    for each in documents:
        click.echo(printable_lines(summary(each)), err=not output.terminal)


def totals(documents: Sequence[Document]) -> dict[str, Any]:
    """How much all of these reports have found, what is left of it, and whether they show it all."""
    return {
        "found": sum(sum(each["found"].values()) for each in documents),
        "remaining": sum(each.get("remaining") or 0 for each in documents),
        "truncated": any(each.get("truncated") for each in documents),
    }


def with_times(report: Document) -> Document:
    """The same with its moments as RFC 3339, as JSON has them."""
    moments = {key: timestamp(report[key]) for key in ("started_at", "finished_at") if key in report}
    return report | moments


def printable_lines(text: str) -> str:
    """Each line as any terminal can show it."""
    return "\n".join(map(printable, text.split("\n")))


def _rows(report: Document) -> Iterator[Sequence[object]]:
    for finding in report["findings"]:
        drift = "budget" in finding
        yield (
            report["shard"],
            Cell(finding["fault"], "green" if finding["mended"] else "red"),
            finding["budget"] if drift else finding["id"],
            finding["reserved"] if drift else finding["score"],
            finding["held"] if drift else finding["expires_at"],
            _difference(finding) if drift else None,
            "mended" if finding["mended"] else None,
        )


def _difference(finding: dict[str, Any]) -> str:
    least, most = finding["difference_least"], finding["difference_most"]
    return f"{least:+d}" if least == most else f"{least:+d} to {most:+d}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing"


def summary(report: Document) -> str:
    """A few lines about one shard."""
    name, found = report["shard"], report["found"]
    lines = [
        f"{name}: {report['reservations']} reservations, {report['index_entries']} index entries and "
        f"{report['budgets']} budgets in {report['duration_seconds']:.1f} s; found {_counts(found)}"
    ]
    if any(report["mended"].values()):
        lines.append(f"{name}: mended {_counts(report['mended'])}")
    lines += [f"  {fault.value}: {fault.says}" for fault in Fault if found.get(fault.value)]
    if report["truncated"]:
        lines.append(f"  only the first {len(report['findings'])} are shown; see --limit")
    lines += [f"  {line}" for line in _notes(report)]
    return "\n".join(lines)


def _notes(report: Document) -> Iterator[str]:
    if report.get("resumed"):
        yield "the walk went on where an earlier one was interrupted, so the budgets were not judged"
    if report["budgets_unjudged"]:
        yield f"{report['budgets_unjudged']} budgets not judged: too much happened, or something cannot be read"
    if report["unreadable"]:
        yield f"what {report['unreadable']} ACTIVE reservations hold cannot be read; their budgets are not judged"
    if report.get("dismissed"):
        yield f"{report['dismissed']} reservations were dismissed from the quarantine and still hold their amounts"
    if report.get("foreign_expiries"):
        names = ", ".join(report["foreign_expired_ids"][:3])
        yield f"{report['foreign_expiries']} reservations were expired by another sweeper, without an event: {names}"
