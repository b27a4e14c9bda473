"""`sweeperd reconcile --kind`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from sweeperd.cli.actions import leave_record
from sweeperd.cli.output import Cell, Output
from sweeperd.cli.reconcile_output import printable_lines
from sweeperd.cli.reconcile_progress import shown_progress
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.ops.actions import Action
from sweeperd.ops.reconcile import KindFault, KindReport, mend_kind, reconcile_kind
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: A shard with the report of its walk.
Walked = tuple[Shard, KindReport]

_COLUMNS = ("shard", "fault", "what", "found", "expected", "difference", "done")


@dataclass(frozen=True)
class KindWalks:
    """The walks over one kind on some shards. `limit` findings of each are shown."""

    settings: Settings
    kind: KindSettings
    rate: int | None
    limit: int

    def run(self, output: Output, shards: Sequence[Shard], troubles: Troubles, *, repair: bool, yes: bool) -> bool:
        """Walk, show, and mend where that is asked for. Returns whether something that was found is left."""
        walked = for_each_shard(shards, self._walk, troubles)
        count = sum(len(report.mendable) for _, report in walked)
        if repair and count:
            if not yes:
                _show(output, walked, troubles, repair=True)
                output.confirm(f"Mend {count} of these in the index?", yes=yes)
            walked = self._mend(walked, troubles)
        _show(output, walked, troubles, repair=repair)
        return any(report.remaining for _, report in walked)

    def _walk(self, shard: Shard) -> KindReport:
        with shown_progress(shard.name) as progress:
            return reconcile_kind(shard, self.settings, self.kind, self.rate, self.limit, progress)

    def _mend(self, walked: Sequence[Walked], troubles: Troubles) -> list[Walked]:
        """The same, mended; a shard that fails keeps its report as it was."""
        reports = {shard.name: report for shard, report in walked}
        shards = [shard for shard, _ in walked]
        mended = for_each_shard(shards, lambda each: mend_kind(each, self.kind, reports[each.name]), troubles)
        for shard, report in mended:
            reports[shard.name] = report
            leave_record(shard, Action.REPAIR, f"index of {self.kind.name}", sum(report.mended.values()))
        return [(shard, reports[shard.name]) for shard in shards]


def _show(output: Output, walked: Sequence[Walked], troubles: Troubles, *, repair: bool) -> None:
    if output.as_json:
        documents = [{"shard": each.name, "address": each.address, **report.as_dict()} for each, report in walked]
        output.json({"repair": repair, "shards": documents, "down": troubles.down})
        return
    rows = [row for shard, report in walked for row in _rows(shard, report)]
    if rows or not output.terminal:
        output.table(_COLUMNS, rows)
    for shard, report in walked:
        click.echo(printable_lines("\n".join(_summary(shard, report))), err=not output.terminal)


def _rows(shard: Shard, report: KindReport) -> Iterator[Sequence[object]]:
    for finding in report.findings:
        is_sum = finding.fault is KindFault.SUM_DRIFT
        subject = decode(finding.subject)
        yield (
            shard.name,
            Cell(finding.fault.value, "green" if finding.mended else "red"),
            f"{subject} {decode(finding.field)}" if is_sum else subject,
            finding.found,
            finding.expected,
            f"{int(finding.found) - int(finding.expected):+d}" if is_sum else None,
            "mended" if finding.mended else None,
        )


def _summary(shard: Shard, report: KindReport) -> Iterator[str]:
    counts = ", ".join(f"{count} {fault.value}" for fault, count in report.found.items()) or "nothing"
    yield (
        f"{shard.name}: {report.kind}: {report.hashes} hashes and {report.entries} index entries in "
        f"{report.duration_seconds:.1f} s; found {counts}"
    )
    yield from (f"  {fault.value}: {fault.says}" for fault in KindFault if report.found.get(fault))
    if report.unreadable:
        yield f"  {report.unreadable} amounts of active hashes cannot be read, and are missing in the sums"
    if report.unjudged:
        yield f"  {report.unjudged} sums not judged: they changed between two walks, or hold no number"
    if len(report.findings) < sum(report.found.values()):
        yield f"  only the first {len(report.findings)} are shown; see --limit"
