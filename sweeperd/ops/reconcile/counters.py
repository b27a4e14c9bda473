"""Defines how a walk feeds the counters that it compares."""

from collections.abc import Iterable

from sweeperd.ops.reconcile.report import Finding, Named
from sweeperd.ops.reconcile.subjects import Observation


class Counters:
    """
    The counters of a kind. A walk calls `begin`, `add` for each hash, `end`, `drifts`; a resumed walk only `drifts`.
    Methods raise Interrupted.
    """

    #: How often a walk with these counters visits each key at most.
    passes = 2
    #: Amounts that ended before this moment do not matter, ms. None: no amount matters.
    since_ms: int | None = None
    #: Counters that were compared, could not be judged, or are CLOSED.
    count = unjudged = closed = 0

    def __init__(self) -> None:
        #: Hashes whose amount cannot be read, and those that an operator dismissed, which are left out.
        self.unreadable, self.left_out = Named(), Named()

    def begin(self) -> None:
        """Called before the walk over the hashes."""

    def add(self, observation: Observation) -> None:
        """Called for each entry that holds amounts."""

    def end(self) -> None:
        """Called after the walk over the hashes."""

    def drifts(self) -> Iterable[Finding]:
        """The counters that differ from what the hashes hold."""
        return ()
