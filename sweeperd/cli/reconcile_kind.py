"""`sweeperd reconcile --kind`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd.cli.actions import leave_record
from sweeperd.cli.output import Output
from sweeperd.cli.reconcile_kind_output import KindDocument, show_kinds
from sweeperd.cli.reconcile_output import with_times
from sweeperd.cli.reconcile_progress import shown_progress
from sweeperd.cli.shards import Troubles, for_each_shard
from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.ops.actions import Action
from sweeperd.ops.reconcile import KindReport, mend_kind, reconcile_kind
from sweeperd.store.shard import Shard

#: A shard with the report of its walk.
Walked = tuple[Shard, KindReport]


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
            return reconcile_kind(shard, self.settings, self.kind, self.rate, limit=self.limit, progress=progress)

    def _mend(self, walked: Sequence[Walked], troubles: Troubles) -> list[Walked]:
        """The same, mended; a shard that fails keeps its report as it was."""
        reports = {shard.name: report for shard, report in walked}
        shards = [shard for shard, _ in walked]
        mended = for_each_shard(shards, lambda each: mend_kind(each, self.kind, reports[each.name]), troubles)
        for shard, report in mended:
            reports[shard.name] = report
            leave_record(shard, Action.REPAIR, f"index of {self.kind.name}", report.changed)
        return [(shard, reports[shard.name]) for shard in shards]


def _show(output: Output, walked: Sequence[Walked], troubles: Troubles, *, repair: bool) -> None:
    show_reports(output, [_document(shard, report) for shard, report in walked], troubles, repair=repair)


def show_reports(output: Output, documents: Sequence[KindDocument], troubles: Troubles, *, repair: bool) -> None:
    """Print the reports of one kind: one JSON document, or a table and a few lines."""
    if output.as_json:
        output.json({"repair": repair, "shards": list(map(with_times, documents)), "down": troubles.down})
    else:
        show_kinds(output, documents)


def _document(shard: Shard, report: KindReport) -> KindDocument:
    return {"shard": shard.name, "address": shard.address, **report.as_dict()}
