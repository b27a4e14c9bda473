"""`sweeperd actions`: lists what operators did."""

import heapq

import click

from sweeperd.cli.options import limit_option
from sweeperd.cli.shards import Run, on_shards
from sweeperd.ops.actions import ActionsDocument, read_actions


@click.command("actions")
@limit_option(10_000, "Show up to this many.")
@on_shards()
def command(run: Run, limit: int) -> None:
    """
    List what operators did, newest first: requeue, dismiss, adopt, replay, cancel-replay, drop, drop-backlog, skip,
    pause, resume, repair, repair-budget, accept-kind. About 10,000 are kept. Times are by Redis's clock.
    """
    recorded = (run.until_down(shard, read_actions(shard, newest_first=True)) for shard in run.shards)
    newest = heapq.merge(*recorded, key=lambda row: row[1].at, reverse=True)
    rows, truncated = run.newest((action for _, action in newest), limit)
    run.table(
        ("at", "shard", "who", "action", "target", "count", "finished"),
        (list(row.as_json().values()) for row in rows),
        lambda: ActionsDocument(actions=rows, truncated=truncated),
    )
