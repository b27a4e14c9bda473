"""Measures how much longer sweep and delivery take side by side than the sweep alone."""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import redis

from benchmarks.lab import WARM, Lab
from benchmarks.receiver import Receiver
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.keys import Keys
from tests.support.harness import Daemon, daemon, environment

NAME, DELAY, BATCH = "hook", 0.02, 100
#: Between two readings of the stream and its group; and the longest that a run may take, seconds.
POLL, LIMIT = 0.02, 600.0


def measure(lab: Lab) -> Sample:
    """
    The sweep alone, then with delivery in batches in the same process, with delivery in a process of its own, and with
    single events in the same process. The environment variable OVERDUE_ENTRIES sets how many entries there are.
    """
    entries = lab.size("entries", int(os.environ.get("OVERDUE_ENTRIES", "200000")), 4_000)
    alone, _ = _run(lab, entries, ["all"], batch_size=0)
    batches_sweep, batches = _run(lab, entries, ["all"], batch_size=BATCH)
    roles_sweep, roles = _run(lab, entries, ["deliver", "sweep"], batch_size=BATCH)
    single_sweep, _ = _run(lab, entries, ["all"], batch_size=1)
    return Sample(
        {"batches": batches / alone, "roles": roles / alone, "sweep_beside_single": single_sweep / alone},
        {
            "alone_seconds": alone,
            "batches_seconds": batches,
            "batches_sweep_seconds": batches_sweep,
            "roles_seconds": roles,
            "roles_sweep_seconds": roles_sweep,
            "single_sweep_seconds": single_sweep,
        },
    )


def _run(lab: Lab, entries: int, roles: list[str], batch_size: int) -> tuple[float, float]:
    """
    Seconds from the first expiry to the last one, and to the last acknowledgement; no wait for that with single events.
    """
    with lab.overdue(entries) as server, Receiver(DELAY) as receiver, contextlib.ExitStack() as stack:
        endpoint = {"name": NAME, "url": receiver.url, "batch_size": batch_size}
        settings: dict[str, Any] = {
            "endpoints": [endpoint] if batch_size else [],
            # The sweep makes no room for other clients: it is late from the beginning.
            "sweep__max_lag": "1ms",
            "sweep__time_budget": "1h",
            "reconcile__interval": "",
        }
        for role in roles:
            running = stack.enter_context(daemon(environment(server.url, role=role, **settings), lab.directory))
            if role == "deliver":  # it is ready when the sweep starts
                await_that(functools.partial(_is_ready, running))
        with redis.Redis.from_url(server.url) as client:
            await_that(lambda: client.xlen(Keys().events) >= WARM + entries)
            acknowledged = acknowledged_at(client) if batch_size > 1 else 0.0
            first, last = ends(client)
    return last - first, acknowledged - first


def _is_ready(running: Daemon) -> bool:
    return running.get("/readyz")[0] == 200


def await_that(condition: Callable[[], bool]) -> None:
    """Wait until it holds. Raises RuntimeError after LIMIT."""
    until = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("it takes too long")
        time.sleep(POLL)


def acknowledged_at(client: "redis.Redis") -> float:
    """Wait until the group has acknowledged all events. Returns when that was, seconds on Redis's clock."""

    def acknowledged() -> bool:
        info: Any = client.xinfo_stream(Keys().events)
        (group,) = client.xinfo_groups(Keys().events)
        return bool(group["pending"] == 0 and group["last-delivered-id"] == info["last-generated-id"])

    await_that(acknowledged)
    seconds, micros = client.time()
    return float(seconds) + micros / 1e6


def ends(client: "redis.Redis") -> tuple[float, float]:
    """When the first event after the warm-up was added, and the last one, seconds on Redis's clock."""
    warm: Any = client.xrange(Keys().events, count=WARM + 1)
    newest: Any = client.xrevrange(Keys().events, count=1)
    return _seconds(warm[-1][0]), _seconds(newest[0][0])


def _seconds(stream_id: bytes) -> float:
    return int(stream_id.partition(b"-")[0]) / 1000


ROW = Row(
    "beside",
    "200,000 overdue entries (or OVERDUE_ENTRIES), one endpoint, receiver answering after 20 ms",
    "the last expiry of the same daemon without an endpoint",
    {
        "batches": Goal("at_most", 1.8, "last acknowledgement, batches of 100"),
        "roles": Goal("at_most", 1.4, "the same, sweep and delivery in a process each"),
        "sweep_beside_single": Goal("at_most", 1.5, "last expiry, single events delivered at the same time"),
    },
    measure,
)
