"""Draws the kept results."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from benchmarks.results import Measured
from benchmarks.table import Results

#: Okabe and Ito's colours, which colour-blind readers can distinguish; one for each server.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
COLOURS = (BLUE, ORANGE, GREEN)
#: So that the same numbers give the same file, byte by byte, and text stays text.
STYLE: Any = {"svg.hashsalt": "sweeperd", "svg.fonttype": "none", "font.size": 11}
#: The receiver of the row `delivery` answers after this many seconds.
ANSWER_SECONDS = 0.02


def draw(directory: Path, results: Results) -> list[Path]:
    """Write `drain.svg` and `delivery.svg` if their rows were measured. Returns the paths."""
    drawn = []
    for name, picture in (("drain", _drain), ("delivery", _delivery)):
        with rc_context(STYLE):
            figure = picture(results)
            if figure is None:
                continue
            path = directory / f"{name}.svg"
            figure.savefig(path, facecolor="white", metadata={"Date": None})
        drawn.append(path)
    return drawn


def _drain(results: Results) -> Figure | None:
    """Of the newest Redis, the round whose p99 is the median one."""
    found = results.get("foreground", ())
    if not found:
        return None
    newest = found[-1]
    samples = sorted(newest.samples, key=lambda sample: sample.ratios["p99"])
    sample = samples[(len(samples) - 1) // 2]
    series = sample.series
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    left, wait = figure.subplots(2, 1, sharex=True)
    figure.suptitle(
        f"{newest.sizes['entries']:,} overdue entries drain while a client reserves 500 times a second\n"
        f"{newest.server}, {newest.cores} cores"
    )
    left.plot(series["left_at_seconds"], series["entries_left"], color=BLUE)
    left.set(ylabel="entries left", ylim=(0, None))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    wait.plot(series["call_at_seconds"], series["call_longest_ms"], color=ORANGE, label="longest of 0.1 s")
    wait.plot(series["call_at_seconds"], series["call_median_ms"], color=BLUE, label="median of 0.1 s")
    p99 = sample.figures["p99_ms"]
    wait.axhline(p99, color=GREY, linestyle=":", label=f"p99 while it drains: {p99:.2g} ms")
    wait.set(xlabel="seconds since the drain began", ylabel="latency of a reserve, ms", ylim=(0, None))
    wait.legend(loc="upper right")
    for panel in (left, wait):
        _tidy(panel)
        panel.axvspan(0, series["left_at_seconds"][-1], color=GREEN, alpha=0.07, linewidth=0)
    return figure


def _delivery(results: Results) -> Figure | None:
    found = results.get("delivery", ())
    if not found:
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    panel = figure.subplots()
    _lines(panel, found, "concurrency", "events_per_second")
    concurrency = found[-1].samples[0].series["concurrency"]
    bound = [at / ANSWER_SECONDS for at in concurrency]
    panel.plot(concurrency, bound, color=GREY, linestyle=":", label="the bound: concurrency / 20 ms")
    panel.set(
        xlabel="webhooks.concurrency",
        ylabel="events delivered a second",
        xscale="log",
        yscale="log",
        title="One process, a receiver that answers after 20 ms",
    )
    _ticks_at(panel, concurrency)
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.legend(frameon=False)
    return figure


def _lines(panel: Axes, found: Sequence[Measured], across: str, up: str) -> None:
    """A line for each server: the median of the rounds, with their spread."""
    for one, colour in zip(found, COLOURS, strict=False):
        columns = [sample.series[up] for sample in one.samples]
        x = one.samples[0].series[across]
        middle = [median(values) for values in zip(*columns, strict=True)]
        panel.plot(x, middle, color=colour, marker="o", label=one.server)
        least = [min(values) for values in zip(*columns, strict=True)]
        most = [max(values) for values in zip(*columns, strict=True)]
        panel.fill_between(x, least, most, color=colour, alpha=0.15, linewidth=0)
    _tidy(panel)


def _ticks_at(panel: Axes, points: Sequence[float]) -> None:
    """Across, only what was measured is named."""
    panel.set_xticks(points, [f"{point:,.0f}" for point in points])
    panel.set_xticks([], minor=True)


def _tidy(panel: Axes) -> None:
    panel.grid(visible=True, alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
