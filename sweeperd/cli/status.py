"""`sweeperd status`: shows backlog, sweeps and endpoints of each shard."""

import math
import time
from collections.abc import Iterator, Sequence

import click
from click.core import ParameterSource

from sweeperd.cli.options import Exit, all_option, fail
from sweeperd.cli.output import LEVEL_STYLES, Cell, Output, printable
from sweeperd.cli.shards import Run, on_shards, warn
from sweeperd.ops.advice import set_aside_advice, shard_advice
from sweeperd.ops.endpoint_health import ENDPOINT_STATES, most_troubled, state_level, unlisted
from sweeperd.ops.endpoint_status import EndpointDocument
from sweeperd.ops.health import ALMOST_FULL
from sweeperd.ops.limits import Limit
from sweeperd.ops.processes import ProcessDocument
from sweeperd.ops.status import KindDocument, ShardStatus, read_all
from sweeperd.text import mib, per_second, span, timestamp

_KINDS = ["shard", "kind", "alive", "due", "in grace", "overdue", "oldest overdue"]
_KINDS += ["held", "deferred", "protected", "quarantined"]
_SWEEPS = ["shard", "kind", "last tick", "by", "took", "expired", "per second", "empty in", "sweeping now"]
_SHARDS = ("shard", "dead letters", "memory")
_PROCESSES = ("shard", "process", "role", "version", "running for", "last heartbeat", "sweeps", "events in hand")
_ENDPOINTS = ("shard", "endpoint", "state", "pending", "oldest", "per second", "empty in", "dead letters", "details")


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter("must be a number of seconds")
    return value


def _limits(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[Limit, ...]:
    try:
        return tuple(map(Limit.parse, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("status")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; --json prints a line per refresh.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1, max=3600),
    default=2.0,
    callback=_finite,
    help="With --watch: the time between refreshes.",
)
@click.option(
    "--fail-if",
    "limits",
    metavar="'WORD > VALUE'",
    multiple=True,
    callback=_limits,
    help="Exit with 4 if the value of any shard, kind or endpoint is above; may be repeated.",
)
@all_option
@on_shards()
def command(run: Run, watch: bool, interval: float, limits: Sequence[Limit], every: bool) -> None:
    """
    Show the entries of each kind on each shard, its last sweep, the backlog of each endpoint, and the processes.

    alive: all entries of the index. due: the deadline in the index has passed. in grace: a late commit is still
    accepted. overdue: the next tick acts on these. Above 200 due entries, the last two are estimated from a sample of
    200 (shown with ~). pending: events to deliver, estimated (~) if there are many; "no group" means that the
    endpoint's consumer group is missing, which a daemon creates within 15 s.

    per second: expiries of the kind, or deliveries of all processes, over the last minute or the last 2,000 events.
    empty in: how long the current backlog takes at this rate.

    A process whose last heartbeat is over 35 s old is silent: it died, hangs or cannot write. It is listed
    until another one with the same role has started since, for up to an hour.

    Words of --fail-if: overdue and undelivered (a duration is the age of the oldest, a number how many), unswept (the
    time since the last sweep), quarantined, dead-letters, silent (processes), memory (a share of maxmemory; 0
    without one). A value that is not known is above each limit.

    Exit codes: 0 done; 1 a shard is unreachable; 4 a limit of --fail-if is passed.
    """
    given = click.get_current_context().get_parameter_source("interval")
    if not watch and given is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval goes with --watch")
    if watch and limits:
        raise click.UsageError("--fail-if does not go with --watch")
    output, troubles, passed = run.output, list[str](), list[str]()
    readings = _readings(run, interval if watch else None)
    try:
        if watch and output.terminal:
            output.screen.watch((_picture(each, every) for each in readings), output.first_line())
        else:
            for statuses in readings:
                _show(output, statuses, every)
                troubles = _troubles(statuses)
                up = [status for status in statuses if status.reachable]
                passed = [line for status in up for limit in limits for line in limit.passed(status)]
    except KeyboardInterrupt:
        return  # the end of a watch
    if lines := [*passed, *troubles]:
        fail("\n".join(map(printable, lines)), Exit.FAILED if troubles else Exit.LIMIT_PASSED)


def _readings(run: Run, interval: float | None) -> Iterator[list[ShardStatus]]:
    while True:
        began = time.monotonic()
        yield read_all(run.settings, run.shards)
        if interval is None:
            return
        time.sleep(max(0.0, interval - (time.monotonic() - began)))


def _tables(statuses: Sequence[ShardStatus], every: bool) -> list[tuple[Sequence[str], list[Sequence[object]]]]:
    tables = [
        (_KINDS, [row for status in statuses for row in _kind_rows(status)]),
        (_SWEEPS, [_sweep_row(status, kind) for status in statuses for kind in status.kinds]),
        (_SHARDS, [_shard_row(status) for status in statuses if status.reachable]),
        (_ENDPOINTS, _endpoint_rows(statuses, every)),
        (_PROCESSES, [_process_row(status, each) for status in statuses for each in status.processes.known or ()]),
    ]
    return [(columns, rows) for columns, rows in tables if rows]


def _picture(
    statuses: Sequence[ShardStatus], every: bool
) -> tuple[list[tuple[Sequence[str], list[Sequence[object]]]], list[Cell]]:
    notes = [Cell(line, "yellow") for line in _notes(statuses, every)]
    return _tables(statuses, every), [*notes, *(Cell(line, "red") for line in _troubles(statuses))]


def _show(output: Output, statuses: Sequence[ShardStatus], every: bool) -> None:
    if output.as_json:
        from sweeperd.ops.status_report import StatusDocument  # noqa: PLC0415 - models take a while to import

        output.json(StatusDocument.of(statuses))
        return
    for number, (columns, rows) in enumerate(_tables(statuses, every)):
        if number:
            output.say("")
        output.table(columns, rows)
    for note in _notes(statuses, every):
        warn(note)


def _kind_rows(status: ShardStatus) -> Iterator[Sequence[object]]:
    if not status.reachable:
        yield status.name, Cell("down", "bold red"), *[None] * (len(_KINDS) - 2)
    for kind in status.kinds:
        about = "" if kind.exact else "~"
        yield (
            status.name,
            kind.kind,
            kind.alive,
            kind.due,
            f"{about}{kind.in_grace}",
            Cell(f"{about}{kind.overdue}", "yellow" if kind.overdue else ""),
            Cell(span(kind.oldest_overdue_seconds), "yellow") if kind.overdue else None,
            Cell(kind.held, "red") if kind.held else None,
            Cell(kind.deferred, "red") if kind.deferred else None,
            kind.protected or None,
            Cell(kind.quarantined, "red" if kind.quarantined else ""),
        )


def _shard_row(status: ShardStatus) -> Sequence[object]:
    return status.name, Cell(status.dead_letters, "red" if status.dead_letters else ""), _memory(status)


def _memory(status: ShardStatus) -> Cell | None:
    """The used share of maxmemory, or what is used without one."""
    if status.memory is None:
        return None
    percent = status.memory_percent
    if percent is None:
        return Cell(mib(status.memory.used))
    return Cell(f"{percent} %", "red" if percent >= 100 else "yellow" if percent >= ALMOST_FULL else "")


def _sweep_row(status: ShardStatus, kind: KindDocument) -> Sequence[object]:
    tick, age = kind.tick, kind.tick_age_seconds
    if tick is None or age is None:
        return status.name, kind.kind, Cell("never", "yellow"), *[None] * 5, kind.sweeping
    took = f"{tick.seconds:.3f} s{'' if tick.complete else ', cut short'}"
    rate = None if kind.rate is None else per_second(kind.rate)
    empty_in = _empty_in(kind.overdue, kind.empty_in_seconds)
    return status.name, kind.kind, f"{span(age)} ago", tick.by, took, kind.expired, rate, empty_in, kind.sweeping


def _process_row(status: ShardStatus, process: ProcessDocument) -> Sequence[object]:
    since, style = process.since, "red" if process.silent else ""
    cells = (
        process.process,
        process.role,
        process.version,
        None if since is None else span(max(0, process.heartbeat_at - since) / 1000),
        f"{span(process.heartbeat_age_seconds)} ago{', silent' if process.silent else ''}",
        ", ".join(process.kinds),
        process.in_hand,
    )
    return status.name, *(Cell(cell, style) for cell in cells)


def _endpoint_rows(statuses: Sequence[ShardStatus], every: bool) -> list[Sequence[object]]:
    return [
        (
            status.name,
            endpoint.endpoint,
            state(endpoint),
            waiting(endpoint),
            span(endpoint.oldest_pending_seconds) if endpoint.pending else None,
            None if endpoint.rate is None else per_second(endpoint.rate),
            _empty_in(endpoint.pending, endpoint.empty_in_seconds) if endpoint.configured else None,
            given_up(endpoint),
            _about(status, endpoint),
        )
        for status in statuses
        for endpoint in (status.endpoints if every else most_troubled(status.endpoints))
    ]


def state(status: EndpointDocument, text: str = "") -> Cell:
    """The state of an endpoint, or a text about it, in the colour of the state."""
    return Cell(text or ENDPOINT_STATES[status.state].label, LEVEL_STYLES[state_level(status)])


def waiting(status: EndpointDocument) -> Cell:
    if status.pending is None:
        return Cell("no group", "yellow")
    return Cell(f"{'' if status.pending_exact else '~'}{status.pending}")


def given_up(status: EndpointDocument) -> Cell:
    """How many dead letters an endpoint has, with a + if not all are counted."""
    more = "" if status.dead_letters_counted else "+"
    return Cell(f"{status.dead_letters}{more}", "red" if status.dead_letters else "")


def _empty_in(count: int | None, seconds: float | None) -> Cell | None:
    if not count:
        return None
    return Cell("never at this rate", "yellow") if seconds is None else Cell(span(seconds))


def _about(status: ShardStatus, endpoint: EndpointDocument) -> Cell:
    about = "; ".join(filter(None, [_trouble(status, endpoint), _replay(endpoint)]))
    return Cell(about, "yellow" if endpoint.warning else "")


def _replay(endpoint: EndpointDocument) -> str:
    replay = endpoint.replay
    if replay is None:
        return ""
    of = f"{timestamp(replay.since)} to {timestamp(replay.until)}"
    done = f"about {replay.events - replay.left} of {replay.events} done"
    return f"replay of {of}, started {span(replay.running_seconds)} ago: {done}"


def _trouble(status: ShardStatus, endpoint: EndpointDocument) -> str:
    if endpoint.paused_at:
        return f"{endpoint.paused_reason}, {span((status.now_ms - endpoint.paused_at) / 1000)} ago"
    if endpoint.paused_at is not None:
        return endpoint.paused_reason  # since an unknown time: its record cannot be read
    if endpoint.circuit_open:
        where = f"on {endpoint.open_on} of {endpoint.processes}"
        return f"{where}, {endpoint.failures} failures in a row: {endpoint.failure}"
    muted = f"for {span(endpoint.muted_seconds)} more" if endpoint.muted_seconds else ""
    return "; ".join(filter(None, [muted, endpoint.warning]))


def _notes(statuses: Sequence[ShardStatus], every: bool) -> Iterator[str]:
    """What the tables leave out, and advice about the shards that are up."""
    for status in statuses:
        if status.reachable:
            if not every and (rest := unlisted(status.endpoints)):
                yield f"shard {status.name}: {rest}; --all lists them"
            options = ("--shard", status.name) if len(statuses) > 1 else ()
            for advice in (*shard_advice(status, options), *set_aside_advice(status, options)):
                hint = f"; see `{advice.commands[0]}`" if advice.commands else ""
                yield f"shard {status.name}: {advice.text}{hint}"


def _troubles(statuses: Sequence[ShardStatus]) -> list[str]:
    return [f"shard {status.name}: {status.address}: {status.error}" for status in statuses if not status.reachable]
