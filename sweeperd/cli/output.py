"""The output of subcommands: tables and colours on a terminal, else tab-separated lines; JSON if asked for."""

import contextlib
import enum
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sweeperd.cli.options import json_address, text_address
from sweeperd.document import Document
from sweeperd.text import timestamp

if TYPE_CHECKING:
    from sweeperd.cli.screen import Screen

__all__ = ["timestamp"]

#: The longest cell of a table on a terminal, characters.
CELL = 60
# What a terminal would obey or cannot show: controls, and what turns the direction of writing or ends a line.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def printable(value: object) -> str:
    """Text for any terminal: what a terminal would obey or cannot show is escaped (`\\x1b`)."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def shortened(text: str, limit: int = CELL) -> str:
    """If the text is longer than `limit`: the beginning and the end."""
    return text if len(text) <= limit else f"{text[: limit - 8]}…{text[-7:]}"


#: The colour of each `HealthLevel`; None: neither good nor bad.
LEVEL_STYLES = {"good": "green", "watch": "yellow", "bad": "red", None: "dim"}


@dataclass(frozen=True)
class Cell:
    """A value with a style of rich, such as `red`; the style shows on a terminal only."""

    value: object
    style: str = ""


class Output:
    """The output of a command. `as_json`: nothing but JSON goes to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        #: Whether tables, colours and questions make sense.
        self.terminal = sys.stdout.isatty() and not as_json
        self._address_named = False

    @functools.cached_property
    def screen(self) -> "Screen":
        """The terminal, if there is one."""
        from sweeperd.cli.screen import Screen  # noqa: PLC0415 - it imports rich

        return Screen()

    def json(self, document: Document | dict[str, Any]) -> None:
        """Print a JSON document on a line, with `address`."""
        values = document.as_json() if isinstance(document, Document) else document
        click.echo(json.dumps(with_address(values), default=Document.as_json))

    def name_address(self) -> None:
        """Name the address of the shards on standard error, unless this command has done so before."""
        if text := self.first_line():
            click.echo(f"sweeperd: on {text}", err=True)

    def first_line(self) -> str:
        """The address for the first line of a table; empty if this command has named the address."""
        named, self._address_named = self._address_named, True
        return "" if named else printable(text_address())

    def say(self, text: str, style: str = "") -> None:
        """A line for people; nothing if `--json` is given."""
        if not self.as_json:
            self.name_address()
        if self.terminal:
            self.screen.say(printable(text), style)
        elif not self.as_json:
            click.echo(printable(text))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """
        Rows of values or `Cell`s. On a terminal values are never cut, and columns without a value are left out; a table
        wider than the terminal becomes a list of records. If there is no terminal: tab-separated lines, the names
        first. Above the first table of a command stands the address of the shards.
        """
        if address := self.first_line():
            click.secho(address, dim=True)
        if self.terminal:
            self.screen.table(columns, list(rows))
            return
        click.echo("\t".join(columns))
        for row in rows:
            click.echo("\t".join(printable(plain(cell)) for cell in row))

    def check_consent(self, question: str, *, yes: bool) -> None:
        """Raises click.UsageError if neither `yes` nor a terminal can answer the question."""
        if not yes and (self.as_json or not sys.stdin.isatty()):
            raise click.UsageError(f"{printable(question)} This is no terminal to ask on; use --yes")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if the operator agrees. Raises click.UsageError without a terminal to ask on."""
        self.check_consent(question, yes=yes)
        if yes:
            return
        self.name_address()
        if not click.confirm(printable(question), err=True):
            click.echo("nothing was changed", err=True)
            raise click.exceptions.Exit(1)


@contextlib.contextmanager
def stage_bars(label: Callable[[str], str], *, show: bool, show_pos: bool = False) -> Iterator[Callable[..., None]]:
    """
    The progress of work in stages, on standard error if `show`: a bar with an estimate for each stage, one at a time.
    The block gets a function of the stage, how much is done, and how much there is so far.
    """
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
    """The document with the address of the command's shards in front; unchanged if there are none."""
    address = json_address()
    return document if address is None else {"address": address} | document


def plain(cell: object) -> object:
    """The value of a cell, without its style."""
    value = cell.value if isinstance(cell, Cell) else cell
    return "" if value is None else value
