"""Takes the events of one lane: new ones, those that are due again, and the probes of an open circuit."""

import logging
import math
from collections.abc import Sequence

from sweeperd.delivery.ahead import FEW, Page
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.pool import Pool
from sweeperd.delivery.scan import DueScan, OrderedScan, ProbeChooser
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.outbox import PARKED, PARKED_ALONE, OutboxEntry
from sweeperd.outbox.replays import ReplaySubscription
from sweeperd.store.operations import Operation, ask

log = logging.getLogger(__name__)

#: Why an event is given up on that was trimmed while pending.
GONE = "the event is no longer in the stream"
#: How many events, and how many bytes, a read takes at most: the client holds the whole reply at once.
READ_COUNT, READ_BYTES = 1000, 2 * 1024 * 1024


class ReadSize:
    """
    How many new events a read takes. Unwanted events need no room. While an endpoint is behind and wants few events, a
    read takes more events than there is room for, so that the wanted ones fill about half of the room.
    """

    def __init__(self) -> None:
        self._asked = 0
        #: How many events are read for each free place.
        self._each = 1

    def fit(self, room: int, most: int) -> int:
        """How many events to read, up to `most`, if there is room for up to `room` wanted events."""
        self._asked = max(1, min(room * self._each, most))
        return self._asked

    def learn(self, entries: Sequence[OutboxEntry], wanted: int) -> None:
        """Learn from the last read. `wanted`: how many of its entries the endpoint wants."""
        if not entries:
            return
        most = len(entries) // (2 * wanted) if wanted > 0 else READ_COUNT
        # Without a backlog, reads stay small: of a burst of wanted events, other processes get a share.
        self._each = max(1, min(2 * self._each, most)) if len(entries) == self._asked else 1


class Intake:
    """
    What the reader knows of one lane, and the operations that take its events. `chore`: what is not a plain read of new
    events. `refresh_every`: the longest time between two looks at what nobody tells of, seconds.
    """

    def __init__(self, lane: Lane, pool: Pool, refresh_every: float) -> None:
        self.lane = lane
        self.scan = DueScan(lane) if lane.order is None else OrderedScan(lane, lane.order)
        #: Whether there may be events that the group has not taken.
        self.behind = True
        #: Nothing is done for the lane before this time (monotonic): it has failed.
        self.rests_until = 0.0
        self.outage = Outage(log, "delivery", lane.log_fields)
        #: The last event that the group has taken, as far as is known.
        self.position = b"0-0"
        self._pool = pool
        self._refresh_every = refresh_every
        self._clock = lane.timing.clock
        self._probes = ProbeChooser(lane.subscription, lane.outbox, lane.order)
        #: When the known pending events were last compared with the group (monotonic).
        self._compared_at = -math.inf
        #: Whether other lanes with a filter may know what comes next.
        self.filtered = lane.live and lane.order is None and not lane.subscription.gets_all
        self._read_size = ReadSize()
        #: New events are not read before this time, and an open circuit is not worked on.
        self._read_at = self._open_at = 0.0
        #: Whether the last chore of an open circuit left events in hand: their result tells whether to give others up.
        self._probing = False
        #: Whether the endpoint was paused at the last reading of its state.
        self._paused = lane.state.state.paused
        #: No probe is tried before this time, because there was no event for the last one.
        self._no_event_until = 0.0

    def told(self) -> None:
        """The state of the endpoint has been read: log when a pause begins or ends."""
        state, before = self.lane.state.state, self._paused
        self._paused = state.paused
        if state.paused and not before:
            fields = self.lane.log_fields | {"reason": state.reason}
            log.warning("the endpoint is paused; its events wait", extra=fields)
        elif before and not state.paused:
            log.warning("the endpoint is resumed", extra=self.lane.log_fields)

    def news(self) -> None:
        """There may be new events."""
        self.behind = True
        if self.lane.circuit.open:
            self._open_at = self._no_event_until = 0.0

    def doubt(self) -> None:
        """An operation has failed: with an order, events may be pending that are not known."""
        if isinstance(self.scan, OrderedScan):
            self.scan.doubt()

    def compare(self, pending: int) -> None:
        """That many events of the group are pending: other processes may have settled some, or left some."""
        order, now = self.lane.order, self._clock()
        if order is None or abs(pending - len(order)) <= len(self.lane.in_flight) or not order.complete:
            return
        if now >= self._compared_at + self.lane.timing.take_over_after:
            self._compared_at = now
            self.doubt()

    def beat(self, moving: Sequence[bytes]) -> Operation[None]:
        """Name the events in hand that move, and take or keep the lease of an ordered lane."""
        lane, order, asked_at = self.lane, self.lane.order, self._clock()
        yield from lane.outbox.heartbeat.part(lane.group, moving)
        if order is None or lane.hanging:
            return  # if a sender hangs, the lease expires, and another process takes over
        held = yield from order.lease.hold()
        if not held or not order.owned:
            order.lose()
            self.doubt()
            if held:
                log.info("this process delivers to the endpoint, in order", extra=lane.log_fields)
        order.owned_until = asked_at + lane.timing.take_over_after if held else -math.inf

    @property
    def chore_at(self) -> float:
        """When the next chore is worth doing (monotonic); inf: not until something changes."""
        lane = self.lane
        if lane.stop.is_set() or lane.state.state.paused or not lane.works_here:
            return math.inf
        if lane.circuit.open:
            if not (lane.parked or self.behind):
                return math.inf
            answered = self._probing and not len(lane.in_flight)
            return max(self.rests_until, 0.0 if answered else min(self._open_at, self._probe_at))
        if not lane.in_flight.free or not (lane.parked or not self.scan.at_start):
            return math.inf
        return max(self.rests_until, self._in(lane.state.rest), self.scan.due_at)

    @property
    def read_at(self) -> float:
        """When new events may be read (monotonic); inf: not until something changes."""
        lane = self.lane
        if not self.behind or lane.stop.is_set() or lane.circuit.open or lane.subscription.exhausted:
            return math.inf
        if lane.order is not None and not lane.order.reads:
            return math.inf
        if not lane.in_flight.worth_reading:
            return math.inf
        return max(self.rests_until, self._in(lane.state.rest), self._read_at)

    def chore(self) -> Operation[bool]:
        """The next step over what is pending. Returns whether there was anything to do."""
        lane = self.lane
        if (yield from self.scan.learn()):
            return True
        if not lane.circuit.open:
            parked = yield from self.scan.take(lane.in_flight.free, self._refresh_every)
            yield from self._queue(parked)
            return bool(parked) or not self.scan.at_start
        did = (yield from self._take_back()) or (yield from self._probe()) or (yield from self._give_up_old())
        self._open_at = 0.0 if did else self._clock() + self._refresh_every
        self._probing = bool(len(lane.in_flight))
        return did

    @property
    def most(self) -> int:
        """How many events to read if none of them needs room."""
        return max(1, min(READ_COUNT, int(READ_BYTES / self.lane.in_flight.typical)))

    def asks(self, most: int, *, half: bool = False) -> int:
        """How many new events to take, up to `most`. `half`: leave room for events due again."""
        free = self.lane.in_flight.free
        return self._read_size.fit(max(1, free // 2) if half else free, min(most, self.most))

    def read(self, asked: int, page: Page | None = None) -> Operation[bool]:
        """Take new events, up to `asked`. Returns whether there were any. `page`: what is known of them already."""
        lane, new = self.lane, list[OutboxEntry]()
        place = page.place(self.position) if page is not None else None
        if page is not None and place is not None:
            unwanted, then = page.look(place, lane.subscription, asked)
            if unwanted > FEW or not then:
                passed, new = (
                    (yield from self._pass(page.entries[place : place + unwanted])) if unwanted else (True, [])
                )
                if passed:
                    self.behind = page.more or bool(then)
                    if not then:
                        return bool(unwanted)
                    asked = min(asked, then)
                elif new:
                    asked = len(new)  # there may be more
            else:
                asked = min(asked, unwanted + then)
        new = new or (yield from lane.outbox.read.part(lane.group, asked))
        self._taken(new)
        self.behind = len(new) >= asked
        if 0 < len(new) < lane.limits.events and len(lane.in_flight):
            self._read_at = self._clock() + lane.timing.gather_events  # for a fuller batch: senders are busy
        self._read_size.learn(new, (yield from self._queue(new, in_order=True)))
        return bool(new)

    def _pass(self, unwanted: Sequence[OutboxEntry]) -> Operation[tuple[bool, list[OutboxEntry]]]:
        """Move the group past these events. As `Outbox.pass_unwanted`."""
        first, last = unwanted[0].id, unwanted[-1].id
        passed, new = yield from self.lane.outbox.pass_unwanted.part(self.lane.subscription, first, last)
        if passed:
            self.position = last
        return passed, new

    @property
    def _probe_at(self) -> float:
        """When the next probe may be sent, unless there was no event for the last one."""
        lane = self.lane
        if len(lane.in_flight):
            return math.inf
        return max(self._no_event_until, self._in(max(lane.circuit.wait, lane.state.rest)))

    def _in(self, seconds: float) -> float:
        """The time in `seconds` from now (monotonic); 0 means at once."""
        return self._clock() + seconds if seconds else 0.0

    def _taken(self, new: Sequence[OutboxEntry]) -> None:
        if new:
            self.position = new[-1].id

    def _probe(self) -> Operation[bool]:
        """While the circuit is open: when a probe is due, and nothing else is in hand, try a single event."""
        lane = self.lane
        if lane.state.resting or len(lane.in_flight) or not lane.circuit.take_probe():
            return False
        new, parked = yield from self._probes.take(self._read_size.fit(1, self.most))
        self._taken(new)
        wanted = yield from self._queue([*new, *parked], probe=True)
        self._read_size.learn(new, wanted - len(parked))
        if not wanted:
            lane.circuit.return_probe()
            self._no_event_until = self._clock() + self._refresh_every
        return bool(new or parked)

    def _queue(self, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False) -> Operation[int]:
        """
        Queue the wanted events for the senders, and acknowledge the unwanted ones. `in_order`: as in `BatchQueue.put`.
        Returns how many events are wanted. If there is no room for all of them, or if the settings ask for replicas and
        too few have the events, release events for later; in the second case raise RedisUnavailable. An event that is
        in hand already is left out: if a group is lost and made again, the group gives some events anew. Events of the
        next replay are released.
        """
        lane, outbox = self.lane, self.lane.outbox
        lane.in_flight.learn(entries)
        entries = [entry for entry in entries if entry.id not in lane.in_flight]
        if entries and (yield from self._replaced()):
            yield from self._release(entries)
            return 0
        gone: list[OutboxEntry] = []
        wanted: list[OutboxEntry] = []
        unwanted: list[OutboxEntry] = []
        for entry in entries:
            if not entry.pairs:
                gone.append(entry)
            else:
                (wanted if lane.subscription.wants(entry) else unwanted).append(entry)
        order = lane.order
        if order is not None:
            order.add(wanted)
        if wanted and not (yield from outbox.confirmed.part(lane.group, wanted)):
            lane.parked = True
            yield from outbox.release.part(lane.group, wanted + unwanted)
            raise RedisUnavailable(f"{lane.shard.address}: too few replicas have confirmed {len(wanted)} events")
        free = 1 if probe else lane.in_flight.free
        taken, surplus = wanted[:free], wanted[free:]
        if probe and order is not None:
            taken, surplus = wanted, []  # the queue chooses
        lane.in_flight.add(taken)
        if held := self._pool.put(lane, taken, in_order=in_order, probe=probe):
            lane.in_flight.remove([entry.id for entry in held])
            surplus = [*held, *surplus]
        if gone:
            yield from lane.give_up(gone, GONE)
        yield from self._release(surplus)
        if unwanted:
            yield from outbox.acknowledge_unwanted.part(lane.subscription, unwanted)
        return len(wanted) - len(held) if probe else len(wanted)

    def _replaced(self) -> Operation[bool]:
        """
        Whether the lane is that of a replay that has ended elsewhere. Then the group may be that of the next replay,
        which wants other events, so the lane stops.
        """
        lane, subscription = self.lane, self.lane.subscription
        if not isinstance(subscription, ReplaySubscription):
            return False
        if subscription.goes_on((yield from ask("HGET", lane.shard.keys.groups, lane.group))):
            return False
        lane.stop.set()
        return True

    def _release(self, entries: Sequence[OutboxEntry]) -> Operation[None]:
        """Park these events, which are due at once."""
        if entries:
            self.lane.parked = True
            yield from self.lane.outbox.release.part(self.lane.group, entries)
            self.scan.released(entries)

    def _take_back(self) -> Operation[bool]:
        """
        While the circuit is open, nothing else looks at events whose process is dead: when due, park some of them
        again, to become probes or dead letters. Returns whether there were any.
        """
        entries = yield from self.scan.take_orphaned(self._refresh_every)
        there = [entry for entry in entries if entry.pairs]
        if there:
            yield from self._release(there)
            fields = self.lane.log_fields | {"events": len(there)}
            log.warning("events that no process has in hand are taken back", extra=fields)
        if gone := [entry for entry in entries if not entry.pairs]:
            yield from self.lane.give_up(gone, GONE)
        return bool(there)

    def _give_up_old(self) -> Operation[bool]:
        """
        While the circuit is open, only probes are sent, so events that are too old are given up on here, a page in a
        step. The endpoint must have failed within the last wait: else a probe comes first, and the receiver may take
        the events. If the circuit rests on a single event, the other events were not tried, and are kept: the next
        probe is among them. Returns whether there were any.
        """
        lane = self.lane
        before_ms = lane.redelivery.oldest_ms(lane.shard.clock.now_ms())
        if not before_ms or not lane.circuit.failed_lately or (yield from self._replaced()):
            return False
        group, outbox, untried_too = lane.group, lane.outbox, not lane.circuit.rests_on_one_event
        most = self.most
        untaken = 0
        if untried_too and self.behind and (lane.order is None or lane.order.reads):
            untaken = yield from outbox.untaken.part(self.position, before_ms, most)
        if untaken:
            entries = yield from outbox.read.part(group, untaken)
            self._taken(entries)
            # Other processes may have taken some of these since, and the read may have taken younger events.
            young = [entry for entry in entries if entry.added_ms >= before_ms]
            if lane.order is not None:
                lane.order.add(young)
            yield from self._release(young)
            yield from self._bury([entry._replace(deliveries=0) for entry in entries if entry.added_ms < before_ms])
            return bool(entries)
        any_old = False
        for owner in (PARKED, PARKED_ALONE):
            page = yield from outbox.pending.part(group, owner=owner)
            listed = [
                pending
                for pending in page
                if pending.added_ms < before_ms
                and (pending.deliveries or untried_too)
                and pending.id not in lane.in_flight  # not settled yet
            ][:most]
            yield from self._bury((yield from outbox.look_up.part(listed)), owner)
            any_old = any_old or bool(listed)
        return any_old

    def _bury(self, entries: Sequence[OutboxEntry], owner: bytes | None = None) -> Operation[None]:
        """Give up on the wanted events among these, and acknowledge the others. `owner`: as in `Outbox.give_up`."""
        wanted: list[OutboxEntry] = []
        unwanted: list[OutboxEntry] = []
        for entry in entries:
            if entry.pairs and not self.lane.subscription.wants(entry):
                unwanted.append(entry)
            else:
                wanted.append(entry)
        yield from self.lane.outbox.acknowledge_unwanted.part(self.lane.subscription, unwanted, owner)
        yield from self.lane.give_up(wanted, self.lane.circuit.reason, owner)
