"""
What `sweep.audit_spread` changes when the hashes of a large backlog reach their end.

Scaled down: the retention is seconds in place of 30 days, and the spread a larger share of it. Redis frees what has run
out ten times a second, for up to a quarter of its time; a client sets and reads one key, over and over. Tells the most
keys freed within a tenth of a second, for how long Redis was busy with nine tenths of them (it takes its time for the
last), and the p99 of that client meanwhile, as a multiple of its p99 before.
"""

import time

import redis

from benchmarks.foreground import p99
from benchmarks.lab import Lab
from benchmarks.row import Row, Sample
from sweeperd.store.embedded import Server

#: Seconds.
RETENTION, TENTH = 40, 0.1
SPREAD = 0.4


def measure(lab: Lab) -> Sample:
    """Without a spread, and with one."""
    entries = lab.size("entries", 50_000, 5_000)
    most, seconds, wait = _run_out(lab, entries, 0.0)
    spread_most, spread_seconds, spread_wait = _run_out(lab, entries, SPREAD)
    return Sample(
        {"freed_at_once": spread_most / most, "p99": spread_wait / wait},
        {
            "freed_in_a_tenth_of_a_second": most,
            "spread_freed_in_a_tenth_of_a_second": spread_most,
            "seconds": seconds,
            "spread_seconds": spread_seconds,
            "p99_times_that_before": wait,
            "spread_p99_times_that_before": spread_wait,
        },
    )


def _run_out(lab: Lab, entries: int, spread: float) -> tuple[int, float, float]:
    """Most keys freed in a tenth of a second, seconds from the first to the last, p99 meanwhile to p99 before."""
    with lab.overdue(entries) as server:
        lab.once(server, sweep__audit_retention=f"{RETENTION}s", sweep__audit_spread=spread, sweep__pipeline_depth=1000)
        return _watch(server, entries)


def _watch(server: Server, entries: int) -> tuple[int, float, float]:
    with redis.Redis.from_url(server.url) as client:
        before = p99(_latencies(client, 2))
        steps: list[int] = []
        meanwhile: list[float] = []
        last = _freed(client)
        while last < entries * 0.9:
            seen = _latencies(client, TENTH)
            now = _freed(client)
            if now > last:
                steps.append(now - last)
                meanwhile += seen
            last = now
    return max(steps), len(steps) * TENTH, p99(meanwhile) / before


def _freed(client: redis.Redis) -> int:
    """Keys that have run out and were freed so far."""
    return int(client.info("stats")["expired_keys"])


def _latencies(client: redis.Redis, seconds: float) -> list[float]:
    """Of a write and a read, one after the other for so long, in ms."""
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        client.set("foreground", "x")
        client.get("foreground")
        found.append((time.perf_counter() - started) * 1000)
    return found


ROW = Row(
    "audit",
    "hashes freed at once when a backlog's retention ends, `sweep.audit_spread` 0.4",
    "no spread",
    {},
    measure,
)
