"""`sweeperd expired`."""

import heapq
import itertools
import time
from collections.abc import Iterable, Iterator

import click

from sweeperd.cli.expired_output import Writer, writer
from sweeperd.cli.moment import Moment, moment
from sweeperd.cli.names import check_name
from sweeperd.cli.options import Exit, Options, fail, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.cli.signals import stop_on_signals
from sweeperd.cli.troubles import Troubles, warn
from sweeperd.cli.verify_archive import sha256
from sweeperd.config import DEFAULT_SHARD
from sweeperd.ops.archive import START, Chain
from sweeperd.ops.expired import Expiry, ExpiryReader, retention_gap
from sweeperd.ops.shard_trouble import ShardTrouble, working_on
from sweeperd.store.shard import Shard
from sweeperd.text import rfc3339

#: Between two reads of new events, and between two tries of a shard that is down; seconds.
READ_EVERY, RETRY_EVERY = 0.5, 2.0


@click.command("expired", short_help="What expired in a span of time, in order.")
@click.option(
    "--since",
    callback=moment,
    metavar="TIME",
    default="15m",
    show_default=True,
    help="From then on, that moment included.",
)
@click.option("--until", callback=moment, metavar="TIME", help="Up to then, that moment not included.  [default: now]")
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--kind", metavar="NAME", help="Only this kind's; `reservations` is the built-in one.")
@click.option("--follow", "-f", is_flag=True, help="Go on as they come, until Ctrl-C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "jsonl", "csv"]),
    default="table",
    show_default=True,
    help="--json is the same as --format jsonl.",
)
@click.option("--limit", metavar="NUMBER", type=click.IntRange(1), help="At most so many, the oldest first.")
@click.option("--count", is_flag=True, help="Print only how many they are.")
@click.option("--chain", "chained", is_flag=True, help="With --json: each line carries the SHA-256 of the line before.")
@click.option(
    "--chain-from",
    metavar="SHA256",
    callback=sha256,
    help="With --chain: the head of the archive that this one continues.  [default: a new chain]",
)
@json_option
@shard_option
@click.pass_obj
def command(
    options: Options,
    since: Moment,
    until: Moment | None,
    tenant: str | None,
    kind: str | None,
    follow: bool,
    form: str,
    limit: int | None,
    count: bool,
    chained: bool,
    chain_from: str | None,
    as_json: bool,
    shard: str | None,
) -> None:
    """
    What expired from --since up to --until, in order: the events of the stream.

    A time is as in RFC 3339, such as 2026-11-21T12:00:05Z or 2026-11-21T13:00:05.250+01:00; or a time of day such as
    12:00, the latest one; or a duration such as 15m or 1h30m: that long ago. A time without an offset is UTC. All
    times are of Redis's clock, to the millisecond.

    JSON lines hold the body of each webhook, and the shard. In CSV a text that a spreadsheet would take for a formula
    begins with an apostrophe. Where events of the span are no longer kept, standard error says so.

    With --json --chain the lines are an archive that `sweeperd verify-archive` verifies. Its head, on standard error at
    the end, is to be kept elsewhere.
    """
    if as_json and form not in ("jsonl", "table"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    form = "jsonl" if as_json else form
    if follow and (until is not None or limit is not None or count):
        raise click.UsageError("--follow has no end: leave --until, --limit and --count out")
    if count and (limit is not None or chained or form == "csv"):
        raise click.UsageError("--count prints a number only: leave --limit, --chain and --format out")
    if (chained and form != "jsonl") or (chain_from is not None and not chained):
        raise click.UsageError("--chain goes with --json, and --chain-from with --chain")
    chain = Chain(chain_from or START) if chained else None
    output, troubles = Output(as_json=as_json), Troubles()
    with options.shards(shard) as (settings, shards):
        if kind is not None:
            check_name("kind", kind, ["reservations", *(each.name for each in settings.kinds)])
        readers = []
        for one in shards:
            with troubles.noted(one):
                readers.append(_reader(one, since, until, follow, tenant=tenant, kind=kind))
        events = heapq.merge(*(_noted(troubles, reader) for reader in readers), key=_by_time)
        if count:
            _print_count(output, events, troubles)
        elif readers:
            write = writer(output, form, chain)
            if follow:
                _follow(readers, write)
            else:
                write(_limited(events, limit))
            if chain:
                warn(f"the head of these {chain.lines} lines is {chain.head}")
        troubles.end()


def _print_count(output: Output, events: Iterable[Expiry], troubles: Troubles) -> None:
    number = sum(1 for _ in events)
    if output.as_json:
        output.json({"count": number, "down": troubles.down})
    else:
        output.say(str(number))


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
    try:
        return rfc3339(milliseconds)
    except (OverflowError, ValueError):
        return f"{milliseconds} ms"


def _noted(troubles: Troubles, reader: ExpiryReader) -> Iterator[Expiry]:
    with troubles.noted(reader.shard):
        yield from reader.read()


def _follow(readers: list[ExpiryReader], write: Writer) -> None:
    """Until a signal. A shard that is down is reported once; it goes on where it stopped when it answers again."""
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
            write(heapq.merge(*map(events, readers), key=_by_time))
            stop.wait(READ_EVERY)


def _by_time(event: Expiry) -> tuple[int, int]:
    return event.order
