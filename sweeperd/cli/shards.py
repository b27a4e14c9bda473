"""
The shards of a command, if some may be down.

Every command works so: the answers of the other shards are printed; if a shard is down, the command prints a line on
standard error and adds an entry of `down` in the JSON document (`{"shard", "address", "error"}`); the exit code is 1.
"""

import contextlib
import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

from sweeperd.cli.options import Decorator, Exit, Options, fail, json_option, shard_option
from sweeperd.cli.output import Output, printable, shortened
from sweeperd.config import EndpointSettings, Settings
from sweeperd.document import Document
from sweeperd.ops.trouble import ShardTrouble, working_on
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names

T = TypeVar("T")


class Run:
    """
    A run of a command, with the shards that are down and other problems. `yes`: the operator agrees to every question.
    """

    def __init__(self, settings: Settings, shards: list[Shard], output: Output, *, yes: bool) -> None:
        self.settings = settings
        self.shards = shards
        self.output = output
        self.yes = yes
        self._down: dict[str, ShardTrouble] = {}
        self._failed = False

    @property
    def down(self) -> list[Any]:
        """The shards that are down, for the JSON document: each a `DownShard`."""
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

    def until_down(self, shard: Shard, items: Iterable[T]) -> Iterator[T]:
        """The items; an error of this shard's Redis ends them, and is noted."""
        with self.noted(shard):
            yield from items

    def fail(self, problem: str) -> None:
        """Print a problem on standard error; the exit code will be 1."""
        self._failed = True
        warn(problem)

    def end(self) -> None:
        """End the process with exit code 1 if there was a problem."""
        if self._failed:
            sys.exit(Exit.FAILED)

    def each(self, work: Callable[[Shard], T]) -> list[tuple[Shard, T]]:
        """Do the work on each shard that answers; returns each such shard with the result."""
        done = []
        for shard in self.shards:
            if self.is_down(shard):
                continue
            with self.noted(shard):
                done.append((shard, work(shard)))
        return done

    def report(self, document: Document | dict[str, Any]) -> None:
        """Print the document if --json is given."""
        if self.output.as_json:
            self.output.json(document)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        document: Callable[[], Document | dict[str, Any]],
    ) -> None:
        """Print the rows as a table, or the document if --json is given."""
        if self.output.as_json:
            self.output.json(document())
        else:
            self.output.table(columns, rows)


def on_shards(kind: type[Run] = Run, *, secrets: bool = False) -> Decorator:
    """
    The options --json and --shard of a command. The command gets a `Run`, of this `kind`; afterwards the process ends
    with exit code 1 if there was a problem. `secrets`: whether the command needs the secrets of the endpoints.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @json_option
        @shard_option
        @click.pass_obj
        @functools.wraps(command)
        def opened(options: Options, /, *, as_json: bool, shard: str | None, yes: bool = False, **rest: Any) -> None:
            with options.shards(shard, secrets=secrets) as (settings, shards):
                run = kind(settings, shards, Output(as_json=as_json), yes=yes)
                command(run, **rest)
            run.end()

        return opened

    return decorated


def warn(text: str) -> None:
    """Print a line on standard error."""
    click.echo(f"sweeperd: {printable(text)}", err=True)


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """End the process if `name` is unknown; the message holds the most similar known name."""
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
    """The configured endpoint of this name. Ends the process if there is none."""
    known = {endpoint.name: endpoint for endpoint in settings.webhooks.endpoints}
    check_name("endpoint", name, known)
    return known[name]


def one_kind(settings: Settings, name: str | None) -> str:
    """
    The kind of `--kind`: without the option reservations, or the only kind. Ends the process if there is no such kind,
    or if there are several and no reservations.
    """
    names = kind_names(settings)
    if name is not None:
        check_name("kind", name, names)
        return name
    if not names:
        fail("there is no kind in the configuration", Exit.USAGE)
    if len(names) > 1 and not settings.reservations.enabled:
        fail(f"say which kind with --kind: {', '.join(names)}", Exit.USAGE)
    return names[0]
