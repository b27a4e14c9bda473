"""The delivery of one shard's events to one endpoint: the reader, the senders and the acknowledger, put together."""

import contextlib
import functools
import logging
import threading
import time
from collections import Counter

import redis

from sweeperd.config import RELAY, EndpointSettings
from sweeperd.context import ShardContext
from sweeperd.delivery.acknowledger import Acknowledger, AttemptLog
from sweeperd.delivery.batches import BatchLimits, BatchQueue, InFlight
from sweeperd.delivery.circuit import CircuitBreaker, CircuitPublisher, Redelivery
from sweeperd.delivery.reader import Consumer
from sweeperd.delivery.senders import BatchSender, Client, Encode, SenderThreads
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox.endpoint_state import EndpointStateCache
from sweeperd.outbox.stream import Announcements, Outbox
from sweeperd.outbox.subscription import Subscription

log = logging.getLogger(__name__)


#: How many bytes of events of one endpoint are in hand, as far as the size of the next ones can be foreseen. With
#: events of 8 kB in batches a process needs 135 MiB at most; with twice as many bytes in hand it was 168.
IN_FLIGHT_BYTES = 12 * 1024 * 1024


class EndpointDelivery:
    """
    One endpoint on one shard. Events go forward through three stages, each with threads of its own:

        Consumer -> batches -> SenderThreads -> settlements -> Acknowledger

    At most two batches for each sender are in hand, and IN_FLIGHT_BYTES, so memory does not grow with the backlog.

    `live`: this one is a replay to the endpoint that `live` delivers to. They share the circuit and the state of the
    endpoint; the consumer group, the threads and the connections are the replay's own.
    """

    def __init__(
        self,
        context: ShardContext,
        endpoint: EndpointSettings,
        outbox: Outbox,
        client: Client,
        encode: Encode,
        senders: int,
        announcements: Announcements | None = None,
        subscription: Subscription | None = None,
        live: "EndpointDelivery | None" = None,
    ) -> None:
        shard, metrics, stop = context.shard, context.metrics, context.stop
        settings = context.settings.webhooks
        self.name = endpoint.name
        self._shard = shard
        subscription = subscription or Subscription(endpoint)
        replay: dict[str, object] = {"replay": True} if live else {}
        self._log_fields: dict[str, object] = {"shard": shard.name, "endpoint": endpoint.name} | replay
        #: Where its group begins, if it is new.
        self.start_at = subscription.start
        self._redelivery = redelivery = Redelivery.of(settings)
        probe_max = settings.probe_max.total_seconds()
        longest_waits = min(redelivery.initial, probe_max), min(redelivery.longest, probe_max)
        self.circuit: CircuitBreaker = live.circuit if live else CircuitBreaker(*longest_waits)
        self._publisher = CircuitPublisher(shard, endpoint.name, outbox.consumer, self.circuit)
        state: EndpointStateCache = live._state if live else EndpointStateCache(shard, endpoint.name, announcements)
        self._state: EndpointStateCache = state
        limits = BatchLimits.of(endpoint)
        batches = BatchQueue(limits, senders)
        self._batches, self._events_each = batches, 2 * limits.events
        self._in_flight = InFlight(senders * self._events_each, IN_FLIGHT_BYTES, stop)
        # A round trip to Redis costs half as much as a request, so one carries many events: an acknowledgement what
        # half of the senders have sent, a read a quarter of what may be in hand.
        settled_together, read_together = max(1, senders // 2), max(1, self._in_flight.capacity // 4)
        dropped = metrics.webhooks.dropped_attempts.labels(self.name)
        # The relay sends nothing.
        kept = 0 if endpoint is RELAY else context.settings.events.attempts_kept
        attempts = AttemptLog(shard, self.name, kept, dropped)
        self._acknowledger = Acknowledger(
            self.name,
            subscription.group,
            shard,
            outbox,
            self._in_flight,
            metrics,
            attempts,
            settled_together,
            self._log_fields,
        )
        self._sender = BatchSender(
            self.name,
            shard,
            client,
            encode,
            self.circuit,
            self._publisher,
            state,
            redelivery,
            limits,
            metrics,
            attempts,
            stop,
            self._log_fields,
        )
        self._consumer = Consumer(
            subscription,
            shard,
            outbox,
            state,
            self.circuit,
            self._publisher,
            redelivery,
            self._in_flight,
            batches,
            self._acknowledger,
            read_together,
            stop,
            self._log_fields,
        )
        self._thread_name = f"{shard.name}-{subscription.group}"
        waits = metrics.webhooks.sweep_waits.labels(self.name)
        sparing = functools.partial(context.interpreter.delivery, stop, waits)
        # In batches an event costs so little that it need not wait for the sweep.
        turn = contextlib.nullcontext if limits.events > 1 else sparing
        self._senders = SenderThreads(self._thread_name, senders, batches, self._sender, self._acknowledger, turn)
        self._threads: list[threading.Thread] = []

    def prepare(self) -> None:
        """Make its group where it is missing. Raises redis.RedisError."""
        self._consumer.ensure_group()

    def count_ages_from(self, made_at: int) -> None:
        """
        Its group was made then, ms, and began in the past: older events count as if they had been added then. 0, so
        that its note was lost, changes nothing.
        """
        self._redelivery.counts_from_ms = max(self._redelivery.counts_from_ms, made_at)

    def start(self, *, until_idle: bool = False) -> None:
        """
        Start the threads. `until_idle`: they end by themselves when nothing is left that can be delivered now. Raises
        RuntimeError if the system gives no more threads; those that were started end then.
        """
        threads = [
            threading.Thread(target=self._acknowledger.run, name=f"acknowledge-{self._thread_name}", daemon=True),
            threading.Thread(target=self._read, args=(until_idle,), name=f"deliver-{self._thread_name}", daemon=True),
        ]
        try:
            self._senders.start()
            for thread in threads:
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            # The system gives no more threads. The reader, which would end the others, does not run.
            self._senders.end()
            self._acknowledger.end()
            raise

    def join(self, deadline: float | None = None) -> bool:
        """Wait for the threads until `deadline` (monotonic). Returns whether they have all ended."""
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        # The reader and the acknowledger end after the senders.
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended:
            self._sender.close()
        return ended

    def leave(self) -> None:
        """Remove what this process has published. Raises redis.RedisError."""
        self._publisher.remove()

    @property
    def complete(self) -> bool:
        """Whether all its threads run."""
        return len(self._threads) == 2 and self._senders.complete and all(thread.is_alive() for thread in self._threads)

    @property
    def state(self) -> str:
        """`paused`, `open` where its circuit is, else `delivering`."""
        if self._state.state.paused:
            return "paused"
        return "open" if self.circuit.open else "delivering"

    @property
    def resting(self) -> bool:
        """Whether it needs one connection at most: it is paused or muted, or its circuit is open."""
        return self.circuit.open or self._state.state.resting(self._shard.clock.now_ms())

    def lend(self, connections: int) -> None:
        """From now on it may have so many requests in flight."""
        self._in_flight.capacity = connections * self._events_each
        self._batches.allow(connections)
        if self._threads:
            self._senders.grow(connections)

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by this process."""
        return self._acknowledger.counts()

    def wake(self) -> None:
        """End the reader's wait, after a stop."""
        self._in_flight.wake()

    def _read(self, until_idle: bool) -> None:
        try:
            self._consumer.run(until_idle=until_idle)
        finally:
            self._senders.end()
            # A request may take longer than it takes other processes to regard this one as dead.
            while not self._senders.join(time.monotonic() + 1.0):
                self._heartbeat()
            self._acknowledger.end()

    def _heartbeat(self) -> None:
        try:
            with self._shard.reaching():
                self._consumer.heartbeat()
        except (RedisUnavailable, redis.RedisError) as error:
            log.info("no heartbeat", extra=self._log_fields | {"error": str(error)})
