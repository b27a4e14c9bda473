"""The log of the attempts of one endpoint, in a bounded stream that all replicas write."""

import enum
import itertools
import logging
import operator
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import prometheus_client
import redis

from sweeperd.delivery.batches import InFlight
from sweeperd.delivery.http import DeliveryResult
from sweeperd.errors import RedisUnavailable
from sweeperd.metrics import Metrics
from sweeperd.outbox.attempts import ANSWER, Attempt
from sweeperd.outbox.event import OutboxEntry
from sweeperd.outbox.stream import Outbox
from sweeperd.store.errors import describe, is_missing_group
from sweeperd.store.lease import process_name
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

    def __init__(self, shard: Shard, endpoint: str, kept: int, dropped: prometheus_client.Counter) -> None:
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


# ---- settles events in Redis, many in one round trip: acknowledge, nack, release, dead-letter


#: The longest that the first settlement waits for more to share its round trip, seconds.
GATHER = 0.01
#: How long to leave Redis alone after it failed, seconds.
RECOVERY_PAUSE = 1.0


class Disposition(enum.IntEnum):
    """What happens to an event."""

    #: It was delivered: acknowledge it and count it.
    ACKNOWLEDGE = enum.auto()
    #: The endpoint does not want it: acknowledge it, no request was made.
    SKIP = enum.auto()
    #: It was sent in vain: park it, its wait begins now.
    NACK = enum.auto()
    #: It was not sent: park it, any process may take it at once.
    RELEASE = enum.auto()
    #: It is given up on.
    DEAD_LETTER = enum.auto()


@dataclass(frozen=True, slots=True)
class Settlement:
    """One action for events that are in hand."""

    action: Disposition
    entries: Sequence[OutboxEntry]
    #: Why, for a dead letter.
    reason: str = ""

    @property
    def ids(self) -> list[bytes]:
        """The ids of its events."""
        return [entry.id for entry in self.entries]


class Acknowledger:
    """
    Gathers the settlements of one group. `run` is the work of a thread: it writes to Redis as soon as `together`
    settlements have gathered, or the first has waited for GATHER. A round trip for each event would cost half as much
    as its request.

    Where Redis is unavailable the settlements stay in hand and are tried again, until `end` was called. An event that
    could not be settled stays pending: the process that takes it over later sends it again.
    """

    def __init__(
        self,
        endpoint: str,
        group: str,
        shard: Shard,
        outbox: Outbox,
        in_flight: InFlight,
        metrics: Metrics,
        attempts: AttemptLog,
        together: int,
        log_fields: Mapping[str, object],
    ) -> None:
        self._endpoint = endpoint
        self._group = group
        self._shard = shard
        self._outbox = outbox
        self._in_flight = in_flight
        self._dead_letters = metrics.webhooks.dead_letters.labels(endpoint)
        self._attempts = attempts
        self._together = together
        self._log_fields = dict(log_fields)
        self._waiting: list[Settlement] = []
        self._ended = False
        self._changed = threading.Condition(threading.Lock())
        self._counts: Counter[str] = Counter()

    def add(self, settlement: Settlement) -> None:
        """Settle these events soon."""
        with self._changed:
            self._waiting.append(settlement)
            if len(self._waiting) in (1, self._together):
                self._changed.notify()

    def end(self) -> None:
        """Nothing will be added any more: `run` settles what it has and returns."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by this process."""
        with self._changed:
            return Counter(self._counts)

    def run(self) -> None:
        """Settle until `end`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                self._changed.wait_for(lambda: self._ended or len(self._waiting) >= self._together, GATHER)
                settlements, self._waiting, last = self._waiting, [], self._ended
            if settlements:
                self._settle(settlements, last=last)
            elif last:
                return

    def _settle(self, settlements: list[Settlement], *, last: bool) -> None:
        left = sorted(settlements, key=operator.attrgetter("action"))
        try:
            with self._shard.reaching():
                for action, group in itertools.groupby(tuple(left), operator.attrgetter("action")):
                    done = list(group)
                    self._write(action, done)
                    del left[: len(done)]
                    self._finish(done)
                self._attempts.write()
        except RedisUnavailable as error:
            fields = self._log_fields | {"events": sum(len(one.entries) for one in left), "error": str(error)}
            if not last:
                log.warning("events in hand wait to be settled", extra=fields)
                with self._changed:
                    self._waiting[:0] = left
                    self._changed.wait_for(lambda: self._ended, RECOVERY_PAUSE)
                return
            log.warning("events are left pending", extra=fields)
        except Exception as error:
            if is_missing_group(error):
                # A replay that was ended. Or the group is lost: once it is made again it gives them out again.
                log.info("the group has gone before its events were settled", extra=self._log_fields)
            else:
                log.exception("events could not be settled", extra=self._log_fields)
        self._finish(left)  # nothing is left where all went well

    def _finish(self, settlements: Sequence[Settlement]) -> None:
        """These are not in hand any more."""
        self._in_flight.remove([entry for settlement in settlements for entry in settlement.ids])

    def _write(self, action: Disposition, settlements: Sequence[Settlement]) -> None:
        entries = [entry for settlement in settlements for entry in settlement.entries]
        match action:
            case Disposition.ACKNOWLEDGE | Disposition.SKIP:
                self._outbox.acknowledge(self._group, [entry.id for entry in entries])
                if action is Disposition.ACKNOWLEDGE:
                    self._count("delivered", len(entries))
            case Disposition.NACK:
                self._outbox.nack(self._group, entries)
            case Disposition.RELEASE:
                self._outbox.release(self._group, entries)
            case Disposition.DEAD_LETTER:
                for settlement in settlements:
                    self._dead_letter(settlement)

    def _dead_letter(self, settlement: Settlement) -> None:
        for entry in settlement.entries:
            if not self._outbox.dead_letter(self._group, entry, settlement.reason, self._endpoint):
                continue  # another process has settled it, or has it in hand
            self._count("dead_lettered", 1)
            self._dead_letters.inc()
            log.error(
                "given up: the event is a dead letter",
                extra=self._log_fields
                | {"stream_id": entry.id.decode(), "reason": settlement.reason, "hand_overs": entry.deliveries},
            )

    def _count(self, name: str, count: int) -> None:
        with self._changed:
            self._counts[name] += count
