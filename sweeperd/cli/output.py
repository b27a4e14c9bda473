"""Prints what subcommands report: tables for a terminal, tab-separated lines for a pipe, or JSON."""

import contextlib
import enum
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sweeperd.cli.options import OPEN_SHARDS
from sweeperd.document import Document
from sweeperd.text import decode

if TYPE_CHECKING:
    from sweeperd.cli.screen import Screen
    from sweeperd.store.shard import Shard

# Control characters, line separators, and what changes the direction of writing.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


#: From how many entries on a change has a progress bar.
LONG = 100


def printable(value: object) -> str:
    """
    The text with every character escaped that a terminal would interpret or cannot show (`\\x1b`). A byte of the
    command line that is not UTF-8 is shown like one from Redis (`\\xff`).
    """
    return _UNPRINTABLE.sub(_escaped, str(value))


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return decode(os.fsencode(char)) if "\udc80" <= char <= "\udcff" else char.encode("unicode_escape").decode()


def shortened(text: str, limit: int = 60) -> str:
    """The text, or its beginning and end if it is longer than `limit`."""
    return text if len(text) <= limit else f"{text[: limit - 8]}…{text[-7:]}"


#: The colour of each `HealthLevel`, or of none.
LEVEL_STYLES = {"good": "green", "watch": "yellow", "bad": "red", None: "dim"}


@dataclass(frozen=True)
class Cell:
    """A value with a style of rich, such as `red`."""

    value: object
    style: str = ""


class Output:
    """The output of a command. With `as_json`, standard output carries JSON only."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.terminal = sys.stdout.isatty() and not as_json
        self._address_named = False

    @functools.cached_property
    def screen(self) -> "Screen":
        from sweeperd.cli.screen import Screen  # noqa: PLC0415 - it imports rich

        return Screen()

    def json(self, document: Document | dict[str, Any]) -> None:
        """Print a JSON document with `address` on one line."""
        values = document.as_json() if isinstance(document, Document) else document
        click.echo(json.dumps(with_address(values), default=Document.as_json))

    def name_address(self) -> None:
        """Print the shards' addresses on standard error, once per command."""
        if text := self.first_line():
            click.echo(f"sweeperd: on {text}", err=True)

    def first_line(self) -> str:
        """The shards' addresses, with the names of several shards and with key prefixes; empty at the second call."""
        if self._address_named:
            return ""
        self._address_named, shards = True, _open_shards()
        return printable(", ".join((f"{shard.name} " if len(shards) > 1 else "") + _place(shard) for shard in shards))

    def say(self, text: str, style: str = "") -> None:
        """Print a line, unless `--json` is given."""
        if not self.as_json:
            self.name_address()
        if self.terminal:
            self.screen.say(printable(text), style)
        elif not self.as_json:
            click.echo(printable(text))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows of values or `Cell`s; the first table of a command is preceded by the shards' addresses."""
        if address := self.first_line():
            click.secho(address, dim=True)
        if self.terminal:
            self.screen.table(columns, list(rows))
            return
        click.echo("\t".join(columns))
        for row in rows:
            click.echo("\t".join(printable(plain(cell)) for cell in row))

    def bar(self, label: str, count: int, *, hidden: bool = False) -> AbstractContextManager[Any]:
        """A progress bar on standard error, if there is a terminal and much to do."""
        hidden = hidden or not self.terminal or count < LONG
        return click.progressbar(length=count, label=label, show_pos=True, file=sys.stderr, hidden=hidden)

    def check_consent(self, question: str, *, yes: bool) -> None:
        """Raises click.UsageError if neither `yes` nor a terminal can answer the question."""
        if not yes and (self.as_json or not sys.stdin.isatty()):
            raise click.UsageError(f"{printable(question)} There is no terminal to confirm on; use --yes")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask the operator, and exit unless the answer is yes."""
        self.check_consent(question, yes=yes)
        if yes:
            return
        self.name_address()
        if not click.confirm(printable(question), err=True):
            click.echo("nothing was changed", err=True)
            raise click.exceptions.Exit(1)


@contextlib.contextmanager
def stage_bars(label: Callable[[str], str], *, show: bool, show_pos: bool = False) -> Iterator[Callable[..., None]]:
    """Yield a function (stage, done, total) that draws a progress bar per stage on standard error if `show`."""
    if not show:
        yield lambda *_: None
        return
    with contextlib.ExitStack() as bars:
        bar: Any = None
        at: enum.StrEnum | None = None

        def progress(stage: enum.StrEnum, done: int, total: int) -> None:
            nonlocal bar, at
            if total == 0:
                return
            if stage is not at:
                bars.close()
                shown = click.progressbar(length=total, label=label(stage.value), show_pos=show_pos, file=sys.stderr)
                bar, at = bars.enter_context(shown), stage
            bar.length = total
            bar.update(min(done, total) - bar.pos)

        yield progress


def with_address(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the addresses of the command's shards in front, if it uses any."""
    address = ", ".join(shard.address for shard in _open_shards())
    return {"address": address} | document if address else document


def _open_shards() -> list["Shard"]:
    context = click.get_current_context(silent=True)
    return context.meta.get(OPEN_SHARDS, []) if context else []


def _place(shard: "Shard") -> str:
    prefix = shard.keys.prefix.decode("utf-8", "backslashreplace")
    return f"{shard.address} prefix {prefix}" if prefix else shard.address


def plain(cell: object) -> object:
    value = cell.value if isinstance(cell, Cell) else cell
    return "" if value is None else value
