"""Decides the due entries of each kind's index, and reports each tick."""

from sweeperd.sweep.backlog import Backlog
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.kind import Decision, GraceScan, Kind, Labels, Outcome, SweepReport
