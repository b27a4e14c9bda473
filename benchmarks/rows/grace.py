"""Measures a tick over entries in grace, which each tick looks at."""

import threading

from benchmarks import raw
from benchmarks.fill import fill
from benchmarks.lab import Lab
from benchmarks.process import apart
from benchmarks.row import Goal, Row, Sample
from benchmarks.rows.throughput import BATCH
from sweeperd.config import RedisSettings, SweepSettings
from sweeperd.metrics import Metrics
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Outcome
from sweeperd.sweep.reservations import reservations
from sweeperd.sweep.sweeper import Sweeper
from sweeperd.sweep.telemetry import SweepTelemetry

HOUR_MS = 3_600_000


def measure(lab: Lab) -> Sample:
    """A tick of a sweeper, and a script call for each entry over a raw socket; neither changes anything."""
    entries = lab.size("entries", 50_000, 10_000)
    with lab.server() as server:
        fill(server.url, entries, grace_ms=HOUR_MS)
        ours = apart(tick, server.url, entries)
        calls = apart(raw.sweep, server.url, entries, length=BATCH, ahead=2, marker=raw.IN_GRACE)
    return Sample({"tick": ours / calls}, {"tick_seconds": ours, "calls_seconds": calls})


def tick(url: str, entries: int) -> float:
    """Seconds of the second tick of a sweeper whose decisions are told as the daemon tells them."""
    shard = Shard(RedisSettings.model_validate({"url": url}))
    settings = SweepSettings()
    kind = reservations(shard.keys, settings)
    audit = SweepTelemetry(Metrics(), shard.name, kind)
    sweeper = Sweeper(shard, kind, settings, audit.decided, threading.Event())
    sweeper.tick()
    report = sweeper.tick()
    shard.close()
    if report.counts[Outcome.IN_GRACE] != entries or not report.complete:
        raise RuntimeError(f"{entries} entries are in grace, and the tick told of {dict(report.counts)}")
    return report.duration_seconds


ROW = Row(
    "grace",
    "a tick over 50,000 entries in grace",
    "a script call for each, encoded beforehand, over a raw socket",
    {"tick": Goal("at_most", 0.25)},
    measure,
)
