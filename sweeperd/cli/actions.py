"""`sweeperd actions`, and the record that the commands leave."""

import heapq
import itertools
from collections.abc import Iterator

import click
import redis

from sweeperd.cli.options import Options, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.cli.shards import Troubles, warn
from sweeperd.ops.actions import Action, ActionDocument, ActionsDocument, RecordedAction, read_actions, record
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard


@click.command("actions", short_help="What operators did: who, when, what, how many.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@shard_option
@json_option
@click.pass_obj
def command(options: Options, limit: int, shard: str | None, as_json: bool) -> None:
    """
    What operators did with the commands, the newest first: requeue, dismiss, adopt, replay, cancel-replay, drop,
    skip, pause, resume, repair, repair-budget. The last 10,000 or so are kept. Times are of Redis's clock.
    """
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (_, shards):
        newest = heapq.merge(*(_read(one, troubles) for one in shards), key=lambda row: row[1].at_ms, reverse=True)
        rows = [_document(*row) for row in itertools.islice(newest, limit)]
    if as_json:
        output.json(ActionsDocument(actions=rows, down=troubles.down))
    else:
        columns = ("at", "shard", "who", "action", "target", "count")
        output.table(columns, [list(row.as_json().values()) for row in rows])
    troubles.end()


def _read(shard: Shard, troubles: Troubles) -> Iterator[tuple[Shard, RecordedAction]]:
    with troubles.noted(shard):
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
    """Record an action that changed something. Where Redis refuses the record, the action still counts: it warns."""
    if not count:
        return
    try:
        record(shard, action, target, count)
    except redis.RedisError as error:
        warn(f"{shard.address}: the action was done, but not recorded: {describe(error)}")
