"""
The foreground's p99 beside a walk of `sweeperd reconcile`, and without one.

A ledger is called 500 times a second by a process of its own, on a Redis that holds 200,000 reservations. The walk is
the installed command, at its default rate, and niced, since all share one machine. It is stopped (SIGSTOP) every two
seconds for as long, so that whatever else the machine does strikes both alike. It must find nothing. It takes minutes,
so it runs only where it is asked for.
"""

import contextlib
import json
import signal
import subprocess
import time

from benchmarks.fill import fill
from benchmarks.foreground import Foreground, milliseconds, p99
from benchmarks.lab import Lab
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.embedded import Server
from tests.support.harness import command, environment

RATE = 500.0
#: How long it walks or is stopped, in turn, and how much of the beginning of each does not count, seconds.
SPELL, EDGE = 2.0, 0.05
#: The foreground warms up for so long, seconds.
WARM_UP = 2.0
#: The deadlines are so far away, ms: they must have begun before now.
AWAY_MS = 50_000

#: Whether it walks, from, until.
Spell = tuple[bool, float, float]


def measure(lab: Lab) -> Sample:
    """One walk."""
    reservations = lab.size("reservations", 200_000, 5_000)
    with lab.server() as server, Foreground(server.url, RATE, settles=True) as load:
        fill(server.url, reservations, due_ms=-AWAY_MS)
        time.sleep(WARM_UP)
        spells = walk(server, reservations)
        calls = load.stop()
    beside, quiet = (
        [took for walks, *span in spells if walks is wanted for took in milliseconds(calls, *span)]
        for wanted in (True, False)
    )
    return Sample(
        {"p99": p99(beside) / p99(quiet)},
        {
            "p99_ms": p99(beside),
            "quiet_p99_ms": p99(quiet),
            "walk_seconds": sum(ended - began for walks, began, ended in spells if walks),
            "calls_per_second": (len(calls) - 1) / (calls[-1].at - calls[0].at),
        },
    )


def walk(server: Server, reservations: int) -> list[Spell]:
    """One walk, which finds nothing, in turns with quiet. Returns the spells."""
    spells: list[Spell] = []
    with subprocess.Popen(
        ["nice", *command("reconcile", "--json")], env=environment(server.url), stdout=subprocess.PIPE, text=True
    ) as process:
        walks = True
        while process.poll() is None:
            began = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SPELL)
            spells.append((walks, began + EDGE, time.monotonic()))
            walks = not walks
            process.send_signal(signal.SIGCONT if walks else signal.SIGSTOP)
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
    if process.returncode or told["found"] or told["shards"][0]["hashes"] < reservations:
        raise RuntimeError(f"the walk ended with {process.returncode} and found {told}")
    return spells


ROW = Row(
    "reconcile",
    "p99 of a ledger's call beside a walk of `reconcile`",
    "its p99 while the walk is stopped",
    {"p99": Goal("at_most", 1.5)},
    measure,
    on_request=True,
)
