"""Prints each goal with what was measured, and the figures behind it: Markdown unless on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.results import Measured
from benchmarks.row import Row

#: Row name -> what was measured, one for each Redis.
Results = Mapping[str, Sequence[Measured]]


@dataclass(frozen=True)
class Grid:
    """A table's text."""

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def goals(rows: Iterable[Row], results: Results) -> Grid:
    """What | against | goal | the median on each server, with the least and the most of the rounds | met?"""
    servers = _servers(results)
    lines = []
    for row in rows:
        found = {one.server: one for one in results.get(row.name, ())}
        for name, goal in row.goals.items():
            if found:
                missed = [one for one in servers if one in found and not goal.met(found[one].median(name))]
                met = f"no: {', '.join(missed)}" if missed else "yes"
            else:
                met = "not measured"
            cells = [_spread(found[server], name) if server in found else "" for server in servers]
            what = f"{row.what}: {goal.what}" if goal.what else row.what
            lines.append([what, goal.against or row.against, str(goal), *cells, met])
    return Grid("goals", ["what", "against", "goal", *servers, "met?"], lines)


def figures(rows: Iterable[Row], results: Results) -> Grid:
    """Row | ratio or figure | its median on each server."""
    servers = _servers(results)
    lines = []
    for row in rows:
        found = {one.server: one for one in results.get(row.name, ())}
        samples = [sample for one in found.values() for sample in one.samples]
        for name in dict.fromkeys(name for sample in samples for name in (*sample.ratios, *sample.figures)):
            cells = [_spread(found[server], name) if server in found else "" for server in servers]
            lines.append([row.name, name, *cells])
    return Grid("figures", ["row", "figure", *servers], lines)


def show(console: Console, grid: Grid) -> None:
    """On a terminal as a table, else as Markdown."""
    if not console.is_terminal:
        for line in (grid.header, ["---"] * len(grid.header), *grid.lines):
            console.out("| " + " | ".join(line) + " |", highlight=False)
        console.out("")
        return
    table = Table(*grid.header, title=grid.title)
    for line in grid.lines:
        table.add_row(*line)
    console.print(table)


def number(value: float) -> str:
    """With as many digits as tell something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _spread(one: Measured, name: str) -> str:
    values = one.values(name) if all(name in (*s.ratios, *s.figures) for s in one.samples) else []
    return f"{number(one.median(name))} [{number(min(values))} to {number(max(values))}]" if values else ""


def _servers(results: Results) -> list[str]:
    found = {one.server: one.order for measured in results.values() for one in measured}
    return sorted(found, key=found.__getitem__)
