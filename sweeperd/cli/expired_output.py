"""How `sweeperd expired` prints its events: as a table, CSV, JSON lines, or a chain of JSON lines."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from rich.cells import cell_len

from sweeperd.cli.output import Output, printable
from sweeperd.ops.archive import Chain
from sweeperd.ops.expired import Expiry

#: Prints events, and can be called again for further ones.
Writer = Callable[[Iterable[Expiry]], None]

#: The columns of an expiry, and how wide each is on a terminal.
_COLUMNS = {
    "expired_at": 24,
    "tenant": 16,
    "reservation": 36,
    "amount": 12,
    "unit": 8,
    "lag": 10,
    "scope": 32,
    "missing_budgets": 24,
    "event_id": 36,
    "trace_id": 32,
    "shard": 16,
}
#: So many of them are shown however narrow the terminal is.
_LEAST = 6
# What a spreadsheet takes for a formula, the full-width signs as well. Tab and line ends are escaped before.
_FORMULA = re.compile("[=+@\uff1d\uff0b\uff20\uff0d-]")


def writer(output: Output, form: str, chain: Chain | None) -> Writer:
    """`form`: table, csv or jsonl. `chain`: each JSON line carries the hash of the line before it."""
    if form == "table":
        click.secho(output.first_line(), dim=True)
        return _write_lines(output.console.width) if output.terminal else _write_tabs()
    output.name_address()
    return _write_csv() if form == "csv" else _write_json(chain)


def _write_csv() -> Writer:
    def line(cells: Iterable[object]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([_safe(cell) for cell in cells])
        click.echo(text.getvalue(), nl=False)

    def write(events: Iterable[Expiry]) -> None:
        for event in events:
            line(_row(event))

    line(_COLUMNS)
    return write


def _write_json(chain: Chain | None) -> Writer:
    def write(events: Iterable[Expiry]) -> None:
        for event in events:
            document = event.body | {"shard": event.shard}
            click.echo(chain.link(document) if chain else json.dumps(document))

    return write


def _write_tabs() -> Writer:
    click.echo("\t".join(_COLUMNS))

    def write(events: Iterable[Expiry]) -> None:
        for event in events:
            click.echo("\t".join(map(printable, _row(event))))

    return write


def _write_lines(left: int) -> Writer:
    """
    Columns of a fixed width, as many as fit into `left` characters, because rows are printed as they come. A longer
    value is not cut: it moves the values after it.
    """
    widths = list[int]()
    for width in _COLUMNS.values():
        left -= width + 2
        if left < 0 and len(widths) >= _LEAST:
            break
        widths.append(width)

    def line(cells: Iterable[object]) -> str:
        texts = [printable(cell) for cell, _ in zip(cells, widths, strict=False)]
        padded = (text + " " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True))
        return "  ".join(padded).rstrip()

    click.secho(line(_COLUMNS), bold=True)

    def write(events: Iterable[Expiry]) -> None:
        for event in events:
            click.echo(line(_row(event)))

    return write


def _row(event: Expiry) -> list[object]:
    body = event.body
    data: dict[str, Any] = body["data"]
    return [
        body.get("timestamp", event.stream_id.decode()),
        body.get("tenant_id", ""),
        data.get("reservation_id", data.get("id", "")),
        data.get("estimated_amount", ""),
        data.get("unit", ""),
        "" if event.lag_ms is None else f"{event.lag_ms / 1000:.3f}s",
        data.get("scope", ""),
        ", ".join(data.get("missing_budgets", ())),
        body["event_id"],
        body.get("trace_id", ""),
        event.shard,
    ]


def _safe(cell: object) -> str:
    text = printable(cell)
    return f"'{text}" if _FORMULA.match(text) else text
