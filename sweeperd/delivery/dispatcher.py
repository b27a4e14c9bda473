"""Runs the deliveries of one process and one shard, and maintains the outbox."""

import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import redis

from sweeperd.config import RELAY, EndpointSettings
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.delivery.engine import Engine
from sweeperd.delivery.failures import FailureWatch
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.in_flight import Room
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.rate_limit import RateLimit
from sweeperd.delivery.relay import Relay
from sweeperd.delivery.replays import Replays
from sweeperd.delivery.senders import BatchSender, Pace
from sweeperd.delivery.webhook import WebhookClient
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox import (
    Announcements,
    BacklogMemory,
    CircuitStateStore,
    ConsumerGroups,
    EventEncoder,
    Filters,
    GroupBacklog,
    Outbox,
    Replication,
    read_backlogs,
)
from sweeperd.outbox.replays import ReplayNote, ReplaySubscription
from sweeperd.store import streams
from sweeperd.store.errors import is_refused
from sweeperd.store.lease import process_name

log = logging.getLogger(__name__)


class DeliveryReport(NamedTuple):
    """Event-endpoint pairs, counted."""

    delivered: int = 0
    undelivered: int = 0
    dead_lettered: int = 0


class Dispatcher:
    """All endpoints and replays of one process and one shard."""

    def __init__(self, context: ShardContext, *, delivers: bool = True) -> None:
        """Not `delivers`: the process keeps the groups and takes no events."""
        settings, metrics = context.settings, context.metrics
        # A reload closes the connections of the sweep, and those of the deliveries go on.
        self._shard = shard = context.shard.twin()
        self._context = context = replace(context, shard=shard)
        self._delivers = delivers
        self._metrics = metrics
        self._stop = context.stop
        self._retention_ms = milliseconds(settings.events.retention)
        self._max_age_ms = milliseconds(settings.webhooks.longest_age)
        consumer = f"{process_name()}-{secrets.token_hex(4)}"
        replication = Replication(settings.events.wait_replicas, settings.events.wait_timeout.total_seconds())
        self._circuits = CircuitStateStore(shard, context.timing)
        announcements = Announcements(shard.clock, settings.announced)
        watches = delivers and announcements.about_failures
        self._failures = FailureWatch(self._circuits, announcements) if watches else None
        remade = metrics.webhooks.groups_remade.labels(shard.name)
        self._groups = ConsumerGroups(shard, consumer, remade, context.timing)
        self._filters = Filters(shard, consumer, settings.consumers if delivers else (), context.timing)
        #: Endpoint -> what was last said about different filters.
        self._different = dict[str, str]()
        self._outbox = Outbox(shard, consumer, replication, announcements, self._groups, context.timing, self._filters)
        self._memory = BacklogMemory()
        self._room = Room(context.concurrency)
        self._engine = Engine(context, self._outbox, self._room)
        self._ready = False
        #: Whether the dispatcher of a reload has taken over the engine.
        self._handed_over = False
        #: Of endpoints that a reload has removed, until they have ended.
        self._leaving: list[Lane] = []
        self._lanes = {endpoint.name: self._lane(endpoint) for endpoint in settings.consumers}
        self._replays = self._new_replays()
        if settings.cycles.enabled:
            metrics.webhooks.relay_waiting.labels(shard.name)
        for name in self._lanes:
            metrics.webhooks.announce(name)

    @property
    def lanes(self) -> list[Lane]:
        """The lane of each endpoint, without the replays."""
        return list(self._lanes.values())

    @property
    def password_refused(self) -> bool:
        """Whether Redis refused the password at the last attempt to connect."""
        return self._shard.password_refused

    def prepare(self) -> None:
        """Before each sweep: `note_filters`, and `keep_groups` unless done already. Raises RedisUnavailable."""
        self.note_filters()
        if not self._ready:
            self.keep_groups()

    def note_filters(self) -> None:
        """When due, tell other processes which events each endpoint asks for. Raises RedisUnavailable."""
        with self._shard.reaching():
            self._filters.update()

    def keep_groups(self) -> None:
        """
        Make each missing group, and note the position of each group. Call this in every round of maintenance, also when
        nothing is delivered. Raises RedisUnavailable.
        """
        with self._shard.reaching():
            lanes = self._lanes.items()
            ages = {name: lane.redelivery.max_age_ms for name, lane in lanes}
            made_at = self._groups.keep({name: lane.subscription.start for name, lane in lanes}, ages)
            for name, lane in lanes:
                lane.count_ages_from(made_at[name])
        self._ready = True

    def adopt(self, before: "Dispatcher") -> None:
        """
        Take over from a dispatcher of the same shard whose sweeps have stopped: the positions of the groups; and, if
        the settings of all deliveries are the same and its threads move, the engine with the lanes that did not change.
        """
        # If an endpoint was left out meanwhile, the position in memory is out of date, and the note decides.
        self._groups.adopt(before._groups, self._lanes.keys() & before._lanes.keys())
        if not before._engine.goes_on or before._handed_over or self._shared != before._shared:
            return
        before._handed_over = True
        self.close()
        self._shard, self._outbox, self._filters = before._shard, before._outbox, before._filters
        self._context = replace(self._context, shard=before._shard)
        self._circuits, self._room, self._engine = before._circuits, before._room, before._engine
        self._failures = before._failures
        for name in self._lanes.keys() - before._lanes.keys():
            before._groups.forget(name)  # an earlier reload may have removed the endpoint
        self._groups, self._leaving = before._groups, before._leaving
        self._engine.allow(self._context.concurrency)
        endpoints = {endpoint.name: endpoint for endpoint in before._context.settings.consumers}
        kept = {
            endpoint.name: before._lanes[endpoint.name]
            for endpoint in self._context.settings.consumers
            if endpoints.get(endpoint.name) == endpoint
        }
        self._lanes = {
            endpoint.name: kept.get(endpoint.name) or self._lane(endpoint)
            for endpoint in self._context.settings.consumers
        }
        ending = [lane for name, lane in before._lanes.items() if name not in kept]
        self._leaving += ending
        self._replays = self._new_replays()
        self._replays.adopt(before._replays, kept.keys())

        def change() -> None:
            # The events that the lanes with the old filters have judged are settled by now.
            self._engine.end(ending)
            self._filters.change(self._context.settings.consumers)
            self._engine.add([lane for name, lane in self._lanes.items() if name not in kept])

        self._engine.between_rounds(change)

    def start(self) -> None:
        """Start the threads, unless they run already. Raises RuntimeError if the system gives no more threads."""
        if not self._lanes or self._engine.started:
            return
        self._engine.add(self.lanes)
        if self._context.until_idle:
            try:
                self.refresh_replays()
            except RedisUnavailable as error:
                log.warning("replays wait", extra={"shard": self._shard.name, "error": str(error)})
        self._engine.start()

    def refresh_replays(self) -> None:
        """Begin new replays and end finished replays. Call this every few seconds. Raises RedisUnavailable."""
        with self._shard.reaching():
            self._shard.read_clock()
            self._replays.refresh()
            self._leave_removed()

    def stop(self) -> None:
        """Take no more events, unless another dispatcher has taken over; `join` has to follow."""
        if not self._handed_over:
            self._engine.stop()

    def join(self, deadline: float | None = None) -> bool:
        """
        Wait until `deadline` (monotonic) for all threads to end, then remove this process from the groups. Returns
        whether all ended; if an event is still in flight, another replica or a later process delivers the event again.
        """
        if self._handed_over:
            return True
        if self._stop.is_set():
            self._engine.stop()
        ended = self._engine.join(deadline)
        if ended:
            try:
                with self._shard.reaching():
                    self._replays.leave()
                    self._replays.finish()
                    for name, lane in self._lanes.items():
                        self._groups.leave(name)
                        lane.publisher.remove()
                    self._leave_removed()
                    self._filters.leave()
            except (RedisUnavailable, redis.RedisError) as error:
                fields = {"shard": self._shard.name, "error": str(error)}
                log.info("the consumer is not removed from its groups", extra=fields)
        return ended

    def close(self) -> None:
        """Close the connections to Redis, unless another dispatcher has taken over."""
        if not self._handed_over:
            self._shard.close()

    @property
    def complete(self) -> bool:
        """Whether every thread runs that is needed."""
        return not self._lanes or self._engine.complete

    @property
    def stuck(self) -> list[str]:
        """The threads that hang, in words."""
        return [] if self._handed_over else self._engine.stuck

    @property
    def trouble(self) -> str:
        """Why Redis keeps events waiting now, or did at the end; empty if it does not."""
        lanes = [*self.lanes, *self._replays.lanes]
        return self._engine.halted or next((f"{each.endpoint}: {each.trouble}" for each in lanes if each.trouble), "")

    def maintain(self) -> None:
        """
        Keep the groups, trim the stream, remove dead processes from the groups, measure the backlogs. Raises
        RedisUnavailable. Connections that receivers have closed are closed here too.
        """
        for lane in [*self.lanes, *self._replays.lanes]:
            lane.sender.tidy()
        with self._shard.reaching():
            self._shard.read_clock()
        for name, lane in self._lanes.items():
            state = "stalled" if lane.condition == "delivering" and self._engine.halted else lane.condition
            self._metrics.webhooks.endpoint_state(self._shard.name, name, state)
        refused: RedisUnavailable | None = None
        try:
            self.keep_groups()
            with self._shard.reaching():
                self._trim([*self._lanes, *self._replays.groups()])
        except RedisUnavailable as error:
            if not is_refused(error.__cause__):
                raise
            refused = error  # what may not be changed can be measured
        with self._shard.reaching():
            letters = self._memory.letters.read(self._shard).by_endpoint
            if self._failures:
                self._failures.look()
            backlogs = self._backlogs()
            for (name, lane), backlog in zip(self._lanes.items(), backlogs, strict=True):
                self._compare_filters(name)
                if backlog:
                    waiting = backlog.events, backlog.oldest_seconds, letters[name]
                    self._metrics.webhooks.waiting(self._shard.name, name, *waiting)
                if name == RELAY.name:
                    self._measure_brake(lane)
            self._groups.remove_silent(*self._lanes, *self._replays.groups())
            self._circuits.remove_stale()
            for lane, backlog in zip(self.lanes, backlogs, strict=True):
                if self._failures and backlog:
                    self._failures.judge(lane, backlog, self._shard.clock.now_ms())
        if refused is not None:
            raise refused

    def _compare_filters(self, endpoint: str) -> None:
        """Warn if processes have had different filters for longer than a rolling update takes."""
        difference = self._filters.known.difference(endpoint, self._shard.clock.now_ms())
        sides = difference.partition(": ")[2]
        if sides and sides != self._different.get(endpoint):
            fields = {"shard": self._shard.name, "endpoint": endpoint, "processes": sides}
            log.warning("processes have different filters: give all of them the same settings", extra=fields)
        self._different[endpoint] = sides

    def _measure_brake(self, lane: Lane) -> None:
        """Whether events wait for the dispatcher of Cycles: another process may have found room, or none."""
        waiting = bool(self._shard.client.hget(self._shard.keys.relay, "waiting"))
        if waiting and not self._context.settings.cycles.dispatch_backlog:
            waiting = False  # the note of a time with a limit
            self._shard.client.hset(self._shard.keys.relay, "waiting", "")
        if not waiting:
            lane.brake.release()
        self._metrics.webhooks.relay_waiting.labels(self._shard.name).set(waiting)

    def _trim(self, groups: Sequence[str]) -> None:
        """Trim the stream, and measure the groups of other programs that `events.groups` names."""
        events, shard = self._context.settings.events, self._shard
        age = milliseconds(events.group_max_age)
        elsewhere = self._filters.endpoints(self._max_age_ms)
        trimmed = self._groups.trim(  # reads the clock
            groups, self._retention_ms, self._max_age_ms, events.groups, age, elsewhere
        )
        for group in events.groups:
            lost, oldest = trimmed.unread.get(group, 0), self._groups.oldest_unread_ms(group)
            seconds = 0.0 if oldest is None else max(0.0, (shard.clock.now_ms() - oldest) / 1000)
            self._metrics.webhooks.stream_group(shard.name, group, seconds, lost)
            if lost:
                fields = {"shard": shard.name, "group": group, "events": lost}
                log.warning("events were removed that a group has not read, because they were too old", extra=fields)

    def report(self) -> DeliveryReport:
        """How many pairs this process has delivered, and how many are left. Raises RedisUnavailable."""
        counts: Counter[str] = Counter()
        with self._shard.reaching():
            counts += self._replays.counts()
            counts["undelivered"] += self._replays.left()
            for lane, backlog in zip(self.lanes, self._backlogs(to_the_end=True), strict=True):
                counts += lane.counts()
                counts["undelivered"] += backlog.events if backlog else 0
        return DeliveryReport(counts["delivered"], counts["undelivered"], counts["dead_lettered"])

    @property
    def _shared(self) -> tuple[object, ...]:
        """What all lanes depend on: if the settings of a reload have the same, the engine goes on."""
        settings, context = self._context.settings, self._context
        webhooks = settings.webhooks.model_copy(update={"endpoints": [], "concurrency": 1})
        shards = [(shard.name, shard.url, shard.prefix) for shard in settings.all_shards]
        shared = (
            settings.redis,
            shards,
            settings.bundle,
            webhooks,
            settings.events,
            settings.cycles,
            sorted(settings.announced),
        )
        return *shared, context.timing, context.metrics, self._delivers

    def _lane(self, endpoint: EndpointSettings) -> Lane:
        """The lane of an endpoint."""
        lane = Lane.of(self._context, endpoint, self._outbox, self._room)
        limit = None
        if endpoint.max_rate:
            # Shards share no Redis, so each shard gets an equal part.
            per_second = endpoint.max_rate / len(self._context.settings.all_shards)
            waits = self._metrics.webhooks.rate_waits.labels(endpoint.name)
            limit = RateLimit(self._shard, endpoint.name, per_second, waits, self._context.timing)
        return self._with_sender(lane, endpoint, limit)

    def _with_sender(self, lane: Lane, endpoint: EndpointSettings, limit: RateLimit | None) -> Lane:
        """The lane with its sender. `limit`: `max_rate`, shared by the endpoint's lane and that of a replay."""
        context, shard, count = self._context, self._shard, self._observer(endpoint.name)
        sweep_waits, turns = self._metrics.webhooks.sweep_waits.labels(endpoint.name), context.cpu_turns
        if endpoint is RELAY:
            lane.sender = Relay(lane, count, context.settings.cycles, Pace(turns.records, waits=sweep_waits.inc))
            return lane

        def observe(result: DeliveryResult) -> None:
            lane.obey(result.retry_after)  # now, because other requests must wait as long as a quick retry does
            count(result)

        client = WebhookClient(endpoint, context.settings.webhooks, shard.clock, context.concurrency, observe)
        batches, balances = endpoint.batch_size > 1, endpoint.balances
        encoder = EventEncoder(shard.name, shard.origin, endpoint.format, batches=batches, balances=balances)
        # In batches an event costs little CPU time, so batches need not wait for the sweep. Those of the relay do: they
        # keep Redis as busy as the sweep does.
        pace = Pace(None if batches else turns.deliveries, limit, sweep_waits.inc)
        lane.sender = BatchSender(lane, client, encoder.request, pace)
        return lane

    def _new_replays(self) -> Replays:
        names = [endpoint.name for endpoint in self._context.settings.webhooks.endpoints]
        return Replays(self._shard, self._outbox, self._engine, names, self._replay)

    def _replay(self, note: ReplayNote) -> tuple[Lane, ReplaySubscription]:
        """The lane of a replay."""
        endpoints = self._context.settings.webhooks.endpoints
        (endpoint,) = (endpoint for endpoint in endpoints if endpoint.name == note.endpoint)
        live, subscription = self._lanes[note.endpoint], ReplaySubscription(endpoint, note)
        lane = Lane.of(self._context, endpoint, self._outbox, self._room, subscription, live)
        return self._with_sender(lane, endpoint, live.sender.limit), subscription

    def _leave_removed(self) -> None:
        """Remove this process from the groups of endpoints that a reload has removed. Raises redis.RedisError."""
        for lane in [lane for lane in self._leaving if lane.ended.is_set()]:
            if lane.endpoint not in self._lanes:
                self._groups.leave(lane.endpoint)
                lane.publisher.remove()
            with contextlib.suppress(ValueError):  # a task from before a reload may run beside the new one
                self._leaving.remove(lane)

    def _backlogs(self, *, to_the_end: bool = False) -> list[GroupBacklog | None]:
        """The backlogs of all lanes. Raises redis.RedisError."""
        found = streams.groups(self._shard.client, self._shard.keys.events)
        groups = [(found.get(lane.group.encode()), lane.subscription) for lane in self.lanes]
        now_ms = self._shard.clock.now_ms()
        return read_backlogs(self._shard, groups, now_ms, to_the_end=to_the_end, memory=self._memory)

    def _observer(self, endpoint: str) -> Callable[[DeliveryResult], None]:
        attempts = {result: self._metrics.webhooks.attempts.labels(endpoint, result) for result in Result}
        duration = self._metrics.webhooks.duration.labels(endpoint)

        def observe(verdict: DeliveryResult) -> None:
            attempts[verdict.result].inc()
            duration.observe(verdict.seconds)

        return observe


def shares(total: int, parts: int) -> list[int]:
    """`total` shared out as evenly as possible."""
    return [total // parts + (number < total % parts) for number in range(parts)] if parts else []
