"""Measures what the order of a key costs a delivery."""

from benchmarks.deliveries import deliver
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample

#: From request to answer, seconds.
DELAY = 0.02
CONCURRENCY, BATCH = 16, 100


def cost(lab: Lab) -> Sample:
    """Each event with its own key, without an order and with it; then all events with one key, alone and in batches."""
    many, few = lab.size("events", 3_000, 800), lab.size("events_of_one_key", 100, 40)
    by_id, by_tenant = {"order": "key"}, {"order": "key", "order_key": "tenant"}
    with lab.server() as server, Receiver(DELAY) as receiver:
        free, ordered, single, batches = (
            deliver(server, receiver, lab, events, batch_size=size, endpoint=order, webhooks__concurrency=CONCURRENCY)
            for events, size, order in (
                (many, 1, {}),
                (many, 1, by_id),
                (few, 1, by_tenant),
                (many, BATCH, by_tenant),
            )
        )
    return Sample(
        {"to_free": ordered.events_per_second / free.events_per_second},
        {
            "free_events_per_second": free.events_per_second,
            "free_cpu_us_per_event": free.cpu_us_per_event,
            "ordered_events_per_second": ordered.events_per_second,
            "ordered_cpu_us_per_event": ordered.cpu_us_per_event,
            "one_key_events_per_second": single.events_per_second,
            "one_key_batches_events_per_second": batches.events_per_second,
        },
    )


ROW = Row(
    "ordered",
    "events delivered a second in the order of their keys, one process, 16 connections, receiver answering after 20 ms",
    "the same process without an order",
    {"to_free": Goal("at_least", 0.8, what="each event with its own key")},
    cost,
)
