"""`sweeperd reconcile --last`: what the daemon's last walks found."""

from collections.abc import Sequence
from typing import Any

from sweeperd.cli.output import Output
from sweeperd.cli.reconcile_kind import show_reports
from sweeperd.cli.reconcile_kind_output import show_kinds
from sweeperd.cli.reconcile_output import Document, show, totals, with_times
from sweeperd.cli.shards import Troubles, for_each_shard
from sweeperd.ops.status import read_last_report
from sweeperd.store.shard import Shard
from sweeperd.sweep.reservations import RESERVATIONS


def show_last_of_kind(output: Output, shards: Sequence[Shard], kind: str, troubles: Troubles) -> bool:
    """Of one configured kind. Returns whether something that was found is left."""
    found = _last(shards, [kind], troubles)[kind]
    show_reports(output, found, troubles, repair=False)
    return _left(found)


def show_last(output: Output, shards: Sequence[Shard], swept: Sequence[str], troubles: Troubles) -> bool:
    """Of all these, reservations or kinds. Returns whether something that was found is left."""
    found = _last(shards, swept, troubles)
    reservations = found.pop(RESERVATIONS, None)
    kinds = [report for reports in found.values() for report in reports]
    if output.as_json:
        everything = [*(reservations or []), *kinds]
        documents = {
            "shards": list(map(with_times, reservations or [])),
            "kinds": list(map(with_times, kinds)),
            "down": troubles.down,
        }
        output.json({"repair": False, **totals(everything), **documents})
        return _left(everything)
    if reservations is not None:
        show(output, reservations, troubles.down, repair=False)
    if found:
        if reservations is not None:
            output.say("")
        show_kinds(output, kinds)
    return _left([*(reservations or []), *kinds])


def _left(reports: Sequence[Document]) -> bool:
    return any(report.get("remaining") for report in reports)


def _last(shards: Sequence[Shard], swept: Sequence[str], troubles: Troubles) -> dict[str, list[Document]]:
    """The reports of each of these, by name. A shard without one is a problem."""

    def read(shard: Shard) -> dict[str, dict[str, Any] | None]:
        return {name: read_last_report(shard, "" if name == RESERVATIONS else name) for name in swept}

    found: dict[str, list[Document]] = {name: [] for name in swept}
    for shard, reports in for_each_shard(shards, read, troubles):
        for name, report in reports.items():
            if report is None:
                over = "" if name == RESERVATIONS else f" over {name}"
                troubles.fail(f"shard {shard.name}: the daemon has not finished a walk{over} yet")
            else:
                found[name].append({"shard": shard.name, "address": shard.address, **report})
    return found
