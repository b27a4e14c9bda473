"""Index pages to script decisions to a report."""

from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Backlog, Decision, GraceScan, Kind, Outcome, SweepReport, Words

__all__ = ["Backlog", "Decision", "GraceScan", "Kind", "Outcome", "SweepReport", "Words", "kinds_of"]
