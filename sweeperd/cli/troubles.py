"""Commands over several shards: one that is down is reported, the rest is shown, and the exit code is 1."""

import contextlib
import sys
from collections.abc import Iterator

import click

from sweeperd.cli.options import Exit
from sweeperd.cli.output import printable
from sweeperd.ops.shard_trouble import ShardTrouble, working_on
from sweeperd.store.shard import Shard


class Troubles:
    """What one command could not do."""

    def __init__(self) -> None:
        #: Shard -> why it could not be worked with.
        self.down: dict[str, str] = {}
        self._failed = False

    @contextlib.contextmanager
    def noted(self, shard: Shard) -> Iterator[None]:
        """Trouble with this shard ends the block, and is reported."""
        try:
            with working_on(shard):
                yield
        except ShardTrouble as trouble:
            self.down[shard.name] = str(trouble)
            self.fail(str(trouble))

    def fail(self, problem: str) -> None:
        """Print a problem on standard error, and remember it for the exit code."""
        self._failed = True
        warn(problem)

    def end(self) -> None:
        """Ends the process where something went wrong."""
        if self._failed:
            sys.exit(Exit.FAILED)


def warn(text: str) -> None:
    """One line on standard error."""
    click.echo(f"sweeperd: {printable(text)}", err=True)
