"""What Cycles' own event records cost: a run that expires entries and writes them, beside one that writes none."""

from benchmarks.lab import Lab
from benchmarks.row import Goal, Row, Sample


def measure(lab: Lab) -> Sample:
    """One `--once` with the relay and one without, on a fresh server each."""
    entries = lab.size("entries", 20_000, 4_000)
    with lab.overdue(entries) as server:
        without = lab.once(server)
    with lab.overdue(entries) as server:
        relayed = lab.once(server, cycles__enabled="true")
    return Sample(
        {"on": relayed.entries_per_second / without.entries_per_second},
        {
            "entries_per_second_with": relayed.entries_per_second,
            "entries_per_second_without": without.entries_per_second,
        },
    )


ROW = Row(
    "relay",
    "entries expired a second, a Cycles record written for each",
    "the same without records",
    {"on": Goal("at_least", 0.05)},
    measure,
)
