"""Settles events in Redis, many in one round trip, and keeps the log of attempts."""

import enum
import itertools
import logging
import operator
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd import progress
from sweeperd.delivery.lane import Lane
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import LogThrottle
from sweeperd.outbox import OutboxEntry
from sweeperd.store.errors import is_missing_group

log = logging.getLogger(__name__)


class Disposition(enum.IntEnum):
    """What happens to an event."""

    #: Delivered: acknowledge the event and count the delivery.
    ACKNOWLEDGE = enum.auto()
    #: Sent in vain: park the event, the wait begins now.
    NACK = enum.auto()
    #: Not sent: park the event, any process may take the event at once.
    RELEASE = enum.auto()
    #: Given up on: replace the event by a dead letter.
    DEAD_LETTER = enum.auto()


@dataclass(frozen=True, slots=True)
class Settlement:
    """One action for some events in hand."""

    action: Disposition
    entries: Sequence[OutboxEntry]
    #: Why, for a dead letter.
    reason: str = ""

    @property
    def ids(self) -> list[bytes]:
        return [entry.id for entry in self.entries]


class Acknowledger:
    """
    Gathers the settlements of one group. `run` is the work of a thread: write to Redis when `Lane.settled_together`
    settlements have gathered, or when the first has waited for `Timing.gather_settlements`. A round trip for each event
    would cost half as much as a request.

    If Redis is unavailable, the settlements stay in hand and are tried again until `end` is called. If an event is
    never settled, the event stays pending, and another process takes the event over and sends the event again.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._dead_letters = lane.metrics.webhooks.dead_letters.labels(lane.endpoint)
        self._waiting: list[Settlement] = []
        self._ended = False
        self._changed = threading.Condition(threading.Lock())
        self._counts: Counter[str] = Counter()
        self._said = LogThrottle()

    def add(self, settlement: Settlement) -> None:
        """Settle these events with the next round trip."""
        with self._changed:
            self._waiting.append(settlement)
            if len(self._waiting) in (1, self._lane.settled_together):
                self._changed.notify()

    def end(self) -> None:
        """No settlement follows: `run` settles the rest and returns."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by this process."""
        with self._changed:
            return Counter(self._counts)

    def run(self) -> None:
        """Settle until `end` is called and nothing waits."""
        while True:
            progress.rest()
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                self._changed.wait_for(self._enough, self._lane.timing.gather_settlements)
                settlements, self._waiting, last = self._waiting, [], self._ended
            progress.step()
            if settlements:
                self._settle(settlements, last=last)
            elif last:
                return

    def _enough(self) -> bool:
        return self._ended or len(self._waiting) >= self._lane.settled_together

    def _settle(self, settlements: list[Settlement], *, last: bool) -> None:
        left = sorted(settlements, key=operator.attrgetter("action"))
        try:
            with self._lane.shard.reaching():
                for action, group in itertools.groupby(tuple(left), operator.attrgetter("action")):
                    done = list(group)
                    self._write(action, done)
                    del left[: len(done)]
                    self._finish(done)
                self._lane.attempts.write()
        except RedisUnavailable as error:
            fields = self._lane.log_fields | {"events": sum(len(one.entries) for one in left), "error": str(error)}
            if not last:
                if self._said():
                    log.warning("events in hand wait to be settled", extra=fields)
                with self._changed:
                    self._waiting[:0] = left
                    self._changed.wait_for(lambda: self._ended, self._lane.timing.recovery_pause)
                return
            log.warning("events are left pending", extra=fields)
        except Exception as error:
            if is_missing_group(error):
                # A replay has ended. Or the group is lost: when the group is made again, the events come again.
                log.info("the group has gone before its events were settled", extra=self._lane.log_fields)
            else:
                log.exception("events could not be settled", extra=self._lane.log_fields)
        self._finish(left)  # if all went well, nothing is left

    def _finish(self, settlements: Sequence[Settlement]) -> None:
        self._lane.in_flight.remove([entry for settlement in settlements for entry in settlement.ids])

    def _write(self, action: Disposition, settlements: Sequence[Settlement]) -> None:
        entries = [entry for settlement in settlements for entry in settlement.entries]
        match action:
            case Disposition.ACKNOWLEDGE:
                self._lane.outbox.acknowledge(self._lane.group, [entry.id for entry in entries])
                self._count("delivered", len(entries))
            case Disposition.NACK:
                self._lane.outbox.nack(self._lane.group, entries)
            case Disposition.RELEASE:
                self._lane.outbox.release(self._lane.group, entries)
            case Disposition.DEAD_LETTER:
                for settlement in settlements:
                    self.give_up(settlement.entries, settlement.reason)

    def give_up(self, entries: Sequence[OutboxEntry], reason: str, owner: bytes | None = None) -> None:
        """Replace pending events by dead letters now. `owner`: as in `Outbox.give_up`. Raises redis.RedisError."""
        for entry in self._lane.outbox.give_up(self._lane.group, entries, reason, self._lane.endpoint, owner):
            self._count("dead_lettered", 1)
            self._dead_letters.inc()
            fields = {"stream_id": entry.id.decode(), "reason": reason, "hand_overs": entry.deliveries}
            log.error("given up: the event is a dead letter", extra=self._lane.log_fields | fields)

    def _count(self, name: str, count: int) -> None:
        with self._changed:
            self._counts[name] += count
