"""Measures what a growing backlog costs: memory, and time per entry."""

from collections import defaultdict
from statistics import median

from benchmarks.lab import Lab, Once
from benchmarks.row import Goal, Row, Sample


def measure(lab: Lab) -> Sample:
    """
    One `--once` over a large backlog, and before and after it several over smaller ones, of which the medians count:
    those are over in seconds, and a shared machine may be half as fast for that long.
    """
    small, medium = lab.size("small", 10_000, 2_000), lab.size("medium", 100_000, 6_000)
    large = lab.size("large", 1_000_000, 20_000)
    runs: defaultdict[int, list[Once]] = defaultdict(list)
    for entries in (small, medium, small, large, small, medium, small):
        with lab.overdue(entries) as server:
            runs[entries].append(lab.once(server))
    costs = {entries: median(1e6 / run.entries_per_second for run in found) for entries, found in runs.items()}
    peaks = {entries: median(run.peak_mib for run in found) for entries, found in runs.items()}
    return Sample(
        {"memory": peaks[large] / peaks[small], "linear": max(costs.values()) / min(costs.values())},
        {
            "small_peak_mib": peaks[small],
            "large_peak_mib": peaks[large],
            "small_microseconds": costs[small],
            "medium_microseconds": costs[medium],
            "large_microseconds": costs[large],
        },
        {"entries": [float(entries) for entries in costs], "microseconds": list(costs.values())},
    )


ROW = Row(
    "backlog",
    "draining 1,000,000 entries",
    "draining 10,000 and 100,000",
    {
        "memory": Goal("at_most", 1.1, "peak memory", "draining 10,000"),
        "linear": Goal("at_most", 1.15, "cost of one entry", "draining 10,000 or 100,000: the dearest to the cheapest"),
    },
    measure,
)
