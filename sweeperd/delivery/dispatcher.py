"""The replays that this process works off on one shard."""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import redis

from sweeperd.config import RELAY, EndpointSettings
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import EndpointDelivery
from sweeperd.delivery.rate_limit import RateLimit
from sweeperd.delivery.relay import SENDERS as RELAY_SENDERS
from sweeperd.delivery.relay import Relay
from sweeperd.delivery.webhook import WebhookClient
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox.backlog import BacklogMemory, GroupBacklog, read_backlog
from sweeperd.outbox.endpoint_state import CircuitStateStore
from sweeperd.outbox.event import EventEncoder
from sweeperd.outbox.replays import ReplayNote, ReplayStore, ReplaySubscription, end_cancelled
from sweeperd.outbox.stream import Announcements, ConsumerGroups, Outbox, Replication
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.lease import process_name
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningReplay:
    """One replay in this process. It has a stop of its own, because it ends before the process does."""

    note: ReplayNote
    subscription: ReplaySubscription
    delivery: EndpointDelivery
    stop: threading.Event


#: Makes the delivery of a replay, which is not started.
Make = Callable[[ReplayNote], RunningReplay]


class Replays:
    """
    Begins to work on each replay to one of these endpoints that an operator has begun, and ends each one whose events
    have all been delivered. `refresh` is called every few seconds, by one thread at a time.
    """

    def __init__(self, shard: Shard, outbox: Outbox, endpoints: Iterable[str], make: Make) -> None:
        self._shard = shard
        self._outbox = outbox
        self._store = ReplayStore(shard)
        self._endpoints = frozenset(endpoints)
        self._make = make
        self._running: dict[str, RunningReplay] = {}
        self._counts = Counter[str]()

    @property
    def deliveries(self) -> list[EndpointDelivery]:
        """Those that have not ended."""
        return [replay.delivery for replay in list(self._running.values())]

    @property
    def groups(self) -> list[str]:
        """The consumer groups of the replays that this process works on."""
        return [replay.note.group for replay in list(self._running.values())]

    def refresh(self, *, until_idle: bool = False) -> None:
        """Start, stop and end what is to be. Raises redis.RedisError."""
        notes = self._notes()
        for endpoint, replay in list(self._running.items()):
            note = notes.get(endpoint)
            if note is None or note.cancelled or note.made_at != replay.note.made_at:
                replay.stop.set()
            self._remove_ended(endpoint, replay)
        for note in notes.values():
            if note.endpoint in self._running:
                continue
            if note.cancelled:
                end_cancelled(self._store, self._outbox, note)
            else:
                self._start(note, until_idle=until_idle)
        self._end_finished(notes.values())

    def stop(self) -> None:
        """Take no more events; `join` has to follow."""
        for replay in self._running.values():
            replay.stop.set()
            replay.delivery.wake()

    def join(self, deadline: float | None = None) -> bool:
        """Wait until `deadline` (monotonic) for their threads. Returns whether they have all ended."""
        for endpoint, replay in list(self._running.items()):
            replay.delivery.join(deadline)
            self._remove_ended(endpoint, replay)
        return not self._running

    def finish(self) -> None:
        """End the replays that are at their end. Raises redis.RedisError."""
        self._end_finished(self._notes().values())

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by the replays of this process."""
        return sum((delivery.counts() for delivery in self.deliveries), Counter(self._counts))

    def left(self) -> int:
        """How many events of all replays are not delivered, about. Raises redis.RedisError."""
        return sum(self._store.progress(note).left for note in self._notes().values() if not note.cancelled)

    def _notes(self) -> dict[str, ReplayNote]:
        return {endpoint: note for endpoint, note in self._store.all().items() if endpoint in self._endpoints}

    def _start(self, note: ReplayNote, *, until_idle: bool) -> None:
        replay = self._make(note)
        replay.delivery.prepare()
        if replay.stop.is_set():
            return  # it has ended since its note was read
        self._running[note.endpoint] = replay
        log.info("a replay begins here", extra=self._log_fields(note))
        replay.delivery.start(until_idle=until_idle)

    def _end_finished(self, notes: Iterable[ReplayNote]) -> None:
        for note in notes:
            if note.cancelled:
                continue
            replay, exhausted = self._running.get(note.endpoint), self._store.exhausted(note)
            if replay is not None:
                # A group that was lost and is made again takes events anew.
                replay.subscription.exhausted = exhausted
            if exhausted and self._store.end(note):
                log.warning("a replay has ended: all of its events were delivered", extra=self._log_fields(note))
                if replay is not None:
                    replay.stop.set()

    def _remove_ended(self, endpoint: str, replay: RunningReplay) -> None:
        if not replay.delivery.join(time.monotonic()):
            return
        del self._running[endpoint]
        self._counts += replay.delivery.counts()
        self._outbox.groups.forget(replay.note.group)
        try:
            self._outbox.groups.leave(replay.note.group)
        except redis.ResponseError:
            log.debug("the group of a replay has gone", extra=self._log_fields(replay.note))

    def _log_fields(self, note: ReplayNote) -> dict[str, object]:
        return {"shard": self._shard.name, "endpoint": note.endpoint, "events": note.events}


# ---- the deliveries of one process and one shard: one for each endpoint, and the maintenance of the outbox


@dataclass(frozen=True)
class DeliveryReport:
    """Event-endpoint pairs, counted."""

    delivered: int
    undelivered: int
    dead_lettered: int


class Dispatcher:
    """All endpoints of one process and one shard."""

    def __init__(self, context: ShardContext) -> None:
        settings, shard, metrics = context.settings, context.shard, context.metrics
        webhooks = settings.webhooks
        self._context = context
        self._shard = shard
        self._metrics = metrics
        self._stop = context.stop
        self._retention_ms = milliseconds(settings.events.retention)
        self._max_age_ms = milliseconds(webhooks.max_age)
        consumer = f"{process_name()}-{secrets.token_hex(4)}"
        replication = Replication(settings.events.wait_replicas, settings.events.wait_timeout.total_seconds())
        self._circuits = CircuitStateStore(shard)
        self._announcements = Announcements(shard.clock, settings.announced)
        remade = metrics.webhooks.groups_remade.labels(shard.name)
        self._groups = ConsumerGroups(shard, consumer, self._max_age_ms, remade)
        self._outbox = outbox = Outbox(shard, consumer, replication, self._announcements, self._groups)
        self._backlogs = BacklogMemory()
        self._ready = False
        self._subscriptions = {endpoint.name: Subscription(endpoint) for endpoint in settings.consumers}
        #: Endpoint -> its `max_rate`, which its delivery and a replay to it share. Shards share no Redis, so each shard
        #: gets an equal part.
        self._limits = {
            endpoint.name: RateLimit(
                shard,
                endpoint.name,
                endpoint.max_rate / len(settings.all_shards),
                metrics.webhooks.rate_waits.labels(endpoint.name),
            )
            for endpoint in webhooks.endpoints
            if endpoint.max_rate
        }
        #: Each endpoint has connections of its own, so that a receiver that hangs does not delay another endpoint.
        self.endpoints = [
            self._delivery(context, endpoint, senders)
            for endpoint, senders in zip(
                webhooks.endpoints, shares(context.concurrency, len(webhooks.endpoints)), strict=True
            )
        ]
        self._concurrency = context.concurrency
        #: Those that share the connections, with the replays; the relay has none.
        self._receivers = tuple(self.endpoints)
        self._replays = Replays(shard, outbox, [each.name for each in self._receivers], self._replay)
        if settings.cycles.enabled:
            relay, encoder = Relay(shard, self._observer(RELAY.name)), EventEncoder(shard.name, shard.origin)
            self.endpoints.append(EndpointDelivery(context, RELAY, outbox, relay, encoder.request, RELAY_SENDERS))
        for endpoint in self.endpoints:
            metrics.webhooks.announce(endpoint.name)

    def prepare(self) -> None:
        """
        The same as `keep_groups`, before each sweep; once it was done it does nothing. Raises RedisUnavailable.
        """
        if not self._ready:
            self.keep_groups()

    def keep_groups(self) -> None:
        """
        Make each endpoint's group where it is missing, whatever the endpoint does, and note its position. Call it in
        every round of maintenance, also where nothing is delivered. Raises RedisUnavailable.
        """
        with self._shard.reaching():
            made_at = self._groups.keep({endpoint.name: endpoint.start_at for endpoint in self.endpoints})
            for endpoint in self.endpoints:
                endpoint.count_ages_from(made_at[endpoint.name])
        self._ready = True

    def adopt(self, before: "Dispatcher") -> None:
        """Take over the positions of the groups from a dispatcher of the same shard that has been stopped."""
        # An endpoint that was left out meanwhile begins by its note: what is remembered of its group is out of date.
        names = {endpoint.name for endpoint in self.endpoints}
        self._groups.adopt(before._groups, names.intersection(endpoint.name for endpoint in before.endpoints))

    def start(self, *, until_idle: bool = False) -> None:
        """Start every endpoint's threads. With `until_idle` the replays that have begun are worked on as well."""
        for endpoint in self.endpoints:
            endpoint.start(until_idle=until_idle)
        if until_idle:
            try:
                self.refresh_replays(until_idle=True)
            except RedisUnavailable as error:
                log.warning("replays wait", extra={"shard": self._shard.name, "error": str(error)})

    def refresh_replays(self, *, until_idle: bool = False) -> None:
        """
        Begin to work on new replays, end those that are done, and share the connections anew, also where an endpoint
        rests no more. Call it often. Raises RedisUnavailable.
        """
        with self._shard.reaching():
            self._shard.read_clock()
            self._replays.refresh(until_idle=until_idle)
        self._lend_connections()

    def join(self, deadline: float | None = None) -> bool:
        """
        Wait until `deadline` (monotonic) for all threads to end, then remove this process from the groups. Returns
        whether they ended; an event that is still in flight then is delivered again, by another replica or later.
        """
        if self._stop.is_set():
            self._replays.stop()
            for endpoint in self.endpoints:
                endpoint.wake()
        ended = all([*(endpoint.join(deadline) for endpoint in self.endpoints), self._replays.join(deadline)])
        if ended:
            try:
                with self._shard.reaching():
                    self._replays.finish()
                    for endpoint in self.endpoints:
                        self._groups.leave(endpoint.name)
                        endpoint.leave()
            except (RedisUnavailable, redis.RedisError) as error:
                log.info(
                    "the consumer is not removed from its groups",
                    extra={"shard": self._shard.name, "error": str(error)},
                )
        return ended

    @property
    def complete(self) -> bool:
        """Whether every thread runs."""
        return all(endpoint.complete for endpoint in self.endpoints)

    def maintain(self) -> None:
        """
        Keep the groups, trim the stream, remove dead processes from the groups, measure the backlogs. Raises
        RedisUnavailable.
        """
        self.keep_groups()
        with self._shard.reaching():
            groups = [*(endpoint.name for endpoint in self.endpoints), *self._replays.groups]
            self._groups.trim(groups, self._retention_ms, self._max_age_ms)  # reads Redis's clock
            for endpoint in self.endpoints:
                if backlog := self._backlog(endpoint.name):
                    waiting = backlog.events, backlog.oldest_seconds
                    self._metrics.webhooks.waiting(self._shard.name, endpoint.name, *waiting)
                self._metrics.webhooks.endpoint_state(self._shard.name, endpoint.name, endpoint.state)
            for group in groups:
                self._groups.remove_silent(group)
            self._circuits.remove_stale()

    def _lend_connections(self) -> None:
        """An endpoint that rests keeps one connection; the endpoints that can use the others share them."""
        receivers = [*self._receivers, *self._replays.deliveries]
        resting = [endpoint for endpoint in receivers if endpoint.resting]
        active = [endpoint for endpoint in receivers if endpoint not in resting]
        for endpoint in resting:
            endpoint.lend(1)
        for endpoint, count in zip(active, shares(self._concurrency - len(resting), len(active)), strict=True):
            endpoint.lend(max(1, count))

    def report(self) -> DeliveryReport:
        """The pairs that this process has delivered, and those that are left. Raises RedisUnavailable."""
        counts: Counter[str] = Counter()
        with self._shard.reaching():
            counts += self._replays.counts()
            counts["undelivered"] += self._replays.left()
            for endpoint in self.endpoints:
                counts += endpoint.counts()
                backlog = self._backlog(endpoint.name, to_the_end=True)
                counts["undelivered"] += backlog.events if backlog else 0
        return DeliveryReport(counts["delivered"], counts["undelivered"], counts["dead_lettered"])

    def _delivery(
        self,
        context: ShardContext,
        endpoint: EndpointSettings,
        senders: int,
        subscription: Subscription | None = None,
        live: EndpointDelivery | None = None,
    ) -> EndpointDelivery:
        """The delivery to one endpoint, or that of a replay to the endpoint of `live`."""
        webhooks, shard, observe = context.settings.webhooks, context.shard, self._observer(endpoint.name)
        limit = self._limits.get(endpoint.name)
        client = WebhookClient(endpoint, webhooks, shard.clock, context.concurrency, observe, context.stop, limit)
        encode = EventEncoder(shard.name, shard.origin, endpoint.format, batches=endpoint.batch_size > 1).request
        parts = client, encode, senders, self._announcements, subscription, live
        return EndpointDelivery(context, endpoint, self._outbox, *parts)

    def _replay(self, note: ReplayNote) -> RunningReplay:
        """The delivery of a replay; `_lend_connections` lends it its connections."""
        stop, settings = threading.Event(), self._context.settings.webhooks.endpoints
        (place,) = (number for number, endpoint in enumerate(settings) if endpoint.name == note.endpoint)
        subscription, live = ReplaySubscription(settings[place], note), self._receivers[place]
        delivery = self._delivery(replace(self._context, stop=stop), settings[place], 1, subscription, live)
        return RunningReplay(note, subscription, delivery, stop)

    def _backlog(self, endpoint: str, *, to_the_end: bool = False) -> GroupBacklog | None:
        groups = streams.groups(self._shard.client, self._shard.keys.events)
        subscription, now_ms = self._subscriptions[endpoint], self._shard.clock.now_ms()
        group, memory = groups.get(endpoint.encode()), self._backlogs
        return read_backlog(self._shard, group, subscription, now_ms, to_the_end=to_the_end, memory=memory)

    def _observer(self, endpoint: str) -> Callable[[DeliveryResult], None]:
        attempts = {result: self._metrics.webhooks.attempts.labels(endpoint, result) for result in Result}
        duration = self._metrics.webhooks.duration.labels(endpoint)

        def observe(verdict: DeliveryResult) -> None:
            attempts[verdict.result].inc()
            duration.observe(verdict.seconds)

        return observe


def shares(total: int, parts: int) -> list[int]:
    """`total` shared out as evenly as it goes."""
    return [total // parts + (number < total % parts) for number in range(parts)] if parts else []
