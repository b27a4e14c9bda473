"""How fast events are delivered in batches: against single events, next to an endpoint that hangs, and on one core."""

from benchmarks.deliveries import Delivered, deliver
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from benchmarks.strangers import strangers

#: From request to answer, seconds; and how long an endpoint hangs: longer than any run.
DELAY, FOREVER = 0.02, 3600.0
BATCH, CONCURRENCY, MANY = 100, 16, 64


def speed(lab: Lab) -> Sample:
    """Single events, then events in batches, with the same number of connections."""
    few, many = lab.size("single_events", 2_400, 400), lab.size("events", 100_000, 4_000)
    with lab.server() as server, Receiver(DELAY) as receiver:
        single = deliver(server, receiver, lab, few, webhooks__concurrency=CONCURRENCY)
        batched = deliver(server, receiver, lab, many, batch_size=BATCH, webhooks__concurrency=CONCURRENCY)
    return Sample(
        {"to_single": batched.events_per_second / single.events_per_second},
        _figures(single, "single") | _figures(batched, "batches"),
    )


def hanging(lab: Lab) -> Sample:
    """The healthy endpoint alone, then with one that hangs, with as many connections for itself in both runs."""
    events = lab.size("events", 100_000, 4_000)
    with lab.server() as server, Receiver(DELAY) as receiver, Receiver(FOREVER) as silent:
        alone = deliver(server, receiver, lab, events, batch_size=BATCH, webhooks__concurrency=CONCURRENCY)
    with lab.server() as server, Receiver(DELAY) as receiver, Receiver(FOREVER) as silent:
        beside = deliver(
            server,
            receiver,
            lab,
            events,
            batch_size=BATCH,
            hanging=silent,
            webhooks__concurrency=2 * CONCURRENCY,
            webhooks__timeout="60s",
        )
    return Sample(
        {"healthy": beside.events_per_second / alone.events_per_second},
        _figures(alone, "alone") | _figures(beside, "beside"),
    )


def attempt_log(lab: Lab) -> Sample:
    """Single events and batches, without and with the log of attempts, in turn."""
    few, many = lab.size("single_events", 2_400, 400), lab.size("events", 100_000, 4_000)
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with lab.server() as server, Receiver(DELAY) as receiver:
        for name, events, batch in (("single", few, 1), ("batches", many, BATCH)):
            rates = []
            for kept in (0, 1000):
                run = deliver(
                    server,
                    receiver,
                    lab,
                    events,
                    batch_size=batch,
                    webhooks__concurrency=CONCURRENCY,
                    events__attempts_kept=kept,
                )
                figures |= _figures(run, f"{name}_{'on' if kept else 'off'}")
                rates.append(run.events_per_second)
            ratios[name] = rates[1] / rates[0]
    return Sample(ratios, figures)


def one_core(lab: Lab) -> Sample:
    """Single events and batches with `webhooks.one_core` off and on; single events with busy neighbours as well."""
    few, many = lab.size("single_events", 6_400, 640), lab.size("events", 100_000, 4_000)
    figures: dict[str, float] = {}
    rates: dict[str, dict[str, float]] = {}
    with lab.server() as server, Receiver(DELAY) as receiver:
        for name, neighbours, events, batch, concurrency in (
            ("single", 0, few, 1, MANY),
            ("single_with_a_neighbour", 1, few, 1, MANY),
            ("batches", 0, many, BATCH, CONCURRENCY),
        ):
            for setting in ("off", "on"):
                with strangers(neighbours):
                    run = deliver(
                        server,
                        receiver,
                        lab,
                        events,
                        batch_size=batch,
                        webhooks__concurrency=concurrency,
                        webhooks__one_core=setting,
                    )
                figures |= _figures(run, f"{name}_{setting}")
                rates.setdefault(name, {})[setting] = run.events_per_second
    return Sample({name: both["on"] / both["off"] for name, both in rates.items()}, figures)


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
ONE_CORE = Row(
    "one_core",
    "events delivered a second with `webhooks.one_core` on",
    "the same with it off",
    {
        "single": Goal("at_least", 1.5, "single events, 64 connections"),
        "single_with_a_neighbour": Goal("at_least", 1.0, "the same next to a process that is busy half of the time"),
        "batches": Goal("at_least", 0.9, "batches of 100, 16 connections"),
    },
    one_core,
)
