"""
`python -m benchmarks.audit`: what `sweep.audit_spread` changes when the hashes of a large backlog reach their end.

Scaled down: the retention is seconds in place of 30 days, and the spread a larger share of it. Redis frees what has run
out ten times a second, for up to a quarter of its time; a client sets and reads one key, over and over. Prints the most
keys freed within a tenth of a second, for how long Redis was busy with nine tenths of them (it takes its time for the
last), and the p99 of that client meanwhile, as a multiple of its p99 before.
"""

import os
import subprocess
import time
from statistics import median, quantiles

import redis

from sweeperd.embedded import Server, binaries
from tests.world import command, environment, reserve

ENTRIES, RETENTION, ROUNDS = 50_000, 40, 3
SPREADS = (0.0, 0.4)
SCOPES = [f"tenant:acme/{number}" for number in range(4)]
#: Seconds.
TENTH = 0.1


def freed(client: redis.Redis) -> int:
    """Keys that have run out and were freed so far."""
    return int(client.info("stats")["expired_keys"])


def latencies(client: redis.Redis, seconds: float) -> list[float]:
    """Of a write and a read, one after the other for so long, in ms."""
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        client.set("foreground", "x")
        client.get("foreground")
        found.append((time.perf_counter() - started) * 1000)
    return found


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100)[98]


def run(server: Server, spread: float) -> tuple[int, float, float]:
    """Most keys freed in a tenth of a second, seconds from the first to the last, p99 meanwhile to p99 before."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        client.config_resetstat()
        reserve(client, [f"{number:036d}" for number in range(ENTRIES)], scopes=SCOPES)
        env = environment(
            server.url,
            sweep__audit_retention=f"{RETENTION}s",
            sweep__audit_spread=spread,
            sweep__pipeline_depth=1000,
        )
        subprocess.run(command("--once", "--log-level", "error"), env=env, check=True, stdout=subprocess.DEVNULL)
        before = p99(latencies(client, 2))
        steps: list[int] = []
        meanwhile: list[float] = []
        last = freed(client)
        while last < ENTRIES * 0.9:
            seen = latencies(client, TENTH)
            now = freed(client)
            if now > last:
                steps.append(now - last)
                meanwhile += seen
            last = now
        return max(steps), len(steps) * TENTH, p99(meanwhile) / before


def main() -> None:
    """Measure on each Redis at hand."""
    print(f"{ENTRIES} hashes, {RETENTION} s of retention, {os.cpu_count()} cores, medians of {ROUNDS}")
    for binary in binaries():
        figures: dict[float, list[tuple[int, float, float]]] = {spread: [] for spread in SPREADS}
        for _ in range(ROUNDS):
            for spread, runs in figures.items():
                with Server(binary) as server:
                    runs.append(run(server, spread))
        for spread, runs in figures.items():
            most, seconds, ratio = (median(values) for values in zip(*runs, strict=True))
            print(
                f"{binary}: spread {spread:.0%}: at most {most:.0f} a tenth of a second, over {seconds:.1f} s,", end=""
            )
            print(f" foreground p99 {ratio:.1f} times what it was")


if __name__ == "__main__":
    main()
