"""
Runs every command that changes something: finds, asks, acts page by page, records, reports.

    @changing
    def pause(change: Change, name: str) -> None:
        change.carry_out(Action.PAUSE, find, question, work)
        change.report({"endpoint": name})
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click
import redis

from sweeperd.cli.options import Decorator, yes_option
from sweeperd.cli.output import printable, shortened
from sweeperd.cli.shards import Run, on_shards, warn
from sweeperd.ops.actions import Action, begin, record
from sweeperd.store import scripts
from sweeperd.store.errors import describe
from sweeperd.store.shard import Shard

T = TypeVar("T")

#: The target that the audit record names, and how many of its entries were changed.
Changed = tuple[str, int]


@dataclass(frozen=True)
class Verb(Generic[T]):
    """A way to change the entries of a list, such as requeueing them; `act` changes one page."""

    action: Action
    #: With {} for the entries.
    question: str
    #: The past participle.
    done: str
    act: T


class Change(Run):
    def carry_out(
        self,
        action: Action,
        find: Callable[[Shard], T],
        question: Callable[[Sequence[T]], str],
        work: Callable[[Shard, T], Iterable[Changed]],
        target: Callable[[T], str],
        *,
        irreversible: bool = False,
    ) -> list[T]:
        """
        Find on each shard that is up, ask the operator, and change exactly what was found. Every change is recorded,
        even if Redis or the output fails half-way. Returns what was found.

        `question` returns "" if there is nothing to change. `work` yields each change once it is done. `target` names
        all of it for the record of a change without an answer of Redis; "" if there is nothing to record. What is
        `irreversible` is recorded before the first change too, so that a command that is killed leaves a record.
        """
        found = self.each(find)
        if asked := question([what for _, what in found]):
            scripts.read_all()
            self.output.confirm(asked, yes=self.yes)
        for shard, what in found:
            self._act(action, shard, work(shard, what), target(what), irreversible=irreversible)
        return [what for _, what in found]

    def _act(
        self, action: Action, shard: Shard, changes: Iterable[Changed], target: str, *, irreversible: bool
    ) -> None:
        done, begun = Counter[str](), b""
        with _recording(shard):
            begun = begin(shard, action, target) if target and irreversible else b""
        try:
            with self.catching(shard):
                for changed, count in changes:
                    done[changed] += count
        finally:
            unanswered = bool(target) and self.unanswered(shard)
            for changed, count in sorted(done.items()) or [(target, 0)]:
                with _recording(shard):
                    if count or begun or unanswered:
                        record(shard, action, changed, count, begun, finished=not unanswered)
                        begun = b""
            if unanswered:
                warn(f"{shard.address}: there was no answer to the last change, so more may have changed than is said")

    def check_named(self, ids: Iterable[str], found: Collection[str], problem: str) -> None:
        """Fail for each id that was not found, unless it may be on a shard that is down."""
        for text in ids if not self.down else ():
            if text not in found:
                self.fail(f"{shortened(printable(text))} {problem}")


@contextlib.contextmanager
def _recording(shard: Shard) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        warn(f"{shard.address}: the action is not recorded: {describe(error)}")


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --yes, --json and --shard, and call it with a `Change`."""
    return yes_option(on_shards(Change)(command))


def selecting(all_help: str = "All of them.", **filters: Decorator) -> Decorator:
    """Let a command select entries by IDs, by these options, or by --all."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def checked(change: Change, ids: tuple[str, ...], everything: bool, **options: Any) -> None:
            filtered = any(options[name] is not None for name in filters)
            if (bool(ids), filtered, everything).count(True) != 1:
                ways = ["by ID", *(["by " + " and ".join(f"--{name}" for name in filters)] if filters else [])]
                raise click.UsageError(f"select entries {', '.join(ways)}, or --all")
            command(change, ids=tuple(dict.fromkeys(ids)), **options)

        selected = click.option("--all", "everything", is_flag=True, help=all_help)(changing(checked))
        for option in reversed(filters.values()):
            selected = option(selected)
        return click.argument("ids", metavar="[ID]...", nargs=-1)(selected)

    return decorated
