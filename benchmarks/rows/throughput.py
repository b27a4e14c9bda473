"""Measures entries expired a second, beside the most that Redis itself can do."""

from dataclasses import replace
from statistics import median

from benchmarks import raw
from benchmarks.lab import Lab
from benchmarks.process import apart
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import SweepSettings

#: The calls of a batch of a sweep whose entries are overdue for longer than `max_lag`, as here; two batches are on
#: their way at once.
BATCH = SweepSettings().pipeline_depth


def measure(lab: Lab) -> Sample:
    """One `--once` of the installed command, and the same script calls over a raw socket in two ways."""
    entries = lab.size("entries", 50_000, 10_000)
    ours, limit, sequential = _ours(lab, entries), _raw(lab, entries, BATCH, ahead=2), _raw(lab, entries, 1, ahead=1)
    return Sample(
        {"limit": ours / limit, "sequential": ours / sequential},
        {
            "entries_per_second": ours,
            "limit_entries_per_second": limit,
            "sequential_entries_per_second": sequential,
        },
    )


def measure_in_turns(lab: Lab) -> Sample:
    """
    The medians of several short turns of ours and of the limit. The system sometimes places the two processes of a turn
    so that it is half as long or twice as long as all others, which a single turn would pass on to the ratio.
    """
    entries, turns = lab.size("entries", 10_000, 10_000), lab.size("turns", 3, 3)
    pairs = [(_ours(lab, entries), _raw(lab, entries, BATCH, ahead=2)) for _ in range(turns)]
    ours, limit = (median(rates) for rates in zip(*pairs, strict=True))
    return Sample({"limit": ours / limit}, {"entries_per_second": ours, "limit_entries_per_second": limit})


def _ours(lab: Lab, entries: int) -> float:
    """Entries a second of `--once` on a fresh server."""
    with lab.overdue(entries) as server:
        return lab.once(server).entries_per_second


def _raw(lab: Lab, entries: int, length: int, *, ahead: int) -> float:
    """The same over a raw socket, in batches of this length, of which `ahead` are on their way at once."""
    with lab.overdue(entries) as server:
        return entries / apart(raw.sweep, server.url, entries, length=length, ahead=ahead)


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
#: For the gate, of the same name: what a round trip costs differs between machines. Its medians differ by
#: 5 % between runs, so the tolerance is small enough to notice a loss of 30 % by a run that was a lucky one.
AGAINST_LIMIT = Row(
    ROW.name, ROW.what, ROW.against, {"limit": replace(ROW.goals["limit"], tolerance=0.2)}, measure_in_turns
)
