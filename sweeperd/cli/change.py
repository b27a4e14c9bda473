"""
The flow of every command that changes something: find, ask, act page by page, record, report.

    @changing
    def pause(change: Change, name: str) -> None:
        found = change.each(find)              # on each shard that answers
        change.confirm("Pause it?")            # unless there is nothing to change
        change.act(Action.PAUSE, found, work)  # what was found and nothing else; each change is recorded
        change.report({"endpoint": name})
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from sweeperd.cli.actions import leave_record
from sweeperd.cli.options import yes_option
from sweeperd.cli.shards import Run, on_shards
from sweeperd.ops.actions import Action
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
        self, action: Action, found: Iterable[tuple[Shard, T]], work: Callable[[Shard, T], Iterable[Changed]]
    ) -> None:
        """
        Change what was found on each shard, and record what was changed, also if Redis or the output fails half-way:
        `work` yields each change as soon as the change is done, and prints afterwards.
        """
        for shard, what in found:
            done = Counter[str]()
            try:
                with self.noted(shard):
                    for target, count in work(shard, what):
                        done[target] += count
            finally:
                for target, count in sorted(done.items()):
                    leave_record(shard, action, target, count)


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """The options --yes, --json and --shard of a command; the command gets a `Change`."""
    return yes_option(on_shards(Change)(command))
