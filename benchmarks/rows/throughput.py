"""Entries expired a second, beside the most that Redis itself can do."""

from benchmarks import raw
from benchmarks.lab import Lab
from benchmarks.process import apart
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import SweepSettings

#: The calls of a batch: two batches are on their way at once.
BATCH = SweepSettings().pipeline_depth // 2


def measure(lab: Lab) -> Sample:
    """One `--once` of the installed command, and the same script calls over a raw socket in two ways."""
    entries = lab.size("entries", 50_000, 10_000)
    with lab.overdue(entries) as server:
        ours = lab.once(server).entries_per_second
    with lab.overdue(entries) as server:
        limit = entries / apart(raw.sweep, server.url, entries, length=BATCH, ahead=2)
    with lab.overdue(entries) as server:
        sequential = entries / apart(raw.sweep, server.url, entries, length=1, ahead=1)
    return Sample(
        {"limit": ours / limit, "sequential": ours / sequential},
        {
            "entries_per_second": ours,
            "limit_entries_per_second": limit,
            "sequential_entries_per_second": sequential,
        },
    )


ROW = Row(
    "throughput",
    "entries expired a second, one process, default settings",
    "the same script over a raw socket, requests encoded beforehand",
    {
        "limit": Goal("at_least", 0.85, against="the limit: the same batches, encoded beforehand, over a raw socket"),
        "sequential": Goal("at_least", 3, against="one round trip for each entry, over a raw socket"),
    },
    measure,
)
#: For the gate, of the same name: what a round trip costs differs between machines.
AGAINST_LIMIT = Row(ROW.name, ROW.what, ROW.against, {"limit": ROW.goals["limit"]}, measure)
