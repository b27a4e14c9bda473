"""`sweeperd expired`: lists expiries as a table, CSV or JSON lines."""

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

from sweeperd.cli.moment import Moment, left_out, moment
from sweeperd.cli.options import Exit, fail
from sweeperd.cli.output import Output, printable
from sweeperd.cli.shards import Run, check_name, on_shards, warn
from sweeperd.config import DEFAULT_SHARD
from sweeperd.ops.expired import ExpiredCountDocument, Expiry, ExpiryReader, retention_gap
from sweeperd.ops.trouble import ShardTrouble, working_on
from sweeperd.outbox.event import entry_of
from sweeperd.outbox.replays import end_if_ahead
from sweeperd.runtime.signals import stop_on_signals
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import kind_names
from sweeperd.sweep.reservations import RESERVATIONS, kind_of_event
from sweeperd.text import timestamp

#: Prints events; it may be called repeatedly.
Writer = Callable[[Iterable[Expiry]], None]

#: The width of each column on a terminal.
_COLUMNS = {"expired_at": 24, "tenant": 16, "reservation": 36, "amount": 12, "unit": 8, "lag": 10, "kind": 16}
_COLUMNS |= {"scope": 32, "missing_budgets": 24, "event_id": 36, "trace_id": 32, "shard": 16}
#: The columns that even a narrow terminal shows.
_MIN_COLUMNS = 6
# Characters that begin a formula in a spreadsheet, including full-width ones. Tabs and line ends are already escaped.
_FORMULA = re.compile("[=+@\uff1d\uff0b\uff20\uff0d-]")
#: Seconds between reads of new events, and between retries of a shard that is down.
READ_EVERY, RETRY_EVERY = 0.5, 2.0


@click.command("expired")
@click.option("--since", callback=moment, metavar="TIME", default="15m", help="Start of the span, inclusive.")
@click.option("--until", callback=moment, metavar="TIME", help="End of the span, exclusive.  [default: now]")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--kind", metavar="NAME", help="Only this kind's; `reservations` is built in.")
@click.option("--follow", "-f", is_flag=True, help="Print new expiries as they happen, until Ctrl-C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "jsonl", "csv"]),
    default="table",
    help="--json is the same as --format jsonl.",
)
@click.option("--limit", metavar="NUMBER", type=click.IntRange(1), help="Show up to this many, oldest first.")
@click.option("--count", is_flag=True, help="Print only the number of expiries.")
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
    List what expired from --since to --until, in order, as recorded in the event stream.

    A time is RFC 3339 (2026-11-21T12:00:05Z, 2026-11-21T13:00:05.250+01:00; UTC without an offset), the latest
    occurrence of a time of day (12:00), or a duration before now (15m, 1h30m). Times are by Redis's clock.

    --json prints a line per expiry (JSON Lines) as --format jsonl does, not one document: the webhook body and the
    shard. Only --count --json prints a document. CSV cells that a spreadsheet would read as a formula begin with an
    apostrophe. A warning on standard error tells if events of the span are no longer kept.
    """
    if run.output.as_json and form not in ("jsonl", "table"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = "jsonl" if run.output.as_json else form
    if follow and (until is not None or limit is not None or count):
        raise click.UsageError("--follow never ends: remove --until, --limit and --count")
    if count and (limit is not None or form == "csv"):
        raise click.UsageError("--count prints a number only: remove --limit and --format")
    if kind is not None:
        check_name("kind", kind, {RESERVATIONS, *kind_names(run.settings)})
    found = run.each(lambda shard: _reader(shard, since, until, follow, tenant=tenant, kind=kind))
    readers = [reader for _, reader in found]
    events = heapq.merge(
        *(run.until_down(shard, reader.read()) for shard, reader in found), key=operator.attrgetter("order")
    )
    if count:
        number = sum(1 for _ in events)
        run.report(ExpiredCountDocument(count=number))
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
        warn(f"showing the first {limit} only; raise --limit for more")


def _reader(
    shard: Shard, since: Moment, until: Moment | None, follow: bool, *, tenant: str | None, kind: str | None
) -> ExpiryReader:
    now_ms = shard.read_clock()
    since_ms, until_ms = since(now_ms), now_ms if until is None else until(now_ms)
    if since_ms >= until_ms and not follow:
        end = "now, by Redis's clock" if until is None else "--until"
        fail(f"--since ({_shown(since_ms)}) must be before {end} ({_shown(until_ms)})", Exit.USAGE)
    if until is None and not follow and (ahead := end_if_ahead(shard)):
        warn(f"{_on(shard)}{left_out(ahead)}")
    if until_ms > now_ms:
        warn(f"{_on(shard)}--until is in the future: it is {_shown(now_ms)} by Redis's clock")
    if missing := retention_gap(shard, since_ms, "is not shown"):
        warn(f"{_on(shard)}{missing}")
    return ExpiryReader(shard, since_ms, None if follow else until_ms, tenant, kind)


def _on(shard: Shard) -> str:
    return "" if shard.name == DEFAULT_SHARD else f"shard {shard.name}: "


def _shown(milliseconds: int) -> str:
    return timestamp(milliseconds) or f"{milliseconds} ms"


def _follow(readers: list[ExpiryReader], write: Writer) -> None:
    """Print new events until a signal. A shard that goes down or comes back is reported once."""
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
                warn(f"{_on(reader.shard)}redis is available again")
        except ShardTrouble as trouble:
            if reader not in down:
                warn(f"{trouble}; retrying")
            down[reader] = time.monotonic() + RETRY_EVERY

    with stop_on_signals() as stop:
        while not stop.is_set():
            write(heapq.merge(*map(events, readers), key=operator.attrgetter("order")))
            stop.wait(READ_EVERY)


def writer(output: Output, form: str) -> Writer:
    if form == "table":
        click.secho(output.first_line(), dim=True)
    else:
        output.name_address()
    wide = form == "table" and output.terminal
    line = _columns(output.screen.width) if wide else _csv if form == "csv" else _tabs
    if wide:
        click.secho(line(_COLUMNS), bold=True)
    elif form != "jsonl":
        click.echo(line(_COLUMNS))  # secho would end a style that there is not

    def write(events: Iterable[Expiry]) -> None:
        for event in events:
            click.echo(json.dumps(event.body | {"shard": event.shard}) if form == "jsonl" else line(_row(event)))

    return write


def _csv(cells: Iterable[object]) -> str:
    line, texts = io.StringIO(), map(printable, cells)
    csv.writer(line, lineterminator="").writerow([f"'{text}" if _FORMULA.match(text) else text for text in texts])
    return line.getvalue()


def _tabs(cells: Iterable[object]) -> str:
    return "\t".join(map(printable, cells))


def _columns(left: int) -> Callable[[Iterable[object]], str]:
    """As many columns of fixed width as fit into `left` characters; a longer value shifts the rest of its line."""
    from rich.cells import cell_len  # noqa: PLC0415 - only for a terminal

    widths = list[int]()
    for width in _COLUMNS.values():
        left -= width + 2
        if left < 0 and len(widths) >= _MIN_COLUMNS:
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
        entry_of(data),
        data.get("estimated_amount", ""),
        data.get("unit", ""),
        "" if event.lag_ms is None else f"{event.lag_ms / 1000:.3f}s",
        kind_of_event(event.fields),
        data.get("scope", ""),
        ", ".join(data.get("missing_budgets", ())),
        body["event_id"],
        body.get("trace_id", ""),
        event.shard,
    ]
