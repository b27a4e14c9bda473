"""Runs of the daemon that deliver what is in the stream, and nothing else."""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.events import add_events
from benchmarks.lab import Lab
from benchmarks.process import cpu_seconds, peak_mib
from benchmarks.receiver import Receiver, Tally
from sweeperd.config import RedisSettings
from sweeperd.outbox.stream import ConsumerGroups
from sweeperd.store.embedded import Server
from sweeperd.store.shard import Shard
from sweeperd.store.streams import last_id
from tests.support.harness import Daemon, daemon, environment, eventually

#: The longest that one run may take, seconds.
LIMIT = 600.0


@dataclass(frozen=True)
class Delivered:
    """One run, without its start."""

    events_per_second: float
    #: CPU time of all its processes together, and of the receiver, for one event.
    cpu_us_per_event: float
    receiver_us_per_event: float
    #: The largest peak of memory of a process.
    peak_mib: float


def deliver(
    server: Server,
    receiver: Receiver,
    lab: Lab,
    events: int,
    *,
    processes: int = 1,
    batch_size: int = 1,
    event_bytes: int = 0,
    hanging: Receiver | None = None,
    wrapper: Sequence[str] = (),
    **settings: object,
) -> Delivered:
    """
    Have so many daemons deliver events to a new endpoint; `hanging`: to another one at the same time, which does not
    answer. `event_bytes` as for `add_events`; settings as `harness.environment` takes them.

    The events are in the stream before the daemons start, and the groups are set back to the first one when these run,
    so that nothing but delivery is in the measured span: from the first request that comes to the last answer.
    """
    name = f"hook-{secrets.token_hex(4)}"
    endpoints: list[dict[str, Any]] = [{"name": name, "url": receiver.url, "batch_size": batch_size}]
    if hanging is not None:
        endpoints.append({"name": f"{name}-hanging", "url": hanging.url, "batch_size": batch_size})
    ours: dict[str, object] = {"endpoints": endpoints, "role": "deliver"}
    env = environment(server.url, **(ours | settings))
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    with contextlib.closing(shard), contextlib.ExitStack() as stack:
        shard.read_clock()
        before = last_id(shard.client, shard.keys.events)
        add_events(server.url, events, first=shard.client.xlen(shard.keys.events), event_bytes=event_bytes)
        groups = ConsumerGroups(shard, "benchmark")
        for endpoint in endpoints:
            groups.ensure(endpoint["name"])
        running = [stack.enter_context(daemon(env, lab.directory, wrapper)) for _ in range(processes)]
        eventually(lambda: all(process.get("/readyz")[0] == 200 for process in running), LIMIT)
        receiver.begin()
        cpu_before = _cpu(running)
        for endpoint in endpoints:
            shard.client.xgroup_setid(shard.keys.events, endpoint["name"], before)
        tally: Tally = eventually(lambda: _complete(receiver, events), LIMIT)
        cpu = _cpu(running) - cpu_before
        eventually(lambda: shard.client.xpending(shard.keys.events, name)["pending"] == 0, LIMIT)
        peak = max(peak_mib(process.process.pid) for process in running)
        for process in running:
            if hanging is None:
                assert process.terminate() == 0
            else:
                process.kill()
    assert tally.requests == tally.distinct, "each was to be delivered once"
    return Delivered(tally.rate, cpu / events * 1e6, tally.cpu / events * 1e6, peak)


def _cpu(running: Sequence[Daemon]) -> float:
    return sum(cpu_seconds(process.process.pid) for process in running)


def _complete(receiver: Receiver, events: int) -> Tally | None:
    tally = receiver.tally()
    return tally if tally.events >= events else None
