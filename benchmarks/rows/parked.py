"""
Measures delivery beside many parked events: events that wait for their next attempt.

The parked events are not due while the row runs, so all that they can do is to slow the search for events that are. New
events expire at a steady rate, and the receiver answers at once. A million parked events take minutes to prepare, so
the row runs only where it is asked for. The environment variable PARKED_EVENTS sets their number.
"""

import contextlib
import os
import time
from dataclasses import dataclass

from benchmarks import raw
from benchmarks.fill import fill
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import RedisSettings
from sweeperd.outbox.stream import Outbox
from sweeperd.store.embedded import Server
from sweeperd.store.shard import Shard
from tests.support.harness import daemon, environment, eventually

ENDPOINT = "hook"
#: So many new events expire a second. The first one expires after AHEAD seconds, when all of them are in Redis.
RATE, AHEAD = 200, 5.0
#: How long the last event may take after its deadline, and how often the receiver is asked for its count, seconds.
LIMIT, POLL = 30.0, 0.02
#: Events read and parked at a time.
SLICE = 1000


@dataclass(frozen=True)
class Progress:
    """How the new events were delivered. Times in seconds."""

    delivered: int
    #: The longest time between two answers, or before the first.
    longest_stall: float
    #: From the deadline of the last new event to the last answer.
    late: float


def measure(lab: Lab) -> Sample:
    """One run, without its preparation."""
    parked = lab.size("parked_events", int(os.environ.get("PARKED_EVENTS", "200000")), 2_000)
    new = lab.size("new_events", 3_000, 600)
    with lab.server() as server, Receiver(delay=0) as receiver:
        park(server, parked)
        env = environment(
            server.url,
            endpoints=[{"name": ENDPOINT, "url": receiver.url}],
            sweep__interval="100ms",
            webhooks__redelivery_initial="1h",
            webhooks__redelivery_max="1h",
        )
        with daemon(env, lab.directory) as running:
            eventually(lambda: running.get("/readyz")[0] == 200)
            seconds = new / RATE
            last_due = time.monotonic() + AHEAD + seconds
            fill(server.url, new, due_ms=-int((AHEAD + seconds) * 1000), spread_ms=int(seconds * 1000), first=parked)
            receiver.begin()
            progress = follow(receiver, new, last_due)
            assert running.terminate() == 0
    return Sample(
        {"delivered": progress.delivered / new},
        {"longest_stall_seconds": progress.longest_stall, "late_seconds": progress.late},
    )


def park(server: Server, events: int) -> None:
    """Let this many reservations expire, and park their events for the endpoint as a failed attempt does."""
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    with contextlib.closing(shard):
        shard.read_clock()
        outbox = Outbox(shard, "benchmark")
        outbox.groups.ensure(ENDPOINT)
        fill(server.url, events)
        raw.sweep(server.url, events, length=25, ahead=2)
        while entries := outbox.read(ENDPOINT, SLICE):
            outbox.nack(ENDPOINT, entries)
        assert shard.client.xpending(shard.keys.events, ENDPOINT)["pending"] >= events


def follow(receiver: Receiver, new: int, last_due: float) -> Progress:
    """Follow the receiver until it has all new events, or until LIMIT after the last deadline (monotonic)."""
    begun = last_due - new / RATE
    seen, changed, stall = 0, begun, 0.0
    while seen < new and (now := time.monotonic()) < last_due + LIMIT:
        stall = max(stall, now - changed)
        if (count := receiver.tally().distinct) > seen:
            seen, changed = count, now
        time.sleep(POLL)
    return Progress(seen, stall, receiver.tally().last - last_due)


ROW = Row(
    "parked",
    "3,000 new events at 200 a second, while 200,000 events are parked",
    "",
    {
        "delivered": Goal("at_least", 1.0, what="share that is delivered", against="all of them"),
        "longest_stall_seconds": Goal("at_most", 1.0, what="longest time without a delivery, seconds"),
    },
    measure,
    on_request=True,
)
