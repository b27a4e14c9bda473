"""Measures how long a client of the ledger waits while a backlog drains."""

import time

import redis

from benchmarks.fill import check_books, fill
from benchmarks.foreground import Foreground, LedgerCall, milliseconds, p99, steps
from benchmarks.lab import WARM, Lab
from benchmarks.row import Goal, Row, Sample
from benchmarks.strangers import strangers
from sweeperd.store.embedded import Server
from sweeperd.store.keys import Keys
from tests.support.harness import daemon, environment

#: Reserves a second.
RATE = 500.0
#: Around a change of what goes on, this much does not count, seconds.
EDGE = 1.5
#: Entries that `fill` writes a second, at the very least.
FILL_RATE = 10_000
#: From look to look at the backlog, and how much longer than the drain is plotted, seconds.
LOOK, MARGIN = 0.05, 2.0
#: The calls are summed up over this many seconds for the plot.
STEP = 0.1
#: The longest that a drain may take, seconds.
LIMIT = 300.0


def measure(lab: Lab) -> Sample:
    """
    A daemon over an index in which nothing is due, and then everything at once; the ledger is called all the while.

    Before the drain, while the daemon is still idle, two strangers to Redis are busy for a while: what the ledger's
    calls wait then is the machine's part. The daemon's walk over all reservations is off: it has a row of its own.
    So is the hurry of a sweep that is late, which the row `politeness` measures.
    """
    entries = lab.size("entries", 100_000, 5_000)
    idle_for = lab.size("idle_seconds", 10, 2)
    with (
        lab.server() as server,
        daemon(environment(server.url, reconcile__interval="", sweep__max_lag="1h"), lab.directory) as running,
        Foreground(server.url, RATE) as load,
    ):
        lead = entries / FILL_RATE + 2 * idle_for + 4 * EDGE
        due_at = time.monotonic() + lead
        # All at one moment, or a tick might find a part of them, and the next come seconds later.
        fill(server.url, entries, due_ms=-int(lead * 1000), spread_ms=0)
        idle = (time.monotonic() + EDGE, due_at - idle_for - 2 * EDGE)
        crowded = (idle[1] + EDGE, due_at - EDGE)
        time.sleep(idle[1] - time.monotonic())
        with strangers(2):
            time.sleep(crowded[1] - time.monotonic())
        time.sleep(max(0.0, due_at - time.monotonic()))
        backlog = watch(server, entries)
        time.sleep(MARGIN)
        calls = load.stop()
        running.terminate()
        check_books(server.url, WARM + entries)
    drain = (backlog[0][0], backlog[-1][0])
    quiet, beside, busy = (milliseconds(calls, *span) for span in (idle, crowded, drain))
    return Sample(
        {"p99": p99(busy) / p99(quiet)},
        {
            "p99_ms": p99(busy),
            "idle_p99_ms": p99(quiet),
            "idle_p99_ms_beside_strangers": p99(beside),
            "drain_seconds": drain[1] - drain[0],
            "entries_per_second": entries / (drain[1] - drain[0]),
        },
        _series(backlog, calls),
    )


def watch(server: Server, entries: int) -> list[tuple[float, int]]:
    """(monotonic, entries left) from the last look at which nothing had expired yet to the end."""
    found: list[tuple[float, int]] = []
    until = time.monotonic() + LIMIT
    with redis.Redis.from_url(server.url) as client:
        while not found or found[-1][1]:
            if time.monotonic() > until:
                raise RuntimeError(f"after {LIMIT:g} s {found[-1][1]} entries are left")
            left = WARM + entries - client.xlen(Keys().events)
            if left == entries:
                found.clear()
            found.append((time.monotonic(), left))
            time.sleep(LOOK)
    return found


def _series(backlog: list[tuple[float, int]], calls: list[LedgerCall]) -> dict[str, list[float]]:
    """Times count from the beginning of the drain."""
    began, ended = backlog[0][0], backlog[-1][0]
    shown = [call for call in calls if began - 2 * MARGIN <= call.at < ended + MARGIN]
    summed = steps([LedgerCall(call.at - began, call.seconds) for call in shown], STEP)
    return {
        "left_at_seconds": [at - began for at, _ in backlog],
        "entries_left": [float(left) for _, left in backlog],
        "call_at_seconds": [step.at for step in summed],
        "call_median_ms": [step.median_ms for step in summed],
        "call_longest_ms": [step.longest_ms for step in summed],
    }


ROW = Row(
    "foreground",
    "p99 of a foreground reserve while 100,000 entries drain",
    "its p99 with the sweeper idle",
    {
        "p99": Goal("at_most", 5),
        "p99_ms": Goal("at_most", 5, against="5 ms, whatever it is when idle"),
    },
    measure,
)
