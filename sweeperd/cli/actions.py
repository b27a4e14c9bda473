"""
The flow of every command that changes something: find, ask, act page by page, record, report. And `sweeperd actions`,
which lists the records.

    @changing
    def pause(change: Change, name: str) -> None:
        found = change.each(find)              # on each shard that answers
        change.confirm("Pause it?")            # unless there is nothing to change
        change.act(Action.PAUSE, found, work)  # what was found and nothing else; each change is recorded
        change.report({"endpoint": name})
"""

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import click
import redis

from sweeperd.cli.options import yes_option
from sweeperd.cli.shards import Run, on_shards, warn
from sweeperd.ops.actions import Action, ActionsDocument, begin, read_actions, record
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard

T = TypeVar("T")

#: The target that a record names, and how many entries of the target were changed.
Changed = tuple[str, int]


class Change(Run):
    """One run of a command that changes something."""

    def confirm(self, question: str) -> None:
        """Ask the operator, unless --yes is given. Ends the process if the operator does not agree."""
        self.output.confirm(question, yes=self.yes)

    def act(
        self,
        action: Action,
        found: Iterable[tuple[Shard, T]],
        work: Callable[[Shard, T], Iterable[Changed]],
        begins: Callable[[T], str] | None = None,
    ) -> None:
        """
        Change what was found on each shard, and record what was changed, also if Redis or the output fails half-way:
        `work` yields each change as soon as the change is done, and prints afterwards. If Redis refuses the record, the
        action still counts, and a warning says so.

        `begins`: for what cannot be undone, the target that is recorded before the first change, or "" if there is
        nothing to change. If the command is killed, this record stays.
        """
        for shard, what in found:
            done = Counter[str]()
            target, begun = begins(what) if begins else "", b""
            with _recording(shard):
                begun = begin(shard, action, target) if target else b""
            try:
                with self.noted(shard):
                    for changed, count in work(shard, what):
                        done[changed] += count
            finally:
                finished = sorted(done.items()) or [(target, 0)]
                for changed, count in finished:
                    with _recording(shard):
                        if count or begun:
                            record(shard, action, changed, count, begun)
                            begun = b""


@contextlib.contextmanager
def _recording(shard: Shard) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        warn(f"{shard.address}: the action is not recorded: {describe(error)}")


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """The options --yes, --json and --shard of a command; the command gets a `Change`."""
    return yes_option(on_shards(Change)(command))


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
