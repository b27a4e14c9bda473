"""`sweeperd actions`, and the record that the commands leave."""

import heapq
import itertools
from collections.abc import Iterator

import click
import redis

from sweeperd.cli.shards import Run, on_shards, warn
from sweeperd.ops.actions import Action, ActionDocument, ActionsDocument, RecordedAction, read_actions, record
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard


@click.command("actions", short_help="What operators did: who, when, what, how many.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@on_shards()
def command(run: Run, limit: int) -> None:
    """
    What operators did with the commands, the newest first: requeue, dismiss, adopt, replay, cancel-replay, drop,
    skip, pause, resume, repair, repair-budget. The last 10,000 or so are kept. Times are of Redis's clock.
    """
    noted = (run.until_down(shard, _read(shard)) for shard in run.shards)
    newest = heapq.merge(*noted, key=lambda row: row[1].at_ms, reverse=True)
    rows = [_document(*row) for row in itertools.islice(newest, limit)]
    run.table(
        ("at", "shard", "who", "action", "target", "count"),
        (list(row.as_json().values()) for row in rows),
        lambda: ActionsDocument(actions=rows, down=run.down),
    )


def _read(shard: Shard) -> Iterator[tuple[Shard, RecordedAction]]:
    for action in read_actions(shard, newest_first=True):
        yield shard, action


def _document(shard: Shard, action: RecordedAction) -> ActionDocument:
    return ActionDocument(
        at=action.at_ms,
        shard=shard.name,
        who=action.who,
        action=action.action,
        target=action.target,
        count=action.count,
    )


def leave_record(shard: Shard, action: Action, target: str, count: int = 1) -> None:
    """Record an action that changed something. If Redis refuses the record, the action still counts: warn."""
    if not count:
        return
    try:
        record(shard, action, target, count)
    except redis.RedisError as error:
        warn(f"{shard.address}: the action was done, but not recorded: {describe(error)}")
