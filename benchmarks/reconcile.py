"""
`python -m benchmarks.reconcile`: the foreground's p99 beside a walk of `sweeperd reconcile`, and without one.

A ledger is called 500 times a second by a process of its own, on a Redis that holds 200,000 reservations. Quiet spells
and walks take turns; the walk is the installed command, at its default rate, and niced, since all share one machine.
Each walk must find nothing. Prints the p50 and p99 of the ledger's calls, and the ratio of the p99s. `--reservations`,
`--rate`, `--rounds` scale it.
"""

import argparse
import json
import multiprocessing
import subprocess
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from statistics import median, quantiles

import redis

from sweeperd.config import RedisSettings
from sweeperd.embedded import Server, binaries
from sweeperd.ledger import Ledger
from sweeperd.shard import Shard
from tests.world import command, environment, reserve

SCOPES, UNIT = ("live", "live/a"), "TOKENS"
#: Seconds of quiet before each walk.
QUIET = 20.0
#: The goal, for the reader: the p99 beside a walk is at most so many times the quiet one.
GOAL = 1.5


def foreground(url: str, rate: float, pipe: Connection) -> None:
    """Reserve and commit or release in turn at this rate, until told to stop; then tell when each call began and how
    long it took, in seconds."""
    shard = Shard(RedisSettings.model_validate({"url": url}))
    ledger = Ledger(shard)
    calls: list[tuple[float, float]] = []
    started = time.monotonic()
    held: bytes | None = None
    number = 0
    while not pipe.poll():
        due = started + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        number += 1
        began = time.monotonic()
        key = str(number)
        if held is None:
            made = ledger.reserve("acme", SCOPES, UNIT, 5, ttl=timedelta(minutes=5), idempotency_key=key)
            held = made.reservation_id
        elif number % 4:
            ledger.commit("acme", held, 3, idempotency_key=key)
            held = None
        else:
            ledger.release("acme", held, idempotency_key=key)
            held = None
        calls.append((began, time.monotonic() - began))
    pipe.send(calls)
    shard.close()


def measure(server: Server, reservations: int, rate: float, rounds: int) -> None:
    """Walk `rounds` times and print."""
    with redis.Redis.from_url(server.url) as client:
        ids = [f"{number:036d}" for number in range(reservations)]
        # Their deadlines are far away, and they began before now.
        for start in range(0, reservations, 20_000):
            reserve(client, ids[start : start + 20_000], overdue_by=-50_000, scopes=[f"tenant:{n}" for n in range(4)])
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    for scope in SCOPES:
        Ledger(shard).open_budget(scope, UNIT, 10**12)
    shard.close()
    ours, theirs = multiprocessing.Pipe()
    load = multiprocessing.Process(target=foreground, args=(server.url, rate, theirs))
    load.start()
    spells: list[tuple[str, float, float]] = []
    time.sleep(2)
    for _ in range(rounds):
        began = time.monotonic()
        time.sleep(QUIET)
        spells.append(("quiet", began, time.monotonic()))
        began = time.monotonic()
        done = subprocess.run(
            ["nice", *command("reconcile", "--json")],
            env=environment(server.url),
            capture_output=True,
            text=True,
            check=True,
        )
        spells.append(("walk", began, time.monotonic()))
        told = json.loads(done.stdout)
        assert told["found"] == 0, told
        assert told["shards"][0]["reservations"] >= reservations, told
    ours.send("stop")
    calls = ours.recv()
    load.join()
    figures: dict[str, list[tuple[float, float]]] = {"quiet": [], "walk": []}
    for kind, began, ended in spells:
        took = [seconds * 1000 for at, seconds in calls if began <= at < ended]
        cuts = quantiles(took, n=100)
        figures[kind].append((cuts[49], cuts[98]))
    for kind, pairs in figures.items():
        p50, p99 = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        print(f"  {kind:5}  p50 {p50:6.3f} ms  p99 {p99:6.3f} ms")
    walks = [ended - began for kind, began, ended in spells if kind == "walk"]
    ratios = [walk[1] / quiet[1] for quiet, walk in zip(figures["quiet"], figures["walk"], strict=True)]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"  {len(calls) / (calls[-1][0] - calls[0][0]):.0f} calls a second; a walk took {median(walks):.0f} s")
    print(f"  p99 beside a walk, to the quiet p99 before it: {median(ratios):.2f} ({each}); the goal is {GOAL}")


def main() -> None:
    """Measure on each Redis at hand."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reservations", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for binary in binaries():
        print(f"{binary}, {options.reservations} reservations, median of {options.rounds}")
        with Server(binary) as server:
            measure(server, options.reservations, options.rate, options.rounds)


if __name__ == "__main__":
    main()
