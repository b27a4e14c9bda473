"""Runs a daemon that only delivers, and measures it."""

import contextlib
import secrets
from dataclasses import dataclass
from typing import Any

from benchmarks.events import add_events
from benchmarks.lab import Lab
from benchmarks.process import cpu_seconds, peak_mib
from benchmarks.receiver import Receiver, Tally
from sweeperd.config import RedisSettings
from sweeperd.outbox import ConsumerGroups
from sweeperd.store.embedded import Server
from sweeperd.store.shard import Shard
from sweeperd.store.streams import last_id
from tests.support.harness import daemon, environment, eventually

#: The longest that one run may take, seconds.
LIMIT = 600.0


@dataclass(frozen=True)
class Delivered:
    """One run, without its start."""

    events_per_second: float
    #: CPU time of the daemon, and of the receiver, for each event.
    cpu_us_per_event: float
    receiver_us_per_event: float
    #: The peak memory of the daemon.
    peak_mib: float


def deliver(
    server: Server,
    receiver: Receiver,
    lab: Lab,
    events: int,
    *,
    batch_size: int = 1,
    event_bytes: int = 0,
    endpoint: dict[str, str] | None = None,
    **settings: object,
) -> Delivered:
    """
    Have a daemon deliver this many events to a new endpoint. `event_bytes` as for `add_events`; `endpoint`: more
    settings of the endpoint; settings as `harness.environment` takes them.

    The events are in the stream before the daemon starts, and its group is set back to the first one once the daemon
    runs, so only delivery is measured: from the first request to the last answer.
    """
    name = f"hook-{secrets.token_hex(4)}"
    endpoints: list[dict[str, Any]] = [{"name": name, "url": receiver.url, "batch_size": batch_size} | (endpoint or {})]
    ours: dict[str, object] = {"endpoints": endpoints, "role": "deliver"}
    env = environment(server.url, **(ours | settings))
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    with contextlib.closing(shard), contextlib.ExitStack() as stack:
        shard.read_clock()
        before = last_id(shard.client, shard.keys.events)
        add_events(server.url, events, first=shard.client.xlen(shard.keys.events), event_bytes=event_bytes)
        ConsumerGroups(shard, "benchmark").ensure(name)
        running = stack.enter_context(daemon(env, lab.directory))
        eventually(lambda: running.get("/readyz")[0] == 200, LIMIT)
        receiver.begin()
        pid = running.process.pid
        cpu_before = cpu_seconds(pid)
        shard.client.xgroup_setid(shard.keys.events, name, before)
        tally: Tally = eventually(lambda: _complete(receiver, events), LIMIT)
        cpu = cpu_seconds(pid) - cpu_before
        eventually(lambda: shard.client.xpending(shard.keys.events, name)["pending"] == 0, LIMIT)
        peak = peak_mib(pid)
        assert running.terminate() == 0
    assert tally.requests == tally.distinct, "each was to be delivered once"
    return Delivered(tally.rate, cpu / events * 1e6, tally.cpu / events * 1e6, peak)


def _complete(receiver: Receiver, events: int) -> Tally | None:
    tally = receiver.tally()
    return tally if tally.events >= events else None
