"""A picture of a soak: rates, latency, memory and backlog over time."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from proof.soak.samples import LatencyStep, Sample, rates, thinned

MIB = 1024 * 1024
#: Okabe and Ito's colours, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"


def draw_latency(panel: Axes, latencies: Sequence[LatencyStep], seconds: float) -> None:
    """Median and 99th percentile over time. `seconds`: of one unit of the time axis."""
    times = [one.at / seconds for one in latencies]
    panel.plot(times, [one.median_ms for one in latencies], label="median", color=BLUE)
    panel.plot(times, [one.p99_ms for one in latencies], label="99th percentile", color=ORANGE)
    panel.set(title="Latency of a ledger call, as the caller sees it", ylabel="ms (logarithmic)", yscale="log")
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def draw(
    samples: Sequence[Sample], latencies: Sequence[LatencyStep], step: float, stopped: float, title: str, target: Path
) -> None:
    """
    Write a PNG of four panels above one time axis. `step` is what the latencies are summed up over, and `stopped` when
    the load ended, in seconds since its start. Raises OSError where `target` cannot be written.
    """
    unit, seconds = ("min", 60.0) if stopped >= 180 else ("s", 1.0)
    # Over less than two seconds a count that moves with each sweep would flicker.
    rough = thinned(samples, max(2.0, step))
    figure = Figure(figsize=(11, 12), layout="constrained")
    figure.suptitle(title, fontsize=14)
    panels = figure.subplots(4, 1, sharex=True)
    throughput, latency, memory, backlog = panels

    for name, label, colour in (
        ("calls", "ledger calls", BLUE),
        ("operations", "operations started", ORANGE),
        ("expired", "expired", GREEN),
        ("received", "webhooks received", PURPLE),
    ):
        points = rates(rough, name)
        throughput.plot(
            [at / seconds for at, _ in points],
            [rate for _, rate in points],
            label=label,
            color=colour,
            linestyle="--" if name == "received" else "-",  # it lies on the expiries when all is well
        )
    throughput.set(title="Rates", ylabel="per second")

    draw_latency(latency, latencies, seconds)

    known = [sample for sample in samples if not math.isnan(sample.daemon_bytes)]
    memory.plot(
        [sample.at / seconds for sample in known],
        [sample.daemon_bytes / MIB for sample in known],
        label="resident",
        color=BLUE,
    )
    memory.set(title="Memory of the daemon", ylabel="MiB")

    backlog.plot(
        [sample.at / seconds for sample in samples],
        [sample.due_entries for sample in samples],
        label="sweeperd_due_entries",
        color=BLUE,
        linewidth=1,
    )
    backlog.set(title="Backlog: index entries past their deadline, at each sweep", ylabel="entries")
    backlog.set_xlabel(f"time since the load's start ({unit})")

    for panel in panels:
        panel.grid(visible=True, alpha=0.3)
        panel.axvline(stopped / seconds, color="black", linestyle=":", label="load stopped")
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
        if panel is not latency:
            panel.set_ylim(0, 1.1 * panel.get_ylim()[1])
    backlog.set_xlim(left=0)
    figure.savefig(target, dpi=110)
