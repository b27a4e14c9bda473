"""What traces cost: the same run with a collector that takes every span, and without."""

import os
from unittest import mock

from benchmarks.fill import fill
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from tests.support.collector import Collector

#: From request to answer, seconds: none, so that the run's own work is what takes the time.
DELAY = 0.0


def measure(lab: Lab) -> Sample:
    """Sweep and deliver so many entries with one endpoint, with traces and without."""
    entries = lab.size("entries", 5_000, 1_000)
    with Collector() as collector:
        without = _run(lab, entries, {})
        with_traces = _run(lab, entries, collector.variables)
        spans = len(collector.spans("deliver"))
    return Sample(
        {"on": with_traces / without},
        {"events_per_second_with": with_traces, "events_per_second_without": without, "delivery_spans": spans},
    )


def _run(lab: Lab, entries: int, variables: dict[str, str]) -> float:
    """Entries swept and delivered a second."""
    with lab.server() as server, Receiver(DELAY) as receiver, mock.patch.dict(os.environ, variables):
        endpoint = {"name": "hook", "url": receiver.url}
        lab.once(server, endpoints=[endpoint])
        fill(server.url, entries)
        done = lab.once(server, endpoints=[endpoint])
        assert done.delivered == entries
    return done.entries_per_second


ROW = Row(
    "tracing",
    "entries swept and delivered a second, one endpoint, a span for each delivery",
    "the same without traces",
    {"on": Goal("at_least", 0.95)},
    measure,
)
