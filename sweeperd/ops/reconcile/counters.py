"""Defines what a walk needs of counters."""

from collections.abc import Iterable

from sweeperd.ops.reconcile.report import Finding
from sweeperd.ops.reconcile.subjects import Observation


class Counters:
    """
    The counters of a subject in one walk: `begin`, then `see` for each hash, then `end`, then `drifts`. If a walk goes
    on from a cursor, only `drifts` is called. Methods raise RedisUnavailable, redis.RedisError, Interrupted.
    """

    #: How often a walk with these counters visits each key at most.
    passes = 2
    #: ms: amounts that ended before this moment do not matter. None: no amount matters.
    since_ms: int | None = None
    #: How many counters were compared; not judged; CLOSED, so not compared; and hashes whose amount cannot be read.
    count = unjudged = closed = unreadable = 0

    def begin(self) -> None:
        """Before the walk over the hashes."""

    def see(self, observation: Observation) -> None:
        """An entry of the walk that holds amounts."""

    def end(self) -> None:
        """After the walk over the hashes."""

    def drifts(self) -> Iterable[Finding]:
        """The counters that are not what the hashes hold."""
        return ()
