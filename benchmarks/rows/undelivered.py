"""Measures how much memory a process needs for a large backlog of events."""

import os

from benchmarks.deliveries import deliver
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample

BATCH, LARGE_EVENT = 100, 8_000


def memory(lab: Lab) -> Sample:
    """
    Deliver a few events and then many, each in a process of its own: ordinary ones, and large ones. The environment
    variable UNDELIVERED_EVENTS sets how many events many are.
    """
    few = lab.size("few_events", 10_000, 2_000)
    many = lab.size("many_events", int(os.environ.get("UNDELIVERED_EVENTS", "1000000")), 10_000)
    many_large = lab.size("many_large_events", 50_000, 4_000)
    peaks: dict[str, float] = {}
    for name, events, event_bytes in (
        ("few", few, 0),
        ("many", many, 0),
        ("few_large", few, LARGE_EVENT),
        ("many_large", many_large, LARGE_EVENT),
    ):
        with lab.server() as server, Receiver(0.0) as receiver:
            run = deliver(server, receiver, lab, events, batch_size=BATCH, event_bytes=event_bytes)
        peaks[name] = run.peak_mib
    return Sample(
        {"memory": peaks["many"] / peaks["few"], "memory_of_large": peaks["many_large"] / peaks["few_large"]},
        {f"{name}_peak_mib": peak for name, peak in peaks.items()},
    )


ROW = Row(
    "undelivered",
    "peak memory of a process that delivers many undelivered events in batches of 100",
    "10,000 undelivered events",
    {
        "memory": Goal("at_most", 1.1, "1,000,000 events, or UNDELIVERED_EVENTS"),
        "memory_of_large": Goal("at_most", 1.1, "50,000 events of 8 kB", "10,000 events of 8 kB"),
    },
    memory,
)
