"""The threads that send the batches of one endpoint, and what the result of a batch means for its events."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import redis

from sweeperd.delivery.acknowledger import Acknowledger, Action, Settlement
from sweeperd.delivery.batches import Batch, BatchQueue
from sweeperd.delivery.circuit_breaker import CircuitBreaker
from sweeperd.delivery.circuit_publisher import CircuitPublisher
from sweeperd.delivery.endpoint_state import EndpointStateCache
from sweeperd.delivery.outbox import OutboxEntry
from sweeperd.delivery.payload import Message
from sweeperd.delivery.redelivery import Redelivery
from sweeperd.delivery.result import DeliveryResult
from sweeperd.errors import RedisUnavailable
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: From the id and the fields of a stream entry to the message that is sent.
Encode = Callable[[bytes, dict[bytes, bytes]], Message]


class Client(Protocol):
    """What carries messages to an endpoint: HTTP, or the relay's script."""

    def deliver(self, messages: Sequence[Message], attempts: int | None = None) -> DeliveryResult:
        """Deliver them together, with at most so many attempts."""

    def close(self) -> None:
        """Close its connections."""


class BatchSender:
    """Sends batches to one endpoint. Threads may share it."""

    def __init__(
        self,
        shard: Shard,
        client: Client,
        encode: Encode,
        circuit: CircuitBreaker,
        publisher: CircuitPublisher,
        state: EndpointStateCache,
        redelivery: Redelivery,
        stop: threading.Event,
        log_fields: Mapping[str, object],
    ) -> None:
        self._shard = shard
        self._client = client
        self._encode = encode
        self._circuit = circuit
        self._publisher = publisher
        self._state = state
        self._redelivery = redelivery
        self._stop = stop
        self._log_fields = dict(log_fields)

    def send(self, batch: Batch) -> Settlement:
        """Send it, with its quick retries. Returns what has to happen with its events."""
        held_back = self._circuit.open and not batch.probe
        if self._stop.is_set() or held_back or self._state.resting:
            return Settlement(Action.RELEASE, batch.entries)
        (entry,) = batch.entries
        try:
            message = self._encode(entry.id, entry.fields)
            result = self._client.deliver([message], attempts=1 if batch.probe else None)
        except Exception:
            # A fault of sweeperd: it says nothing about the endpoint, and the event waits like any other.
            log.exception("an event could not be sent", extra=self._log_fields | {"stream_id": entry.id.decode()})
            return self._nack(entry, "it cannot be sent")
        log_fields = self._log_fields | {"event_id": message.event_id, "trace_id": message.trace_id}
        if entry.only_for is not None:
            log_fields["replay"] = True
        if result.delivered:
            self._succeeded(result, log_fields)
            return Settlement(Action.ACKNOWLEDGE, batch.entries)
        log.warning("not delivered", extra=log_fields | {"reason": result.reason, "hand_overs": entry.deliveries})
        self._failed(entry, result, batch.probe)
        if result.gone:
            return Settlement(Action.NACK, batch.entries)
        return self._nack(entry, result.reason)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _nack(self, entry: OutboxEntry, reason: str) -> Settlement:
        """The event waits for its next delivery, or is given up on because it is too old."""
        age_ms = self._shard.clock.now_ms() - entry.added_ms
        action = Action.DEAD_LETTER if age_ms > self._redelivery.max_age_ms else Action.NACK
        return Settlement(action, (entry,), reason)

    def _succeeded(self, result: DeliveryResult, log_fields: dict[str, object]) -> None:
        if self._circuit.succeeded():
            log.warning("the endpoint answers again", extra=log_fields)
            self._publish()
        if log.isEnabledFor(logging.DEBUG):
            log.debug("delivered", extra=log_fields | {"status": result.status, "seconds": round(result.seconds, 3)})

    def _failed(self, entry: OutboxEntry, result: DeliveryResult, probe: bool) -> None:
        log_fields = self._log_fields | {"reason": result.reason}
        opened = False
        if result.gone:
            self._state.pause("the receiver answered 410")
            log.error("the endpoint is gone and is paused until it is resumed", extra=log_fields)
        else:
            move = self._circuit.refused if result.refused else self._circuit.failed
            opened = move(entry.id, result.reason, probe=probe)
            if result.retry_after:
                self._state.mute(min(result.retry_after, self._redelivery.max_age_ms / 1000))
        if opened:
            log.error("the endpoint fails; its events wait", extra=log_fields)
        if opened or probe or result.gone or result.retry_after:
            self._publish()

    def _publish(self) -> None:
        """For other replicas and operators: the endpoint's state and its circuit. What fails is saved by the reader."""
        try:
            with self._shard.reaching():
                self._state.save()
                self._publisher.publish()
        except (RedisUnavailable, redis.RedisError) as error:
            log.warning("the endpoint's state is not saved yet", extra=self._log_fields | {"error": str(error)})


class SenderThreads:
    """The sending threads of one endpoint: each takes a batch, sends it, and passes the settlement on."""

    def __init__(
        self, name: str, count: int, batches: BatchQueue, sender: BatchSender, acknowledger: Acknowledger
    ) -> None:
        self._batches = batches
        self._sender = sender
        self._acknowledger = acknowledger
        self._threads = [
            threading.Thread(target=self._run, name=f"send-{name}-{number}", daemon=True)
            for number in range(1, count + 1)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No batch follows: the threads end after what is queued."""
        for _ in self._threads:
            self._batches.put(None)

    def join(self, deadline: float | None) -> bool:
        """Wait for the threads until `deadline` (monotonic). Returns whether they have all ended."""
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def complete(self) -> bool:
        """Whether all threads run."""
        return all(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._acknowledger.add(self._sender.send(batch))
