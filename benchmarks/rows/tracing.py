"""Measures what traces cost: the same delivery with a collector at default sampling, and without."""

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any
from unittest import mock

import redis

from benchmarks.fill import fill
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.keys import Keys
from tests.support.collector import Collector

#: From request to answer, seconds.
DELAY = 0.02
#: So many events are of one tick.
TICK = 25


def measure(lab: Lab) -> Sample:
    """Deliver this many events of many ticks with one endpoint, without traces and with them."""
    events = lab.size("events", 5_000, 1_000)
    with Collector() as collector:
        variables = {name: value for name, value in collector.variables.items() if name != "OTEL_TRACES_SAMPLER"}
        without, with_traces = _run(lab, events, {}), _run(lab, events, variables)
        spans = len(collector.spans("deliver"))
    return Sample(
        {"on": with_traces / without},
        {"events_per_second_with": with_traces, "events_per_second_without": without, "delivery_spans": spans},
    )


def _run(lab: Lab, events: int, variables: Mapping[str, str]) -> float:
    """Events delivered a second."""
    with lab.server() as server, Receiver(DELAY) as receiver:
        endpoints = [{"name": "hook", "url": receiver.url}]
        lab.once(server, endpoints=endpoints)
        fill(server.url, events)
        lab.once(server)
        _divide_into_ticks(server.url, events)
        with mock.patch.dict(os.environ, variables):
            done = lab.once(server, endpoints=endpoints)
    if done.delivered != events:
        raise RuntimeError(f"{done.delivered} of {events} events were delivered")
    return done.delivered / done.duration_seconds


def _divide_into_ticks(url: str, events: int) -> None:
    """Write the last events of the stream again, as if they had expired in many ticks."""
    key = Keys().events
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        entries: Any = client.xrevrange(key, count=events)
        pipeline: Any = client.pipeline(transaction=False)
        trace_id = ""
        for number, (entry, fields) in enumerate(entries):
            if number % TICK == 0:
                trace_id = secrets.token_hex(16)
            pipeline.xadd(key, fields | {b"trace_id": trace_id})
            pipeline.xdel(key, entry)
        pipeline.execute()


ROW = Row(
    "tracing",
    "events delivered a second, one tick in ten sampled",
    "the same without traces",
    {"on": Goal("at_least", 0.95)},
    measure,
)
