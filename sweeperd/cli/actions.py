"""`sweeperd actions`: lists the recorded actions of operators."""

import heapq
import itertools

import click

from sweeperd.cli.shards import Run, on_shards
from sweeperd.ops.actions import ActionsDocument, read_actions


@click.command("actions")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, help="At most so many.")
@on_shards()
def command(run: Run, limit: int) -> None:
    """
    What operators did with the commands, the newest first: requeue, dismiss, adopt, replay, cancel-replay, drop,
    drop-backlog, skip, pause, resume, repair, repair-budget, accept-kind. The last 10,000 or so are kept. Times
    are of Redis's clock.
    """
    noted = (run.until_down(shard, read_actions(shard, newest_first=True)) for shard in run.shards)
    newest = heapq.merge(*noted, key=lambda row: row[1].at, reverse=True)
    rows = [action for _, action in itertools.islice(newest, limit)]
    run.table(
        ("at", "shard", "who", "action", "target", "count", "finished"),
        (list(row.as_json().values()) for row in rows),
        lambda: ActionsDocument(actions=rows, down=run.down),
    )
