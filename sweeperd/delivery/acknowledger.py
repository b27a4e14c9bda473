"""Settles events in Redis, many in one round trip, and keeps the log of attempts."""

import enum
import itertools
import logging
import operator
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd.delivery.lane import Lane
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox.event import OutboxEntry
from sweeperd.store.errors import is_missing_group

log = logging.getLogger(__name__)


class Disposition(enum.IntEnum):
    """What happens to an event."""

    #: It was delivered: acknowledge it and count it.
    ACKNOWLEDGE = enum.auto()
    #: The endpoint does not want it: acknowledge it, no request was made.
    SKIP = enum.auto()
    #: It was sent in vain: park it, its wait begins now.
    NACK = enum.auto()
    #: It was not sent: park it, any process may take it at once.
    RELEASE = enum.auto()
    #: It is given up on.
    DEAD_LETTER = enum.auto()


@dataclass(frozen=True, slots=True)
class Settlement:
    """One action for events that are in hand."""

    action: Disposition
    entries: Sequence[OutboxEntry]
    #: Why, for a dead letter.
    reason: str = ""

    @property
    def ids(self) -> list[bytes]:
        """The ids of its events."""
        return [entry.id for entry in self.entries]


class Acknowledger:
    """
    Gathers the settlements of one group. `run` is the work of a thread, which writes to Redis as soon as
    `Lane.settled_together` settlements have gathered, or the first has waited for `Timing.gather_settlements`. A round
    trip for each event would cost half as much as the event's request.

    If Redis is unavailable the settlements stay in hand and are tried again, until `end` was called. An event that
    could not be settled stays pending: the process that takes the event over later sends the event again.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._dead_letters = lane.metrics.webhooks.dead_letters.labels(lane.endpoint)
        self._waiting: list[Settlement] = []
        self._ended = False
        self._changed = threading.Condition(threading.Lock())
        self._counts: Counter[str] = Counter()

    def add(self, settlement: Settlement) -> None:
        """Settle these events soon."""
        with self._changed:
            self._waiting.append(settlement)
            if len(self._waiting) in (1, self._lane.settled_together):
                self._changed.notify()

    def end(self) -> None:
        """Nothing will be added any more: `run` settles what it has and returns."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by this process."""
        with self._changed:
            return Counter(self._counts)

    def run(self) -> None:
        """Settle until `end`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                self._changed.wait_for(
                    lambda: self._ended or len(self._waiting) >= self._lane.settled_together,
                    self._lane.timing.gather_settlements,
                )
                settlements, self._waiting, last = self._waiting, [], self._ended
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
                log.warning("events in hand wait to be settled", extra=fields)
                with self._changed:
                    self._waiting[:0] = left
                    self._changed.wait_for(lambda: self._ended, self._lane.timing.recovery_pause)
                return
            log.warning("events are left pending", extra=fields)
        except Exception as error:
            if is_missing_group(error):
                # A replay that was ended. Or the group is lost: once it is made again it gives them out again.
                log.info("the group has gone before its events were settled", extra=self._lane.log_fields)
            else:
                log.exception("events could not be settled", extra=self._lane.log_fields)
        self._finish(left)  # nothing is left if all went well

    def _finish(self, settlements: Sequence[Settlement]) -> None:
        """These are not in hand any more."""
        self._lane.in_flight.remove([entry for settlement in settlements for entry in settlement.ids])

    def _write(self, action: Disposition, settlements: Sequence[Settlement]) -> None:
        entries = [entry for settlement in settlements for entry in settlement.entries]
        match action:
            case Disposition.ACKNOWLEDGE | Disposition.SKIP:
                self._lane.outbox.acknowledge(self._lane.group, [entry.id for entry in entries])
                if action is Disposition.ACKNOWLEDGE:
                    self._count("delivered", len(entries))
            case Disposition.NACK:
                self._lane.outbox.nack(self._lane.group, entries)
            case Disposition.RELEASE:
                self._lane.outbox.release(self._lane.group, entries)
            case Disposition.DEAD_LETTER:
                for settlement in settlements:
                    self._dead_letter(settlement)

    def _dead_letter(self, settlement: Settlement) -> None:
        for entry in settlement.entries:
            if not self._lane.outbox.dead_letter(self._lane.group, entry, settlement.reason, self._lane.endpoint):
                continue  # another process has settled it, or has it in hand
            self._count("dead_lettered", 1)
            self._dead_letters.inc()
            log.error(
                "given up: the event is a dead letter",
                extra=self._lane.log_fields
                | {"stream_id": entry.id.decode(), "reason": settlement.reason, "hand_overs": entry.deliveries},
            )

    def _count(self, name: str, count: int) -> None:
        with self._changed:
            self._counts[name] += count
