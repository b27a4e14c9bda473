"""What a large backlog of events costs: the memory of the process, and how long a heartbeat holds Redis."""

import contextlib
import os
from typing import Any

from benchmarks.deliveries import deliver
from benchmarks.events import add_events
from benchmarks.lab import Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import RedisSettings
from sweeperd.outbox.stream import Outbox
from sweeperd.store.shard import Shard

BATCH, LARGE_EVENT, GROUP = 100, 8_000, "hook"
#: So many heartbeats are measured.
HEARTBEATS = 5


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


def heartbeat(lab: Lab) -> Sample:
    """The longest command of the heartbeats of a process that has many events in hand, by Redis's own measure."""
    events = lab.size("events_in_hand", 4_000, 4_000)
    with lab.server() as server:
        shard = Shard(RedisSettings.model_validate({"url": server.url}))
        with contextlib.closing(shard):
            shard.read_clock()
            outbox = Outbox(shard, "benchmark")
            outbox.groups.ensure(GROUP)
            add_events(server.url, events)
            ids: list[bytes] = []
            while entries := outbox.read(GROUP, 1000):
                ids += [entry.id for entry in entries]
            shard.client.config_set("slowlog-log-slower-than", 20)  # not what a script calls
            shard.client.config_set("slowlog-max-len", 1000)
            shard.client.slowlog_reset()
            for _ in range(HEARTBEATS):
                outbox.heartbeat(GROUP, ids)
            calls: Any = shard.client.slowlog_get(1000)
    durations = [call["duration"] / 1000 for call in calls if call["command"].upper().startswith(b"EVAL")]
    return Sample(
        {"longest_ms": max(durations)},
        {"commands": len(durations) / HEARTBEATS, "all_ms": sum(durations) / HEARTBEATS},
    )


MEMORY = Row(
    "undelivered",
    "peak memory of a process that delivers many undelivered events in batches of 100",
    "10,000 undelivered events",
    {
        "memory": Goal("at_most", 1.1, "1,000,000 events, or UNDELIVERED_EVENTS"),
        "memory_of_large": Goal("at_most", 1.1, "50,000 events of 8 kB", "10,000 events of 8 kB"),
    },
    memory,
)
HEARTBEAT = Row(
    "heartbeat",
    "heartbeat of a process with 4,000 events in hand: the longest time that it holds Redis, ms",
    "",
    {"longest_ms": Goal("at_most", 1.0)},
    heartbeat,
)
