"""Settles events in Redis: those of all lanes of a shard share each round trip."""

import enum
import itertools
import logging
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeperd import progress
from sweeperd.context import Timing
from sweeperd.delivery import cpu_policy
from sweeperd.delivery.lane import Lane
from sweeperd.logs import LogThrottle
from sweeperd.outbox import OutboxEntry
from sweeperd.store import Shard
from sweeperd.store.errors import is_missing_group
from sweeperd.store.operations import Operation, run_together

log = logging.getLogger(__name__)


class Disposition(enum.IntEnum):
    """What happens to an event."""

    #: Delivered: acknowledge the event and count the delivery.
    ACKNOWLEDGE = enum.auto()
    #: The delivery failed: park the event, the wait begins now.
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
    #: Whether the call that delivered them has acknowledged them, too.
    acknowledged: bool = False

    @property
    def ids(self) -> list[bytes]:
        return [entry.id for entry in self.entries]


class Settler:
    """
    Gathers the settlements of all lanes. `run` is the work of a thread: write to Redis when `together` settlements have
    gathered, or when the first has waited for `Timing.gather_settlements`. A round trip for each event would cost half
    as much as a request.

    If Redis is unavailable, the settlements stay in hand and are tried again until `end` is called. If an event is
    never settled, it stays pending, and another process takes it over and sends it again. `on_settled` is called with
    the lanes after each round trip.
    """

    def __init__(
        self, shard: Shard, timing: Timing, together: int, on_settled: Callable[[Sequence[Lane]], None]
    ) -> None:
        self._shard = shard
        self._timing = timing
        self.together = together
        self._on_settled = on_settled
        self._waiting: dict[Lane, list[Settlement]] = {}
        self._count = 0
        #: What Redis has refused, and when to try that again (monotonic).
        self._refused: dict[Lane, list[Settlement]] = {}
        self._again_at = 0.0
        self._ended = False
        self._changed = threading.Condition(threading.Lock())
        self._said = LogThrottle()

    def add(self, lane: Lane, settlements: Sequence[Settlement]) -> None:
        """Settle these events with the next round trip."""
        if not settlements:
            return
        with self._changed:
            before = self._count
            self._waiting.setdefault(lane, []).extend(settlements)
            self._count += len(settlements)
            if not before or before < self.together <= self._count:
                self._changed.notify()

    def end(self) -> None:
        """No settlement follows: `run` settles the rest and returns."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        """Settle until `end` is called and nothing waits."""
        while True:
            progress.rest()
            with self._changed:
                self._changed.wait_for(lambda: self._count or self._ended, self._until_again())
                if self._count:
                    self._changed.wait_for(self._enough, self._timing.gather_settlements)
                settlements, self._waiting, self._count, last = self._waiting, {}, 0, self._ended
            if self._refused and (last or not self._until_again()):
                for lane, refused in self._refused.items():
                    settlements[lane] = refused + settlements.get(lane, [])
                self._refused = {}
            progress.step()
            cpu_policy.follow(batch=bool(settlements) and all(lane.limits.events > 1 for lane in settlements))
            if settlements:
                self._settle(settlements, last=last)
            elif last:
                return

    def _until_again(self) -> float | None:
        return max(0.0, self._again_at - self._timing.clock()) if self._refused else None

    def _enough(self) -> bool:
        return self._ended or self._count >= self.together

    def _settle(self, settlements: dict[Lane, list[Settlement]], *, last: bool) -> None:
        lanes = list(settlements)
        left = [sorted(settlements[lane], key=operator.attrgetter("action")) for lane in lanes]
        outcomes = run_together(
            self._shard.client, [self._write(lane, mine) for lane, mine in zip(lanes, left, strict=True)]
        )
        for lane, mine, error in zip(lanes, left, outcomes, strict=True):
            if error is None:
                continue
            trouble = self._shard.unavailable(error)
            if trouble is not None:
                fields = lane.log_fields | {"events": sum(len(one.entries) for one in mine), "error": str(trouble)}
                lane.stall(error)
                if last:
                    log.warning("events are left pending", extra=fields)
                    self._finish(lane, mine)
                else:
                    if self._said():
                        log.warning("events in hand wait to be settled", extra=fields)
                    self._refused.setdefault(lane, []).extend(mine)
                    self._again_at = self._timing.clock() + self._timing.recovery_pause
            else:
                if is_missing_group(error):
                    # A replay has ended. Or the group is lost: when the group is made again, the events come again.
                    log.info("the group has gone before its events were settled", extra=lane.log_fields)
                else:
                    log.error("events could not be settled", extra=lane.log_fields, exc_info=error)
                self._finish(lane, mine)
        self._on_settled(lanes)

    def _write(self, lane: Lane, left: list[Settlement]) -> Operation[None]:
        """Write these settlements, in the order of their actions. What is written is removed from `left`."""
        for action, group in itertools.groupby(tuple(left), operator.attrgetter("action")):
            done = list(group)
            yield from self._act(lane, action, done)
            del left[: len(done)]
            self._finish(lane, done)
        yield from lane.attempts.write.part()

    def _finish(self, lane: Lane, settlements: Sequence[Settlement]) -> None:
        lane.in_flight.remove([entry for settlement in settlements for entry in settlement.ids])

    def _act(self, lane: Lane, action: Disposition, settlements: Sequence[Settlement]) -> Operation[None]:
        entries = [entry for settlement in settlements for entry in settlement.entries]
        match action:
            case Disposition.ACKNOWLEDGE:
                left = [entry for settlement in settlements if not settlement.acknowledged for entry in settlement.ids]
                yield from lane.outbox.acknowledge.part(lane.group, left)
                lane.count("delivered", len(entries))
            case Disposition.NACK:
                yield from lane.outbox.nack.part(lane.group, entries)
                lane.park(lane.redelivery.wait_ms(min(entry.deliveries for entry in entries)) / 1000)
            case Disposition.RELEASE:
                lane.park(0.0)
                yield from lane.outbox.release.part(lane.group, entries)
            case Disposition.DEAD_LETTER:
                by_reason: dict[str, list[OutboxEntry]] = {}
                for settlement in settlements:
                    by_reason.setdefault(settlement.reason, []).extend(settlement.entries)
                for reason, some in by_reason.items():
                    yield from lane.give_up(some, reason)
