"""Index pages to script decisions to a report."""

from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Backlog, Decision, GraceScan, Kind, Outcome, SweepReport, Words
from sweeperd.sweep.reservations import RESERVATIONS

__all__ = ["RESERVATIONS", "Backlog", "Decision", "GraceScan", "Kind", "Outcome", "SweepReport", "Words", "kinds_of"]
