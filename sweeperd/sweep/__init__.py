"""Index pages to script decisions to a report."""

from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Backlog, Decision, GraceScan, Kind, Labels, Outcome, SweepReport

__all__ = ["Backlog", "Decision", "GraceScan", "Kind", "Labels", "Outcome", "SweepReport", "kinds_of"]
