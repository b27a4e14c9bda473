"""The reader of one endpoint: takes new events, events that are due again, and the probes of an open circuit."""

import logging
import math
import time
from collections.abc import Sequence

import redis

from sweeperd import progress
from sweeperd.delivery.acknowledger import Acknowledger
from sweeperd.delivery.lane import Lane
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.outbox import (
    PAGE,
    PARKED,
    PARKED_ALONE,
    Outbox,
    OutboxEntry,
    Pending,
    Subscription,
    correct_moments,
    is_waiting,
)
from sweeperd.store.errors import is_missing_group
from sweeperd.store.streams import StreamId

log = logging.getLogger(__name__)


class ProbeChooser:
    """
    Rotates the probes of one endpoint: if the receiver cannot take some event, this event does not keep the circuit
    open. Events that were never sent come first, then the event with the fewest deliveries of a page. Each choice takes
    the next page of parked events. If there is another event, the same event is not chosen twice in a row.
    """

    def __init__(self, subscription: Subscription, outbox: Outbox) -> None:
        self._subscription = subscription
        self._group = subscription.group
        self._outbox = outbox
        self._after: bytes | None = None
        self._last: bytes | None = None

    def take(self, count: int) -> tuple[list[OutboxEntry], list[OutboxEntry]]:
        """
        Take the next probe: up to `count` new events, of which the first wanted one is the probe; and a parked event if
        none of them is wanted. Nothing if nothing waits. Raises redis.RedisError.
        """
        chosen = self._choose()
        new: list[OutboxEntry] = []
        parked: list[OutboxEntry] = []
        if (chosen is None or chosen.deliveries or chosen.id == self._last) and not self._subscription.exhausted:
            new = self._outbox.read(self._group, count)
        wanted = next(filter(self._subscription.wants, new), None)
        if wanted is None and chosen is not None:
            parked = self._outbox.claim(self._group, [chosen], 0)
            wanted = next(iter(parked), None)
        self._last = wanted.id if wanted else None
        return new, parked

    def _choose(self) -> Pending | None:
        page = self._outbox.parked(self._group, self._after)
        if not page and self._after is not None:
            page = self._outbox.parked(self._group)
        self._after = page[-1].id if len(page) == PAGE else None
        return min(page, key=lambda pending: (pending.id == self._last, pending.deliveries), default=None)


#: How many pages a step reads at most. A page takes the server a fraction of a millisecond.
PAGES_PER_STEP = 8
#: While the brake holds events, a step takes so many at most: there is room for a few.
BRAKED = 200


class DueScan:
    """
    Walks over the pending events of one endpoint again and again. Each step goes on after the end of the last step, so
    a million parked events cost no more at a time than a few pages.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        #: If a process sends no heartbeat for so long, ms, the process is dead.
        self._dead_ms = int(lane.timing.take_over_after * 1000)
        # A released event (0 deliveries) has no wait, and was released with a long idle time.
        self._least_idle_ms = min(int(lane.redelivery.initial * 1000), self._dead_ms)
        #: The last event passed; None before the first.
        self._after: bytes | None = None
        self._next_at = 0.0
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
    def due(self) -> bool:
        return self._lane.timing.clock() >= self._next_at and not self._lane.brake.holds

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

    def take(self, room: int, pause: float) -> list[OutboxEntry]:
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
        due = self.step((room + self._turn) // 2)
        self._found = bool(due)
        if due:
            self.hurry()  # there may be more
        else:
            self._next_at = self._lane.timing.clock() + (pause if self.at_start else self._lane.timing.scan_every)
        # If another replica has since taken and parked an event again, the event is idle for less than any wait.
        return self._lane.outbox.claim(self._lane.group, due, self._least_idle_ms)

    def take_orphaned(self, pause: float) -> list[OutboxEntry]:
        """
        When due, take a page of events whose process is dead, and nothing else. `pause`: how long to wait if there are
        none, seconds. Raises redis.RedisError.
        """
        if self._lane.timing.clock() < self._orphaned_at:
            return []
        orphaned = self._lane.outbox.orphaned(self._lane.subscription, self._lane.in_flight, PAGE)
        entries = self._lane.outbox.claim(self._lane.group, orphaned, self._dead_ms)
        more = any(entry.pairs for entry in entries)
        self._orphaned_at = 0.0 if more else self._lane.timing.clock() + pause
        return entries

    def step(self, count: int) -> list[Pending]:
        """The next due events, `count` at most: parked with the wait over, or in the hands of a dead process."""
        due: list[Pending] = []
        for _ in range(PAGES_PER_STEP):
            parked_before_end_ms = self._ms_since_waits_ended()
            page = self._lane.outbox.pending(self._lane.group, self._after)
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
        """If an event has been parked for so long, ms, no wait is left. `take` claims no younger event."""
        if self._waits_ended_at is None:
            return math.inf
        return max(self._least_idle_ms, (self._lane.timing.clock() - self._waits_ended_at) * 1000)

    def _due(self, pending: Pending, parked_before_end_ms: float) -> bool:
        if pending.id in self._lane.in_flight:
            return False  # also if parked: the event is in hand until the settlement is done
        if pending.owner in (PARKED, PARKED_ALONE):
            return pending.idle_ms >= min(self._lane.redelivery.wait_ms(pending.deliveries), parked_before_end_ms)
        if is_waiting(pending.owner):
            return self._lane.outbox.may_take(self._lane.subscription, pending.owner)
        return pending.idle_ms >= self._dead_ms


#: Redis's clock was set back if the clock lags so far behind the time counted since the last reading, seconds.
SET_BACK = 1.0
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
        #: How many events are read for each free place, and how many bytes an event had in the last read.
        self._each, self._typical = 1, 1.0

    @property
    def most(self) -> int:
        """How many events to read if none of them needs room."""
        return max(1, min(READ_COUNT, int(READ_BYTES / self._typical)))

    def fit(self, room: int) -> int:
        """How many events to read if there is room for up to `room` wanted events."""
        self._asked = max(1, min(room * self._each, self.most))
        return self._asked

    def learn(self, entries: Sequence[OutboxEntry], wanted: int) -> None:
        """Learn from the last read. `wanted`: how many of its entries the endpoint wants."""
        if not entries:
            return
        self._typical = max(1.0, sum(entry.size for entry in entries) / len(entries))
        most = len(entries) // (2 * wanted) if wanted > 0 else READ_COUNT
        # Without a backlog, reads stay small: of a burst of wanted events, other processes get a share.
        self._each = max(1, min(2 * self._each, most)) if len(entries) == self._asked else 1


class Consumer:
    """
    Takes the events of one shard for one endpoint: new events, parked events when the wait is over, and the events of
    dead processes. `run` is the work of a thread.
    """

    def __init__(self, lane: Lane, acknowledger: Acknowledger) -> None:
        self._lane = lane
        self._acknowledger = acknowledger
        self._outage = Outage(log, "delivery", self._lane.log_fields)
        # The answer to a waiting read must come before the socket times out.
        self._block_ms = int(min(lane.timing.block, lane.shard.socket_timeout / 2) * 1000)
        self._refresh_every = min(lane.timing.refresh_every, lane.redelivery.initial / 4)
        self._scan = DueScan(lane)
        self._probe_chooser = ProbeChooser(lane.subscription, lane.outbox)
        self._read_size = ReadSize()
        self._refresh_at = 0.0
        self._heartbeat_at = 0.0
        #: The last reading of Redis's clock, seconds, and when the answer came (monotonic).
        self._clock_read = 0.0, 0.0

    def run(self, *, until_idle: bool) -> None:
        """Read until a stop. `until_idle`: until nothing is left to deliver now."""
        timing = self._lane.timing
        dead_until: float | None = None
        while not self._lane.stop.is_set():
            progress.step()
            try:
                with self._lane.shard.reaching():
                    busy = len(self._lane.in_flight)
                    if self._step(block=not until_idle) or not until_idle:
                        dead_until = None
                    elif busy:
                        self._lane.in_flight.await_fewer(max(1, len(self._lane.in_flight)), timing.block)
                    else:
                        # Nothing is left, except events in hand of another process, alive or dead.
                        dead_until = dead_until or timing.clock() + timing.take_over_after + timing.refresh_every
                        held_back = self._lane.state.resting or self._lane.circuit.open
                        if (
                            timing.clock() > dead_until
                            or held_back
                            or not self._lane.outbox.groups.held_elsewhere(self._lane.group)
                        ):
                            return
                        self._lane.stop.wait(0.2)
                self._outage.end()
            except RedisUnavailable as error:
                self._outage.begin(error)
                if until_idle:
                    return
                self._lane.stop.wait(timing.recovery_pause)
            except Exception as error:
                if is_missing_group(error):
                    self._make_group_again()
                    continue
                log.exception("delivery failed", extra=self._lane.log_fields)
                if until_idle:
                    return
                self._lane.stop.wait(timing.recovery_pause)

    def ensure_group(self) -> None:
        """
        Make the group if the group is missing. If the group belongs to a replay that has ended, the reader ends too.
        Raises redis.RedisError.
        """
        made_at = self._lane.outbox.groups.ensure(self._lane.group, self._lane.subscription.start)
        self._lane.redelivery.counts_from_ms = made_at
        if isinstance(self._lane.subscription.start, StreamId) and not made_at:
            self._lane.stop.set()

    def heartbeat(self) -> None:
        """
        When due, name the events in hand that move, so no other process takes them, and note the filters, so no other
        process acknowledges what only this one wants. Raises redis.RedisError.
        """
        self._lane.outbox.filters.update()
        now = self._lane.timing.clock()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._lane.timing.heartbeat_every
            self._lane.outbox.heartbeat(self._lane.group, self._lane.moving())

    def _step(self, *, block: bool) -> bool:
        """Take the events to deliver now, up to the capacity. Returns whether there was anything to do."""
        self.heartbeat()
        # A run until idle ends after a step with nothing in hand, so such a step refreshes first.
        last_step = not (block or len(self._lane.in_flight))
        if last_step or self._lane.timing.clock() >= self._refresh_at:
            self._refresh(publish=block)
        if self._lane.circuit.open and not self._lane.state.state.paused:
            return self._take_back() or self._probe() or self._give_up_old() or self._rest(block)
        if self._lane.state.resting:
            return self._rest(block)
        free = self._lane.in_flight.free
        if free < self._lane.read_together and len(self._lane.in_flight):
            fewer = min(len(self._lane.in_flight), self._lane.in_flight.capacity - self._lane.read_together + 1)
            self._lane.in_flight.await_fewer(fewer, self._lane.timing.block)
            return True
        parked: list[OutboxEntry] = []
        if scanning := (last_step and not self._lane.brake.waiting) or self._scan.due:
            parked = self._scan.take(free, self._refresh_every)
        # No wait in Redis while there are events to queue.
        block_ms = self._block_ms if block and not parked else 0
        if block_ms and self._lane.brake.waiting:
            block_ms = min(block_ms, int(self._lane.brake.pause * 1000))
        new = self._read(self._read_size.fit(free - len(parked)), block_ms) if len(parked) < free else []
        entries = parked + new
        if 0 < len(entries) < self._lane.batches.size and len(self._lane.in_flight):
            self._lane.stop.wait(self._lane.timing.gather_events)  # for a fuller batch: the senders are busy
        wanted = self._queue(entries, in_order=not parked)
        self._read_size.learn(new, wanted - len(parked))
        return bool(entries) or (scanning and not self._scan.at_start)

    def _read(self, count: int, block_ms: int) -> list[OutboxEntry]:
        if self._lane.subscription.exhausted:
            self._lane.stop.wait(block_ms / 1000)
            return []
        return self._lane.outbox.read(self._lane.group, count, block_ms)

    def _refresh(self, *, publish: bool) -> None:
        """Read Redis's clock, and the endpoint's state: operators and other replicas may have changed the state."""
        self._read_clock()
        before = self._lane.state.state.paused
        self._lane.state.refresh()
        self._refresh_at = self._lane.timing.clock() + self._refresh_every
        if self._lane.publisher.operator_closes():
            log.warning("an operator has closed the circuit", extra=self._lane.log_fields)
            self._scan.end_waits()
        if publish and self._lane.group == self._lane.endpoint:  # of a replay, the reader of the live events publishes
            self._lane.publisher.publish_when_due(self._acknowledger.counts()["delivered"])
        state = self._lane.state.state
        if state.paused and not before:
            fields = self._lane.log_fields | {"reason": state.reason}
            log.warning("the endpoint is paused; its events wait", extra=fields)
        elif before and not state.paused:
            log.warning("the endpoint is resumed", extra=self._lane.log_fields)

    def _read_clock(self) -> None:
        """
        Read Redis's clock. If the clock was set back, by hand or by a fail-over to another host, correct what is stored
        and end all waits. At the start the stored moments tell: no process may have run while the clock was set back.
        """
        before, answered_at = self._clock_read
        counted = before + time.monotonic() - answered_at
        now = self._lane.shard.read_clock() / 1000
        answer_at = time.monotonic()
        behind, starts = counted - now, not answered_at
        if starts or behind > SET_BACK:
            behind = max(behind, correct_moments(self._lane.shard) / 1000)
        if behind > SET_BACK:
            fields = self._lane.log_fields | {"seconds": round(behind)}
            log.warning("the clock of redis was set back: no event waits any longer", extra=fields)
            self._lane.outbox.end_waits(self._lane.group)
            self._scan.hurry()
            if not starts:
                self._lane.state.end_mute()
        self._clock_read = now, answer_at

    def _rest(self, block: bool) -> bool:
        if self._lane.circuit.open:
            held = {"in_flight": len(self._lane.in_flight), "free": self._lane.in_flight.free}
            waits = {"probe_in": round(self._lane.circuit.wait, 3)}
            log.debug("the circuit is open", extra=self._lane.log_fields | held | waits)
        if block:
            self._lane.in_flight.await_fewer(len(self._lane.in_flight), self._refresh_every)
        return False

    def _probe(self) -> bool:
        """While the circuit is open: when a probe is due, and nothing else is in hand, try a single event."""
        if self._lane.state.resting or len(self._lane.in_flight) or not self._lane.circuit.take_probe():
            return False
        new, parked = self._probe_chooser.take(self._read_size.fit(1))
        wanted = self._queue(new + parked, probe=True)
        self._read_size.learn(new, wanted - len(parked))
        if not wanted:
            self._lane.circuit.return_probe()
        return bool(new or parked)

    def _make_group_again(self) -> None:
        """The group is missing (a fail-over, a flush), or could not be made before: make the group at its position."""
        try:
            with self._lane.shard.reaching():
                self.ensure_group()
                return
        except (RedisUnavailable, redis.RedisError) as error:
            log.warning("the group could not be made", extra=self._lane.log_fields | {"error": str(error)})
        self._lane.stop.wait(self._lane.timing.recovery_pause)

    def _queue(self, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False) -> int:
        """
        Queue the wanted events for the senders, and acknowledge the unwanted ones. `in_order`: as in `BatchQueue.put`.
        Returns how many events are wanted. If there is no room for all of them, or if the settings ask for replicas and
        too few have the events, release events for later; in the second case raise RedisUnavailable. An event that is
        in hand already is left out: if a group is lost and made again, the group gives some events anew.
        """
        in_flight, outbox = self._lane.in_flight, self._lane.outbox
        free = 1 if probe else in_flight.free
        entries = [entry for entry in entries if entry.id not in in_flight]
        gone: list[OutboxEntry] = []
        wanted: list[OutboxEntry] = []
        unwanted: list[OutboxEntry] = []
        for entry in entries:
            if not entry.pairs:
                gone.append(entry)
            else:
                (wanted if self._lane.subscription.wants(entry) else unwanted).append(entry)
        if not outbox.confirmed(self._lane.group, wanted):
            outbox.release(self._lane.group, wanted + unwanted)
            raise RedisUnavailable(f"{self._lane.shard.address}: too few replicas have confirmed {len(wanted)} events")
        taken, surplus = wanted[:free], wanted[free:]
        in_flight.add(taken)
        self._lane.batches.put(taken, in_order=in_order, probe=probe)
        self._acknowledger.give_up(gone, GONE)
        if surplus:
            outbox.release(self._lane.group, surplus)
            self._scan.hurry()
        outbox.acknowledge_unwanted(self._lane.subscription, unwanted)
        return len(wanted)

    def _take_back(self) -> bool:
        """
        While the circuit is open, nothing else looks at events whose process is dead: when due, park some of them
        again, to become probes or dead letters. Returns whether there were any.
        """
        entries = self._scan.take_orphaned(self._refresh_every)
        there = [entry for entry in entries if entry.pairs]
        if there:
            self._lane.outbox.release(self._lane.group, there)
            fields = self._lane.log_fields | {"events": len(there)}
            log.warning("events that no process has in hand are taken back", extra=fields)
        self._acknowledger.give_up([entry for entry in entries if not entry.pairs], GONE)
        return bool(there)

    def _give_up_old(self) -> bool:
        """
        While the circuit is open, only probes are sent, so events that are too old are given up on here, a page in a
        step. The endpoint must have failed within the last wait: else a probe comes first, and the receiver may take
        the events. If the circuit rests on a single event, the other events were not tried, and are kept: the next
        probe is among them. Returns whether there were any.
        """
        before_ms = self._lane.redelivery.oldest_ms(self._lane.shard.clock.now_ms())
        if not before_ms or not self._lane.circuit.failed_lately:
            return False
        group, outbox, untried_too = self._lane.group, self._lane.outbox, not self._lane.circuit.rests_on_one_event
        if untried_too and (untaken := outbox.groups.untaken(group, before_ms, self._read_size.most)):
            entries = outbox.read(group, untaken)
            # Other processes may have taken some of these since, and the read may have taken younger events.
            outbox.release(group, [entry for entry in entries if entry.added_ms >= before_ms])
            self._bury([entry._replace(deliveries=0) for entry in entries if entry.added_ms < before_ms])
            return True
        old = {
            owner: [
                pending
                for pending in outbox.pending(group, owner=owner)
                if pending.added_ms < before_ms
                and (pending.deliveries or untried_too)
                and pending.id not in self._lane.in_flight  # not settled yet
            ][: self._read_size.most]
            for owner in (PARKED, PARKED_ALONE)
        }
        for owner, listed in old.items():
            self._bury(outbox.look_up(listed), owner)
        return any(old.values())

    def _bury(self, entries: Sequence[OutboxEntry], owner: bytes | None = None) -> None:
        """Give up on the wanted events among these, and acknowledge the others. `owner`: as in `Outbox.give_up`."""
        wanted: list[OutboxEntry] = []
        unwanted: list[OutboxEntry] = []
        for entry in entries:
            if entry.pairs and not self._lane.subscription.wants(entry):
                unwanted.append(entry)
            else:
                wanted.append(entry)
        self._lane.outbox.acknowledge_unwanted(self._lane.subscription, unwanted, owner)
        self._acknowledger.give_up(wanted, self._lane.circuit.reason, owner)
