"""What one entry costs, by the size of the batches and by how many scopes it has. For the plot; there are no goals."""

from benchmarks.fill import SCOPES
from benchmarks.lab import Lab
from benchmarks.row import Row, Sample

DEPTHS = (1, 5, 10, 25, 50, 100, 200)
NUMBERS_OF_SCOPES = (1, 2, 4, 8)


def by_batches(lab: Lab) -> Sample:
    """A `--once` with each `sweep.pipeline_depth`."""
    entries = lab.size("entries", 20_000, 1_000)
    costs = []
    for depth in DEPTHS:
        with lab.overdue(entries) as server:
            costs.append(1e6 / lab.once(server, sweep__pipeline_depth=depth).entries_per_second)
    return Sample(
        {},
        {f"microseconds_at_{depth}": cost for depth, cost in zip(DEPTHS, costs, strict=True)},
        {"pipeline_depth": [float(depth) for depth in DEPTHS], "microseconds": costs},
    )


def by_scopes(lab: Lab) -> Sample:
    """A `--once` over entries with each number of scopes."""
    entries = lab.size("entries", 20_000, 1_000)
    costs = []
    for number in NUMBERS_OF_SCOPES:
        scopes = [f"{SCOPES[0]}/part:{part}" for part in range(number)]
        with lab.overdue(entries, scopes) as server:
            costs.append(1e6 / lab.once(server).entries_per_second)
    return Sample(
        {},
        {f"microseconds_at_{number}": cost for number, cost in zip(NUMBERS_OF_SCOPES, costs, strict=True)},
        {"scopes": [float(number) for number in NUMBERS_OF_SCOPES], "microseconds": costs},
    )


BY_BATCHES = Row("batches", "cost of one entry by `sweep.pipeline_depth`", "each other", {}, by_batches)
BY_SCOPES = Row("scopes", "cost of one entry by its number of budgets", "each other", {}, by_scopes)
