"""What a process remembers of a shard: bounded, an hour long, and never waited for."""

import threading

import pytest

from sweeperd.ops.history import REMEMBERED, SAMPLE_EVERY, WATCHED_FOR, StatusHistory, StatusSample
from sweeperd.ops.status import Due, ShardStatus
from tests.support.builders import endpoint_status, last_sweep, shard_status


class World:
    """A clock that is moved by hand, and a shard with answers given by the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.error = ""
        self.reads = 0

    def monotonic(self) -> float:
        return self.now

    def read(self) -> ShardStatus:
        self.reads += 1
        if self.error:
            return ShardStatus("eu", "redis:6379", self.error)
        return shard_status(
            "eu",
            "redis:6379",
            now_ms=int(self.now * 1000),
            due=Due(self.reads, 0, self.reads),
            tick=last_sweep(0, 10 * self.reads),
            endpoints=(endpoint_status("hook", pending=self.reads), endpoint_status("gone", state="unknown")),
        )


def overdue(sample: StatusSample) -> int | None:
    return None if sample.kinds is None else sample.kinds["reservations"].overdue


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ours(world: World) -> StatusHistory:
    return StatusHistory("eu", "redis:6379", world.read, world.monotonic)


def pass_time(world: World, ours: StatusHistory, seconds: float, step: float = 3.0) -> None:
    until = world.now + seconds
    while world.now < until:
        ours.update()
        world.now += step


def test_while_nobody_asks_redis_is_read_for_the_samples_alone(world: World, ours: StatusHistory) -> None:
    pass_time(world, ours, 10 * SAMPLE_EVERY)
    assert world.reads == 10
    assert [overdue(sample) for sample in ours.samples()] == list(range(1, 11))


def test_while_somebody_asks_it_is_read_at_each_look(world: World, ours: StatusHistory) -> None:
    ours.update()
    ours.view()
    pass_time(world, ours, WATCHED_FOR)
    assert world.reads == 1 + WATCHED_FOR / 3
    pass_time(world, ours, SAMPLE_EVERY)
    assert world.reads == 2 + WATCHED_FOR / 3


def test_what_is_known_now_is_the_last_sample(world: World, ours: StatusHistory) -> None:
    ours.update()
    ours.view()
    assert [overdue(sample) for sample in ours.samples()] == [1]
    world.now += 3
    ours.update()
    assert [overdue(sample) for sample in ours.samples()] == [1, 2]
    world.now += 3
    ours.update()
    assert [overdue(sample) for sample in ours.samples()] == [1, 3]


def test_an_hour_is_remembered_and_no_more(world: World, ours: StatusHistory) -> None:
    pass_time(world, ours, 3 * REMEMBERED)
    assert len(ours.samples()) == REMEMBERED / SAMPLE_EVERY
    world.now += REMEMBERED / 2
    assert len(ours.samples()) == pytest.approx(REMEMBERED / SAMPLE_EVERY / 2, abs=2)


def test_only_endpoints_that_are_configured_are_remembered(ours: StatusHistory) -> None:
    """The names of the others come from Redis, as many as somebody writes there."""
    ours.update()
    assert [sample.pending for sample in ours.samples()] == [{"hook": 1}]


def test_a_dead_redis_leaves_a_gap_and_the_last_status_with_its_age(world: World, ours: StatusHistory) -> None:
    ours.update()
    world.error = "Connection refused"
    pass_time(world, ours, 2 * SAMPLE_EVERY)
    view = ours.view()
    assert (view.error, view.age_seconds) == ("Connection refused", 2 * SAMPLE_EVERY)
    assert view.status is not None
    assert view.status.due.overdue == 1
    assert [overdue(sample) for sample in ours.samples()] == [1, None]
    world.error = ""
    ours.update()
    assert (ours.view().error, ours.view().age_seconds) == ("", 0)


def test_who_asks_does_not_wait_for_who_looks() -> None:
    hung, end = threading.Event(), threading.Event()

    def read() -> ShardStatus:
        hung.set()
        end.wait(20)
        return ShardStatus("eu", "redis:6379", "Timeout")

    ours = StatusHistory("eu", "redis:6379", read)
    looker = threading.Thread(target=ours.update)
    looker.start()
    assert hung.wait(10)
    assert (ours.view().status, ours.samples()) == (None, [])
    end.set()
    looker.join(10)
    assert ours.view().error == "Timeout"


def test_after_a_reload_the_hour_is_still_there(world: World, ours: StatusHistory) -> None:
    pass_time(world, ours, 4 * SAMPLE_EVERY)
    after = StatusHistory("eu", "redis:6379", world.read, world.monotonic)
    after.adopt(ours)
    assert after.samples() == ours.samples()
    assert after.view() == ours.view()
    after.update()
    assert len(after.samples()) == len(ours.samples()) + 1
