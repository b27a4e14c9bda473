"""What all replicas and operators may know of the sweep: the last tick, by whom, and how much has expired in all."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import redis

from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.process import process_name
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import RESERVATIONS, Decision, Outcome, SweepReport
from sweeperd.text import decode

log = logging.getLogger(__name__)

_FIELDS = (b"at", b"by", b"seconds", b"complete", b"expired", b"earlier_at", b"earlier_expired")


@dataclass(frozen=True, slots=True)
class LastSweep:
    """The last tick over a shard, by any process."""

    #: When it ended, ms on Redis's clock.
    at_ms: int
    #: Host, process id and a random part.
    by: str
    seconds: float
    #: False where it stopped before the end of what was due.
    complete: bool
    #: How many entries have expired in all. What a process had not noted when it died is missing.
    expired: int
    #: An earlier reading of that total, one to two minutes before the last tick, and when it was taken, ms.
    earlier_expired: int
    earlier_at_ms: int

    def rate(self, now_ms: int) -> float:
        """How many have expired a second, from the earlier reading until now."""
        elapsed = now_ms - self.earlier_at_ms
        return 1000 * (self.expired - self.earlier_expired) / elapsed if elapsed > 0 else 0.0


class LastSweepStore:
    """`sweeperd:ticks`, as one sweeping process writes it. Not to be shared by threads."""

    def __init__(self, shard: Shard, kind: str = RESERVATIONS) -> None:
        self._shard = shard
        self._key = _key(shard, kind)
        self._script = Script("sweep/last_sweep")
        self._by = process_name()
        self._expired = 0
        self._refusal_logged = False

    def decided(self, decisions: Sequence[Decision]) -> None:
        """The decisions of a batch: they count, even where the tick fails later."""
        self._expired += sum(decision.outcome is Outcome.EXPIRED for decision in decisions)

    def note(self, report: SweepReport) -> None:
        """
        A tick has ended: one command. It is for people only, so where Redis refuses it (no rights, another type under
        the key) the sweep goes on without, and says so once. Raises RedisUnavailable.
        """
        expired, self._expired = self._expired, 0
        args = (self._shard.clock.now_ms(), self._by, f"{report.duration_seconds:.3f}", int(report.complete), expired)
        with self._shard.reaching():
            try:
                self._script.run(self._shard.client, Call([self._key], args))
            except redis.ResponseError as error:
                if is_server_trouble(error):
                    raise
                self._expired += expired  # it was refused, so nothing of it has been counted
                if not self._refusal_logged:
                    log.warning("ticks cannot be noted", extra={"shard": self._shard.name, "error": describe(error)})
                self._refusal_logged = True


def _key(shard: Shard, kind: str) -> bytes:
    return shard.keys.ticks if kind == RESERVATIONS else shard.keys.kind_ticks(kind)


def read_last_sweep(shard: Shard, kind: str = RESERVATIONS) -> LastSweep | None:
    """None where there is none, or where what is there cannot be read. Raises redis.RedisError."""
    row = cast(list[bytes | None], shard.client.hmget(_key(shard, kind), list(_FIELDS)))
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
