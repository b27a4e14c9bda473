"""Measures how fast one process delivers events, against the bound of its concurrency."""

from collections.abc import Sequence

from benchmarks.deliveries import deliver
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample

#: From request to answer, seconds.
DELAY = 0.02
CONCURRENCIES = (1, 4, 16, 64)
#: The default of webhooks.concurrency.
DEFAULT = 16
#: So many events for each connection: at 20 ms each, two seconds' work.
EACH, EACH_QUICK = 100, 50


def by_concurrency(lab: Lab) -> Sample:
    """One process at each concurrency."""
    return _measure(lab, CONCURRENCIES)


def at_default(lab: Lab) -> Sample:
    """One process at the default concurrency."""
    return _measure(lab, (DEFAULT,))


def _measure(lab: Lab, concurrencies: Sequence[int]) -> Sample:
    each = lab.size("events_for_each_connection", EACH, EACH_QUICK)
    with lab.server() as server, Receiver(DELAY) as receiver:
        runs = {
            number: deliver(server, receiver, lab, each * number, webhooks__concurrency=number)
            for number in concurrencies
        }
    figures: dict[str, float] = {}
    for number, run in runs.items():
        figures[f"events_per_second_at_{number}"] = run.events_per_second
        figures[f"cpu_us_per_event_at_{number}"] = run.cpu_us_per_event
        figures[f"receiver_us_per_event_at_{number}"] = run.receiver_us_per_event
    rates = [run.events_per_second for run in runs.values()]
    return Sample(
        {f"at_{number}": run.events_per_second * DELAY / number for number, run in runs.items()},
        figures,
        {"concurrency": [float(concurrency) for concurrency in concurrencies], "events_per_second": rates},
    )


ROW = Row(
    "delivery",
    "events delivered a second, one process, receiver answering after 20 ms",
    "the concurrency limit's own bound: concurrency / 20 ms",
    {
        "at_16": Goal("at_least", 0.9, what="concurrency 16"),
        "at_64": Goal("at_least", 0.7, what="concurrency 64"),
    },
    by_concurrency,
)
#: For the gate: shorter, and of the same name.
AT_DEFAULT = Row(ROW.name, ROW.what, ROW.against, {"at_16": ROW.goals["at_16"]}, at_default)
