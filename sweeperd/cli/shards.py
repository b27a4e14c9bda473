"""Names that an operator types."""

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import printable, shortened
from sweeperd.config import EndpointSettings, Settings
from sweeperd.ops.health import ShardTrouble, working_on
from sweeperd.store.shard import Shard


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Ends the process where `name` is unknown; the message holds the most similar known name."""
    names = sorted(known)
    if name in names:
        return
    close = difflib.get_close_matches(name, names, 1)
    if close:
        hint = f"; did you mean {close[0]}?"
    elif names:
        hint = f", only {shortened(', '.join(names), 200)}"
    else:
        hint = "; there is none"
    fail(printable(f"there is no {kind} {shortened(name)!r} in the configuration{hint}"), Exit.USAGE)


def endpoint_of(settings: Settings, name: str) -> EndpointSettings:
    """The configured endpoint of this name. Ends the process where there is none."""
    known = {endpoint.name: endpoint for endpoint in settings.webhooks.endpoints}
    check_name("endpoint", name, known)
    return known[name]


# ---- the shards of one command, of which some may be down
# Every command works so: what the other shards give is printed; each shard that is down is one line on standard error
# and one entry of `down` in the JSON document (`{"shard", "address", "error"}`); the exit code is 1.


T = TypeVar("T")


class Troubles:
    """What one command could not do: the shards that are down, and other problems."""

    def __init__(self) -> None:
        self._down: dict[str, ShardTrouble] = {}
        self._failed = False

    @property
    def down(self) -> list[Any]:
        """The shards that could not be worked with, for the JSON document: each as `DownShard` has it."""
        return [trouble.as_dict() for trouble in self._down.values()]

    def is_down(self, shard: Shard) -> bool:
        """Whether the command met trouble on this shard before."""
        return shard.name in self._down

    @contextlib.contextmanager
    def noted(self, shard: Shard) -> Iterator[None]:
        """An error of this shard's Redis ends the block, and is noted."""
        try:
            with working_on(shard):
                yield
        except ShardTrouble as trouble:
            self._down[shard.name] = trouble
            self.fail(str(trouble))

    def fail(self, problem: str) -> None:
        """Print a problem on standard error, and remember it for the exit code."""
        self._failed = True
        warn(problem)

    def end(self) -> None:
        """End the process with exit code 1 where there was a problem."""
        if self._failed:
            sys.exit(Exit.FAILED)


def for_each_shard(shards: Iterable[Shard], work: Callable[[Shard], T], troubles: Troubles) -> list[tuple[Shard, T]]:
    """Do the work on each shard, and return each shard with its result. A shard that is down goes to `troubles`."""
    done = []
    for shard in shards:
        with troubles.noted(shard):
            done.append((shard, work(shard)))
    return done


def warn(text: str) -> None:
    """One line on standard error."""
    click.echo(f"sweeperd: {printable(text)}", err=True)
