"""Finds the pending events that are to be taken again, in bounded steps."""

import math
import time

from sweeperd.delivery.batches import InFlight
from sweeperd.delivery.groups import TAKE_OVER_AFTER, WAITING
from sweeperd.delivery.outbox import PAGE, Outbox, OutboxEntry, Pending
from sweeperd.delivery.redelivery import Redelivery

#: How many pages one step reads at most. A page takes the server a fraction of a millisecond.
PAGES_PER_STEP = 8
#: The time between two steps of a scan over many parked events, seconds.
SCAN_EVERY = 0.2


class DueScan:
    """
    Walks over the pending events of one endpoint again and again. Each step goes on where the last one stopped, so that
    a million parked events cost no more at a time than a few pages.
    """

    def __init__(self, endpoint: str, outbox: Outbox, redelivery: Redelivery, in_flight: InFlight) -> None:
        self._endpoint = endpoint
        self._outbox = outbox
        self._redelivery = redelivery
        self._in_flight = in_flight
        # A released event (0 deliveries) has no wait; it was released with a long idle time.
        self._least_idle_ms = int(min(redelivery.initial, TAKE_OVER_AFTER) * 1000)
        #: The last event that was passed; None before the first.
        self._after: bytes | None = None
        self._next_at = 0.0
        #: When to look for orphaned events by themselves.
        self._orphaned_at = 0.0
        #: Where there is room for one event only, parked and new ones take turns.
        self._turn = 0
        #: When an operator last ended all waits, as this process learnt it (monotonic).
        self._waits_ended_at: float | None = None

    @property
    def at_start(self) -> bool:
        """Whether the last step came to the end, and the next one begins anew."""
        return self._after is None

    @property
    def due(self) -> bool:
        """Whether it is time for the next step."""
        return time.monotonic() >= self._next_at

    def hurry(self) -> None:
        """Events have become due: make the next step at once."""
        self._next_at = 0.0

    def end_waits(self) -> None:
        """
        An operator has made all parked events due. What was parked since then, before this process learnt of it, was
        sent before the receiver was back: it does not wait either.
        """
        self._waits_ended_at = time.monotonic()
        self.hurry()

    def take(self, room: int, pause: float) -> list[OutboxEntry]:
        """
        Take the events of one step; half of the room is left to new events. `pause`: how long to wait after a scan that
        came to its end, seconds. Raises redis.RedisError.
        """
        self._turn = 1 - self._turn
        due = self.step((room + self._turn) // 2)
        if due:
            self.hurry()  # there may be more
        else:
            self._next_at = time.monotonic() + (pause if self.at_start else SCAN_EVERY)
        # An event that another replica has taken and parked again since then is idle for less than any wait.
        return self._outbox.claim(self._endpoint, due, self._least_idle_ms)

    def take_orphaned(self, room: int, pause: float) -> list[OutboxEntry]:
        """
        Take events whose process is dead, and nothing else: a page of them, when it is time. `pause`: how long to wait
        where there are none, seconds. Raises redis.RedisError.
        """
        if time.monotonic() < self._orphaned_at:
            return []
        orphaned = self._outbox.orphaned(self._endpoint, self._in_flight, min(PAGE, room))
        entries = self._outbox.claim(self._endpoint, orphaned, int(TAKE_OVER_AFTER * 1000))
        more = any(entry.pairs for entry in entries)
        self._orphaned_at = 0.0 if more else time.monotonic() + pause
        return entries

    def step(self, count: int) -> list[Pending]:
        """The next due events, `count` at most: parked with their wait over, or in the hands of a dead process."""
        due: list[Pending] = []
        for _ in range(PAGES_PER_STEP):
            parked_before_end_ms = self._ms_since_waits_ended()
            page = self._outbox.pending(self._endpoint, self._after)
            for pending in page:
                if len(due) == count:
                    return due
                self._after = pending.id
                if self._due(pending, parked_before_end_ms):
                    due.append(pending)
            if len(page) < PAGE:
                self._after = None
                break
        return due

    def _ms_since_waits_ended(self) -> float:
        """An event that has been parked for so long needs no further wait, ms. `take` claims none that is younger."""
        if self._waits_ended_at is None:
            return math.inf
        return max(self._least_idle_ms, (time.monotonic() - self._waits_ended_at) * 1000)

    def _due(self, pending: Pending, parked_before_end_ms: float) -> bool:
        if pending.id in self._in_flight:
            return False  # also where it waits: it is being parked, and is in hand no more once that is done
        if pending.owner not in WAITING:
            return pending.idle_ms >= TAKE_OVER_AFTER * 1000
        return pending.idle_ms >= min(self._redelivery.wait_ms(pending.deliveries), parked_before_end_ms)
