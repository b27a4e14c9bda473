"""Shows tables on a terminal; imported only there, because rich takes 2 MiB of memory."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sweeperd.cli.output import Cell, plain, printable
from sweeperd.config import DEFAULT_SHARD

#: Columns and rows.
Rows = tuple[Sequence[str], Sequence[Sequence[object]]]


class Screen:
    """The terminal behind standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)

    @property
    def width(self) -> int:
        return self._console.width

    def say(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        shown = fitted(columns, rows, self.width)
        self._console.print(shown, soft_wrap=isinstance(shown, Text))

    def watch(self, pictures: Iterable[tuple[Iterable[Rows], Iterable[Cell]]], address: str) -> None:
        """Redraw the screen for each picture: the address, the tables, and a line per cell."""
        with Live(console=self._console, auto_refresh=False, screen=True) as live:
            for tables, lines in pictures:
                shown = [Padding(fitted(columns, rows, self.width), (0, 0, 1, 0)) for columns, rows in tables]
                live.update(Group(Text(address, "dim"), *shown, *map(_text, lines)), refresh=True)


def fitted(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> RenderableType:
    """
    The rows as a table without its empty columns. A table wider than the terminal becomes a list of records, so that an
    id can be copied from one line.
    """
    filled = [number for number, name in enumerate(columns) if not rows or _is_filled(name, number, rows)]
    texts = [[_text(row[number]) for number in filled] for row in rows]
    names = [columns[number] for number in filled]
    needed = sum(max([cell_len(name), *(text[place].cell_len for text in texts)]) for place, name in enumerate(names))
    if needed + 2 * (len(names) - 1) > width and len(names) > 2:
        return _records(names, texts)
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        made.add_column(name, overflow="fold")
    for text in texts:
        made.add_row(*text)
    return made


def _is_filled(name: str, number: int, rows: Sequence[Sequence[object]]) -> bool:
    """Whether a column has a value; `shard` also needs more than the default shard."""
    values = {str(plain(row[number])) for row in rows}
    return values not in ({""}, {DEFAULT_SHARD} if name == "shard" else {""})


def _records(names: Sequence[str], texts: Sequence[Sequence[Text]]) -> Text:
    longest = max(map(len, names))
    lines = Text()
    for text in texts:
        for name, value in zip(names, text, strict=True):
            if value.plain:
                lines.append(f"{name:{longest}}  ", "bold").append_text(value).append("\n")
        lines.append("\n")
    lines.rstrip()
    return lines


def _text(cell: object) -> Text:
    return Text(printable(plain(cell)), cell.style if isinstance(cell, Cell) else "")
