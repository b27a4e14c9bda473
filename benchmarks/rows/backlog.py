"""What a backlog costs as it grows: memory, and time for each entry."""

from benchmarks.lab import Lab, Once
from benchmarks.row import Goal, Row, Sample


def measure(lab: Lab) -> Sample:
    """One `--once` over each of three backlogs, the smallest first."""
    sizes = [
        lab.size("small", 10_000, 2_000),
        lab.size("medium", 100_000, 6_000),
        lab.size("large", 1_000_000, 20_000),
    ]
    runs: dict[int, Once] = {}
    for entries in sizes:
        with lab.overdue(entries) as server:
            runs[entries] = lab.once(server)
    costs = {entries: 1e6 * run.duration_seconds / entries for entries, run in runs.items()}
    small, large = runs[sizes[0]], runs[sizes[-1]]
    return Sample(
        {"memory": large.peak_mib / small.peak_mib, "linear": max(costs.values()) / min(costs.values())},
        {"small_peak_mib": small.peak_mib, "large_peak_mib": large.peak_mib, "large_seconds": large.duration_seconds},
        {"entries": [float(entries) for entries in sizes], "microseconds": list(costs.values())},
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
