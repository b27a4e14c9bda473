"""Notes the last tick of a kind in Redis, for operators and for the other processes."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import redis
from pydantic import Field

from sweeperd.document import Count, Moment, Seconds
from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.lease import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, Kind, Outcome, SweepReport
from sweeperd.text import decode

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

#: How late this process may hear of another process's note, seconds.
HEARD_LATE = 6.0
_FIELDS = (b"at", b"by", b"seconds", b"complete", b"expired", b"earlier_at", b"earlier_expired")


@dataclass(frozen=True, slots=True)
class LastSweep:
    """The last tick over a shard, by any process."""

    #: When the tick ended, ms on Redis's clock.
    at: Moment
    by: Annotated[str, Field(description="Host, process id and a random part.")]
    seconds: Seconds
    #: False if the tick stopped before the end of the due entries.
    complete: bool
    #: How many entries have expired in all, without the expiries that a process had not noted when the process died.
    expired: Annotated[Count, Field(description="All expiries so far.")]
    #: An earlier reading of that total, one to two minutes before the last tick, and the time of the reading, ms.
    earlier_expired: Count
    earlier_at: Moment

    def age_seconds(self, now_ms: int) -> float:
        """How far now is from the end of the tick. A tick in the future was noted before the clock was set back."""
        return abs(now_ms - self.at) / 1000


class LastSweepStore:
    """
    `sweeperd:ticks` of one kind, as one sweeping process writes the hash. Not to be shared by threads. A tick that
    changed nothing is noted only if the last note is `every` so many seconds old, another process's note twice as old.
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
        """The decisions of a batch, which count even if the tick fails later."""
        self._expired += sum(decision.outcome is Outcome.EXPIRED for decision in decisions)

    def heard(self, at_ms: int) -> None:
        """Another process noted a tick at this moment, ms on Redis's clock."""
        # A note from the future is of a time before the clock was set back, so it is as old at least.
        self._noted_at = time.monotonic() - abs(self._shard.clock.now_ms() - at_ms) / 1000
        self._is_ours = False

    def note(self, report: SweepReport, *, woken: bool = False, proven: bool = True) -> bool:
        """
        A tick has ended: one command, for people only. `proven`: whether the kind is, so that nothing is held. If
        Redis refuses the command (no rights, another type under the key), the sweep goes on without, and says so once.
        Returns whether the tick was noted. Raises RedisUnavailable.
        """
        age, limit = time.monotonic() - self._noted_at, self._every if self._is_ours else 2 * self._every + HEARD_LATE
        if not (report.changed or self._expired or (woken and report.candidates)) and age < limit:
            return False
        self._noted_at, self._is_ours = time.monotonic(), True
        expired, self._expired = self._expired, 0
        seconds, complete, seen = f"{report.duration_seconds:.3f}", int(report.complete), report.seen_ms or ""
        held = "" if proven or woken else report.counts.get(Outcome.HELD, 0)
        because = report.held_because
        args = (self._shard.clock.now_ms(), self._by, seconds, complete, expired, seen, held, because)
        with self._shard.reaching():
            try:
                self._script.run(self._shard.client, Call([self._key], args))
            except redis.ResponseError as error:
                if is_server_trouble(error):
                    raise
                self._expired += expired  # the refused command has counted nothing
                if not self._refusal_logged:
                    log.warning("ticks cannot be noted", extra={"shard": self._shard.name, "error": describe(error)})
                self._refusal_logged = True
                return False
        return True


def read_last_sweep(shard: Shard, kind: Kind) -> LastSweep | None:
    """None before the first tick, or if the hash cannot be read. Raises redis.RedisError."""
    row = cast(list[bytes | None], shard.client.hmget(kind.ticks, list(_FIELDS)))
    at, by, seconds, complete, expired, earlier_at, earlier_expired = row
    try:
        return LastSweep(
            int(at or b""),
            decode(by or b""),
            float(seconds or b""),
            complete == b"1",
            int(expired or b""),
            int(earlier_expired or b""),
            int(earlier_at or b""),
        )
    except ValueError:
        return None
