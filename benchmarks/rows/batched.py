"""Measures how fast events are delivered in batches, against single events."""

from dataclasses import dataclass
from typing import Any

from benchmarks.deliveries import Delivered, deliver
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.embedded import Server

#: From request to answer, seconds.
DELAY = 0.02
BATCH, CONCURRENCY = 100, 16


@dataclass(frozen=True)
class Load:
    """What is delivered: the events in a request, and the connections."""

    batch_size: int
    concurrency: int = CONCURRENCY

    def run(self, lab: Lab, server: Server, receiver: Receiver, **others: Any) -> Delivered:
        """Deliver it; `others` as for `deliver`."""
        few, many = lab.size("single_events_for_each_connection", 80, 25), lab.size("events", 80_000, 4_000)
        events = few * self.concurrency if self.batch_size == 1 else many
        ours = {"batch_size": self.batch_size, "webhooks__concurrency": self.concurrency}
        return deliver(server, receiver, lab, events, **(ours | others))


SINGLE, BATCHES = Load(1), Load(BATCH)


def speed(lab: Lab) -> Sample:
    """Single events, then events in batches, with the same number of connections."""
    with lab.server() as server, Receiver(DELAY) as receiver:
        single, batched = (load.run(lab, server, receiver) for load in (SINGLE, BATCHES))
    return Sample(
        {"to_single": batched.events_per_second / single.events_per_second},
        _figures(single, "single") | _figures(batched, "batches"),
    )


def _figures(run: Delivered, name: str) -> dict[str, float]:
    return {
        f"{name}_events_per_second": run.events_per_second,
        f"{name}_cpu_us_per_event": run.cpu_us_per_event,
        f"{name}_receiver_us_per_event": run.receiver_us_per_event,
    }


ROW = Row(
    "batched",
    "events delivered a second in batches of 100, one process, 16 connections, receiver answering after 20 ms",
    "the same process with single events",
    {
        "to_single": Goal("at_least", 25),
        "batches_events_per_second": Goal("at_least", 25_000, against="an absolute rate"),
    },
    speed,
)
#: For the gate, of the same name: an absolute rate is the machine's.
AGAINST_SINGLE = Row(ROW.name, ROW.what, ROW.against, {"to_single": ROW.goals["to_single"]}, speed)
