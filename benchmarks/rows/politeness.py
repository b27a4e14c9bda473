"""Measures whether a sweep that makes room for other clients still keeps up with the reservations that come due."""

import time
from collections.abc import Sequence
from statistics import quantiles

import redis

from benchmarks.fill import entry_id, fill
from benchmarks.foreign_load import foreign_load
from benchmarks.lab import WARM_FIRST, Lab
from benchmarks.row import Goal, Row, Sample
from sweeperd.config import SweepSettings
from tests.support.harness import daemon, environment

#: Reservations that come due in a second, and the share of Redis's time that other clients take.
RATE, FOREIGN = 3_000, 0.3
#: Before the first reservation comes due, seconds; and the longest wait for the last expiry after its deadline.
LEAD, LIMIT = 15.0, 120.0
#: How many events are read at once.
PAGE = 10_000
KEY = "sweeperd:events"


def measure(lab: Lab) -> Sample:
    """A daemon, a steady flow of reservations that come due, and other clients that keep Redis busy."""
    seconds = lab.size("seconds", 60, 5)
    entries = RATE * seconds
    lead = LEAD + entries / 10_000
    with lab.server() as server:
        fill(server.url, entries, due_ms=-int((lead + seconds) * 1000), spread_ms=seconds * 1000)
        with (
            redis.Redis.from_url(server.url) as client,
            foreign_load(server.url, FOREIGN),
            daemon(environment(server.url, reconcile__interval="", sweep__interval="1s"), lab.directory) as running,
        ):
            until = time.monotonic() + lead + seconds + LIMIT
            while client.zcard("reservation:ttl"):
                if time.monotonic() > until:
                    raise RuntimeError(f"{client.zcard('reservation:ttl')} of {entries} entries have not expired")
                time.sleep(0.2)
            running.terminate()
            lags = _lags(client, entry_id(WARM_FIRST))
    return Sample({"longest": max(lags) / SweepSettings().max_lag.total_seconds()}, _figures(lags))


def _figures(lags: Sequence[float]) -> dict[str, float]:
    return {"longest_lag_seconds": max(lags), "p99_lag_seconds": quantiles(lags, n=100)[98]}


def _lags(client: "redis.Redis", below: bytes) -> list[float]:
    """How long after its deadline each reservation with an id below this one expired, seconds."""
    lags: list[float] = []
    position = "-"
    while True:
        rows: list[tuple[bytes, dict[bytes, bytes]]] = client.execute_command(
            "XRANGE", KEY, position, "+", "COUNT", PAGE
        )
        if not rows:
            return lags
        lags += [
            (int(fields[b"expired_at"]) - int(fields[b"expires_at"])) / 1000
            for _, fields in rows
            if fields[b"id"] < below
        ]
        position = "(" + rows[-1][0].decode()


#: In `max_lag`s: a sweep begins up to a second after another, whatever it costs.
NOISE = 0.1

ROW = Row(
    "politeness",
    "reservations that come due at 3,000 a second while other clients take 30 % of Redis's time",
    "`sweep.max_lag`",
    {"longest": Goal("at_most", 1.0, noise=NOISE)},
    measure,
)
