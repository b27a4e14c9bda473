"""Keeps the log of the attempts to deliver to one endpoint."""

import itertools
import logging
from collections import deque
from collections.abc import Sequence

import prometheus_client
import redis

from sweeperd.delivery.http import DeliveryResult
from sweeperd.outbox import OutboxEntry
from sweeperd.outbox.attempts import Attempt
from sweeperd.store import Shard
from sweeperd.store.errors import describe
from sweeperd.store.lease import process_name
from sweeperd.store.operations import Operation, Request, operation

log = logging.getLogger(__name__)

#: At most one success in this time is recorded, ms; failures are always recorded.
SUCCESS_EVERY_MS = 100
#: How many attempts wait to be written, at most; the oldest ones are dropped.
WAITING = 1000


class AttemptLog:
    """
    Gathers the attempts of one endpoint on one shard. Threads may share a log.

    `kept`: about how many attempts the stream keeps; 0: record nothing. `dropped` counts the attempts never written.
    """

    def __init__(self, shard: Shard, endpoint: str, kept: int, dropped: prometheus_client.Counter) -> None:
        self.client = shard.client
        self._shard = shard.name
        self._key = shard.keys.attempts(endpoint)
        self._endpoint = endpoint
        self._kept = kept
        self._dropped = dropped
        self._replica = process_name()
        self._waiting: deque[Attempt] = deque(maxlen=max(1, min(kept, WAITING)))
        self._success_ms = 0
        self._refused = False

    def record(self, entries: Sequence[OutboxEntry], event_id: str, webhook_id: str, result: DeliveryResult) -> None:
        """
        Record the result of a hand-over of these events, with the quick retries, for the next `write`. `event_id`: the
        id of the first event.
        """
        if not self._kept:
            return
        if result.delivered and not result.earlier:
            if 0 <= result.at_ms - self._success_ms < SUCCESS_EVERY_MS:
                return
            self._success_ms = result.at_ms
        first, last = entries[0], entries[-1]
        for number, each in enumerate((*result.earlier, result), 1):
            if len(self._waiting) == self._waiting.maxlen:
                self._dropped.inc()
            self._waiting.append(
                Attempt(
                    each.at_ms,
                    event_id,
                    first.fields.get(b"id", b""),
                    first.id,
                    last.id,
                    len(entries),
                    first.deliveries,
                    number,
                    each.result,
                    each.reason,
                    round(each.seconds * 1000),
                    each.answer,
                    self._replica,
                    webhook_id,
                )
            )

    @operation
    def write(self) -> Operation[None]:
        """
        Write the gathered attempts in a single round trip. If Redis refuses an attempt (full, or a missing right), the
        attempt is dropped: no delivery waits for the log.
        """
        attempts = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not attempts:
            return
        try:
            replies = yield [
                Request(("XADD", self._key, "MAXLEN", "~", self._kept, "*", *itertools.chain(*each.fields().items())))
                for each in attempts
            ]
            refused = [reply for reply in replies if isinstance(reply, Exception)]
        except redis.RedisError as error:
            refused = [error] * len(attempts)
        self._dropped.inc(len(refused))
        if refused and not self._refused:
            log.warning(
                "attempts are not recorded",
                extra={"shard": self._shard, "endpoint": self._endpoint, "error": describe(refused[0])},
            )
        self._refused = bool(refused)
