"""The lane of an endpoint on one shard: all that is known of it. No thread belongs to a lane."""

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import redis

from sweeperd.config import RELAY, EndpointSettings
from sweeperd.context import DEFAULT_TIMING, ShardContext, Timing
from sweeperd.delivery.attempt_log import AttemptLog
from sweeperd.delivery.batches import BatchLimits, BatchQueue
from sweeperd.delivery.circuit import CircuitBreaker, CircuitPublisher, EndpointStateCache, Redelivery
from sweeperd.delivery.in_flight import InFlight, Room
from sweeperd.delivery.order import KNOWN, LEAST_KNOWN, OrderedQueue
from sweeperd.metrics import Metrics
from sweeperd.outbox import Outbox, OutboxEntry, Subscription
from sweeperd.progress import Progress
from sweeperd.store import Shard
from sweeperd.store.errors import describe, is_unanswered
from sweeperd.store.lease import Lease
from sweeperd.store.operations import Operation

if TYPE_CHECKING:
    from sweeperd.delivery.senders import Sender

log = logging.getLogger(__name__)

#: A request may last until its deadline. A sender that is this late, seconds, hangs.
LATE = 5.0
#: If more events are given up together, one log line tells of all of them.
LOGGED = 10
#: While there is no room at all, the pause between two tries of the relay is this part of the time without room, and at
#: most this many times as long as otherwise.
BRAKE_PART, LONGEST_BRAKE = 1 / 32, 8
#: How many calls of the relay are in flight: while Redis works on one, the process prepares the other.
RELAY_CALLS = 2


class Brake:
    """
    Whether events of a lane wait, although the endpoint takes events: the relay waits for the dispatcher of Cycles.
    Meanwhile the parked events are tried again every `pause` seconds, and less and less often while there is no room at
    all, for up to `patience` seconds. `clock`: monotonic.
    """

    def __init__(self, pause: float, clock: Callable[[], float] = time.monotonic, patience: float = math.inf) -> None:
        self._pause, self._patience = pause, patience
        self._clock = clock
        #: When the wait began, and when there was room last.
        self._since = self._room_at = 0.0
        #: Whether there was no room at the last try.
        self.waiting = False
        #: When the next try may begin; inf: never.
        self.until = 0.0

    @property
    def holds(self) -> bool:
        """Whether it is too early to try again, and a try follows."""
        return self.waiting and self._clock() < self.until < math.inf

    def hold(self, *, room: bool = False) -> None:
        """
        There is no room for all events, or a try begins: the next one follows after the pause. `room`: whether a try
        has found room for some.
        """
        now = self._clock()
        if not self.waiting:
            self.waiting, self._since, self._room_at = True, now, now
        if room:
            self._room_at = now
        pause = min(max(self._pause, BRAKE_PART * (now - self._room_at)), LONGEST_BRAKE * self._pause)
        self.until = now + pause if now < self._since + self._patience else math.inf

    def release(self) -> None:
        """There was room for all events of a try."""
        self.waiting = False


class Work:
    """What one sender of the pool has in its hands."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.lane: Lane | None = None
        self.entries: Sequence[OutboxEntry] = ()
        #: When the request began (monotonic).
        self.since = 0.0

    @property
    def hangs(self) -> bool:
        return self.lane is not None and self.progress.silent_for > LATE


@dataclass(slots=True, eq=False)
class Lane:
    """
    One endpoint on one shard, or a replay to it. Events go forward through three stages:

        Reader -> queue -> senders of the pool -> Settler
    """

    shard: Shard
    endpoint: str
    subscription: Subscription
    outbox: Outbox
    metrics: Metrics
    redelivery: Redelivery
    circuit: CircuitBreaker
    publisher: CircuitPublisher
    state: EndpointStateCache
    limits: BatchLimits
    in_flight: InFlight
    queue: BatchQueue
    attempts: AttemptLog
    log_fields: dict[str, object]
    #: The queue, if the endpoint asks for the order of the events of a key.
    order: OrderedQueue | None = None
    #: How many requests may be in flight, whatever the others do; None: the lane shares `concurrency`.
    requests: int | None = None
    brake: Brake = field(default_factory=lambda: Brake(0.0))
    timing: Timing = DEFAULT_TIMING
    #: When set, the lane takes no more events.
    stop: threading.Event = field(default_factory=threading.Event)
    #: Set when nothing of the lane is in hand any more, after a stop.
    ended: threading.Event = field(default_factory=threading.Event)
    #: The senders that have a batch of the lane in hand; whether the lane is in the pool's round; and when the pool
    #: looks at it next if it waits. The pool's lock guards all of them.
    works: list[Work] = field(default_factory=list)
    in_round: bool = False
    looked_at: float = math.inf
    #: Whether events may be pending that are not in hand.
    parked: bool = True
    #: When the wait of an event ends that this process has parked since the last scan began (monotonic).
    due_at: float = math.inf
    #: Whether the reader has something to do as soon as the lane has room again.
    awaits_room: bool = False
    #: Why Redis last kept the lane from its work, and until when that counts (monotonic).
    _stalled: tuple[str, float] = "", -math.inf
    #: The events of which Redis may have made dead letters without an answer.
    _unanswered: set[bytes] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sender: "Sender | None" = None

    @classmethod
    def of(
        cls,
        context: ShardContext,
        endpoint: EndpointSettings,
        outbox: Outbox,
        room: Room,
        subscription: Subscription | None = None,
        live: "Lane | None" = None,
    ) -> "Lane":
        """
        The lane by the settings. `live`: the new lane is a replay to the endpoint of the live lane. Both share the
        circuit and the state of the endpoint; a replay has a separate consumer group.
        """
        shard, metrics, timing = context.shard, context.metrics, context.timing
        redelivery, limits = Redelivery.of(context.settings.webhooks.of(endpoint)), BatchLimits.of(endpoint)
        probe_max = context.settings.webhooks.probe_max.total_seconds()
        if live:
            circuit, state, rate = live.circuit, live.state, live.publisher.rate
        else:
            rate = None
            circuit = CircuitBreaker(min(redelivery.initial, probe_max), min(redelivery.longest, probe_max))
            state = EndpointStateCache(shard, endpoint.name, outbox.announcements)
        relays = endpoint is RELAY
        # The relay sends nothing.
        kept = 0 if relays else context.settings.events.attempts_kept
        requests = RELAY_CALLS if relays else None
        fields: dict[str, object] = {"shard": shard.name, "endpoint": endpoint.name}
        order = _order(context, endpoint, limits) if endpoint.order and not live else None
        return cls(
            shard=shard,
            endpoint=endpoint.name,
            subscription=subscription or Subscription(endpoint),
            outbox=outbox,
            metrics=metrics,
            redelivery=redelivery,
            circuit=circuit,
            publisher=CircuitPublisher(shard, endpoint.name, outbox.consumer, circuit, timing, rate),
            state=state,
            limits=limits,
            in_flight=InFlight(room, limits.events, requests),
            queue=BatchQueue(limits, timing.clock) if order is None else order,
            order=order,
            attempts=AttemptLog(shard, endpoint.name, kept, metrics.webhooks.dropped_attempts.labels(endpoint.name)),
            log_fields=fields | ({"replay": True} if live else {}),
            requests=requests,
            brake=Brake(
                timing.brake_pause,
                timing.clock,
                context.settings.cycles.dispatch_wait.total_seconds() if context.until_idle else math.inf,
            ),
            timing=timing,
        )

    @property
    def group(self) -> str:
        """The consumer group of the endpoint, or of the replay."""
        return self.subscription.group

    @property
    def live(self) -> bool:
        """Whether the lane delivers live events rather than a replay."""
        return self.group == self.endpoint

    @property
    def sender(self) -> "Sender":
        """Sends the batches of the lane."""
        if self._sender is None:
            raise RuntimeError(f"the lane {self.group} has no sender")
        return self._sender

    @sender.setter
    def sender(self, sender: "Sender") -> None:
        self._sender = sender

    @property
    def works_here(self) -> bool:
        """Whether this process may send: one process at a time works on an ordered lane."""
        return self.order is None or self.order.owned

    def end(self) -> None:
        """Nothing of the lane is in hand any more, after a stop."""
        if self.order is not None and self.order.owned:
            self.order.owned_until = -math.inf
            with contextlib.suppress(redis.RedisError):  # the lease expires by itself
                self.order.lease.release()
        self.sender.close()
        self.ended.set()

    @property
    def condition(self) -> str:
        """The state as in `sweeperd_endpoint_state`; `open`: the circuit is open; `stalled`: Redis keeps it waiting."""
        if self.state.state.paused:
            return "paused"
        if self.circuit.open:
            return "open"
        if self.trouble:
            return "stalled"
        return "muted" if self.state.resting else "delivering"

    @property
    def resting(self) -> bool:
        """Whether nothing is sent now: the endpoint is paused or muted, or the circuit is open."""
        return self.circuit.open or self.state.resting

    @property
    def hanging(self) -> list[Work]:
        """The senders that hang with a batch of the lane."""
        return [work for work in list(self.works) if work.hangs]

    def slow(self, now: float, seconds: float) -> bool:
        """Whether requests of the lane are in flight, each older than this many seconds."""
        return bool(self.works) and now - self.works[-1].since >= seconds

    def moving(self, requests: int) -> list[bytes]:
        """
        The ids of the events in hand that this process will settle: those of senders that do not hang, and the queued
        ones unless `requests` senders hang, as many as the lane may have. Another process may take over the others.
        """
        hanging = self.hanging
        left = {entry.id for work in hanging for entry in work.entries}
        if len(hanging) >= (self.requests or requests):
            left |= self.queue.ids()
        return [entry for entry in self.in_flight.ids() if entry not in left]

    def obey(self, retry_after: float | None) -> None:
        """If the receiver asks for a pause, seconds, send nothing until it ends; `EndpointStateCache.save` follows."""
        if retry_after:
            self.state.mute(min(retry_after, self.redelivery.max_age_ms / 1000))

    def count_ages_from(self, made_at: int) -> None:
        """
        Count older events as if added at `made_at`, ms: when the group was made and began in the past. 0 (the note of
        the group was lost) changes nothing.
        """
        self.redelivery.counts_from_ms = max(self.redelivery.counts_from_ms or 0, made_at)

    def stall(self, error: Exception) -> None:
        """Redis keeps the lane from reading, settling or sending. Unless it does again soon, the lane goes on."""
        self._stalled = describe(error), self.timing.clock() + 2 * self.timing.heartbeat_every

    @property
    def trouble(self) -> str:
        """Why Redis keeps the lane from its work now; empty if it does not."""
        why, until = self._stalled
        return why if self.timing.clock() < until else ""

    def park(self, seconds: float) -> None:
        """An event of the lane is parked, and due again after this time."""
        self.parked = True
        self.due_at = min(self.due_at, self.timing.clock() + seconds)

    def count(self, name: str, count: int) -> None:
        """Count events that this process has `delivered` or `dead_lettered`."""
        with self._lock:
            self._counts[name] += count

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by this process."""
        with self._lock:
            return Counter(self._counts)

    def give_up(self, entries: Sequence[OutboxEntry], reason: str, owner: bytes | None = None) -> Operation[None]:
        """
        Replace pending events by dead letters now. `owner`: as in `Outbox.give_up`. Raises redis.RedisError. If Redis
        may have done it without an answer, the next call for the same events counts those that are not pending any
        more, unless another process has taken them over by then.
        """
        try:
            done = yield from self.outbox.give_up.part(self.group, entries, reason, self.endpoint, owner)
        except redis.RedisError as error:
            if is_unanswered(error):
                self._unanswered.update(entry.id for entry in entries)
            raise
        written = self._unanswered.union(entry.id for entry in done)
        given_up = [entry for entry in entries if entry.id in written]
        self._unanswered.difference_update(entry.id for entry in entries)
        if not given_up:
            return
        self.count("dead_lettered", len(given_up))
        self.metrics.webhooks.dead_letters.labels(self.endpoint).inc(len(given_up))
        # A line takes as long as the rest, so of a page there is a single line.
        singly = given_up if len(given_up) <= LOGGED else given_up[:1]
        for entry in singly:
            fields = {"stream_id": entry.id.decode(), "reason": reason, "hand_overs": entry.deliveries}
            fields |= {"events": len(given_up)} if len(singly) < len(given_up) else {}
            log.error("given up: the event is a dead letter", extra=self.log_fields | fields)


def _order(context: ShardContext, endpoint: EndpointSettings, limits: BatchLimits) -> OrderedQueue:
    """The queue of an endpoint with `order = "key"`."""
    timing, ordered = context.timing, [each for each in context.settings.webhooks.endpoints if each.order]
    lease = Lease(context.shard, f"order:{endpoint.name}", timedelta(seconds=timing.take_over_after))
    waits = context.metrics.webhooks.order_waits.labels(endpoint.name).inc
    bound = max(LEAST_KNOWN, KNOWN // len(ordered))
    return OrderedQueue(limits, timing.clock, lease, endpoint.order_key, bound, waits)
