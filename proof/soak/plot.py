"""Draws a soak: faults, rates, latency, memory and backlogs over time."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from proof.soak.faults import ENDPOINTS, REPLICAS, FaultType
from proof.soak.inflict import Inflicted
from proof.soak.samples import LatencyStep, Sample
from proof.soak.verdicts import MIB

#: So that the same numbers give the same file, byte by byte, and text stays text.
STYLE: Any = {"svg.hashsalt": "sweeperd", "svg.fonttype": "none", "font.size": 11}
#: Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
#: A fault that lasts for no time is drawn as long as this share of the plot.
THIN = 0.003


def draw_latency(panel: Axes, latencies: Sequence[LatencyStep], seconds: float) -> None:
    """Median and 99th percentile over time. `seconds`: of one unit of the time axis."""
    times = [one.at / seconds for one in latencies]
    panel.plot(times, [one.median_ms for one in latencies], label="median", color=BLUE)
    panel.plot(times, [one.p99_ms for one in latencies], label="99th percentile", color=ORANGE)
    panel.set(title="Latency of a ledger call, as the caller sees it", ylabel="ms (logarithmic)", yscale="log")
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def draw(
    samples: Sequence[Sample],
    latencies: Sequence[LatencyStep],
    inflicted: Sequence[Inflicted],
    stopped: float,
    title: str,
    target: Path,
) -> None:
    """Write an SVG of five panels above one time axis. `stopped`: when the load ended. Raises OSError."""
    unit, seconds = ("min", 60.0) if stopped >= 180 else ("s", 1.0)
    times = [sample.at / seconds for sample in samples]
    middles = [(one + two) / 2 for one, two in pairwise(times)]
    with rc_context(STYLE):
        figure = Figure(figsize=(12, 14), layout="constrained")
        figure.suptitle(title, fontsize=14)
        panels = figure.subplots(5, 1, sharex=True, height_ratios=(1.6, 1, 1, 1, 1))
        marks, rates, latency, memory, backlog = panels

        types = list(FaultType)
        for number, type_ in enumerate(types):
            spans = [
                (one.began / seconds, max((one.ended - one.began) / seconds, THIN * times[-1]))
                for one in inflicted
                if one.fault.type is type_
            ]
            marks.broken_barh(spans, (number - 0.35, 0.7), facecolor=COLOURS[number % len(COLOURS)])
        marks.set_yticks(range(len(types)), [f"{type_}" for type_ in types])
        marks.invert_yaxis()
        marks.set(title="Faults")

        counts = {
            "ledger calls": [sample.calls for sample in samples],
            "operations started": [sample.operations for sample in samples],
            "expired": [sum(sample.expired.values()) for sample in samples],
            "calls without an answer": [sample.lost for sample in samples],
        }
        for (name, values), colour in zip(counts.items(), COLOURS, strict=True):
            growth = [
                (two - one) / (seconds * (end - begin))
                for (one, two), (begin, end) in zip(pairwise(values), pairwise(times), strict=True)
            ]
            rates.plot(middles, growth, label=name, color=colour, linewidth=1)
        rates.set(title="Rates", ylabel="per second")

        draw_latency(latency, latencies, seconds)

        for name, colour in zip(REPLICAS, COLOURS, strict=False):
            resident = [sample.memory.get(name, float("nan")) / MIB for sample in samples]
            memory.plot(times, resident, label=name, color=colour, linewidth=1)
        memory.set(title="Resident memory of each replica; a gap: it was down", ylabel="MiB")

        expired = [sum(sample.expired.values()) for sample in samples]
        backlog.plot(times, expired, label="expired", color="black", linewidth=1)
        for name, colour in zip(ENDPOINTS, COLOURS, strict=True):
            backlog.plot(times, [sample.accepted[name] for sample in samples], label=name, color=colour, linewidth=1)
        backlog.set(title="Events that expired, and that each endpoint has accepted", ylabel="events")
        backlog.set_xlabel(f"time since the load's start ({unit})")

        for panel in panels:
            panel.grid(visible=True, alpha=0.3)
            panel.axvline(stopped / seconds, color="black", linestyle=":", label="load stopped")
            if panel is not marks:
                panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
        for panel in (rates, memory, backlog):
            panel.set_ylim(bottom=0)
        backlog.set_xlim(left=0)
        figure.savefig(target, facecolor="white", metadata={"Date": None})
