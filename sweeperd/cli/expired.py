"""`sweeperd expired`: prints expiries as a table, CSV or JSON lines."""

import csv
import heapq
import io
import itertools
import json
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from sweeperd.cli.options import Exit, Moment, fail, moment, stop_on_signals
from sweeperd.cli.output import Output, printable
from sweeperd.cli.shards import Run, check_name, on_shards, warn
from sweeperd.config import DEFAULT_SHARD
from sweeperd.ops.expired import ExpiredCountDocument, Expiry, ExpiryReader, retention_gap
from sweeperd.ops.trouble import ShardTrouble, working_on
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.text import timestamp

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
#: So many columns are shown even if the terminal is narrower.
_LEAST = 6
# The first signs of a formula in a spreadsheet, full-width ones as well. Tab and line ends are escaped before.
_FORMULA = re.compile("[=+@\uff1d\uff0b\uff20\uff0d-]")
#: Between two reads of new events, and between two tries if a shard is down; seconds.
READ_EVERY, RETRY_EVERY = 0.5, 2.0


@click.command("expired")
@click.option("--since", callback=moment, metavar="TIME", default="15m", help="From then on, that moment included.")
@click.option("--until", callback=moment, metavar="TIME", help="Up to then, that moment not included.  [default: now]")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--kind", metavar="NAME", help="Only expiries of this kind; `reservations` is built in.")
@click.option("--follow", "-f", is_flag=True, help="Go on as they come, until Ctrl-C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "jsonl", "csv"]),
    default="table",
    help="--json is the same as --format jsonl.",
)
@click.option("--limit", metavar="NUMBER", type=click.IntRange(1), help="At most so many, the oldest first.")
@click.option("--count", is_flag=True, help="Print only how many they are.")
@on_shards()
def command(
    run: Run,
    since: Moment,
    until: Moment | None,
    tenant: str | None,
    kind: str | None,
    follow: bool,
    form: str,
    limit: int | None,
    count: bool,
) -> None:
    """
    What expired from --since up to --until, in order: the events of the stream.

    A time is as in RFC 3339, such as 2026-11-21T12:00:05Z or 2026-11-21T13:00:05.250+01:00; or a time of day such as
    12:00, the latest one; or a duration such as 15m or 1h30m: so long ago. A time without an offset is UTC. All
    times are of Redis's clock, to the millisecond.

    JSON lines hold the body of each webhook, and the shard. In CSV a text begins with an apostrophe if a
    spreadsheet would take the text for a formula. If events of the span are no longer kept, standard error says so.
    """
    if run.output.as_json and form not in ("jsonl", "table"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = "jsonl" if run.output.as_json else form
    if follow and (until is not None or limit is not None or count):
        raise click.UsageError("--follow has no end: leave --until, --limit and --count out")
    if count and (limit is not None or form == "csv"):
        raise click.UsageError("--count prints a number only: leave --limit and --format out")
    if kind is not None:
        check_name("kind", kind, {RESERVATIONS, *kind_names(run.settings)})
    found = run.each(lambda shard: _reader(shard, since, until, follow, tenant=tenant, kind=kind))
    readers = [reader for _, reader in found]
    events = heapq.merge(
        *(run.until_down(shard, reader.read()) for shard, reader in found), key=operator.attrgetter("order")
    )
    if count:
        number = sum(1 for _ in events)
        run.report(ExpiredCountDocument(count=number, down=run.down))
        run.output.say(str(number))
    elif readers:
        write = writer(run.output, form)
        if follow:
            _follow(readers, write)
        else:
            write(_limited(events, limit))


def _limited(events: Iterator[Expiry], limit: int | None) -> Iterator[Expiry]:
    yield from itertools.islice(events, limit)
    if limit is not None and next(events, None) is not None:
        warn(f"there are more than {limit}; --limit shows more")


def _reader(
    shard: Shard, since: Moment, until: Moment | None, follow: bool, *, tenant: str | None, kind: str | None
) -> ExpiryReader:
    now_ms = shard.read_clock()
    since_ms, until_ms = since.on(now_ms), now_ms if until is None else until.on(now_ms)
    if since_ms >= until_ms and not follow:
        end = "now, by redis's clock" if until is None else "--until"
        fail(f"--since ({_shown(since_ms)}) is not before {end} ({_shown(until_ms)})", Exit.USAGE)
    if until_ms > now_ms:
        warn(f"{_on(shard)}--until is yet to come: it is {_shown(now_ms)} by redis's clock")
    missing = retention_gap(shard, since_ms)
    if missing:
        warn(f"{_on(shard)}{missing}")
    return ExpiryReader(shard, since_ms, None if follow else until_ms, tenant, kind)


def _on(shard: Shard) -> str:
    return "" if shard.name == DEFAULT_SHARD else f"shard {shard.name}: "


def _shown(milliseconds: int) -> str:
    return timestamp(milliseconds) or f"{milliseconds} ms"


def _follow(readers: list[ExpiryReader], write: Writer) -> None:
    """Print until a signal. If a shard is down, say so once; if the shard answers again, go on."""
    down: dict[ExpiryReader, float] = {}

    def events(reader: ExpiryReader) -> Iterator[Expiry]:
        if down.get(reader, 0.0) > time.monotonic():
            return
        try:
            with working_on(reader.shard):
                for event in reader.read():
                    if stop.is_set():
                        return
                    yield event
            if down.pop(reader, None):
                warn(f"{_on(reader.shard)}redis answers again")
        except ShardTrouble as trouble:
            if reader not in down:
                warn(f"{trouble}; waiting for it")
            down[reader] = time.monotonic() + RETRY_EVERY

    with stop_on_signals() as stop:
        while not stop.is_set():
            write(heapq.merge(*map(events, readers), key=operator.attrgetter("order")))
            stop.wait(READ_EVERY)


def writer(output: Output, form: str) -> Writer:
    """`form`: table, csv or jsonl."""
    if form == "table":
        click.secho(output.first_line(), dim=True)
    else:
        output.name_address()
    if form == "jsonl":
        return _printing(_json)
    wide = form == "table" and output.terminal
    line = _columns(output.screen.width) if wide else _csv if form == "csv" else _tabs
    click.secho(line(_COLUMNS), bold=wide or None)
    return _printing(lambda event: line(_row(event)))


def _printing(line: Callable[[Expiry], str]) -> Writer:
    def write(events: Iterable[Expiry]) -> None:
        for event in events:
            click.echo(line(event))

    return write


def _json(event: Expiry) -> str:
    return json.dumps(event.body | {"shard": event.shard})


def _csv(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([_safe(cell) for cell in cells])
    return text.getvalue()


def _tabs(cells: Iterable[object]) -> str:
    return "\t".join(map(printable, cells))


def _columns(left: int) -> Callable[[Iterable[object]], str]:
    """
    Columns of a fixed width, as many as fit into `left` characters, because rows are printed as they come. A longer
    value is not cut, and moves the rest of the line.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - only for a terminal

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

    return line


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
