"""Sends the batches of one endpoint, and decides by the result of a batch about the batch's events."""

import abc
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import redis

from sweeperd import progress
from sweeperd.delivery.acknowledger import Acknowledger, Disposition, Settlement
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import Batch, Lane
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox import OutboxEntry, WebhookRequest

log = logging.getLogger(__name__)


#: From the events of a batch to the request that carries them.
Encode = Callable[[Sequence[OutboxEntry]], WebhookRequest]


class Client(Protocol):
    """The way of a request to an endpoint."""

    def deliver(
        self, request: WebhookRequest, attempts: int | None = None, may_send: Callable[[], bool] | None = None
    ) -> DeliveryResult:
        """Send the request, with at most so many attempts; each but the first only if `may_send` says so."""

    def await_turn(self) -> bool:
        """Wait until the endpoint may get a request. False: a stop came first."""

    def close(self) -> None:
        """Close the connections."""


class Sender(abc.ABC):
    """Sends the batches of one endpoint, or writes their records. Threads may share a sender."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._events = {result: lane.metrics.webhooks.events.labels(lane.endpoint, result) for result in Result}

    def run(self, acknowledger: Acknowledger) -> None:
        """The work of each sending thread: take a batch, wait for a turn, send, pass the settlements on."""
        with self._lane.beats.work() as work:
            while batch := self._lane.batches.take():
                work.begin(batch.entries)
                with self._lane.turn():
                    settlements = self.send(batch)
                for settlement in settlements:
                    acknowledger.add(settlement)
                work.end()
                self._lane.batches.done()

    def send(self, batch: Batch) -> list[Settlement]:
        """Send a batch, with quick retries. Returns the settlements of the batch's events."""
        try:
            return self._deliver(batch.entries, probe=batch.probe, attempts=1 if batch.probe else None)
        except Exception:
            # A fault of sweeperd, not of the endpoint: the events wait like any other event.
            first = batch.entries[0]
            log.exception("events could not be sent", extra=self._lane.log_fields | {"stream_id": first.id.decode()})
            return self._nack([entry._replace(alone=self._batches) for entry in batch.entries], "it cannot be sent")

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abc.abstractmethod
    def _deliver(
        self, entries: Sequence[OutboxEntry], *, probe: bool = False, attempts: int | None
    ) -> list[Settlement]:
        """Deliver these events, each in one of the settlements."""

    def _held_back(self, probe: bool) -> bool:
        return self._lane.stop.is_set() or self._lane.state.resting or (self._lane.circuit.open and not probe)

    @property
    def _batches(self) -> bool:
        return self._lane.limits.events > 1

    def _nack(self, entries: Sequence[OutboxEntry], reason: str) -> list[Settlement]:
        """The events wait for the next delivery; if an event is too old, the event is given up on."""
        oldest = self._lane.redelivery.oldest_ms(self._lane.shard.clock.now_ms())
        old = [entry for entry in entries if entry.added_ms < oldest]
        young = [entry for entry in entries if entry.added_ms >= oldest]
        parts = ((Disposition.DEAD_LETTER, old), (Disposition.NACK, young))
        return [Settlement(action, part, reason) for action, part in parts if part]

    def _publish(self) -> None:
        """Publish state and circuit for other replicas and operators. If the write fails, the reader retries."""
        progress.allow(self._lane.shard.patience)
        try:
            with self._lane.shard.reaching():
                self._lane.state.save()
                self._lane.publisher.publish()
        except (RedisUnavailable, redis.RedisError) as error:
            log.warning("the endpoint's state is not saved yet", extra=self._lane.log_fields | {"error": str(error)})


class BatchSender(Sender):
    """Sends each batch as a request. Threads may share a sender."""

    def __init__(self, lane: Lane, client: Client, encode: Encode) -> None:
        super().__init__(lane)
        self._client = client
        self._encode = encode

    def close(self) -> None:
        self._client.close()

    def _deliver(
        self, entries: Sequence[OutboxEntry], *, probe: bool = False, attempts: int | None
    ) -> list[Settlement]:
        if self._held_back(probe):
            return [Settlement(Disposition.RELEASE, entries)]
        request = self._encode(entries)
        if len(entries) > 1 and len(request.body) > self._lane.limits.bytes:
            return self._halves(entries, attempts)

        def may_send() -> bool:
            return self._client.await_turn() and not self._held_back(probe)

        if not may_send():
            return [Settlement(Disposition.RELEASE, entries)]
        successes = self._lane.circuit.successes
        result = self._client.deliver(request, attempts, may_send)
        self._events[result.result].inc(len(entries))
        self._lane.attempts.record(entries, request.event_id, request.webhook_id, result)
        if result.delivered:
            self._succeeded(entries, request, result)
            return [Settlement(Disposition.ACKNOWLEDGE, entries)]
        log_fields = self._request_fields(entries, request)
        log_fields |= {"reason": result.reason, "hand_overs": entries[0].deliveries}
        # In an outage all requests fail, and batches must not turn into single requests.
        accepts_others = self._lane.circuit.successes > successes
        # If some events were sent in vain before, one of them may be at fault, and no other request may ever tell.
        again = not result.retry_after and any(entry.deliveries > 1 for entry in entries)
        if len(entries) > 1 and not result.gone and (result.content_refused or accepts_others or again):
            log.warning("a batch was not delivered and is halved", extra=log_fields)
            return self._halves(entries, attempts=1)
        log.warning("not delivered", extra=log_fields)
        self._failed(entries, result, probe)
        if result.gone:
            return [Settlement(Disposition.NACK, entries)]
        if result.refused and len(entries) == 1:
            entries = [entries[0]._replace(alone=self._batches)]
        return self._nack(entries, result.reason)

    def _halves(self, entries: Sequence[OutboxEntry], attempts: int | None) -> list[Settlement]:
        middle = (len(entries) + 1) // 2
        return self._deliver(entries[:middle], attempts=attempts) + self._deliver(entries[middle:], attempts=attempts)

    def _succeeded(self, entries: Sequence[OutboxEntry], request: WebhookRequest, result: DeliveryResult) -> None:
        if self._lane.circuit.succeeded():
            log.warning("the endpoint answers again", extra=self._request_fields(entries, request))
            self._publish()
        if log.isEnabledFor(logging.DEBUG):
            fields = {"status": result.status, "seconds": round(result.seconds, 3)}
            log.debug("delivered", extra=self._request_fields(entries, request) | fields)

    def _failed(self, entries: Sequence[OutboxEntry], result: DeliveryResult, probe: bool) -> None:
        log_fields = self._lane.log_fields | {"reason": result.reason}
        opened = False
        if result.gone:
            self._lane.state.pause("the receiver answered 410")
            log.error("the endpoint is gone and is paused until it is resumed", extra=log_fields)
        else:
            refused_alone = result.refused and len(entries) == 1
            move = self._lane.circuit.refused if refused_alone else self._lane.circuit.failed
            opened = move(entries[0].id, result.reason, probe=probe)
        if opened:
            log.error("the endpoint fails; its events wait", extra=log_fields)
        if opened or probe or result.gone or result.retry_after:
            self._publish()

    def _request_fields(self, entries: Sequence[OutboxEntry], request: WebhookRequest) -> dict[str, object]:
        """The log fields of a request: the first event, and how many events there are."""
        fields = self._lane.log_fields | {"event_id": request.event_id, "trace_id": request.trace_id}
        if entries[0].only_for is not None:
            fields["replay"] = True
        return fields | ({"events": len(entries)} if len(entries) > 1 else {})
