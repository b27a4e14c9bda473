"""
Runs a command on its shards, some of which may be down.

A shard that is down hides no other: the command prints a line on standard error, adds an entry to `down` in the JSON
document, and exits with 1.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

from sweeperd.cli.options import Decorator, Exit, Options, fail, json_option, shard_option
from sweeperd.cli.output import Output, printable, shortened
from sweeperd.config import EndpointSettings, Settings
from sweeperd.document import ShardsDocument
from sweeperd.ops.trouble import ShardTrouble, working_on
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names
from sweeperd.text import did_you_mean, is_utf8

T = TypeVar("T")

#: The arguments that name what other services store in Redis, so they may be any bytes.
_BYTES = {"budget", "entry", "event", "ids", "match", "tenant"}


class Run:
    """One run of a command: its shards, and what went wrong on them. `yes` answers every question."""

    def __init__(self, settings: Settings, shards: list[Shard], output: Output, *, yes: bool) -> None:
        self.settings = settings
        self.shards = shards
        self.output = output
        self.yes = yes
        self._down: dict[str, ShardTrouble] = {}
        self._failed = False

    @property
    def down(self) -> list[Any]:
        """The shards that are down, for the JSON document."""
        return [trouble.as_dict() for trouble in self._down.values()]

    @property
    def among_those_up(self) -> str:
        """The end of a sentence that says that nothing was found."""
        return " on the shards that could be used" if self._down else ""

    @property
    def any_up(self) -> bool:
        """Whether there is a shard of which anything can be said."""
        return any(not self.is_down(shard) for shard in self.shards)

    @property
    def at_least(self) -> str:
        """What comes before a number of changes: an answer that was lost may be about more."""
        return "at least " if any(trouble.unanswered for trouble in self._down.values()) else ""

    def unanswered(self, shard: Shard) -> bool:
        """Whether Redis may have done what it was asked last, without an answer."""
        return self.is_down(shard) and self._down[shard.name].unanswered

    def is_down(self, shard: Shard) -> bool:
        return shard.name in self._down

    @contextlib.contextmanager
    def catching(self, shard: Shard) -> Iterator[None]:
        """End the block at an error of this shard's Redis, and record the shard as down."""
        try:
            with working_on(shard):
                yield
        except ShardTrouble as trouble:
            self._down[shard.name] = trouble
            self.fail(str(trouble))

    def until_down(self, shard: Shard, items: Iterable[T]) -> Iterator[T]:
        """The items up to an error of this shard's Redis, which is recorded."""
        with self.catching(shard):
            yield from items

    def fail(self, problem: str) -> None:
        """Print a problem on standard error, and exit with 1 in the end."""
        self._failed = True
        warn(problem)

    def end(self) -> None:
        if self._failed:
            sys.exit(Exit.FAILED)

    def each(self, work: Callable[[Shard], T]) -> list[tuple[Shard, T]]:
        """Do the work on each shard that is up; returns those shards with the results."""
        done = []
        for shard in self.shards:
            if not self.is_down(shard):
                with self.catching(shard):
                    done.append((shard, work(shard)))
        return done

    def newest(self, items: Iterable[T], limit: int) -> tuple[list[T], bool]:
        """The first `limit` items, which are sorted newest first, and whether there are more, which is said."""
        found = list(itertools.islice(items, limit + 1))
        if len(found) > limit:
            warn(f"showing the newest {limit} only; raise --limit for more")
        return found[:limit], len(found) > limit

    def report(self, document: ShardsDocument) -> None:
        """Print the document with the shards that are down, if --json is given."""
        if self.output.as_json:
            self.output.json(document.as_json() | {"down": self.down})

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], document: Callable[[], ShardsDocument]
    ) -> None:
        """Print the rows as a table, or the document if --json is given."""
        if self.output.as_json:
            self.report(document())
        else:
            self.output.table(columns, rows)


def on_shards(kind: type[Run] = Run, *, secrets: bool = False) -> Decorator:
    """Give a command --json and --shard, and call it with a `Run` of this `kind`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @json_option
        @shard_option
        @click.pass_obj
        @functools.wraps(command)
        def opened(options: Options, /, *, as_json: bool, shard: str | None, yes: bool = False, **rest: Any) -> None:
            _check_texts(rest)
            with options.shards(shard, secrets=secrets) as (settings, shards):
                run = kind(settings, shards, Output(as_json=as_json), yes=yes)
                command(run, **rest)
            run.end()

        return opened

    return decorated


def _check_texts(arguments: dict[str, Any]) -> None:
    """Raises click.BadParameter for an argument that is not UTF-8, unless it may be any bytes."""
    for parameter in click.get_current_context().command.params:
        value = arguments.get(parameter.name or "")
        if isinstance(value, str) and parameter.name not in _BYTES and not is_utf8(value):
            raise click.BadParameter(f"{value[:60]!r} is not UTF-8", param=parameter)


def warn(text: str) -> None:
    click.echo(f"sweeperd: {printable(text)}", err=True)


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Exit with a hint if the name is unknown."""
    names = sorted(known)
    if name in names:
        return
    only = f", only {shortened(', '.join(names), 200)}" if names else ""
    hint = did_you_mean(name, names) or only
    fail(printable(f"there is no {kind} {shortened(name)!r} in the configuration{hint}"), Exit.USAGE)


def endpoint_of(settings: Settings, name: str) -> EndpointSettings:
    """The configured endpoint of this name; exits if there is none."""
    known = {endpoint.name: endpoint for endpoint in settings.webhooks.endpoints}
    check_name("endpoint", name, known)
    return known[name]


def one_kind(settings: Settings, name: str | None) -> str:
    """The kind that `--kind` names, else reservations or the only kind; exits if that is not one kind."""
    names = kind_names(settings)
    if name is not None:
        check_name("kind", name, names)
        return name
    if not names:
        fail("there is no kind in the configuration", Exit.USAGE)
    if len(names) > 1 and not settings.reservations.enabled:
        fail(f"choose one with --kind: {', '.join(names)}", Exit.USAGE)
    return names[0]
