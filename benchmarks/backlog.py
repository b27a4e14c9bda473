"""
`python -m benchmarks.backlog`: what one `--once` over 100,000 overdue reservations takes beside one over 5,000.

Prints entries a second and peak memory of each, from the operating system's account of the finished process.
"""

import os
import subprocess
import time
from statistics import median

import redis

from sweeperd.embedded import Server, binaries
from tests.world import command, environment, reserve

SMALL, LARGE, ROUNDS = 5_000, 100_000, 3


def drain(server: Server, entries: int) -> tuple[float, float]:
    """Seconds and peak MiB of one `--once` over so many entries."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        reserve(client, [f"{number:036d}" for number in range(entries)], scopes=[f"tenant:acme/{n}" for n in range(4)])
        started = time.monotonic()
        process = subprocess.Popen(
            command("--once", "--json", "--log-level", "warning"),
            env=environment(server.url),
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        assert os.waitstatus_to_exitcode(status) == 0
        assert client.xlen("sweeperd:events") == entries
        return seconds, usage.ru_maxrss / 1024


def main() -> None:
    """Measure on each Redis at hand."""
    for binary in binaries():
        figures: dict[int, list[tuple[float, float]]] = {SMALL: [], LARGE: []}
        for _ in range(ROUNDS):
            for entries, runs in figures.items():
                with Server(binary) as server:
                    runs.append(drain(server, entries))
        print(f"{binary}, four budgets an entry, median of {ROUNDS}")
        for entries, runs in figures.items():
            seconds, memory = median(run[0] for run in runs), median(run[1] for run in runs)
            print(
                f"  {entries:>7} entries  {seconds:6.2f} s  {entries / seconds:7.0f} a second  peak {memory:5.1f} MiB"
            )
        ratio = median(run[1] for run in figures[LARGE]) / median(run[1] for run in figures[SMALL])
        print(f"  peak memory, {LARGE} to {SMALL}: {ratio:.2f}")


if __name__ == "__main__":
    main()
