"""
`python -m benchmarks.reconcile`: the foreground's p99 beside a walk of `sweeperd reconcile`, and without one.

A ledger is called 500 times a second by a process of its own, on a Redis that holds 200,000 reservations. The walk is
the installed command, at its default rate, and niced, since all share one machine. It is stopped (SIGSTOP) every two
seconds for as long, so that whatever else the machine does strikes both alike. Each walk must find nothing. Prints the
p50 and p99 of the ledger's calls, and the ratio of the p99s. `--reservations`, `--rate`, `--rounds` scale it.
"""

import argparse
import bisect
import contextlib
import json
import multiprocessing
import signal
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
#: How long it walks or is stopped, in turn, and how much of the beginning of each does not count, seconds.
SPELL, EDGE = 2.0, 0.05
#: The goal, for the reader: the p99 beside a walk is at most so many times the quiet one.
GOAL = 1.5

#: walk or quiet, from, until.
Spell = tuple[str, float, float]


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
    time.sleep(2)
    rounds_seen = [walk(server, reservations) for _ in range(rounds)]
    ours.send("stop")
    calls = ours.recv()
    load.join()
    ratios = []
    for number, (seconds, spells) in enumerate(rounds_seen, 1):
        p99 = {}
        for kind in ("quiet", "walk"):
            took = [
                took * 1000
                for at, took in calls
                for name, began, ended in spells[bisect.bisect(spells, at, key=lambda spell: spell[1]) - 1 :][:1]
                if name == kind and began <= at < ended
            ]
            cuts = quantiles(took, n=100)
            p99[kind] = cuts[98]
            print(f"  {number}. {kind:5}  p50 {cuts[49]:6.3f} ms  p99 {cuts[98]:6.3f} ms  ({len(took)} calls)")
        ratios.append(p99["walk"] / p99["quiet"])
        print(f"  {number}. a walk of {seconds:.0f} s, without its pauses; p99 {ratios[-1]:.2f} times the quiet one")
    print(f"  {len(calls) / (calls[-1][0] - calls[0][0]):.0f} calls a second; ", end="")
    print(f"median of the ratios {median(ratios):.2f}; the goal is {GOAL}")


def walk(server: Server, reservations: int) -> tuple[float, list[Spell]]:
    """One walk, which finds nothing, in turns with quiet. Returns how long it ran, in seconds, and the spells."""
    spells: list[Spell] = []
    with subprocess.Popen(
        ["nice", *command("reconcile", "--json")], env=environment(server.url), stdout=subprocess.PIPE, text=True
    ) as process:
        running = True
        while process.poll() is None:
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SPELL)
            spells.append(("walk" if running else "quiet", began + EDGE, time.monotonic()))
            running = not running
            process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
    assert process.returncode == 0, told
    assert told["found"] == 0, told
    assert told["shards"][0]["reservations"] >= reservations, told
    return sum(ended - began for kind, began, ended in spells if kind == "walk"), spells


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
