"""Sends the batches of a lane, and decides by the result of a batch about the batch's events."""

import abc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import redis

from sweeperd import progress
from sweeperd.cpu_turns import Turns
from sweeperd.delivery.batches import Batch
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.rate_limit import RateLimit
from sweeperd.delivery.settler import Disposition, Settlement
from sweeperd.delivery.webhook import HandOver, WebhookClient
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox import OutboxEntry, WebhookRequest

log = logging.getLogger(__name__)


#: From the events of a batch to the request that carries them.
Encode = Callable[[Sequence[OutboxEntry]], WebhookRequest]


class Sent(NamedTuple):
    """What becomes of a batch: its settlements, the batches to send at once, and a quick retry after a pause."""

    settlements: Sequence[Settlement] = ()
    batches: Sequence[Batch] = ()
    #: The batch, to be sent again after `pause` seconds.
    retry: Batch | None = None
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What a batch waits for before it is sent: its turn beside a sweep, and `max_rate`."""

    turns: Turns | None = None
    limit: RateLimit | None = None
    #: Called for each batch that has to wait for a sweep.
    waits: Callable[[], None] = field(default=lambda: None)

    @property
    def holds(self) -> bool:
        """Whether a batch may have to wait."""
        return self.limit is not None or (self.turns is not None and self.turns.limited)

    def wait(self, batch: Batch) -> float:
        """How long the batch waits before the next look, seconds; 0: the batch may be sent now."""
        if self.turns is not None:
            if batch.begins is None:
                batch.begins = self.turns.book()
                if batch.begins:
                    self.waits()
            if left := self.turns.wait(batch.begins):
                return left
        if self.limit is None:
            return 0.0
        left = self.limit.take(first=not batch.waited)
        batch.waited = left > 0
        return left

    def use(self, send: Callable[[], Sent]) -> Sent:
        """Send a batch, in its turn."""
        return send() if self.turns is None else self.turns.use(send)


class Sender(abc.ABC):
    """Sends the batches of one lane, or writes their records. Threads may share a sender."""

    def __init__(self, lane: Lane, pace: Pace = Pace()) -> None:
        self._lane = lane
        self._pace = pace
        self._events = {result: lane.metrics.webhooks.events.labels(lane.endpoint, result) for result in Result}

    @property
    def limit(self) -> RateLimit | None:
        """`max_rate`, if the endpoint has one."""
        return self._pace.limit

    def wait(self, batch: Batch) -> float:
        """How long the batch waits before `send`, seconds; 0: not at all. What will not be sent does not wait."""
        try:
            pause = self._pace.wait(batch) if self._pace.holds and not self._held_back(batch.probe) else 0.0
        except Exception:
            log.exception("a batch is sent before its turn", extra=self._lane.log_fields)
            return 0.0
        if pause and self.limit is not None and self.limit.error is not None:
            self._lane.stall(self.limit.error)
        return pause

    def send(self, batch: Batch) -> Sent:
        """Send a batch once, or leave it if the lane rests or stops by now."""
        sent, order = self._try(batch), self._lane.order
        if order is None or not sent.settlements:
            return sent
        delivered = [each for one in sent.settlements if one.action is Disposition.ACKNOWLEDGE for each in one.entries]
        failed = [each for one in sent.settlements if one.action is not Disposition.ACKNOWLEDGE for each in one.entries]
        held = order.conclude(delivered, failed)
        return sent._replace(settlements=[*sent.settlements, Settlement(Disposition.RELEASE, held)]) if held else sent

    def _try(self, batch: Batch) -> Sent:
        try:
            return self._pace.use(lambda: self._deliver(batch))
        except Exception:
            # A fault of sweeperd, not of the endpoint: the events wait like any other event.
            first = batch.entries[0]
            log.exception("events could not be sent", extra=self._lane.log_fields | {"stream_id": first.id.decode()})
            if batch.hand_over:
                batch.hand_over.end()
            alone = self._lane.limits.events > 1
            return Sent(self._nack([entry._replace(alone=alone) for entry in batch.entries], "it cannot be sent"))

    def tidy(self) -> None:  # noqa: B027 - the relay has nothing to tidy
        """Close the connections that no request will use again."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abc.abstractmethod
    def _deliver(self, batch: Batch) -> Sent:
        """Send this batch once."""

    def _held_back(self, probe: bool) -> bool:
        lane = self._lane
        return not lane.works_here or lane.stop.is_set() or lane.state.resting or (lane.circuit.open and not probe)

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
    """Sends each batch as a request, with quick retries. No thread waits between two of them."""

    def __init__(self, lane: Lane, client: WebhookClient, encode: Encode, pace: Pace = Pace()) -> None:
        super().__init__(lane, pace)
        self._client = client
        self._encode = encode

    def tidy(self) -> None:
        self._client.tidy()

    def close(self) -> None:
        self._client.close()

    def _deliver(self, batch: Batch) -> Sent:
        held_back, hand_over = self._held_back(batch.probe), batch.hand_over
        if hand_over is None:
            if held_back:
                return Sent([Settlement(Disposition.RELEASE, batch.entries)])
            request = self._encode(batch.entries)
            if len(batch.entries) > 1 and len(request.body) > self._lane.limits.bytes:
                return Sent(batches=_halves(batch, batch.attempts))
            attempts = 1 if batch.probe else batch.attempts
            hand_over = batch.hand_over = self._client.hand_over(request, attempts)
            batch.successes = self._lane.circuit.successes
        # If the endpoint began to rest during the pause, the last result stands.
        pause = None if held_back else hand_over.attempt()
        if pause is not None:
            return Sent(retry=batch, pause=pause)
        return self._conclude(batch, hand_over)

    def _conclude(self, batch: Batch, hand_over: HandOver) -> Sent:
        """The hand-over has ended."""
        hand_over.end()
        entries, request, result = batch.entries, hand_over.request, hand_over.result
        self._events[result.result].inc(len(entries))
        self._lane.attempts.record(entries, request.event_id, request.webhook_id, result)
        if result.delivered:
            self._succeeded(entries, request, result)
            return Sent([Settlement(Disposition.ACKNOWLEDGE, entries)])
        log_fields = self._request_fields(entries, request)
        log_fields |= {"reason": result.reason, "hand_overs": entries[0].deliveries}
        # In an outage all requests fail, and batches must not turn into single requests.
        accepts_others = self._lane.circuit.successes > batch.successes
        # If some events failed before, one of them may be at fault, and no other request may ever tell.
        again = not result.retry_after and any(entry.deliveries > 1 for entry in entries)
        if len(entries) > 1 and not result.gone and (result.content_refused or accepts_others or again):
            log.warning("a batch was not delivered and is halved", extra=log_fields)
            return Sent(batches=_halves(batch, 1))
        log.warning("not delivered", extra=log_fields)
        self._failed(entries, result, batch.probe)
        if result.gone:
            return Sent([Settlement(Disposition.NACK, entries)])
        if result.refused and len(entries) == 1:
            entries = (entries[0]._replace(alone=self._lane.limits.events > 1),)
        return Sent(self._nack(entries, result.reason))

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


def _halves(batch: Batch, attempts: int | None) -> list[Batch]:
    middle = (len(batch.entries) + 1) // 2
    return [Batch(part, attempts=attempts) for part in (batch.entries[:middle], batch.entries[middle:])]
