"""One endpoint: the threads that take its events from the stream, send them, and acknowledge them."""

import itertools
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import redis

from sweeperd.config import EndpointSettings, WebhooksSettings
from sweeperd.delivery.acknowledger import RECOVERY_PAUSE, Acknowledger
from sweeperd.delivery.circuit_breaker import CircuitBreaker, growing_wait
from sweeperd.delivery.endpoint_state import CircuitStateStore, EndpointStateCache, EndpointStateStore
from sweeperd.delivery.outbox import PARKED, TAKE_OVER_AFTER, Outbox, OutboxEntry, Pending
from sweeperd.delivery.payload import Message
from sweeperd.delivery.result import DeliveryResult
from sweeperd.delivery.sender import WebhookClient
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.setting_types import milliseconds
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The longest that a reader waits in Redis for a new event, seconds: so long can a stop take to be noticed.
BLOCK = 1.0
#: The longest between two looks at what is to be handed over again, seconds.
LOOK_AGAIN = 5.0

#: From the id and the fields of a stream entry to the message that is sent.
Encode = Callable[[bytes, dict[bytes, bytes]], Message]


class EndpointWorker:
    """
    Delivers the events of one shard to one endpoint.

    What is in hand (queued, being sent, delivered and not acknowledged yet) is at most twice the number of senders, so
    memory does not grow with the backlog. An event leaves the group when the receiver has answered 2xx, or when it is
    too old; all else puts it back.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        settings: WebhooksSettings,
        shard: Shard,
        stream: Outbox,
        webhook: WebhookClient,
        encode: Encode,
        senders: int,
        metrics: Metrics,
        stop: threading.Event,
    ) -> None:
        self.name = endpoint.name
        #: What every log line carries.
        self._about: dict[str, object] = {"shard": shard.name, "endpoint": endpoint.name}
        self.circuit = CircuitBreaker(
            settings.redelivery_initial.total_seconds(), settings.redelivery_max.total_seconds()
        )
        self._tenants = None if endpoint.tenants is None else {tenant.encode() for tenant in endpoint.tenants}
        self._wait_initial = settings.redelivery_initial.total_seconds()
        self._wait_longest = settings.redelivery_max.total_seconds()
        self._max_age_ms = milliseconds(settings.max_age)
        self._shard = shard
        self._stream = stream
        self._watch = EndpointStateCache(EndpointStateStore(shard), endpoint.name)
        self._circuits = CircuitStateStore(shard)
        self._webhook = webhook
        self._encode = encode
        self._metrics = metrics
        self._stop = stop
        # The answer to a read that waits has to come before the socket gives up.
        self._block_ms = int(min(BLOCK, shard.socket_timeout / 2) * 1000)
        self._capacity = 2 * senders
        #: Reading and acknowledging cost a round trip, so they wait until it is worth one.
        self._piece = max(1, senders // 4)
        self._sender_count = self._senders_left = senders
        self._acknowledger = Acknowledger(self._acknowledge, self._settled, self._piece, self._about)
        self._queue: queue.SimpleQueue[tuple[OutboxEntry, bool] | None] = queue.SimpleQueue()
        self._in_hand: dict[bytes, OutboxEntry] = {}
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._counts: Counter[str] = Counter()
        self._last_reason = ""
        #: Between two looks at the endpoint's state and at what is to be handed over again, seconds.
        self._pause = min(LOOK_AGAIN, self._wait_initial / 4)
        self._look_at = 0.0
        self._keep_at = 0.0

    # ---- threads

    def start(self, *, until_idle: bool = False) -> None:
        """Start the threads. `until_idle`: they end by themselves when nothing is left that can be handed over now."""
        thread_name = f"{self._shard.name}-{self.name}"
        self._threads = [
            threading.Thread(target=self._send_queued, name=f"send-{thread_name}-{number}", daemon=True)
            for number in range(1, self._sender_count + 1)
        ]
        self._threads += [
            threading.Thread(target=self._acknowledger.run, name=f"acknowledge-{thread_name}", daemon=True),
            threading.Thread(target=self._read, args=(until_idle,), name=f"deliver-{thread_name}", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def join(self, deadline: float | None = None) -> bool:
        """Wait for the threads until `deadline` (monotonic). Returns whether they have all ended."""
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        ended = not self.alive
        if ended:
            self._webhook.close()
        return ended

    @property
    def alive(self) -> bool:
        """Whether a thread of it runs."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def complete(self) -> bool:
        """Whether all its threads run."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def counts(self) -> Counter[str]:
        """How many were `delivered` and `dead_lettered` by this process."""
        with self._changed:
            return Counter(self._counts)

    def _count(self, what: str) -> None:
        with self._changed:
            self._counts[what] += 1

    # ---- the reader

    def _read(self, until_idle: bool) -> None:
        ghosts_until: float | None = None
        try:
            while not self._stop.is_set():
                try:
                    with self._shard.reaching():
                        busy = bool(self._in_hand)
                        if self._step(block=not until_idle) or not until_idle:
                            ghosts_until = None
                        elif busy:
                            self._await_fewer(max(1, len(self._in_hand)), BLOCK)
                        else:
                            # Nothing is left but perhaps what another process has in hand, or had when it died.
                            ghosts_until = ghosts_until or time.monotonic() + TAKE_OVER_AFTER + LOOK_AGAIN
                            if time.monotonic() > ghosts_until or not self._waits_for_others():
                                return
                            self._stop.wait(0.2)
                except RedisUnavailable as error:
                    log.warning("delivery waits for redis", extra=self._about | {"error": str(error)})
                    if until_idle:
                        return
                    self._stop.wait(RECOVERY_PAUSE)
                except Exception as error:
                    if isinstance(error, redis.ResponseError) and "NOGROUP" in str(error):
                        self._make_group_again()
                        continue
                    log.exception("delivery failed", extra=self._about)
                    if until_idle:
                        return
                    self._stop.wait(RECOVERY_PAUSE)
        finally:
            for _ in range(self._sender_count):
                self._queue.put(None)

    def _step(self, *, block: bool) -> bool:
        """Take what can be handed over now, up to the capacity. Returns whether there was anything to do."""
        now = time.monotonic()
        if now >= self._keep_at:
            self._keep_at = now + TAKE_OVER_AFTER / 3
            self._stream.heartbeat(self.name, list(self._in_hand))
        # A run that is to end concludes from a step with nothing in hand that nothing is left, so that one looks.
        look = now >= self._look_at or not (block or self._in_hand)
        if look:
            self._look_at = now + self._pause
            self._shard.read_clock()
            self._look()
        if self._left_alone():
            return self._rest(block)
        if self.circuit.open:
            return self._dead_letter_old() or self._probe() or self._rest(block)
        free = self._capacity - len(self._in_hand)
        if free < self._piece:
            self._await_fewer(self._capacity - self._piece + 1, BLOCK)
            return True
        entries = self._take_again(free) if look else []
        if len(entries) < free:
            # Never block while there is something to hand out.
            block_ms = self._block_ms if block and not entries else 0
            entries += self._stream.read(self.name, free - len(entries), block_ms)
        else:
            self._look_at = now  # there is more
        return self._hand_out(entries)

    def _look(self) -> None:
        """What an operator or another replica has said of the endpoint."""
        before = self._watch.state.paused
        self._watch.look()
        state = self._watch.state
        if state.paused and not before:
            log.warning("the endpoint is paused; its events wait", extra=self._about | {"reason": state.reason})
        elif before and not state.paused:
            log.warning("the endpoint is resumed", extra=self._about)

    def _rest(self, block: bool) -> bool:
        if block:
            self._await_fewer(len(self._in_hand), self._pause)
        return False

    def _await_fewer(self, count: int, seconds: float) -> None:
        """Wait until less than `count` are in hand, or a stop, or for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or len(self._in_hand) < count, seconds)

    def wake(self) -> None:
        """Have the reader look at `stop` at once."""
        with self._changed:
            self._changed.notify_all()

    def _take_again(self, count: int) -> list[OutboxEntry]:
        """Take what has waited long enough for its next hand-over, and what a dead process had in hand."""
        threshold_ms = int(min(self._wait_initial, TAKE_OVER_AFTER) * 1000)
        due = filter(self._due, self._stream.pending(self.name, threshold_ms))
        wanted = list(itertools.islice(due, count))
        # What was given back without a try (0 deliveries) has no wait; all else has been idle for the threshold.
        return self._stream.claim(self.name, wanted, threshold_ms)

    def _due(self, pending: Pending) -> bool:
        if pending.owner != PARKED:
            return pending.idle_ms >= TAKE_OVER_AFTER * 1000 and pending.id not in self._in_hand
        return pending.idle_ms >= growing_wait(self._wait_initial, self._wait_longest, pending.deliveries) * 1000

    def _probe(self) -> bool:
        """The circuit is open: when it is time, and nothing else is in hand, try a single event."""
        if self._in_hand or not self.circuit.probe_due:
            return False
        parked = (pending for pending in self._stream.pending(self.name, 0) if pending.owner == PARKED)
        first = list(itertools.islice(parked, 1))
        return self._hand_out(self._stream.claim(self.name, first, 0) or self._stream.read(self.name, 1), probe=True)

    def _make_group_again(self) -> None:
        """The group is gone (a fail-over, a flush), or could not be made before: make it where it was."""
        log.warning("the endpoint's group is not there and is made", extra=self._about)
        try:
            with self._shard.reaching():
                if self._stream.ensure_group(self.name):
                    return
        except (RedisUnavailable, redis.RedisError) as error:
            log.warning("the group could not be made", extra=self._about | {"error": str(error)})
        self._stop.wait(RECOVERY_PAUSE)

    def _hand_out(self, entries: Sequence[OutboxEntry], *, probe: bool = False) -> bool:
        """
        Queue for the senders; what this endpoint did not ask for is acknowledged here, what is no more is buried.

        Where replicas are asked for, nothing is handed out that they do not have: it is put back, not counted as handed
        over, and taken again soon. Raises RedisUnavailable then.
        """
        if not self._stream.confirmed(self.name, entries):
            for entry in entries:
                if entry.fields:
                    self._stream.release(self.name, entry)
            raise RedisUnavailable(f"{self._shard.address}: too few replicas have confirmed {len(entries)} events")
        there = [entry for entry in entries if entry.fields]
        wanted = {entry.id: entry for entry in there if self._wants(entry)}
        self._stream.acknowledge(self.name, [entry.id for entry in there if entry.id not in wanted])
        with self._changed:
            self._in_hand.update(wanted)
        for entry in wanted.values():
            self._queue.put((entry, probe))
        for entry in entries:
            if not entry.fields:
                self._dead_letter(entry, "the event is no longer in the stream")
        return bool(entries)

    def _wants(self, entry: OutboxEntry) -> bool:
        if entry.only_for is not None:
            # Whoever had it delivered again looked at the tenants: a letter that is lost here would be lost in silence.
            return entry.only_for == self.name
        return self._tenants is None or entry.fields.get(b"tenant", b"") in self._tenants

    def _waits_for_others(self) -> bool:
        """Whether another process has, or had when it died, events in hand."""
        if self._left_alone() or self.circuit.open:
            return False
        return any(pending.owner != PARKED for pending in self._stream.pending(self.name, 0))

    # ---- the senders

    def _send_queued(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                self._send_safely(*item)
        finally:
            with self._changed:
                self._senders_left -= 1
            if not self._senders_left:
                self._acknowledger.end()

    def _send_safely(self, entry: OutboxEntry, probe: bool) -> None:
        delivered = False
        try:
            with self._shard.reaching():
                delivered = self._send(entry, probe)
        except RedisUnavailable as error:
            # The event stays pending; whoever finds it silent takes it over.
            log.warning("an event is left pending", extra=self._about | {"error": str(error)})
        except Exception:
            about = self._about | {"stream_id": entry.id.decode()}
            log.exception("an event could not be sent", extra=about)
            self._put_back(entry)
        finally:
            if not delivered:
                self._settled([entry.id], False)

    def _acknowledge(self, ids: Sequence[bytes]) -> None:
        with self._shard.reaching():
            self._stream.acknowledge(self.name, ids)

    def _settled(self, ids: Sequence[bytes], acknowledged: bool) -> None:
        """These are not in hand any more."""
        with self._changed:
            for entry in ids:
                self._in_hand.pop(entry, None)
            if acknowledged:
                self._counts["delivered"] += len(ids)
            self._changed.notify_all()

    def _send(self, entry: OutboxEntry, probe: bool) -> bool:
        """Hand over. Returns whether it was delivered, and so is the acknowledger's to settle."""
        held_back = self.circuit.open and not probe
        if self._stop.is_set() or held_back or self._left_alone():
            self._stream.release(self.name, entry)
            return False
        message = self._encode(entry.id, entry.fields)
        verdict = self._webhook.deliver([message], attempts=1 if probe else None)
        about = self._about | {"event_id": message.event_id, "trace_id": message.trace_id}
        if entry.only_for is not None:
            about["replay"] = True
        if verdict.delivered:
            self._acknowledger.add(entry.id)
            self._succeeded(verdict, about)
            return True
        self._failed(entry, verdict, probe, about)
        return False

    def _succeeded(self, verdict: DeliveryResult, about: dict[str, object]) -> None:
        was_open = self.circuit.open
        self.circuit.succeeded()
        if was_open:
            log.warning("the endpoint answers again", extra=about)
            self._circuits.tell(self.name, self.circuit)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("delivered", extra=about | {"status": verdict.status, "seconds": round(verdict.seconds, 3)})

    def _failed(self, entry: OutboxEntry, verdict: DeliveryResult, probe: bool, about: dict[str, object]) -> None:
        self._last_reason = verdict.reason
        log.warning("not delivered", extra=about | {"reason": verdict.reason, "hand_overs": entry.deliveries})
        opened = not verdict.gone and self.circuit.failed(probe=probe)
        if verdict.gone:
            self._watch.pause("the receiver answered 410")
            log.error("the endpoint is gone and is paused until it is resumed", extra=self._about)
        elif opened:
            log.error("the endpoint fails; its events wait", extra=self._about | {"reason": verdict.reason})
        if verdict.retry_after and not verdict.gone:
            self._watch.mute(min(verdict.retry_after, self._max_age_ms / 1000))
        if not verdict.gone and self._age_ms(entry) > self._max_age_ms:
            self._dead_letter(entry, verdict.reason)
        else:
            self._stream.nack(self.name, entry)
        if opened or probe:
            self._circuits.tell(self.name, self.circuit, verdict.reason)

    def _put_back(self, entry: OutboxEntry) -> None:
        """After a fault of ours: the circuit knows nothing of it, the event waits like any other."""
        try:
            with self._shard.reaching():
                if self._age_ms(entry) > self._max_age_ms:
                    self._dead_letter(entry, "it cannot be sent")
                else:
                    self._stream.nack(self.name, entry)
        except (RedisUnavailable, redis.RedisError):
            log.warning("an event is left pending", extra=self._about)

    # ---- giving up

    def _age_ms(self, entry: OutboxEntry) -> int:
        return self._shard.clock.now_ms() - entry.added_ms

    def _dead_letter(self, entry: OutboxEntry, reason: str) -> None:
        if self._stream.dead_letter(self.name, entry, reason):
            self._count("dead_lettered")
            self._metrics.webhook_dead_letters.labels(self.name).inc()
            log.error(
                "given up: the event is a dead letter",
                extra=self._about
                | {
                    "stream_id": entry.id.decode(),
                    "reason": reason,
                    "hand_overs": entry.deliveries,
                },
            )

    def _dead_letter_old(self) -> bool:
        """While the circuit is open, nobody tries the old events any more, so age alone ends them. A page at a time."""
        before_ms = self._shard.clock.now_ms() - self._max_age_ms
        untaken = self._stream.untaken(self.name, before_ms, self._capacity)
        for entry in self._stream.read(self.name, untaken) if untaken else []:
            self._stream.release(self.name, entry)
        parked = (pending for pending in self._stream.pending(self.name, 0) if pending.owner == PARKED)
        page = itertools.islice(parked, self._capacity)
        old = {pending.id: pending for pending in page if pending.added_ms < before_ms}
        for entry in self._stream.claim(self.name, list(old.values()), 0):
            if entry.fields and not self._wants(entry):
                self._stream.acknowledge(self.name, [entry.id])
            else:
                # To take it in order to bury it was no hand-over.
                handed_over = replace(entry, deliveries=old[entry.id].deliveries)
                self._dead_letter(handed_over, self._last_reason or "the endpoint does not answer")
        return bool(old)

    def _left_alone(self) -> bool:
        state = self._watch.state
        return state.paused or state.muted_until > self._shard.clock.now_ms()
