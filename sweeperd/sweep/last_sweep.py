"""Records the last tick of a kind in Redis, for operators and other processes."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import redis
from pydantic import Field

from sweeperd.document import Count, Moment, Seconds
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.lease import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Kind, Outcome, SweepReport
from sweeperd.text import decode

log = logging.getLogger(__name__)

#: How long another process's note may take to reach this process, seconds.
NOTE_DELAY = 6.0
_FIELDS = (b"at", b"by", b"seconds", b"complete", b"expired", b"earlier_expired", b"earlier_at")


@dataclass(frozen=True, slots=True)
class LastSweep:
    """The last tick of a kind, by any process."""

    #: When the tick ended, ms on Redis's clock.
    at: Moment
    by: Annotated[str, Field(description="Host, process id and a random part.")]
    seconds: Seconds
    #: Whether the tick reached the end of the due entries.
    complete: bool
    #: All expiries so far, without those that a process had not noted when it died.
    expired: Annotated[Count, Field(description="All expiries so far.")]
    #: The total one to two minutes before the last tick, and when it was read, ms.
    earlier_expired: Count
    earlier_at: Moment

    def age_seconds(self, now_ms: int) -> float:
        """Since the end of the tick. A tick in the future was noted before the clock was set back."""
        return abs(now_ms - self.at) / 1000


class LastSweepStore:
    """
    Writes `sweeperd:ticks` of one kind for one process. Not thread-safe. A tick that changed nothing is noted only if
    this process's last note is `every` seconds old, or another process's note twice as old.
    """

    def __init__(self, shard: Shard, kind: Kind, every: float = 0.0) -> None:
        self._shard = shard
        self._every = every
        #: When the last tick was noted, monotonic.
        self._noted_at = -math.inf
        self._is_ours = True
        self._key = kind.ticks
        self._script = Script("sweep/last_sweep")
        self._by = process_name()
        self._expired = 0
        self._refusal_logged = False

    def decided(self, decisions: Sequence[Decision]) -> None:
        """Count a batch, even if the tick fails later."""
        self._expired += sum(decision.outcome is Outcome.EXPIRED for decision in decisions)

    def noted_elsewhere(self, at_ms: int) -> None:
        """Another process noted a tick at this time, ms on Redis's clock."""
        # A note from the future was written before the clock was set back, so it is at least that old.
        self._noted_at = time.monotonic() - abs(self._shard.clock.now_ms() - at_ms) / 1000
        self._is_ours = False

    def note(self, report: SweepReport, *, woken: bool = False, proven: bool = True) -> bool:
        """A tick has ended. `proven`: nothing is held. Returns whether it was noted. Raises RedisUnavailable."""
        age, limit = time.monotonic() - self._noted_at, self._every if self._is_ours else 2 * self._every + NOTE_DELAY
        if not (report.changed or self._expired or (woken and report.candidates)) and age < limit:
            return False
        self._noted_at, self._is_ours = time.monotonic(), True
        expired, self._expired = self._expired, 0
        args: list[bytes | str | int] = [self._shard.clock.now_ms(), expired, "by", self._by]
        args += ["seconds", f"{report.duration_seconds:.3f}", "complete", int(report.complete)]
        if report.seen_ms:
            args += ["seen", report.seen_ms]
        if not woken:  # a woken tick does not decide all due entries
            args += ["deferred", report.counts.get(Outcome.DEFERRED, 0)]
        if not (woken or proven):
            args += ["held", report.counts.get(Outcome.HELD, 0), "held_because", report.held_because]
        with self._shard.reaching():
            try:
                self._script.run(self._shard.client, Call([self._key], args))
            except redis.ResponseError as error:
                if is_server_trouble(error):
                    raise
                self._expired += expired
                if not self._refusal_logged:
                    log.warning("ticks cannot be noted", extra={"shard": self._shard.name, "error": describe(error)})
                self._refusal_logged = True
                return False
        return True


def read_last_sweep(shard: Shard, kind: Kind) -> LastSweep | None:
    """None before the first tick, or if the hash cannot be read. Raises redis.RedisError."""
    row = cast(list[bytes | None], shard.client.hmget(kind.ticks, list(_FIELDS)))
    at, by, seconds, complete, *counts = (value or b"" for value in row)
    try:
        expired, earlier_expired, earlier_at = map(int, counts)
        return LastSweep(int(at), decode(by), float(seconds), complete == b"1", expired, earlier_expired, earlier_at)
    except ValueError:
        return None
