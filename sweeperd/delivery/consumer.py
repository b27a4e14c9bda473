"""The reader of one endpoint: it takes events from the outbox and queues them for the senders."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence

import redis

from sweeperd.delivery.acknowledger import RECOVERY_PAUSE, Acknowledger, Disposition, Settlement
from sweeperd.delivery.batches import BatchQueue, InFlight
from sweeperd.delivery.circuit_breaker import CircuitBreaker
from sweeperd.delivery.circuit_publisher import CircuitPublisher
from sweeperd.delivery.due_scan import DueScan
from sweeperd.delivery.endpoint_state import EndpointStateCache
from sweeperd.delivery.groups import PARKED, PARKED_ALONE, TAKE_OVER_AFTER
from sweeperd.delivery.outbox import Outbox, OutboxEntry
from sweeperd.delivery.probe import ProbeChooser
from sweeperd.delivery.redelivery import Redelivery
from sweeperd.delivery.subscription import Subscription
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.store.errors import is_missing_group
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId

log = logging.getLogger(__name__)

#: The longest that a reader waits in Redis for a new event, seconds: so long can a stop take to be noticed.
BLOCK = 1.0
#: The longest time between two refreshes, seconds. A refresh reads the endpoint's state and takes parked events again.
REFRESH_EVERY = 5.0
#: How long the reader lets new events gather where it found too few for a batch while senders are busy, seconds.
GATHER = 0.005
#: How many events one read takes at most, and how many bytes of them: the client holds the whole reply at once.
READ_COUNT, READ_BYTES = 1000, 2 * 1024 * 1024
#: The time between two heartbeats, seconds.
HEARTBEAT_EVERY = TAKE_OVER_AFTER / 3


class Consumer:
    """
    Takes the events of one shard for one endpoint: new ones, parked ones whose wait is over, and those of processes
    that have died. `run` is the work of a thread.
    """

    def __init__(
        self,
        subscription: Subscription,
        shard: Shard,
        outbox: Outbox,
        state: EndpointStateCache,
        circuit: CircuitBreaker,
        publisher: CircuitPublisher,
        redelivery: Redelivery,
        in_flight: InFlight,
        batches: BatchQueue,
        acknowledger: Acknowledger,
        together: int,
        stop: threading.Event,
        log_fields: Mapping[str, object],
    ) -> None:
        self._subscription = subscription
        self._shard = shard
        self._outbox = outbox
        self._state = state
        self._circuit = circuit
        self._publisher = publisher
        self._redelivery = redelivery
        self._in_flight = in_flight
        self._batches = batches
        self._acknowledger = acknowledger
        #: A read costs a round trip, so it waits until there is room for so many events.
        self._together = together
        self._stop = stop
        self._log_fields = dict(log_fields)
        self._outage = Outage(log, "delivery", self._log_fields)
        # A read that waits must be answered before the socket times out.
        self._block_ms = int(min(BLOCK, shard.socket_timeout / 2) * 1000)
        self._refresh_every = min(REFRESH_EVERY, redelivery.initial / 4)
        self._scan = DueScan(subscription.group, outbox, redelivery, in_flight)
        self._probe_chooser = ProbeChooser(subscription.group, outbox)
        self._refresh_at = 0.0
        self._heartbeat_at = 0.0

    def run(self, *, until_idle: bool) -> None:
        """Read until a stop. `until_idle`: until nothing is left that can be delivered now."""
        dead_until: float | None = None
        while not self._stop.is_set():
            try:
                with self._shard.reaching():
                    busy = len(self._in_flight)
                    if self._step(block=not until_idle) or not until_idle:
                        dead_until = None
                    elif busy:
                        self._in_flight.await_fewer(max(1, len(self._in_flight)), BLOCK)
                    else:
                        # Nothing is left, except events that another process has in hand, or had when it died.
                        dead_until = dead_until or time.monotonic() + TAKE_OVER_AFTER + REFRESH_EVERY
                        if (
                            time.monotonic() > dead_until
                            or self._held_back
                            or not self._outbox.groups.held_elsewhere(self._subscription.group)
                        ):
                            return
                        self._stop.wait(0.2)
                self._outage.end()
            except RedisUnavailable as error:
                self._outage.begin(error)
                if until_idle:
                    return
                self._stop.wait(RECOVERY_PAUSE)
            except Exception as error:
                if is_missing_group(error):
                    self._make_group_again()
                    continue
                log.exception("delivery failed", extra=self._log_fields)
                if until_idle:
                    return
                self._stop.wait(RECOVERY_PAUSE)

    def ensure_group(self) -> None:
        """
        Make the endpoint's group where it is missing. Where it is that of a replay which has ended, the reader ends
        too. Raises redis.RedisError.
        """
        made_at = self._outbox.groups.ensure(self._subscription.group, self._subscription.start)
        self._redelivery.counts_from_ms = made_at
        if isinstance(self._subscription.start, StreamId) and not made_at:
            self._stop.set()

    def heartbeat(self) -> None:
        """Name the events in hand, when it is time, so that no other process takes them. Raises redis.RedisError."""
        now = time.monotonic()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + HEARTBEAT_EVERY
            self._outbox.heartbeat(self._subscription.group, self._in_flight.ids())

    def _step(self, *, block: bool) -> bool:
        """Take the events that can be delivered now, up to the capacity. Returns whether there was anything to do."""
        self.heartbeat()
        # A run that ends when it is idle draws that conclusion from a step with nothing in hand, so this one refreshes.
        last_step = not (block or len(self._in_flight))
        if last_step or time.monotonic() >= self._refresh_at:
            self._refresh(publish=block)
        if self._circuit.open and not self._state.state.paused:
            return self._take_back() or self._dead_letter_old() or self._probe() or self._rest(block)
        if self._state.resting:
            return self._rest(block)
        free = self._in_flight.free
        if free < self._together and len(self._in_flight):
            self._in_flight.await_fewer(min(len(self._in_flight), self._in_flight.capacity - self._together + 1), BLOCK)
            return True
        parked: list[OutboxEntry] = []
        if scanning := last_step or self._scan.due:
            parked = self._scan.take(free, self._refresh_every)
        # No wait in Redis while there are events to queue.
        block_ms = self._block_ms if block and not parked else 0
        most = min(READ_COUNT, self._in_flight.count_of(READ_BYTES))
        new = self._read(min(free - len(parked), most), block_ms) if len(parked) < free else []
        entries = parked + new
        if 0 < len(entries) < self._batches.size and len(self._in_flight):
            self._stop.wait(GATHER)  # for a fuller batch: the senders are busy
        return self._queue(entries, in_order=not parked) or (scanning and not self._scan.at_start)

    def _read(self, count: int, block_ms: int) -> list[OutboxEntry]:
        if self._subscription.exhausted:
            self._stop.wait(block_ms / 1000)
            return []
        return self._outbox.read(self._subscription.group, count, block_ms)

    @property
    def _held_back(self) -> bool:
        return self._state.resting or self._circuit.open

    def _refresh(self, *, publish: bool) -> None:
        """Read Redis's clock, and the endpoint's state that operators and other replicas may have changed."""
        self._shard.read_clock()
        before = self._state.state.paused
        self._state.refresh()
        self._refresh_at = time.monotonic() + self._refresh_every
        if self._publisher.operator_closes():
            log.warning("an operator has closed the circuit", extra=self._log_fields)
            self._scan.end_waits()
        if publish:
            self._publisher.publish_when_due(self._acknowledger.counts()["delivered"])
        state = self._state.state
        if state.paused and not before:
            log.warning("the endpoint is paused; its events wait", extra=self._log_fields | {"reason": state.reason})
        elif before and not state.paused:
            log.warning("the endpoint is resumed", extra=self._log_fields)

    def _rest(self, block: bool) -> bool:
        if block:
            self._in_flight.await_fewer(len(self._in_flight), self._refresh_every)
        return False

    def _probe(self) -> bool:
        """The circuit is open: when it is time, and nothing else is in hand, try a single event."""
        if self._state.resting or len(self._in_flight) or not self._circuit.take_probe():
            return False
        entries = self._probe_chooser.take()
        if not entries:
            self._circuit.return_probe()
        return self._queue(entries, probe=True)

    def _make_group_again(self) -> None:
        """The group is missing (a fail-over, a flush), or could not be made before: make it where it was."""
        try:
            with self._shard.reaching():
                self.ensure_group()
                return
        except (RedisUnavailable, redis.RedisError) as error:
            log.warning("the group could not be made", extra=self._log_fields | {"error": str(error)})
        self._stop.wait(RECOVERY_PAUSE)

    def _queue(self, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False) -> bool:
        """
        Queue the events that the endpoint wants for the senders; settle the rest without a request. `in_order`: as in
        `BatchQueue.put`. Returns whether there were any. Where replicas are asked for, an event that they do not have
        is released and queued later. Raises RedisUnavailable then. What is in hand already stays so: a group that was
        lost and is made again gives some events anew.
        """
        entries = [entry for entry in entries if entry.id not in self._in_flight]
        if not self._outbox.confirmed(self._subscription.group, entries):
            self._outbox.release(self._subscription.group, [entry for entry in entries if entry.pairs])
            raise RedisUnavailable(f"{self._shard.address}: too few replicas have confirmed {len(entries)} events")
        wanted: list[OutboxEntry] = []
        unwanted: list[OutboxEntry] = []
        for entry in entries:
            if entry.pairs:
                (wanted if self._subscription.wants(entry) else unwanted).append(entry)
        self._in_flight.add(entries)
        self._batches.put(wanted, in_order=in_order, probe=probe)
        self._settle(Disposition.SKIP, unwanted)
        self._settle_gone(entries)
        return bool(entries)

    def _settle_gone(self, entries: Sequence[OutboxEntry]) -> None:
        gone = [entry for entry in entries if not entry.pairs]
        self._settle(Disposition.DEAD_LETTER, gone, "the event is no longer in the stream")

    def _settle(self, action: Disposition, entries: Sequence[OutboxEntry], reason: str = "") -> None:
        if entries:
            self._acknowledger.add(Settlement(action, entries, reason))

    def _take_back(self) -> bool:
        """
        While the circuit is open nothing else looks at events whose process is dead: when it is time, park some of them
        again, so that they become probes, or dead letters. Returns whether there were any.
        """
        entries = self._scan.take_orphaned(self._in_flight.free, self._refresh_every)
        there = [entry for entry in entries if entry.pairs]
        if there:
            self._outbox.release(self._subscription.group, there)
            fields = self._log_fields | {"events": len(there)}
            log.warning("events that no process has in hand are taken back", extra=fields)
        gone = [entry for entry in entries if not entry.pairs]
        self._in_flight.add(gone)
        self._settle_gone(gone)
        return bool(there)

    def _dead_letter_old(self) -> bool:
        """
        While the circuit is open only probes are sent, so events that are too old are given up on here, as many in a
        step as may be in hand. Where the circuit rests on one event, the other events were not tried, and are kept: the
        next probe is one of them. Returns whether there were any.
        """
        before_ms = self._redelivery.oldest_ms(self._shard.clock.now_ms())
        free, untried_too = self._in_flight.free, not self._circuit.rests_on_one_event
        if not free or not before_ms:
            return False
        if untried_too and (untaken := self._outbox.groups.untaken(self._subscription.group, before_ms, free)):
            self._outbox.release(self._subscription.group, self._outbox.read(self._subscription.group, untaken))
        old = [
            pending
            for owner in (PARKED, PARKED_ALONE)
            for pending in self._outbox.pending(self._subscription.group, owner=owner)
            if pending.added_ms < before_ms
            and (pending.deliveries or untried_too)
            and pending.id not in self._in_flight  # it is being parked
        ][:free]
        entries = [
            # The claim has counted a delivery, and there was none.
            entry._replace(deliveries=entry.deliveries - 1) if entry.pairs else entry
            for entry in self._outbox.claim(self._subscription.group, old, 0)
        ]
        self._in_flight.add(entries)
        wanted = [entry for entry in entries if not entry.pairs or self._subscription.wants(entry)]
        self._settle(Disposition.DEAD_LETTER, wanted, self._circuit.reason)
        self._settle(Disposition.SKIP, [entry for entry in entries if entry not in wanted])
        return bool(old)
