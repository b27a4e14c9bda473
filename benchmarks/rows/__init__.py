"""The one list of the rows, in the order of the table."""

from benchmarks.row import Row
from benchmarks.rows import delivery, throughput

ROWS: tuple[Row, ...] = (throughput.ROW, *delivery.ROWS)
