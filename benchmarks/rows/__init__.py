"""The one list of the rows, in the order of the table."""

from benchmarks.row import Row
from benchmarks.rows import (
    audit,
    backlog,
    cost,
    delivery,
    expire,
    foreground,
    grace,
    idle,
    ledger,
    parked,
    peers,
    politeness,
    reconcile,
    relay,
    start,
    throughput,
    tracing,
)

ROWS: tuple[Row, ...] = (
    throughput.ROW,
    peers.ROW,
    foreground.ROW,
    politeness.ROW,
    expire.ROW,
    backlog.ROW,
    grace.ROW,
    idle.ROW,
    ledger.ROW,
    delivery.ROW,
    delivery.PROCESSES,
    parked.ROW,
    start.ROW,
    cost.BY_BATCHES,
    cost.BY_SCOPES,
    audit.ROW,
    reconcile.ROW,
    relay.ROW,
    tracing.ROW,
)
