"""
The deliveries of one process and one shard: a lane for each endpoint and each replay, and the maintenance of the
outbox.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import redis

from sweeperd.config import RELAY, EndpointSettings
from sweeperd.config.types import milliseconds
from sweeperd.context import ShardContext
from sweeperd.delivery.acknowledger import Acknowledger
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.reader import Consumer
from sweeperd.delivery.relay import SENDERS, Relay
from sweeperd.delivery.senders import BatchSender, Sender
from sweeperd.delivery.webhook import RateLimit, WebhookClient
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
    read_backlog,
)
from sweeperd.outbox.replays import ReplayNote, ReplayStore, ReplaySubscription, end_cancelled
from sweeperd.progress import Progress, working
from sweeperd.store import Shard, streams
from sweeperd.store.lease import process_name

log = logging.getLogger(__name__)

#: How long a reader or an acknowledger may take beyond the time of a command of Redis, seconds.
STUCK = 60.0


class EndpointDelivery:
    """
    The threads of one lane: the acknowledger, the senders, and last the reader, who ends the others. `threads` hands
    the threads up, to be started. `until_idle`: the threads end when nothing is left to deliver now.
    """

    def __init__(self, lane: Lane, sender: Sender, *, until_idle: bool = False) -> None:
        self.name = lane.endpoint
        self.lane = lane
        self._acknowledger = Acknowledger(lane)
        self._sender = sender
        self._consumer = Consumer(lane, self._acknowledger)
        self._until_idle = until_idle
        self._name = f"{lane.shard.name}-{lane.group}"
        self._senders: list[threading.Thread] = []
        #: Of the reader and of the acknowledger, by their work.
        self._progress: dict[str, Progress] = {}
        self._acknowledging = self._thread("acknowledge", self._acknowledger.run)
        self._reading = self._thread("deliver", self._read)
        self._grow(lane.senders)

    @property
    def threads(self) -> list[threading.Thread]:
        """All threads, in the order of their start."""
        return [self._acknowledging, *self._senders, self._reading]

    @property
    def reads(self) -> bool:
        """Whether the reader was started."""
        return self._reading.ident is not None

    @property
    def complete(self) -> bool:
        """Whether the reader and all other started threads run."""
        return self.reads and all(thread.is_alive() for thread in self.threads if thread.ident is not None)

    @property
    def stuck(self) -> list[str]:
        """The threads that hang, in words."""
        longest = STUCK + self.lane.shard.patience
        silent = [work for work, progress in self._progress.items() if progress.silent_for > longest]
        return [f"{work} thread of {self.name}" for work in silent + ["send"] * bool(self.lane.beats.hanging)]

    def prepare(self) -> None:
        """If the group is missing, make the group. Raises redis.RedisError."""
        self._consumer.ensure_group()

    def count_ages_from(self, made_at: int) -> None:
        """
        Count older events as if added at `made_at`, ms: when the group was made and began in the past. 0 (the note of
        the group was lost) changes nothing.
        """
        redelivery = self.lane.redelivery
        redelivery.counts_from_ms = max(redelivery.counts_from_ms, made_at)

    def abandon(self) -> None:
        """If the system gives no more threads: end the started threads, unless the reader runs and ends them."""
        if not self.reads:
            self.lane.batches.close()
            self._acknowledger.end()

    def join(self, deadline: float | None = None) -> bool:
        """Wait for the threads until `deadline` (monotonic). Returns whether all have ended."""
        ended = join(self.threads, deadline)
        if ended:
            self._sender.close()
        return ended

    @property
    def state(self) -> str:
        """The state as in `sweeperd_endpoint_state`; `open`: the circuit is open."""
        if self.lane.state.state.paused:
            return "paused"
        if self.lane.circuit.open:
            return "open"
        return "muted" if self.lane.state.resting else "delivering"

    @property
    def resting(self) -> bool:
        """Whether a single connection is enough: the endpoint is paused or muted, or the circuit is open."""
        return self.lane.circuit.open or self.lane.state.resting

    def lend(self, connections: int) -> None:
        """Allow so many requests in flight from now on; there may be more threads to start."""
        self.lane.lend(connections)
        self._grow(connections)

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by this process."""
        return self._acknowledger.counts()

    def wake(self) -> None:
        """End the reader's wait, after a stop."""
        self.lane.in_flight.wake()

    def _thread(self, work: str, target: Callable[[], None], number: str = "") -> threading.Thread:
        progress = Progress()
        if work != "send":  # each sender has its own work, batch by batch
            self._progress[work] = progress

        def run() -> None:
            if self.lane.limits.events > 1:  # a single event waits for the thread, a batch can wait for a core
                never_preempt()
            with working(progress):
                target()

        return threading.Thread(target=run, name=f"{work}-{self._name}{number}", daemon=True)

    def _grow(self, count: int) -> None:
        for number in range(len(self._senders) + 1, count + 1):
            self._senders.append(self._thread("send", self._send, f"-{number}"))

    def _send(self) -> None:
        self._sender.run(self._acknowledger)

    def _read(self) -> None:
        try:
            self._consumer.run(until_idle=self._until_idle)
        finally:
            self.lane.batches.close()
            # During a long request, other processes would regard this process as dead.
            while not join(tuple(self._senders), time.monotonic() + 1.0):
                self._heartbeat()
            self._acknowledger.end()

    def _heartbeat(self) -> None:
        try:
            with self.lane.shard.reaching():
                self._consumer.heartbeat()
        except (RedisUnavailable, redis.RedisError) as error:
            log.info("no heartbeat", extra=self.lane.log_fields | {"error": str(error)})


def never_preempt() -> None:
    """
    From now on, when the current thread wakes up, the thread waits for a free core in place of taking a core from a
    running thread (Linux: SCHED_BATCH). The time that the thread gets stays the same, in longer pieces.

    On the row `beside`: last webhook 1.7 times the sweep alone, 2.0 to 2.5 without; a process for each role 1.4, 1.6 to
    1.9 without. Threads of batches wake up thousands of times a second and would interrupt Redis and the sweep, which
    bring the next events. If the system has no such rule or refuses it, nothing changes.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def join(threads: Iterable[threading.Thread], deadline: float | None) -> bool:
    """Wait until `deadline` (monotonic) for the started threads. Returns whether all of them have ended."""
    started = [thread for thread in threads if thread.ident is not None]
    for thread in started:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in started)


@dataclass(frozen=True, slots=True)
class RunningReplay:
    """One replay in this process, with a separate stop: a replay ends before the process ends."""

    note: ReplayNote
    subscription: ReplaySubscription
    delivery: EndpointDelivery
    stop: threading.Event


#: Makes the delivery of a replay, without a start.
Make = Callable[[ReplayNote], RunningReplay]


class Replays:
    """
    Works on each replay to these endpoints, and ends a replay when all events of the replay are delivered. Call
    `refresh` every few seconds, from a single thread; then start the threads of new replays.
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
        """The deliveries of all replays that have not ended."""
        return [replay.delivery for replay in list(self._running.values())]

    def groups(self) -> list[str]:
        """
        The consumer groups of the replays to these endpoints, those included that this process has not begun yet.
        Raises redis.RedisError.
        """
        return [note.group for note in self._notes().values()]

    def refresh(self) -> None:
        """Begin, stop and end replays as their notes say. Raises redis.RedisError."""
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
                self._begin(note)
        self._end_finished(notes.values())

    def stop(self) -> None:
        """Take no more events; `join` has to follow."""
        for replay in self._running.values():
            replay.stop.set()
            replay.delivery.wake()

    def join(self, deadline: float | None = None) -> bool:
        """Wait until `deadline` (monotonic) for all threads. Returns whether all have ended."""
        for endpoint, replay in list(self._running.items()):
            replay.delivery.join(deadline)
            self._remove_ended(endpoint, replay)
        return not self._running

    def finish(self) -> None:
        """End each replay whose events are all delivered. Raises redis.RedisError."""
        self._end_finished(self._notes().values())

    def counts(self) -> Counter[str]:
        """How many events were `delivered` and `dead_lettered` by the replays of this process."""
        return sum((delivery.counts() for delivery in self.deliveries), Counter(self._counts))

    def left(self) -> int:
        """How many events of all replays are not delivered, about. Raises redis.RedisError."""
        return sum(self._store.progress(note).left for note in self._notes().values() if not note.cancelled)

    def _notes(self) -> dict[str, ReplayNote]:
        return {endpoint: note for endpoint, note in self._store.all().items() if endpoint in self._endpoints}

    def _begin(self, note: ReplayNote) -> None:
        replay = self._make(note)
        replay.delivery.prepare()
        if replay.stop.is_set():
            return  # since the note was read, the replay has ended
        self._running[note.endpoint] = replay
        log.info("a replay begins here", extra=self._log_fields(note))

    def _end_finished(self, notes: Iterable[ReplayNote]) -> None:
        for note in notes:
            if note.cancelled:
                continue
            replay, exhausted = self._running.get(note.endpoint), self._store.exhausted(note)
            if replay is not None:
                # If a group is lost and made again, the group takes events anew.
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
        except redis.RedisError as error:  # Redis cannot be reached, or the group has gone
            fields = self._log_fields(replay.note) | {"error": str(error)}
            log.debug("the consumer is not removed from the group of a replay", extra=fields)

    def _log_fields(self, note: ReplayNote) -> dict[str, object]:
        return {"shard": self._shard.name, "endpoint": note.endpoint, "events": note.events}


class DeliveryReport(NamedTuple):
    """Event-endpoint pairs, counted."""

    delivered: int = 0
    undelivered: int = 0
    dead_lettered: int = 0


class Dispatcher:
    """All endpoints and replays of one process and one shard."""

    def __init__(self, context: ShardContext, *, delivers: bool = True) -> None:
        """Not `delivers`: the process keeps the groups and takes no events."""
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
        self._circuits = CircuitStateStore(shard, context.timing)
        announcements = Announcements(shard.clock, settings.announced)
        remade = metrics.webhooks.groups_remade.labels(shard.name)
        self._groups = ConsumerGroups(shard, consumer, self._max_age_ms, remade, context.timing)
        self._filters = Filters(shard, consumer, settings.consumers if delivers else (), context.timing)
        #: Endpoint -> what was last said about different filters.
        self._different = dict[str, str]()
        self._outbox = outbox = Outbox(
            shard, consumer, replication, announcements, self._groups, context.timing, self._filters
        )
        self._backlogs = BacklogMemory()
        self._ready = self._started = False
        #: Endpoint -> `max_rate`, shared by the delivery to the endpoint and by a replay. Shards share no Redis, so
        #: each shard gets an equal part.
        self._limits = {
            endpoint.name: RateLimit(
                shard,
                endpoint.name,
                endpoint.max_rate / len(settings.all_shards),
                metrics.webhooks.rate_waits.labels(endpoint.name),
                context.timing,
            )
            for endpoint in webhooks.endpoints
            if endpoint.max_rate
        }
        #: Each endpoint has separate connections: if a receiver hangs, no other endpoint waits.
        self.endpoints = [
            self._delivery(context, endpoint, Lane.of(context, endpoint, outbox, senders))
            for endpoint, senders in zip(
                webhooks.endpoints, shares(context.concurrency, len(webhooks.endpoints)), strict=True
            )
        ]
        self._concurrency = context.concurrency
        #: These and the replays share the connections; the relay has no connections.
        self._receivers = tuple(self.endpoints)
        self._replays = Replays(shard, outbox, [each.name for each in self._receivers], self._replay)
        if settings.cycles.enabled:
            lane = Lane.of(context, RELAY, outbox, SENDERS)
            relay = Relay(lane, self._observer(RELAY.name), settings.cycles)
            self.endpoints.append(EndpointDelivery(lane, relay, until_idle=context.until_idle))
            metrics.webhooks.relay_waiting.labels(shard.name)
        for endpoint in self.endpoints:
            metrics.webhooks.announce(endpoint.name)

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
            made_at = self._groups.keep({each.name: each.lane.subscription.start for each in self.endpoints})
            for endpoint in self.endpoints:
                endpoint.count_ages_from(made_at[endpoint.name])
        self._ready = True

    def adopt(self, before: "Dispatcher") -> None:
        """Take over the positions of the groups from a stopped dispatcher of the same shard."""
        # If an endpoint was left out meanwhile, the position in memory is out of date, and the note decides.
        names = {endpoint.name for endpoint in self.endpoints}
        self._groups.adopt(before._groups, names.intersection(endpoint.name for endpoint in before.endpoints))

    def start(self) -> None:
        """
        Start each thread that was not started yet: first the threads of every endpoint, later those for new replays and
        for lent connections. Raises RuntimeError if the system gives no more threads.
        """
        first, self._started = not self._started, True
        for delivery in (*self.endpoints, *self._replays.deliveries):
            for thread in delivery.threads:
                if thread.ident is None:
                    try:
                        thread.start()
                    except RuntimeError:
                        delivery.abandon()
                        raise
        if first and self._context.until_idle:
            try:
                self.refresh_replays()
            except RedisUnavailable as error:
                log.warning("replays wait", extra={"shard": self._shard.name, "error": str(error)})

    def refresh_replays(self) -> None:
        """
        Begin new replays, end finished replays, and share the connections anew, also when an endpoint rests no more.
        Call this every few seconds. Raises RedisUnavailable.
        """
        with self._shard.reaching():
            self._shard.read_clock()
            self._replays.refresh()
        self._lend_connections()
        if self._started:
            self.start()

    def join(self, deadline: float | None = None) -> bool:
        """
        Wait until `deadline` (monotonic) for all threads to end, then remove this process from the groups. Returns
        whether all ended; if an event is still in flight, another replica or a later process delivers the event again.
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
                        endpoint.lane.publisher.remove()
                    self._filters.leave()
            except (RedisUnavailable, redis.RedisError) as error:
                fields = {"shard": self._shard.name, "error": str(error)}
                log.info("the consumer is not removed from its groups", extra=fields)
        return ended

    @property
    def complete(self) -> bool:
        """Whether every thread of the endpoints runs."""
        return all(endpoint.complete for endpoint in self.endpoints)

    @property
    def stuck(self) -> list[str]:
        """The threads of endpoints and replays that hang, in words."""
        return [thread for delivery in (*self.endpoints, *self._replays.deliveries) for thread in delivery.stuck]

    def maintain(self) -> None:
        """
        Keep the groups, trim the stream, remove dead processes from the groups, measure the backlogs. Raises
        RedisUnavailable.
        """
        self.keep_groups()
        with self._shard.reaching():
            groups = [*(endpoint.name for endpoint in self.endpoints), *self._replays.groups()]
            self._trim(groups)
            for endpoint in self.endpoints:
                self._compare_filters(endpoint.name)
                if backlog := self._backlog(endpoint):
                    waiting = backlog.events, backlog.oldest_seconds
                    self._metrics.webhooks.waiting(self._shard.name, endpoint.name, *waiting)
                self._metrics.webhooks.endpoint_state(self._shard.name, endpoint.name, endpoint.state)
                if endpoint.name == RELAY.name:
                    self._measure_brake(endpoint.lane)
            for group in groups:
                self._groups.remove_silent(group)
            self._circuits.remove_stale()

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
        trimmed = self._groups.trim(groups, self._retention_ms, self._max_age_ms, events.groups, age)  # reads the clock
        for group in events.groups:
            lost, oldest = trimmed.unread.get(group, 0), self._groups.oldest_unread_ms(group)
            seconds = 0.0 if oldest is None else max(0.0, (shard.clock.now_ms() - oldest) / 1000)
            self._metrics.webhooks.stream_group(shard.name, group, seconds, lost)
            if lost:
                fields = {"shard": shard.name, "group": group, "events": lost}
                log.warning("events were removed that a group has not read, because they were too old", extra=fields)

    def _lend_connections(self) -> None:
        """While an endpoint rests, a single connection stays; the active endpoints share the others."""
        receivers = [*self._receivers, *self._replays.deliveries]
        resting = [endpoint for endpoint in receivers if endpoint.resting]
        active = [endpoint for endpoint in receivers if endpoint not in resting]
        for endpoint in resting:
            endpoint.lend(1)
        for endpoint, count in zip(active, shares(self._concurrency - len(resting), len(active)), strict=True):
            endpoint.lend(max(1, count))

    def report(self) -> DeliveryReport:
        """How many pairs this process has delivered, and how many are left. Raises RedisUnavailable."""
        counts: Counter[str] = Counter()
        with self._shard.reaching():
            counts += self._replays.counts()
            counts["undelivered"] += self._replays.left()
            for endpoint in self.endpoints:
                counts += endpoint.counts()
                backlog = self._backlog(endpoint, to_the_end=True)
                counts["undelivered"] += backlog.events if backlog else 0
        return DeliveryReport(counts["delivered"], counts["undelivered"], counts["dead_lettered"])

    def _delivery(self, context: ShardContext, endpoint: EndpointSettings, lane: Lane) -> EndpointDelivery:
        """The delivery of a lane to the endpoint, live or of a replay."""
        webhooks, shard, count = context.settings.webhooks, context.shard, self._observer(endpoint.name)

        def observe(result: DeliveryResult) -> None:
            lane.obey(result.retry_after)  # now: a quick retry may wait for so long, and other requests must wait too
            count(result)

        limit = self._limits.get(endpoint.name)
        client = WebhookClient(endpoint, webhooks, shard.clock, context.concurrency, observe, context.stop, limit)
        batches, balances = endpoint.batch_size > 1, endpoint.balances
        encoder = EventEncoder(shard.name, shard.origin, endpoint.format, batches=batches, balances=balances)
        return EndpointDelivery(lane, BatchSender(lane, client, encoder.request), until_idle=context.until_idle)

    def _replay(self, note: ReplayNote) -> RunningReplay:
        """The delivery of a replay; `_lend_connections` lends the connections."""
        context, endpoints = replace(self._context, stop=threading.Event()), self._context.settings.webhooks.endpoints
        (place,) = (number for number, endpoint in enumerate(endpoints) if endpoint.name == note.endpoint)
        endpoint, live = endpoints[place], self._receivers[place].lane
        subscription = ReplaySubscription(endpoint, note)
        lane = Lane.of(context, endpoint, self._outbox, 1, subscription, live)
        return RunningReplay(note, subscription, self._delivery(context, endpoint, lane), context.stop)

    def _backlog(self, endpoint: EndpointDelivery, *, to_the_end: bool = False) -> GroupBacklog | None:
        group = streams.groups(self._shard.client, self._shard.keys.events).get(endpoint.name.encode())
        subscription, now_ms, memory = endpoint.lane.subscription, self._shard.clock.now_ms(), self._backlogs
        return read_backlog(self._shard, group, subscription, now_ms, to_the_end=to_the_end, memory=memory)

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
