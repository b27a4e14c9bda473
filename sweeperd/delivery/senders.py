"""The threads that send the batches of one endpoint, and what the result of a batch means for the batch's events."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import redis

from sweeperd.delivery.acknowledger import Acknowledger, AttemptLog, Disposition, Settlement
from sweeperd.delivery.batches import Batch, BatchLimits, BatchQueue
from sweeperd.delivery.circuit import CircuitBreaker, CircuitPublisher, Redelivery
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.outbox.endpoint_state import EndpointStateCache
from sweeperd.outbox.event import OutboxEntry, WebhookRequest
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)


#: From the events of a batch to the request that carries them.
Encode = Callable[[Sequence[OutboxEntry]], WebhookRequest]


class Client(Protocol):
    """What carries requests to an endpoint: HTTP, or the relay's script."""

    def deliver(self, request: WebhookRequest, attempts: int | None = None) -> DeliveryResult:
        """Send it, with at most so many attempts."""

    def await_turn(self) -> bool:
        """Wait until the endpoint may get a request. False: a stop came first."""

    def close(self) -> None:
        """Close its connections."""


class BatchSender:
    """Sends batches to one endpoint. Threads may share it."""

    def __init__(
        self,
        endpoint: str,
        shard: Shard,
        client: Client,
        encode: Encode,
        circuit: CircuitBreaker,
        publisher: CircuitPublisher,
        state: EndpointStateCache,
        redelivery: Redelivery,
        limits: BatchLimits,
        metrics: Metrics,
        attempts: AttemptLog,
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
        self._limits = limits
        self._events = {result: metrics.webhooks.events.labels(endpoint, result) for result in Result}
        self._attempts = attempts
        self._stop = stop
        self._log_fields = dict(log_fields)

    def send(self, batch: Batch) -> list[Settlement]:
        """Send it, with its quick retries. Returns what has to happen with its events."""
        try:
            return self._deliver(batch.entries, probe=batch.probe, attempts=1 if batch.probe else None)
        except Exception:
            # A fault of sweeperd: it says nothing about the endpoint, and the events wait like any other.
            first = batch.entries[0]
            log.exception("events could not be sent", extra=self._log_fields | {"stream_id": first.id.decode()})
            return self._nack([entry._replace(alone=self._batches) for entry in batch.entries], "it cannot be sent")

    def _deliver(
        self, entries: Sequence[OutboxEntry], *, probe: bool = False, attempts: int | None
    ) -> list[Settlement]:
        if self._held_back(probe):
            return [Settlement(Disposition.RELEASE, entries)]
        request = self._encode(entries)
        if len(entries) > 1 and len(request.body) > self._limits.bytes:
            return self._halves(entries, attempts)
        if not self._client.await_turn() or self._held_back(probe):
            return [Settlement(Disposition.RELEASE, entries)]
        successes = self._circuit.successes
        result = self._client.deliver(request, attempts=attempts)
        self._events[result.result].inc(len(entries))
        self._attempts.record(entries, request.event_id, result)
        if result.delivered:
            self._succeeded(entries, request, result)
            return [Settlement(Disposition.ACKNOWLEDGE, entries)]
        log_fields = self._request_fields(entries, request)
        log_fields |= {"reason": result.reason, "hand_overs": entries[0].deliveries}
        # In an outage all requests fail, and batches must not turn into single requests.
        accepts_others = self._circuit.successes > successes
        if len(entries) > 1 and not result.gone and (result.content_refused or accepts_others):
            log.warning("a batch was not delivered and is halved", extra=log_fields)
            return self._halves(entries, attempts=1)
        log.warning("not delivered", extra=log_fields)
        self._failed(entries, result, probe)
        if result.gone:
            return [Settlement(Disposition.NACK, entries)]
        if result.refused and len(entries) == 1:
            entries = [entries[0]._replace(alone=self._batches)]
        return self._nack(entries, result.reason)

    def _held_back(self, probe: bool) -> bool:
        return self._stop.is_set() or self._state.resting or (self._circuit.open and not probe)

    def _halves(self, entries: Sequence[OutboxEntry], attempts: int | None) -> list[Settlement]:
        middle = (len(entries) + 1) // 2
        return [
            *self._deliver(entries[:middle], attempts=attempts),
            *self._deliver(entries[middle:], attempts=attempts),
        ]

    @property
    def _batches(self) -> bool:
        return self._limits.events > 1

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _nack(self, entries: Sequence[OutboxEntry], reason: str) -> list[Settlement]:
        """The events wait for their next delivery; those that are too old are given up on."""
        oldest = self._redelivery.oldest_ms(self._shard.clock.now_ms())
        old = [entry for entry in entries if entry.added_ms < oldest]
        young = [entry for entry in entries if entry.added_ms >= oldest]
        return [
            Settlement(action, part, reason)
            for action, part in ((Disposition.DEAD_LETTER, old), (Disposition.NACK, young))
            if part
        ]

    def _succeeded(self, entries: Sequence[OutboxEntry], request: WebhookRequest, result: DeliveryResult) -> None:
        if self._circuit.succeeded():
            log.warning("the endpoint answers again", extra=self._request_fields(entries, request))
            self._publish()
        if log.isEnabledFor(logging.DEBUG):
            fields = {"status": result.status, "seconds": round(result.seconds, 3)}
            log.debug("delivered", extra=self._request_fields(entries, request) | fields)

    def _failed(self, entries: Sequence[OutboxEntry], result: DeliveryResult, probe: bool) -> None:
        log_fields = self._log_fields | {"reason": result.reason}
        opened = False
        if result.gone:
            self._state.pause("the receiver answered 410")
            log.error("the endpoint is gone and is paused until it is resumed", extra=log_fields)
        else:
            refused_alone = result.refused and len(entries) == 1
            move = self._circuit.refused if refused_alone else self._circuit.failed
            opened = move(entries[0].id, result.reason, probe=probe)
            if result.retry_after:
                self._state.mute(min(result.retry_after, self._redelivery.max_age_ms / 1000))
        if opened:
            log.error("the endpoint fails; its events wait", extra=log_fields)
        if opened or probe or result.gone or result.retry_after:
            self._publish()

    def _request_fields(self, entries: Sequence[OutboxEntry], request: WebhookRequest) -> dict[str, object]:
        """The log fields of a request: its first event, and how many there are."""
        fields = self._log_fields | {"event_id": request.event_id, "trace_id": request.trace_id}
        if entries[0].only_for is not None:
            fields["replay"] = True
        return fields | ({"events": len(entries)} if len(entries) > 1 else {})

    def _publish(self) -> None:
        """For other replicas and operators: the endpoint's state and its circuit. What fails is saved by the reader."""
        try:
            with self._shard.reaching():
                self._state.save()
                self._publisher.publish()
        except (RedisUnavailable, redis.RedisError) as error:
            log.warning("the endpoint's state is not saved yet", extra=self._log_fields | {"error": str(error)})


class SenderThreads:
    """The sending threads of one endpoint: each takes a batch, waits for a `turn`, sends it, and passes it on."""

    def __init__(
        self,
        name: str,
        count: int,
        batches: BatchQueue,
        sender: BatchSender,
        acknowledger: Acknowledger,
        turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._batches = batches
        self._sender = sender
        self._acknowledger = acknowledger
        self._turn = turn
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        self.grow(self._count)

    def grow(self, count: int) -> None:
        """Start more threads, until there are so many."""
        for number in range(len(self._threads) + 1, count + 1):
            thread = threading.Thread(target=self._run, name=f"send-{self._name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        """No batch follows: the threads end after what is queued."""
        self._batches.close()

    def join(self, deadline: float | None) -> bool:
        """Wait for the threads until `deadline` (monotonic). Returns whether they have all ended."""
        for thread in tuple(self._threads):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def complete(self) -> bool:
        """Whether all threads run."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while batch := self._batches.take():
            with self._turn():
                settlements = self._sender.send(batch)
            for settlement in settlements:
                self._acknowledger.add(settlement)
            self._batches.done()
