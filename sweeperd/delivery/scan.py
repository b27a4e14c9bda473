"""Finds the pending events of a lane that are due again: parked ones, those of dead processes, and probes."""

import math
from collections.abc import Sequence

from sweeperd.delivery.lane import Lane
from sweeperd.delivery.order import OrderedQueue
from sweeperd.outbox import PAGE, PARKED, PARKED_ALONE, Outbox, OutboxEntry, Pending, Subscription, is_waiting
from sweeperd.outbox.filters import RELEASED
from sweeperd.store.operations import Operation
from sweeperd.store.streams import StreamId


class ProbeChooser:
    """
    Rotates the probes of one endpoint: if the receiver cannot take some event, this event does not keep the circuit
    open. Events that were never sent come first, then the event with the fewest deliveries of a page. Each choice takes
    the next page of parked events; with an order, the oldest events of the next keys. If there is another event, the
    same event is not chosen twice in a row.
    """

    def __init__(self, subscription: Subscription, outbox: Outbox, order: OrderedQueue | None = None) -> None:
        self._subscription = subscription
        self._group = subscription.group
        self._order = order
        self._outbox = outbox
        self._after: bytes | None = None
        self._last: bytes | None = None

    def take(self, count: int) -> Operation[tuple[list[OutboxEntry], list[OutboxEntry]]]:
        """
        Take the next probe: up to `count` new events, of which the first wanted one is the probe; and a parked event if
        none of them is wanted. Nothing if nothing waits. Raises redis.RedisError.
        """
        chosen = yield from self._choose()
        new: list[OutboxEntry] = []
        parked: list[OutboxEntry] = []
        if (chosen is None or chosen.deliveries or chosen.id == self._last) and self._may_read:
            new = yield from self._outbox.read.part(self._group, count)
        wanted = next(filter(self._may_send, new), None)
        if wanted is None and chosen is not None:
            parked = yield from self._outbox.claim.part(self._group, [chosen], 0)
            wanted = next(iter(parked), None)
        self._last = wanted.id if wanted else None
        return new, parked

    @property
    def _may_read(self) -> bool:
        return not self._subscription.exhausted and (self._order is None or self._order.reads)

    def _may_send(self, entry: OutboxEntry) -> bool:
        return self._subscription.wants(entry) and (self._order is None or self._order.leads(entry))

    def _choose(self) -> Operation[Pending | None]:
        if self._order is not None:
            heads = self._order.heads(HEADS)
            states = yield from self._outbox.states.part(self._group, heads)
            for entry in heads:
                if entry not in states:
                    self._order.forget(entry)
            page = [pending for pending in states.values() if pending.owner in (PARKED, PARKED_ALONE)]
            return min(page, key=self._rank, default=None)
        page = yield from self._outbox.parked.part(self._group, self._after)
        if not page and self._after is not None:
            page = yield from self._outbox.parked.part(self._group)
        self._after = page[-1].id if len(page) == PAGE else None
        return min(page, key=self._rank, default=None)

    def _rank(self, pending: Pending) -> tuple[bool, int]:
        return pending.id == self._last, pending.deliveries


#: Among how many keys a probe is chosen.
HEADS = 16
#: With an order, how often the next event of a key is looked at while another process has it in hand, and while it
#: waits: an operator may skip it. Seconds.
SETTLING, WAITING = 1.0, 30.0
#: How many pages a step reads at most. A page takes the server a fraction of a millisecond.
PAGES_PER_STEP = 8
#: The pause between two scans, seconds for each page of the first: scans take less than a twentieth of a core.
PAUSE_PER_PAGE = 0.02
#: While the brake holds events, a step takes up to this many, because there is room for a few.
BRAKED = 200


class DueScan:
    """
    Walks over the pending events of one endpoint again and again. Each step goes on after the end of the last step, so
    a million parked events cost no more at a time than a few pages.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        #: A process without a heartbeat for this long, ms, counts as dead.
        self._dead_ms = int(lane.timing.take_over_after * 1000)
        # A released event (0 deliveries) has no wait, and was released with a long idle time.
        self._least_idle_ms = min(int(lane.redelivery.initial * 1000), self._dead_ms)
        #: The last event passed; None before the first.
        self._after: bytes | None = None
        self._next_at = 0.0
        #: Of this scan: how many pages it has read, and when the next wait ends that it has seen, ms.
        self._pages, self._soonest_ms = 0, math.inf
        #: The next scan does not begin earlier, whatever is due.
        self._not_before = 0.0
        #: When `take_orphaned` looks again.
        self._orphaned_at = 0.0
        #: If there is room for a single event, parked and new events take turns.
        self._turn = 0
        #: Whether the last step has found an event.
        self._found = False
        #: When this process learnt that an operator ended all waits (monotonic).
        self._waits_ended_at: float | None = None

    @property
    def at_start(self) -> bool:
        """Whether the last step came to the end, and the next step begins anew."""
        return self._after is None

    @property
    def due_at(self) -> float:
        """When the next step is worth making (monotonic)."""
        if self._lane.brake.waiting:
            return self._lane.brake.until
        return min(self._next_at, max(self._lane.due_at, self._not_before))

    def learn(self) -> Operation[bool]:
        """Learn what is pending, if the order needs it. Returns whether there was anything to do."""
        yield from ()
        return False

    def released(self, _entries: Sequence[OutboxEntry]) -> None:
        """These events are due again."""
        self.hurry()

    def hurry(self) -> None:
        """Events have become due: make the next step at once."""
        self._next_at = 0.0

    def end_waits(self) -> None:
        """
        An operator has made all parked events due. If an event was parked since, but before this process learnt of the
        order, the event was sent before the receiver was back, and does not wait either.
        """
        self._waits_ended_at = self._lane.timing.clock()
        self.hurry()

    def take(self, room: int, pause: float) -> Operation[list[OutboxEntry]]:
        """
        Take the events of one step; half of the room is left to new events. `pause`: how long to wait at the end of a
        scan, seconds. Raises redis.RedisError.
        """
        self._turn = 1 - self._turn
        if self._lane.brake.waiting:
            room = min(room, BRAKED)
            if self._found:
                self._after = None  # the oldest events come first
            self._lane.brake.hold()
        if self.at_start:
            self._pages, self._soonest_ms, self._lane.due_at = 0, math.inf, math.inf
        due = yield from self.step((room + self._turn) // 2)
        self._found = bool(due)
        now = self._lane.timing.clock()
        self._not_before = now + self._pages * PAUSE_PER_PAGE
        if due:
            self.hurry()  # there may be more
        elif self.at_start:
            self._next_at = min(now + pause, max(now + self._soonest_ms / 1000, self._not_before))
        else:
            self._next_at = now + self._lane.timing.scan_every
        # If another replica has since taken and parked an event again, the event is idle for less than any wait.
        return (yield from self._lane.outbox.claim.part(self._lane.group, due, self._least_idle_ms))

    def take_orphaned(self, pause: float) -> Operation[list[OutboxEntry]]:
        """
        When due, take a page of events whose process is dead, and nothing else. `pause`: how long to wait if there are
        none, seconds. Raises redis.RedisError.
        """
        if self._lane.timing.clock() < self._orphaned_at:
            return []
        outbox, lane = self._lane.outbox, self._lane
        orphaned = yield from outbox.orphaned.part(lane.subscription, lane.in_flight, PAGE)
        entries = yield from outbox.claim.part(lane.group, orphaned, self._dead_ms)
        more = any(entry.pairs for entry in entries)
        self._orphaned_at = 0.0 if more else self._lane.timing.clock() + pause
        return entries

    def step(self, count: int) -> Operation[list[Pending]]:
        """The next due events, `count` at most: parked with the wait over, or in the hands of a dead process."""
        due: list[Pending] = []
        for _ in range(PAGES_PER_STEP):
            parked_before_end_ms = self._ms_since_waits_ended()
            page = yield from self._lane.outbox.pending.part(self._lane.group, self._after)
            self._pages += 1
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
        """How long an event must have been parked, ms, to have no wait left. `take` claims no younger event."""
        if self._waits_ended_at is None:
            return math.inf
        return max(self._least_idle_ms, (self._lane.timing.clock() - self._waits_ended_at) * 1000)

    def _due(self, pending: Pending, parked_before_end_ms: float) -> bool:
        wait_ms = self._wait_ms(pending, parked_before_end_ms)
        if wait_ms > 0 and pending.owner in (PARKED, PARKED_ALONE) and pending.id not in self._lane.in_flight:
            self._soonest_ms = min(self._soonest_ms, wait_ms)
        return wait_ms <= 0

    def _wait_ms(self, pending: Pending, parked_before_end_ms: float) -> float:
        if pending.id in self._lane.in_flight:
            return 1  # also if parked: the event is in hand until the settlement is done
        if pending.owner in (PARKED, PARKED_ALONE):
            wait = min(self._lane.redelivery.wait_ms(pending.deliveries), parked_before_end_ms)
        elif is_waiting(pending.owner):
            return 0 if self._lane.outbox.may_take(self._lane.subscription, pending.owner) else self._dead_ms
        else:
            wait = self._dead_ms
        return wait - pending.idle_ms


class OrderedScan(DueScan):
    """
    Finds the due events of a lane with `order = "key"`: of each key only the next ones. First it learns which events
    are pending, the oldest first, as many as may be known.
    """

    def __init__(self, lane: Lane, order: OrderedQueue) -> None:
        super().__init__(lane)
        self._order = order

    @property
    def at_start(self) -> bool:
        return self._order.complete and self._order.next_look == math.inf

    @property
    def due_at(self) -> float:
        return 0.0 if self._learns else self._order.next_look

    def hurry(self) -> None:
        self._order.look_everywhere()

    def released(self, entries: Sequence[OutboxEntry]) -> None:
        self._order.look(entries)

    def learn(self) -> Operation[bool]:
        if not self._learns:
            return False
        order, lane = self._order, self._lane
        for _ in range(PAGES_PER_STEP):
            page = yield from lane.outbox.pending.part(lane.group, self._after)
            # What waits for the filter of another process holds nothing back.
            unknown = [
                pending
                for pending in page
                if pending.id not in order
                and (not pending.owner.startswith(RELEASED) or lane.outbox.may_take(lane.subscription, pending.owner))
            ]
            order.add((yield from lane.outbox.look_up.part(unknown)))
            self._after = page[-1].id if page else self._after
            if len(page) < PAGE:
                order.complete, self._after = True, None
                order.look_everywhere()
                break
            if order.full:
                order.look_everywhere()
                break
        return True

    def doubt(self) -> None:
        """Events may be pending that are not known: learn anew, before new ones are read."""
        self._order.complete, self._after = False, None

    def take(self, room: int, _pause: float) -> Operation[list[OutboxEntry]]:
        order, outbox, group = self._order, self._lane.outbox, self._lane.group
        runs = order.runs(max(1, room // 2))
        end = self._ms_since_waits_ended()
        states = yield from outbox.states.part(group, [entry for _, run in runs for entry in run])
        due: list[Pending] = []
        again = dict[bytes, float]()
        for key, run in runs:
            for entry in run:
                pending = states.get(entry)
                if pending is None:
                    order.forget(entry)  # settled by another process or an operator
                    again[key] = 0.0
                elif self._due(pending, end):
                    due.append(pending)
                else:
                    wait = max(self._lane.timing.scan_every, self._wait_ms(pending, end) / 1000)
                    # A process that stops may settle what it has in hand after it has given the lease away.
                    again[key] = min(wait, WAITING if is_waiting(pending.owner) else SETTLING)
                    break
        claimed = yield from outbox.claim.part(group, due, self._least_idle_ms)
        there = {entry.id for entry in claimed if entry.pairs}
        for key, run in runs:
            if any(pending.id in run and pending.id not in there for pending in due):
                again[key] = self._lane.timing.scan_every
            if key in again:
                order.look_at(key, again[key])
        return sorted(claimed, key=lambda entry: StreamId.parse(entry.id))

    @property
    def _learns(self) -> bool:
        return not self._order.complete and not self._order.full
