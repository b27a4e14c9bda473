"""Whose turn it is in the pool of senders, how many requests are in flight, and which threads there are."""

import itertools
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sweeperd.context import Timing
from sweeperd.delivery import pool
from sweeperd.delivery.batches import Batch, BatchLimits, BatchQueue
from sweeperd.delivery.lane import Lane, Work
from sweeperd.delivery.pool import Pool
from sweeperd.delivery.senders import Sent
from sweeperd.delivery.settler import Disposition, Settlement
from sweeperd.outbox import OutboxEntry
from sweeperd.progress import Progress
from tests.support.harness import eventually, waits


class Sender:
    """Sends a batch for as long as `answered` is not set, and keeps the order of the batches over all lanes."""

    def __init__(self, name: str, sent: list[str]) -> None:
        self._name = name
        self._sent = sent
        self.answered = threading.Event()
        self.answered.set()
        #: How long the next batches wait before they are sent, and before their quick retries, seconds.
        self.waits: list[float] = []
        self.pauses: list[float] = []
        self.in_flight = 0
        self._lock = threading.Lock()

    def wait(self, _batch: Batch) -> float:
        return self.waits.pop(0) if self.waits else 0.0

    def send(self, batch: Batch) -> Sent:
        with self._lock:
            self.in_flight += 1
            self._sent.append(self._name)
        self.answered.wait(20)
        with self._lock:
            self.in_flight -= 1
            if self.pauses:
                return Sent(retry=batch, pause=self.pauses.pop(0))
        return Sent([Settlement(Disposition.ACKNOWLEDGE, batch.entries)])


class Settled:
    """Takes settlements instead of the settler."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []

    def add(self, _lane: Lane, settlements: Any) -> None:
        self.ids += [each for settlement in settlements for each in settlement.ids]


class World:
    """A pool with lanes."""

    def __init__(self, concurrency: int) -> None:
        self.settled, self.sent = Settled(), list[str]()
        settler: Any = self.settled
        #: How often the pool has looked at the clock: each thread does when it wakes up.
        self.looks = 0
        #: The time, if it stands still.
        self.now: float | None = None
        self.pool = Pool("test", concurrency, settler, Timing(clock=self._clock))
        self._number = 0
        self.lanes: list[Any] = []

    def _clock(self) -> float:
        self.looks += 1
        return self._time()

    def _time(self) -> float:
        return time.monotonic() if self.now is None else self.now

    def lane(self, name: str, batch: int = 1, requests: int | None = None) -> Any:
        lane: Any = Lane.__new__(Lane)
        lane.endpoint, lane.limits = name, BatchLimits(batch, 10**6, 0.05)
        lane.queue, lane.works, lane.in_round = BatchQueue(lane.limits, self._time), [], False
        lane.looked_at = math.inf
        lane.requests, lane.stop = requests, threading.Event()
        lane.sender = Sender(name, self.sent)
        self.lanes.append(lane)
        return lane

    def put(self, lane: Any, count: int = 1) -> None:
        entries = [OutboxEntry(b"%d-0" % (self._number + n), 1, (), False, 10) for n in range(count)]
        self._number += count
        self.pool.put(lane, entries, in_order=True)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(concurrency=4)
    yield made
    for lane in made.lanes:
        lane.stop.set()
        lane.sender.answered.set()
    made.pool.close()
    eventually(lambda: not made.pool.threads)


def hold(world: World, name: str, **how: int) -> Any:
    """A lane whose requests do not end."""
    lane = world.lane(name, **how)
    lane.sender.answered.clear()
    return lane


def test_each_event_is_settled_once(world: World) -> None:
    lanes = [world.lane(str(number)) for number in range(10)]
    for _ in range(20):
        for lane in lanes:
            world.put(lane)
    eventually(lambda: len(world.settled.ids) >= 200)
    assert len(set(world.settled.ids)) == len(world.settled.ids) == 200
    eventually(lambda: not any(lane.in_round or lane.queue or lane.works for lane in lanes))


def test_no_more_requests_are_in_flight_than_the_concurrency(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LEAST_SLOW", 60.0)
    monkeypatch.setattr(pool, "MOST_SLOW", 60.0)
    busy = hold(world, "busy")
    world.put(busy, 50)
    eventually(lambda: busy.sender.in_flight == 4)
    other = hold(world, "other")
    world.put(other, 5)
    time.sleep(0.1)
    assert (busy.sender.in_flight, other.sender.in_flight) == (4, 0)
    busy.sender.answered.set()
    eventually(lambda: other.sender.in_flight)


def test_lanes_with_events_take_turns(world: World) -> None:
    """However many events one has: while others wait, its requests are its part."""
    world.pool.allow(1)
    gate = hold(world, "gate")
    world.put(gate)
    eventually(lambda: gate.sender.in_flight == 1)
    lanes = [world.lane(name) for name in "abc"]
    world.put(lanes[0], 100)
    world.put(lanes[1], 3)
    world.put(lanes[2], 3)
    gate.sender.answered.set()
    eventually(lambda: len(world.settled.ids) == 107)
    assert Counter(world.sent[1:10]) == {"a": 3, "b": 3, "c": 3}


def test_a_request_that_hangs_keeps_no_lane_from_its_part(world: World) -> None:
    hanging = hold(world, "hanging")
    world.put(hanging, 50)
    eventually(lambda: hanging.sender.in_flight == 4)
    other = hold(world, "other")
    began = time.monotonic()
    world.put(other, 5)
    eventually(lambda: other.sender.in_flight >= 2)
    assert time.monotonic() - began < 5
    time.sleep(3 * pool.LEAST_SLOW)
    assert other.sender.in_flight <= 4, "nor gets it more than there are"
    assert hanging.sender.in_flight == 4


def test_what_is_slow_depends_on_how_long_requests_take(world: World) -> None:
    at = world.now = 1000.0

    def slow(seconds: float) -> bool:
        world.now = at + seconds
        return hanging in world.pool.held_up

    def wait(_: Batch) -> float:
        nonlocal at
        at = world.now = at + takes
        return 0.0

    usual = world.lane("usual")
    usual.sender.wait = wait
    for seconds, least, most in [(0.0, 0.049, 0.051), (0.04, 0.14, 0.18), (1.0, 0.249, 0.251), (0.0, 0.049, 0.055)]:
        takes = seconds
        for number in range(1, 101):
            world.put(usual)
            eventually(lambda number=number: len(world.settled.ids) == number and not usual.works, pause=0.001)
        hanging = hold(world, "hanging")
        world.put(hanging)
        eventually(lambda hanging=hanging: hanging.sender.in_flight)
        assert (slow(least), slow(most)) == (False, True)
        world.now = at
        hanging.sender.answered.set()
        eventually(lambda hanging=hanging: not hanging.works)
        world.settled.ids.clear()


def test_a_lane_that_is_done_lessens_the_part_of_no_other(world: World) -> None:
    world.now = 1000.0
    for name in "abc":
        world.put(world.lane(name))
    eventually(lambda: len(world.settled.ids) == 3)
    hanging, other = hold(world, "hanging"), hold(world, "other")
    world.put(hanging, 50)
    eventually(lambda: hanging.sender.in_flight == 4)
    world.now += 0.06
    world.put(other, 10)
    eventually(lambda: other.sender.in_flight == 4)


def test_what_is_free_goes_to_the_lane_below_its_part(world: World) -> None:
    world.now = 1000.0
    world.pool.allow(2)
    one, other = hold(world, "one"), hold(world, "other")
    world.put(one, 10)
    eventually(lambda: one.sender.in_flight == 2)
    world.put(other, 10)
    world.pool.allow(4)
    eventually(lambda: one.sender.in_flight + other.sender.in_flight == 4)
    assert (one.sender.in_flight, other.sender.in_flight) == (2, 2)


def test_a_lane_with_nothing_but_a_request_in_flight_has_a_part_too(world: World) -> None:
    world.now = 1000.0
    world.pool.allow(3)
    busy, one, other = (hold(world, name) for name in ("busy", "one", "other"))
    world.put(busy)
    eventually(lambda: busy.sender.in_flight == 1)
    world.put(one, 10)
    eventually(lambda: one.sender.in_flight == 2)
    world.put(other, 10)
    world.pool.allow(4)
    eventually(lambda: one.sender.in_flight + other.sender.in_flight == 3)
    assert (one.sender.in_flight, other.sender.in_flight) == (2, 1)


def test_many_that_hang_keep_no_lane_from_its_first_request(world: World) -> None:
    hanging = [hold(world, str(number)) for number in range(20)]
    for lane in hanging:
        world.put(lane, 5)
    eventually(lambda: all(lane.sender.in_flight for lane in hanging))
    other = world.lane("other")
    world.put(other, 3)
    eventually(lambda: len(world.settled.ids) == 3)


def test_lanes_that_hang_one_after_another_hold_a_bounded_number_of_requests(world: World) -> None:
    """Each has the whole of `concurrency` to itself when it begins to hang. Whoever comes last still gets a request."""
    lanes = [hold(world, str(number)) for number in range(8)]
    for number, lane in enumerate(lanes, 1):
        world.put(lane, 50)
        eventually(lambda: lane.sender.in_flight >= (4 if number <= 2 else 1))  # noqa: B023 - called at once
        time.sleep(2 * pool.LEAST_SLOW)
    in_flight = [lane.sender.in_flight for lane in lanes]
    assert sum(in_flight) <= 2 * 4 + len(lanes), in_flight
    other = world.lane("other")
    world.put(other, 20)
    eventually(lambda: len(world.settled.ids) == 20)


def test_twice_the_concurrency_is_in_flight_besides_one_of_each_lane_that_hangs(world: World) -> None:
    world.now = 1000.0
    for name in "ab":
        hanging = hold(world, name)
        world.put(hanging, 50)
        eventually(lambda: hanging.sender.in_flight == 4)  # noqa: B023 - called at once
        world.now += 1
    late, last = hold(world, "late"), world.lane("last")
    world.put(late, 50)
    eventually(lambda: late.sender.in_flight == 2, 10)
    world.put(last, 3)
    eventually(lambda: len(world.settled.ids) == 3, 10)
    assert len(late.works) == 2


def test_a_lane_has_its_part_though_many_others_hang_with_a_request_each(world: World) -> None:
    world.now = 1000.0
    for number in range(12):
        lane = hold(world, str(number))
        world.put(lane)
        eventually(lambda: lane.sender.in_flight == 1)  # noqa: B023 - called at once
        world.now += 1
    other = hold(world, "other")
    world.put(other, 6)
    eventually(lambda: other.sender.in_flight == 4, 10)  # the others hang for 20 s


def test_neither_the_relay_nor_a_lane_that_stops_waits_for_others(world: World) -> None:
    world.now = 1000.0
    busy = hold(world, "busy")
    world.put(busy, 50)
    eventually(lambda: busy.sender.in_flight == 4)
    relay = hold(world, "relay", requests=2)
    world.put(relay, 5)
    eventually(lambda: relay.sender.in_flight == 2)
    stopping = world.lane("stopping")
    stopping.stop.set()
    world.put(stopping)
    eventually(lambda: len(world.settled.ids) == 1)
    world.now += 1
    world.pool.tend()
    assert relay.sender.in_flight == 2


def test_what_waits_holds_no_thread(world: World) -> None:
    """Neither for `max_rate` or a sweep, nor before a quick retry; and other lanes go on."""
    world.pool.allow(1)
    waiting, retrying, other = (world.lane(name) for name in ("waiting", "retrying", "other"))
    waiting.sender.waits = [0.2, 0.2]
    retrying.sender.pauses = [0.3]
    for lane in (waiting, retrying, other):
        world.put(lane)
    eventually(lambda: len(world.settled.ids) == 3)
    assert world.sent == ["retrying", "other", "retrying", "waiting"] or world.sent[:2] == ["retrying", "other"]
    assert world.sent.count("retrying") == 2


def test_a_lane_that_waits_leaves_its_turn_to_others(world: World) -> None:
    """Also if it has another batch that was to be the next one."""
    world.pool.allow(1)
    waiting, other = world.lane("waiting"), world.lane("other")
    waiting.sender.waits = [3600.0]
    world.put(waiting, 2)
    eventually(lambda: world.pool.held_up == {waiting})
    world.put(other)
    eventually(lambda: len(world.settled.ids) == 1)
    assert world.sent == ["other"]


def test_a_partial_batch_that_is_held_does_not_hold_its_lane_up(world: World) -> None:
    world.now = 1000.0
    lane = hold(world, "batches", batch=10)
    world.put(lane, 3)
    eventually(lambda: lane.sender.in_flight == 1)
    world.put(lane, 3)
    assert world.pool.held_up == set()


def test_a_sender_that_hangs_before_its_request_begins_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from when it takes the batch, however long it was idle before."""

    def work() -> Work:
        made = Work()
        made.progress = Progress(world._time)
        return made

    monkeypatch.setattr(pool, "Work", work)
    at = world.now = 1000.0
    world.put(world.lane("before"))
    eventually(lambda: world.settled.ids)
    world.now = at + 100
    lane = hold(world, "hanging")
    world.put(lane)
    eventually(lambda: lane.sender.in_flight)
    assert not lane.hanging
    world.now = at + 106
    assert lane.hanging


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has one rule for all threads")
def test_a_sender_has_the_rule_of_its_batch(world: World) -> None:
    usual = os.sched_getscheduler(0)
    for number, (batch, rule) in enumerate([(1, usual), (10, os.SCHED_BATCH), (1, usual)], 1):
        lane, rules = world.lane("lane", batch=batch), list[int]()
        lane.sender.wait = lambda _, rules=rules: rules.append(os.sched_getscheduler(0)) or 0.0
        world.put(lane)
        eventually(lambda number=number: len(world.settled.ids) == number)
        assert rules == [rule]


def test_a_lane_that_stops_waits_for_nothing(world: World) -> None:
    lane = world.lane("stopping")
    lane.sender.pauses = [3600.0]
    world.put(lane)
    eventually(lambda: lane.queue and not lane.works)
    lane.stop.set()
    world.pool.tend()
    eventually(lambda: len(world.settled.ids) == 1)


def test_the_end_releases_what_waits_although_no_thread_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.0)
    lane = world.lane("waiting")
    lane.sender.pauses = [3600.0]
    world.put(lane)
    eventually(lambda: lane.queue and not world.pool.threads)
    lane.stop.set()
    world.pool.close()
    eventually(lambda: len(world.settled.ids) == 1)


def test_threads_come_as_they_are_needed_and_go_when_they_are_idle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)
    assert world.pool.threads == []
    lane = hold(world, "busy")
    world.put(lane, 10)
    eventually(lambda: lane.sender.in_flight == 4)
    assert 4 <= len({thread.name for thread in world.pool.threads}) <= 5
    lane.sender.answered.set()
    eventually(lambda: len(world.settled.ids) == 10)
    eventually(lambda: world.pool.threads == [])
    world.put(lane)
    eventually(lambda: len(world.settled.ids) == 11)


def test_a_system_without_threads_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        lane = world.lane("waiting")
        world.put(lane)
        assert "no more threads send" in caplog.messages
    world.pool.tend()
    eventually(lambda: len(world.settled.ids) == 1)


def test_a_sender_that_dies_at_once_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "run", lambda _: None)
        world.put(world.lane("waiting"))
        eventually(lambda: not world.pool.threads)
    world.pool.tend()
    eventually(lambda: len(world.settled.ids) == 1)


def test_idle_senders_are_woken_for_what_they_can_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a batch, and one of them when a wait is over. At the start of each part some may not sleep yet."""
    monkeypatch.setattr(pool, "IDLE", 3600.0)
    lane, waiting = hold(world, "lane"), world.lane("waiting")
    world.put(lane, 4)
    eventually(lambda: lane.sender.in_flight == 4)
    lane.sender.answered.set()
    eventually(lambda: not lane.works)
    threads = set(world.pool.threads)
    world.looks = 0
    for number in range(20):
        world.put(lane)
        eventually(lambda number=number: len(world.settled.ids) == 5 + number)
    assert world.looks <= 3 * 20 + len(threads), "to put the event, to wake up for it, and when it is sent"
    eventually(lambda: not lane.works)
    world.looks = 0
    lane.sender.waits = [0.01] * 20
    world.put(lane)
    eventually(lambda: len(world.settled.ids) == 25)
    assert world.looks <= 1 + 2 * 21 + len(threads), "when a wait is over, and to find the next one"
    waiting.sender.waits = [3600.0]
    world.put(waiting)
    eventually(lambda: world.pool.held_up == {waiting} and all(map(waits, threads)))
    world.looks, times = 0, itertools.count(1)
    eventually(lambda: world.pool.tend() or next(times) == 20, pause=0.01)
    assert world.looks <= 20 + len(threads), "nobody looks before the wait is over"
    assert set(world.pool.threads) == threads


def test_what_waits_is_sent_although_the_thread_that_would_look_has_another_batch(world: World) -> None:
    waiting, hanging = world.lane("waiting"), hold(world, "hanging")
    waiting.sender.waits = [0.3]
    world.put(waiting)
    eventually(lambda: waiting in world.pool.held_up)
    world.put(hanging)
    eventually(lambda: hanging.sender.in_flight == 1)
    eventually(lambda: len(world.settled.ids) == 1)


def test_a_partial_batch_is_held_while_another_request_is_in_flight(world: World) -> None:
    lane = hold(world, "batches", batch=10)
    world.put(lane, 3)
    eventually(lambda: lane.sender.in_flight == 1)
    began = time.monotonic()
    world.put(lane, 3)
    world.put(lane, 3)
    eventually(lambda: lane.sender.in_flight == 2)
    assert time.monotonic() - began >= 0.04
    assert len(world.sent) == 2


def test_lanes_whose_batches_wait_are_not_looked_at_before_they_are_due(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [world.lane(f"waiting {number}") for number in range(50)]
    for lane in waiting:
        lane.sender.waits = [3600.0]
        world.put(lane)
    eventually(lambda: world.pool.held_up == set(waiting) and not any(lane.works for lane in waiting))
    looks = Counter[str]()

    def ready_at(queue: BatchQueue, *how: Any) -> float:
        looks[next(lane.endpoint for lane in world.lanes if lane.queue is queue)] += 1
        return original(queue, *how)

    original = BatchQueue.ready_at
    monkeypatch.setattr(BatchQueue, "ready_at", ready_at)
    busy = world.lane("busy")
    world.put(busy, 100)
    eventually(lambda: len(world.settled.ids) == 100)
    assert set(looks) == {"busy"}
    assert len(world.sent) == 100
