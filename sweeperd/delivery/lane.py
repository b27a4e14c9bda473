"""The lane of an endpoint, shared by all threads of the endpoint: events in hand, queued batches, log of attempts."""

import contextlib
import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
import redis

from sweeperd.config import RELAY, EndpointSettings
from sweeperd.context import DEFAULT_TIMING, ShardContext, Timing
from sweeperd.delivery.beats import Beats
from sweeperd.delivery.circuit import CircuitBreaker, CircuitPublisher, EndpointStateCache, Redelivery
from sweeperd.delivery.http import DeliveryResult
from sweeperd.metrics import Metrics
from sweeperd.outbox import Outbox, OutboxEntry, Subscription
from sweeperd.outbox.attempts import Attempt
from sweeperd.store import Shard
from sweeperd.store.errors import describe
from sweeperd.store.lease import process_name
from sweeperd.store.streams import StreamId

log = logging.getLogger(__name__)

#: How many bytes of events of one endpoint are in hand, if the next events are as large as the last ones. With events
#: of 8 kB in batches a process needs 135 MiB at most; with twice as many bytes in hand, 168 MiB.
IN_FLIGHT_BYTES = 12 * 1024 * 1024
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
        self._shard = shard
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

    def write(self) -> None:
        """
        Write the gathered attempts in a single round trip. If Redis refuses an attempt (full, or a missing right), the
        attempt is dropped: no delivery waits for the log.
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


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one request, in the order of the stream."""

    entries: tuple[OutboxEntry, ...]
    #: Whether the result closes an open circuit. A probe is sent once, without quick retries.
    probe: bool = False


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be, and how long a partial batch may wait, seconds."""

    events: int
    bytes: int
    wait: float

    @classmethod
    def of(cls, endpoint: EndpointSettings) -> "BatchLimits":
        return cls(endpoint.batch_size, endpoint.batch_bytes, endpoint.batch_wait.total_seconds())


class InFlight:
    """
    The events in hand: queued, being sent, or sent and not settled yet. The reader takes `capacity` events at most, and
    `capacity_bytes` at most if the next events are as large as the last ones, so memory does not grow with the backlog.
    The heartbeat names exactly these events. Threads may share the object.
    """

    def __init__(self, capacity: int, capacity_bytes: int, stop: threading.Event) -> None:
        self.capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._typical = 1.0
        self._stop = stop
        self._sizes: dict[bytes, int] = {}
        #: The reader sleeps until fewer than this are in flight; 0: the reader does not sleep.
        self._awaited = 0
        self._changed = threading.Condition(threading.Lock())

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, entry: object) -> bool:
        return entry in self._sizes

    @property
    def free(self) -> int:
        """How many more events may be taken; at least 1 if nothing is in hand, however large the event is."""
        by_bytes = int((self._capacity_bytes - self._bytes) / self._typical)
        return max(0 if self._sizes else 1, min(self.capacity - len(self._sizes), by_bytes))

    def ids(self) -> list[bytes]:
        """The ids in hand at this moment."""
        with self._changed:
            return list(self._sizes)

    def add(self, entries: Sequence[OutboxEntry]) -> None:
        """Events that the reader has taken."""
        sizes = {entry.id: entry.size for entry in entries}
        with self._changed:
            self._bytes += sum(sizes.values()) - sum([self._sizes.get(entry, 0) for entry in sizes])
            self._sizes |= sizes
            self._typical = max(1.0, sum(sizes.values()) / len(sizes)) if sizes else self._typical

    def remove(self, ids: Iterable[bytes]) -> None:
        """Forget these events, because they are settled."""
        with self._changed:
            self._bytes -= sum([self._sizes.pop(entry, 0) for entry in ids])
            if len(self._sizes) < self._awaited:
                self._changed.notify_all()

    def await_fewer(self, count: int, seconds: float) -> None:
        """Wait until fewer than `count` events are in hand, or until a stop, for so many seconds at most."""
        with self._changed:
            self._awaited = count
            self._changed.wait_for(lambda: self._stop.is_set() or len(self._sizes) < count, seconds)
            self._awaited = 0

    def wake(self) -> None:
        """End the waits of `await_fewer`, after a stop."""
        with self._changed:
            self._changed.notify_all()


class Brake:
    """
    Whether events of a lane wait, although the endpoint takes events: the relay waits for the dispatcher of Cycles.
    Meanwhile the parked events are tried again every `pause` seconds. `clock`: monotonic.
    """

    def __init__(self, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.pause = pause
        self._clock = clock
        #: Whether there was no room at the last try.
        self.waiting = False
        self._until = 0.0

    @property
    def holds(self) -> bool:
        """Whether it is too early to try again."""
        return self.waiting and self._clock() < self._until

    def hold(self) -> None:
        """There is no room, or a try begins: the next one follows after the pause."""
        self.waiting, self._until = True, self._clock() + self.pause

    def release(self) -> None:
        """There was room for all events of a try."""
        self.waiting = False


class BatchQueue:
    """
    From the reader to the senders. A full batch is taken at once. A partial batch is held while another request of the
    endpoint is in flight, for `wait` at most: else idle senders would take batches of a few events each.
    """

    def __init__(self, limits: BatchLimits, requests: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        #: How many requests may be in flight.
        self._most_requests = requests
        self._waiting: deque[OutboxEntry] = deque()
        self._bytes = 0
        #: Batches of a single event that must not share a request: a probe, an event that was refused alone.
        self._single: deque[Batch] = deque()
        #: When the first waiting event came (monotonic), and whether the waiting events are in the order of the stream.
        self._since, self._in_order = 0.0, True
        self._requests = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    @property
    def size(self) -> int:
        """How many events a full batch has."""
        return self._limits.events

    def put(self, entries: Sequence[OutboxEntry], *, in_order: bool = False, probe: bool = False) -> None:
        """Queue these events. `in_order`: each comes later in the stream than all events queued before."""
        with self._changed:
            if not self._waiting:
                self._since, self._in_order = self._clock(), True
            self._in_order = self._in_order and in_order
            for entry in entries:
                if probe or entry.alone:
                    self._single.append(Batch((entry,), probe))
                else:
                    self._waiting.append(entry)
                    self._bytes += entry.size
            full = max(len(self._waiting) / self._limits.events, self._bytes / self._limits.bytes)
            batches = len(self._single) + math.ceil(full)
            # Each sender that has a request in flight takes the next batch without being woken.
            self._changed.notify(max(0, min(batches, self._most_requests - self._requests)))

    def take(self) -> Batch | None:
        """Wait for a batch and take the batch; then call `done`. None: the queue is closed and empty."""
        with self._changed:
            while not self._ready():
                if self._closed:
                    return None
                held = self._waiting and self._requests < self._most_requests
                self._changed.wait(max(0.0, self._since + self._limits.wait - self._clock()) if held else None)
            self._requests += 1
            return self._single.popleft() if self._single else self._next()

    def done(self) -> None:
        """The request of a batch has ended. The caller takes the next batch, so no other thread is woken."""
        with self._changed:
            self._requests -= 1

    def allow(self, requests: int) -> None:
        """Allow so many requests in flight from now on."""
        with self._changed:
            self._most_requests = requests
            self._changed.notify_all()

    @property
    def free(self) -> int:
        """How many more requests may be in flight."""
        return self._most_requests - self._requests

    def ids(self) -> set[bytes]:
        """The ids of the queued events."""
        with self._changed:
            return {entry.id for entry in self._waiting} | {each.id for batch in self._single for each in batch.entries}

    def close(self) -> None:
        """No event follows: when the queue is empty, `take` returns None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ready(self) -> bool:
        if self._requests >= self._most_requests and not self._closed:
            return False
        if self._single or len(self._waiting) >= self._limits.events or self._bytes >= self._limits.bytes:
            return True
        if not self._waiting:
            return False
        return self._closed or not self._requests or self._clock() >= self._since + self._limits.wait

    def _next(self) -> Batch:
        entries = [self._waiting.popleft()]
        size = entries[0].size
        while (
            self._waiting and len(entries) < self._limits.events and size + self._waiting[0].size <= self._limits.bytes
        ):
            entries.append(self._waiting.popleft())
            size += entries[-1].size
        self._bytes -= size
        self._since = self._clock()
        if not self._in_order:
            entries.sort(key=lambda entry: StreamId.parse(entry.id))
        return Batch(tuple(entries))


@dataclass(frozen=True, slots=True)
class Lane:
    """
    One endpoint on one shard, shared by the threads of the endpoint. Events go forward through three stages:

        Consumer -> batches -> BatchSender -> settlements -> Acknowledger

    At most two batches for each sender and IN_FLIGHT_BYTES are in hand, so memory does not grow with the backlog.
    """

    shard: Shard
    endpoint: str
    subscription: Subscription
    outbox: Outbox
    metrics: Metrics
    #: When set, the threads end.
    stop: threading.Event
    redelivery: Redelivery
    circuit: CircuitBreaker
    publisher: CircuitPublisher
    state: EndpointStateCache
    limits: BatchLimits
    in_flight: InFlight
    batches: BatchQueue
    attempts: AttemptLog
    #: How many threads send at first.
    senders: int
    log_fields: dict[str, object]
    #: Before each batch a sender waits for a turn.
    turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    brake: Brake = field(default_factory=lambda: Brake(0.0))
    timing: Timing = DEFAULT_TIMING
    beats: Beats = field(default_factory=Beats)
    # A round trip to Redis costs half as much as a request, so each carries many events.
    #: The acknowledger writes when so many settlements have gathered.
    settled_together: int = 1
    #: The reader reads when there is room for so many events.
    read_together: int = 1

    @classmethod
    def of(
        cls,
        context: ShardContext,
        endpoint: EndpointSettings,
        outbox: Outbox,
        senders: int,
        subscription: Subscription | None = None,
        live: "Lane | None" = None,
    ) -> "Lane":
        """
        The lane by the settings. `live`: the new lane is a replay to the endpoint of the live lane. Both share the
        circuit and the state of the endpoint; a replay has a separate consumer group, threads and connections.
        """
        shard, metrics, stop, timing = context.shard, context.metrics, context.stop, context.timing
        redelivery, limits = Redelivery.of(context.settings.webhooks), BatchLimits.of(endpoint)
        probe_max = context.settings.webhooks.probe_max.total_seconds()
        if live:
            circuit, state, rate = live.circuit, live.state, live.publisher.rate
        else:
            rate = None
            circuit = CircuitBreaker(min(redelivery.initial, probe_max), min(redelivery.longest, probe_max))
            state = EndpointStateCache(shard, endpoint.name, outbox.announcements)
        waits = metrics.webhooks.sweep_waits.labels(endpoint.name)
        # In batches an event costs little CPU time, so batches need not wait for the sweep. Those of the relay do: they
        # keep Redis as busy as the sweep does.
        turn: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        if endpoint is RELAY:
            turn = functools.partial(context.cpu_turns.records, stop, waits)
        elif limits.events == 1:
            turn = functools.partial(context.cpu_turns.delivery, stop, waits)
        # The relay sends nothing.
        kept = 0 if endpoint is RELAY else context.settings.events.attempts_kept
        dropped = metrics.webhooks.dropped_attempts.labels(endpoint.name)
        in_flight = InFlight(2 * limits.events * senders, IN_FLIGHT_BYTES, stop)
        fields: dict[str, object] = {"shard": shard.name, "endpoint": endpoint.name}
        return cls(
            shard=shard,
            endpoint=endpoint.name,
            subscription=subscription or Subscription(endpoint),
            outbox=outbox,
            metrics=metrics,
            stop=stop,
            redelivery=redelivery,
            circuit=circuit,
            publisher=CircuitPublisher(shard, endpoint.name, outbox.consumer, circuit, timing, rate),
            state=state,
            limits=limits,
            in_flight=in_flight,
            batches=BatchQueue(limits, senders),
            attempts=AttemptLog(shard, endpoint.name, kept, dropped),
            senders=senders,
            log_fields=fields | ({"replay": True} if live else {}),
            turn=turn,
            # A run until idle does not wait.
            brake=Brake(math.inf if context.until_idle else timing.brake_pause, timing.clock),
            timing=timing,
            settled_together=max(1, senders // 2),
            read_together=max(1, in_flight.capacity // 4),
        )

    @property
    def group(self) -> str:
        """The consumer group of the endpoint, or of the replay."""
        return self.subscription.group

    def moving(self) -> list[bytes]:
        """
        The ids of the events in hand that this process will settle: those queued while a sender beats, and those taken
        by a sender that does not hang. Another process may take over the others.
        """
        hanging = {entry.id for work in self.beats.hanging for entry in work.entries}
        if not self.beats.moves(self.batches.free):
            hanging |= self.batches.ids()
        return [entry for entry in self.in_flight.ids() if entry not in hanging]

    def obey(self, retry_after: float | None) -> None:
        """If the receiver asks for a pause, seconds, send nothing for so long; `EndpointStateCache.save` follows."""
        if retry_after:
            self.state.mute(min(retry_after, self.redelivery.max_age_ms / 1000))

    def lend(self, connections: int) -> None:
        """Allow so many requests in flight from now on."""
        self.in_flight.capacity = connections * 2 * self.limits.events
        self.batches.allow(connections)
