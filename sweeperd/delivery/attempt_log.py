"""The log of the attempts of one endpoint, in a bounded stream that all replicas write."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis
from prometheus_client import Counter

from sweeperd.delivery.attempt import ANSWER, Attempt
from sweeperd.delivery.outbox import OutboxEntry
from sweeperd.delivery.result import DeliveryResult
from sweeperd.store.errors import describe
from sweeperd.store.process import process_name
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: At most one success in this time is recorded, ms. Every failure is.
SUCCESS_EVERY_MS = 100
#: How many attempts wait to be written, at most; the oldest ones are dropped.
WAITING = 1000


class AttemptLog:
    """
    Gathers the attempts of one endpoint on one shard. Threads may share it.

    `kept`: how many attempts the stream keeps, about; 0: none is recorded. `dropped` counts what was not written.
    """

    def __init__(self, shard: Shard, endpoint: str, kept: int, dropped: Counter) -> None:
        self._shard = shard
        self._key = shard.keys.attempts(endpoint)
        self._endpoint = endpoint
        self._kept = kept
        self._dropped = dropped
        self._replica = process_name()
        self._waiting: deque[Attempt] = deque(maxlen=max(1, min(kept, WAITING)))
        self._success_ms = 0
        self._refused = False

    def record(self, entries: Sequence[OutboxEntry], event_id: str, result: DeliveryResult) -> None:
        """
        The result of a hand-over, with its quick retries, of these events; `event_id` is of the first one. It is
        written with the next `write`.
        """
        if not self._kept:
            return
        if result.delivered and not result.earlier:
            if 0 <= result.at_ms - self._success_ms < SUCCESS_EVERY_MS:
                return
            self._success_ms = result.at_ms
        for number, each in enumerate((*result.earlier, result), 1):
            if len(self._waiting) == self._waiting.maxlen:
                self._dropped.inc()
            self._waiting.append(self._attempt(entries, event_id, each, number))

    def write(self) -> None:
        """
        Write what has gathered, in one round trip. What Redis refuses, because it is full or a right is missing, is
        dropped: no delivery waits for the log.
        """
        attempts = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not attempts:
            return
        pipeline = self._shard.client.pipeline(transaction=False)
        for attempt in attempts:
            fields: dict[Any, Any] = attempt.fields()
            pipeline.xadd(self._key, fields, maxlen=self._kept, approximate=True)
        try:
            refused = [reply for reply in pipeline.execute(raise_on_error=False) if isinstance(reply, Exception)]
        except redis.RedisError as error:
            refused = [error] * len(attempts)
        self._dropped.inc(len(refused))
        if refused and not self._refused:
            log.warning(
                "attempts are not recorded",
                extra={"shard": self._shard.name, "endpoint": self._endpoint, "error": describe(refused[0])},
            )
        self._refused = bool(refused)

    def _attempt(self, entries: Sequence[OutboxEntry], event_id: str, result: DeliveryResult, number: int) -> Attempt:
        first = entries[0]
        return Attempt(
            result.at_ms,
            event_id,
            first.fields.get(b"id", b""),
            first.id,
            entries[-1].id,
            len(entries),
            first.deliveries,
            number,
            result.result,
            result.reason,
            round(result.seconds * 1000),
            result.answer[:ANSWER],
            self._replica,
        )
