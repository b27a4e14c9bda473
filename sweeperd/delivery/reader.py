"""Reads the events of all lanes of a shard: many lanes share each round trip."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis

from sweeperd import progress
from sweeperd.context import ShardContext
from sweeperd.delivery import cpu_policy
from sweeperd.delivery.ahead import Ahead
from sweeperd.delivery.in_flight import Room
from sweeperd.delivery.intake import Intake
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.pool import Pool
from sweeperd.delivery.settler import Settler
from sweeperd.delivery.watcher import Watcher
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.outbox import CircuitStateStore, Outbox, correct_moments
from sweeperd.store.errors import describe, is_missing_group, is_missing_key, is_refused, is_server_trouble
from sweeperd.store.operations import TOGETHER, Operation, Request, run, run_together
from sweeperd.store.scripts import micros_of, server_clock
from sweeperd.store.streams import StreamId

log = logging.getLogger(__name__)

#: Redis's clock was set back if the clock lags so far behind the time counted since the last reading, seconds.
SET_BACK = 1.0
#: How many lanes do a chore side by side, and for how long chores go before the next reads, seconds.
CHORES, CHORES_FOR = 8, 0.02
#: How many events the lanes of a round trip read together at most.
READ_TOGETHER = 20_000
#: If the bytes in hand leave no room, the reader looks again after this time, seconds: requests may be slow by then.
STARVED = 0.25
#: A round of reads that takes less time, seconds, may follow the next news at once.
CHEAP = 0.005


class Reader:
    """
    Takes the events of all lanes. `run` is the work of a thread. Each round it reads for the lanes that have room and
    may have news, and does chores of the others for a while: scans for due events, probes, giving up. No lane waits for
    the chores of another one. A run until idle ends when nothing is left to deliver now.
    """

    def __init__(self, context: ShardContext, outbox: Outbox, pool: Pool, settler: Settler, room: Room) -> None:
        shard, timing = context.shard, context.timing
        self._outbox = outbox
        self._shard = shard
        self._pool = pool
        self._settler = settler
        self._room = room
        self._timing = timing
        self._clock = timing.clock
        self._until_idle = context.until_idle
        initial = context.settings.webhooks.redelivery_initial.total_seconds()
        self._refresh_every = min(timing.refresh_every, initial / 4)
        self._circuits = CircuitStateStore(shard, timing)
        self._outage = Outage(log, "delivery", {"shard": shard.name})
        self._ahead = Ahead(outbox, room)
        #: Whether lanes wait until others have fewer bytes in hand.
        self.starved = False
        #: Why Redis keeps all lanes from their work now; empty if it does not.
        self.trouble = ""
        #: Set by the engine when there is a watcher.
        self.watcher: Watcher | None = None
        self._intakes: dict[Lane, Intake] = {}
        #: When each lane has something to do (monotonic); inf: not until something changes.
        self._at: dict[Intake, float] = {}
        #: Lanes that were added or have changed since the last round, and calls to make between two rounds.
        self._touched: deque[Lane] = deque()
        self._changes: deque[Callable[[], None]] = deque()
        #: Those that wait for their turn to do a chore.
        self._chores: deque[Intake] = deque()
        self._wake = threading.Event()
        self._news = False
        #: News that comes earlier waits, so that reads for many lanes share the time with other work (monotonic).
        self._news_at = 0.0
        self._refresh_at = self._heartbeat_at = 0.0
        #: The last reading of Redis's clock, seconds, and when the answer came (monotonic).
        self._clock_read = 0.0, 0.0

    # ---- from other threads

    def touch(self, lanes: Iterable[Lane], *, wake: bool = True) -> None:
        """These lanes are new, have stopped, or have events settled. `wake`: the reader has something to do."""
        self._touched.extend(lanes)
        if wake:
            self._wake.set()

    def change(self, change: Callable[[], None]) -> None:
        """Call this between two rounds, when no operation of a lane is under way."""
        self._changes.append(change)
        self._wake.set()

    def wake(self) -> None:
        """End the wait between two rounds, after a stop."""
        self._wake.set()

    def news(self) -> None:
        """The stream may have new events."""
        self._news = True
        self._wake.set()

    # ---- the thread

    def run(self, stop: threading.Event) -> None:
        """Read until a stop, or until nothing is left. Then settle what is in hand."""
        dead_until: float | None = None
        failed = False
        try:
            while not stop.is_set():
                progress.step()
                try:
                    with self._shard.reaching():
                        did, pause = self.round()
                        if self._until_idle and not did and not any(lane.brake.holds for lane in self._intakes):
                            if self._last_round():
                                dead_until = None
                            elif not self._holding():
                                # Nothing is left, except events in hand of another process, alive or dead.
                                wait = self._timing.take_over_after + self._timing.refresh_every
                                dead_until = dead_until or self._clock() + wait
                                if self._clock() > dead_until or not self._held_elsewhere():
                                    return
                                pause = 0.2
                    self._outage.end()
                    self.trouble = ""
                    if failed and self.watcher:  # not before: it might find the old primary again
                        self.watcher.reconnect()
                    failed = False
                except Exception as error:
                    if isinstance(error, RedisUnavailable | redis.RedisError):
                        self._outage.begin(error, failed=not isinstance(error, RedisUnavailable))
                    else:
                        log.exception("delivery failed", extra={"shard": self._shard.name})
                    self.trouble = describe(error)
                    if self._until_idle:
                        return
                    failed = True
                    self._all_behind()
                    stop.wait(self._timing.recovery_pause)
                    continue
                if pause > 0:
                    self._wake.wait(pause)
                self._wake.clear()  # before the look at the stop and at what has changed
        finally:
            self._end()

    def round(self) -> tuple[bool, float]:
        """
        Read once for each lane that may have new events, and do chores for a while. Returns whether there was anything
        to do, and how long to wait if nothing changes, seconds. Raises redis.RedisError.
        """
        self._arrange()
        self.starved = False
        cpu_policy.follow(batch=bool(self._intakes) and all(lane.limits.events > 1 for lane in self._intakes))
        self.heartbeat()
        if self._clock() >= self._refresh_at:
            self._refresh()
        did = self._do_chores()
        now = self._clock()
        news = self._news and now >= self._news_at
        if news:
            self._news = False
            self._ahead.news()
            for each in self._at:
                each.news()
            self._reckon(self._at)
        readers = [each for each, at in self._at.items() if at <= now and each.read_at <= now]
        if news or readers:
            did = self._read(readers, news=news) or did
        self._pool.tend()
        return did, self._pause()

    def heartbeat(self) -> None:
        """
        When due, name the events in hand that move, so no other process takes them, and note the filters, so no other
        process acknowledges what only this one wants. Take or keep the leases of ordered lanes. Raises
        redis.RedisError.
        """
        self._outbox.filters.update()
        if self._clock() < self._heartbeat_at:
            return
        self._heartbeat_at = self._clock() + self._timing.heartbeat_every
        beating = [each for lane, each in self._intakes.items() if len(lane.in_flight) or lane.order is not None]
        self._run([(each, each.beat(self._pool.moving(each.lane))) for each in beating])

    def _holding(self) -> list[Intake]:
        """Those with events in hand. A run until idle does not wait for what Redis refuses."""
        stalled = {lane for lane in self._intakes if self._until_idle and lane.trouble}
        return [each for lane, each in self._intakes.items() if len(lane.in_flight) and lane not in stalled]

    def _arrange(self) -> None:
        """Take up new lanes, and leave those that have stopped and have nothing in hand."""
        while self._changes:
            self._changes.popleft()()
        for _ in range(len(self._touched)):
            lane = self._touched.popleft()
            if lane.ended.is_set():
                continue
            if lane not in self._intakes:
                self._intakes[lane] = Intake(lane, self._pool, self._refresh_every)
                self._refresh_at = 0.0
                self._heartbeat_at = self._heartbeat_at if lane.order is None else 0.0
            if lane.stop.is_set() and not len(lane.in_flight):
                self._at.pop(self._intakes.pop(lane), None)
                lane.end()
            else:
                self._reckon([self._intakes[lane]])

    def _reckon(self, intakes: Iterable[Intake]) -> None:
        """Find out when these have something to do. Before the first reading of Redis's clock nothing has."""
        if not self._clock_read[1]:
            return
        for each in list(intakes):
            lane = each.lane
            # Before the look at the room: a settlement in between wakes the reader.
            lane.awaits_room = self._until_idle or each.behind or lane.parked or lane.resting or lane.stop.is_set()
            self._at[each] = min(each.chore_at, each.read_at)

    def _read(self, readers: Sequence[Intake], *, news: bool) -> bool:
        began = self._clock()
        operations: list[tuple[Intake | None, Operation[Any]]] = []
        if news and self.watcher:
            operations.append((None, self._watch_from(self.watcher)))
        if len(filtered := [each for each in readers if each.filtered]) > 1:
            operations.append((None, self._ahead.read([each.position for each in filtered], filtered[0].most)))
            self._run(operations)
            operations = []
        for each, asked in self._affordable(readers):
            page = self._ahead.page(each.position) if each.filtered else None
            operations.append((each, each.read(asked, page)))
            self._at[each] = self._at.pop(each)  # the others come first in the next round
        found = self._run(operations)
        if (took := self._clock() - began) > CHEAP:
            self._news_at = self._clock() + took
        return found

    def _affordable(self, readers: Sequence[Intake]) -> list[tuple[Intake, int]]:
        """
        Those of the readers that may read now, and how many events each: what they read together is bounded, and so is
        what all lanes have in hand.
        """
        holding = {each.lane for each in self._holding()}
        at_work = holding.union(each.lane for each in readers)
        held_up = at_work & self._pool.held_up
        self._room.lanes, self._room.held_up = max(1, len(at_work)), len(held_up)
        left = self._room.left(_bytes(holding), _bytes(held_up))
        most = max(1, READ_TOGETHER // min(TOGETHER, max(1, len(readers))))
        chosen: list[tuple[Intake, int]] = []
        events = READ_TOGETHER
        for each in readers:
            typical = each.lane.in_flight.typical
            asked = min(each.asks(most, half=each in self._chores), events, int(left / typical))
            if len(chosen) == TOGETHER or (asked < 1 and (chosen or holding)):
                break  # how large these events are tells how many the others may take
            chosen.append((each, max(1, asked)))
            events, left = events - asked, left - int(asked * typical)
        self.starved = bool(readers and not chosen)
        return chosen

    def _watch_from(self, watcher: Watcher) -> Operation[bool]:
        """Before the reads, in the same round trip: what is added from here on is news."""
        (info,) = yield [Request(("XINFO STREAM", self._shard.keys.events))]
        if not isinstance(info, Exception):
            watcher.watch_from(info["last-generated-id"])
        return False

    def _do_chores(self) -> bool:
        """Do chores of the lanes in turn, for a while. Returns whether there was anything to do."""
        now, did, waiting = self._clock(), False, set(self._chores)
        due = [each for each, at in self._at.items() if at <= now and each not in waiting]
        self._chores.extend(each for each in due if each.chore_at <= now)
        while self._chores:
            some = [self._chores.popleft() for _ in range(min(CHORES, len(self._chores)))]
            did = self._run([(each, each.chore()) for each in some if each.chore_at <= now]) or did
            if self._clock() >= now + CHORES_FOR:
                break
        return did

    def _run(self, operations: Sequence[tuple[Intake | None, Operation[Any]]]) -> bool:
        """
        Run operations of lanes side by side. Returns whether any of them did something. If one fails, its lane rests
        for a while; raises redis.RedisError if the server is in trouble.
        """
        outcomes = run_together(self._shard.client, [operation for _, operation in operations])
        did, trouble = False, None
        for (intake, _), outcome in zip(operations, outcomes, strict=True):
            if not isinstance(outcome, Exception):
                did = did or bool(outcome)
                if intake is not None and not intake.lane.trouble:
                    intake.outage.end()
                continue
            if intake is not None:
                intake.doubt()
            if intake is None or not self._fails_alone(intake, outcome):
                trouble = outcome
        self._reckon(intake for intake, _ in operations if intake in self._at)
        if trouble is not None:
            raise trouble
        return did

    def _fails_alone(self, intake: Intake, error: Exception) -> bool:
        """Whether the error is about the lane, not about the server; then the lane rests or its group is made again."""
        if is_missing_group(error):
            self._make_group(intake)
            return True
        if is_server_trouble(error):
            return False
        intake.rests_until = self._clock() + self._timing.recovery_pause
        intake.lane.stall(error)
        if isinstance(error, RedisUnavailable | redis.RedisError):
            intake.outage.begin(error, failed=not (isinstance(error, RedisUnavailable) or is_refused(error)))
        else:
            log.error("delivery failed", extra=intake.lane.log_fields, exc_info=error)
        if self._until_idle:
            intake.lane.stop.set()
        return True

    def _make_group(self, intake: Intake) -> None:
        """The group is missing (a fail-over, a flush), or could not be made before: make the group at its position."""
        lane = intake.lane
        try:
            ensure_group(lane)
            intake.behind = lane.parked = True
        except redis.RedisError as error:
            log.warning("the group could not be made", extra=lane.log_fields | {"error": str(error)})
            intake.rests_until = self._clock() + self._timing.recovery_pause

    def _pause(self) -> float:
        """How long nothing has to be done, seconds."""
        now = self._clock()
        if self._chores:
            return 0.0
        if self.starved:
            return STARVED
        # Since it was reckoned, a lane may have lost its room to others.
        self._reckon([each for each, at in self._at.items() if at <= now])
        at = min(self._refresh_at, self._heartbeat_at, now + self._timing.block)
        if self._news:
            at = min(at, self._news_at)
        return max(0.0, min([at, *self._at.values()]) - now)

    # ---- what nobody tells of

    def _refresh(self) -> None:
        """
        Read Redis's clock, the states of the endpoints, which circuits an operator has closed, and what the groups have
        taken and not acknowledged. Raises redis.RedisError.
        """
        lanes, keys, client = list(self._intakes), self._shard.keys, self._shard.client
        for lane in lanes:
            if refused := lane.state.save():
                lane.stall(refused)
                self._intakes[lane].outage.begin(refused)
        changes = [lane.state.changes for lane in lanes]
        requests = [
            Request(server_clock(client)),
            Request(("XINFO STREAM", keys.events)),
            Request(("XINFO GROUPS", keys.events)),
            Request(("HGETALL", keys.endpoints)),
            *([Request(("HMGET", keys.circuits, *(lane.endpoint for lane in lanes)))] if lanes else []),
        ]
        asked_at = time.monotonic()
        moment, stream, groups, states, *closed = run(client, _replies(requests))
        self._refresh_at = self._clock() + self._refresh_every
        if self._corrected((micros_of(moment) or 0) / 1e6, asked_at):
            self._refresh()
            return
        self._ahead.news()
        last = b"" if stream is None else stream["last-generated-id"]
        by_name = {row["name"]: row for row in groups or ()}
        for lane, change, closed_at in zip(lanes, changes, closed[0] if closed else (), strict=True):
            intake = self._intakes[lane]
            lane.state.learn(states.get(lane.endpoint.encode()), change)
            if lane.publisher.operator_closes(closed_at):
                log.warning("an operator has closed the circuit", extra=lane.log_fields)
                lane.state.resume()
                intake.scan.end_waits()
                lane.parked = True
            intake.told()
            if row := by_name.get(lane.group.encode()):
                lane.parked = bool(row["pending"])
                intake.compare(row["pending"])
                intake.position = row["last-delivered-id"]
                read = intake.behind and lane.works_here
                intake.behind = read or row["last-delivered-id"] != last
            else:
                intake.behind = True
        self._touched.extend(lanes)
        self._arrange()
        if not self._until_idle:
            self._publish([lane for lane in lanes if lane.live])

    def _publish(self, lanes: Sequence[Lane]) -> None:
        """Write the circuits of this process again when due, so operators see a living process."""
        due = [
            (lane.endpoint, lane.publisher.note_when_due(lane.counts()["delivered"], lane.trouble)) for lane in lanes
        ]
        self._circuits.write_all({endpoint: note for endpoint, note in due if note is not None})

    def _corrected(self, now: float, asked_at: float) -> bool:
        """
        If Redis's clock was set back, by hand or by a fail-over to another host, correct what is stored and end all
        waits. At the start the stored moments tell: no process may have run while the clock was set back. `now`: the
        reading, seconds; `asked_at`: when it was asked for (monotonic). Returns whether what is stored may have
        changed.
        """
        before, answered_at = self._clock_read
        answer_at = time.monotonic()
        behind, starts = before + asked_at - answered_at - now, not answered_at
        self._shard.clock.set(int(now * 1000))
        if starts or behind > SET_BACK:
            behind = max(behind, correct_moments(self._shard) / 1000)
        if behind > SET_BACK:
            fields = {"shard": self._shard.name, "seconds": round(behind)}
            log.warning("the clock of redis was set back: no event waits any longer", extra=fields)
            for intake in self._intakes.values():
                try:
                    self._outbox.end_waits(intake.lane.group)
                except redis.ResponseError as error:
                    if not is_missing_group(error):
                        raise
                intake.scan.hurry()
                if not starts:
                    intake.lane.state.end_mute()
        self._clock_read = now, answer_at
        return starts or behind > SET_BACK

    # ---- the end

    def _last_round(self) -> bool:
        """A run until idle ends after a round with nothing in hand that looks at everything once more."""
        if self._holding():
            return False
        for lane in self._intakes:
            if lane.trouble:
                lane.stop.set()
        self._refresh()
        for each in self._intakes.values():
            each.behind = each.behind or each.lane.works_here
            if not each.lane.brake.waiting:
                each.lane.parked = each.lane.parked or each.lane.works_here
                each.scan.hurry()
        self._reckon(self._intakes.values())
        did, _ = self.round()
        return did

    def _held_elsewhere(self) -> bool:
        return any(
            self._outbox.groups.held_elsewhere(lane.group) or (not lane.works_here and (each.behind or lane.parked))
            for lane, each in self._intakes.items()
            if not lane.resting and not lane.stop.is_set()
        )

    def _all_behind(self) -> None:
        self._ahead.forget()
        for each in self._intakes.values():
            each.behind = each.lane.parked = True
        self._refresh_at = 0.0

    def _end(self) -> None:
        """Release what is queued, and wait for the requests in flight while the heartbeats go on."""
        for lane in (*self._intakes, *self._touched):
            lane.stop.set()
        self._pool.close()
        while threads := self._pool.threads:
            threads[0].join(1.0)
            progress.step()
            try:
                with self._shard.reaching():
                    self.heartbeat()
            except (RedisUnavailable, redis.RedisError) as error:
                log.info("no heartbeat", extra={"shard": self._shard.name, "error": str(error)})
        for lane in (*self._intakes, *self._touched):
            lane.end()
        self._settler.end()


def ensure_group(lane: Lane) -> None:
    """
    Make the group of a lane if it is missing. If the group belongs to a replay that has ended, the lane stops. Raises
    redis.RedisError.
    """
    start = lane.subscription.start
    made_at = lane.outbox.groups.ensure(lane.group, start, lane.redelivery.max_age_ms)
    lane.redelivery.counts_from_ms = made_at
    if isinstance(start, StreamId) and not made_at:
        lane.stop.set()


def _bytes(lanes: Iterable[Lane]) -> int:
    """How many bytes of events these have in hand."""
    return sum(lane.in_flight.bytes for lane in lanes)


def _replies(requests: Sequence[Request]) -> Operation[list[Any]]:
    """The replies; None if the stream does not exist."""
    replies = yield requests
    for number, reply in enumerate(replies):
        if isinstance(reply, redis.ResponseError) and is_missing_key(reply):
            replies[number] = None
        elif isinstance(reply, Exception):
            raise reply
    return replies
