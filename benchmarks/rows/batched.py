"""How fast events are delivered in batches: against single events, and next to an endpoint that hangs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.deliveries import Delivered, deliver
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.embedded import Server

#: From request to answer, seconds; and how long an endpoint hangs: longer than any run.
DELAY, FOREVER = 0.02, 3600.0
BATCH, CONCURRENCY = 100, 16


@dataclass(frozen=True)
class Load:
    """What is delivered: so many events in a request, over so many connections."""

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


def hanging(lab: Lab) -> Sample:
    """The healthy endpoint alone, then with one that hangs, with as many connections for itself in both runs."""
    with lab.server() as server, Receiver(DELAY) as receiver:
        alone = BATCHES.run(lab, server, receiver)
    twice = Load(BATCH, 2 * CONCURRENCY)
    with lab.server() as server, Receiver(DELAY) as receiver, Receiver(FOREVER) as silent:
        beside = twice.run(lab, server, receiver, hanging=silent, webhooks__timeout="60s")
    return Sample(
        {"healthy": beside.events_per_second / alone.events_per_second},
        _figures(alone, "alone") | _figures(beside, "beside"),
    )


def attempt_log(lab: Lab) -> Sample:
    """Single events and batches, without and with the log of attempts, in turn."""
    return _on_to_off(lab, {"single": SINGLE, "batches": BATCHES}, "events__attempts_kept", off=0, on=1000)


def _on_to_off(lab: Lab, loads: Mapping[str, Load], setting: str, *, off: object, on: object) -> Sample:
    """Each load with a setting off and on, in turn: how much the setting changes the rate."""
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with lab.server() as server, Receiver(DELAY) as receiver:
        for name, load in loads.items():
            without, having = (load.run(lab, server, receiver, **{setting: value}) for value in (off, on))
            figures |= _figures(without, f"{name}_off") | _figures(having, f"{name}_on")
            ratios[name] = having.events_per_second / without.events_per_second
    return Sample(ratios, figures)


def _figures(run: Delivered, name: str) -> dict[str, float]:
    return {
        f"{name}_events_per_second": run.events_per_second,
        f"{name}_cpu_us_per_event": run.cpu_us_per_event,
        f"{name}_receiver_us_per_event": run.receiver_us_per_event,
    }


SPEED = Row(
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
AGAINST_SINGLE = Row(SPEED.name, SPEED.what, SPEED.against, {"to_single": SPEED.goals["to_single"]}, speed)
HANGING = Row(
    "hanging",
    "events delivered a second in batches of 100 next to an endpoint that hangs",
    "the healthy endpoint alone, with the same share of the connections",
    {"healthy": Goal("at_least", 0.9)},
    hanging,
)
ATTEMPT_LOG = Row(
    "attempt_log",
    "events delivered a second with the log of attempts, 16 connections",
    "the same without it",
    {
        "single": Goal("at_least", 0.95, "single events"),
        "batches": Goal("at_least", 0.95, "batches of 100"),
    },
    attempt_log,
)
