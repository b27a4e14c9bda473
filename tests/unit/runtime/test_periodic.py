"""Runs a periodic task on a real scheduler, and detects that it is stuck."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

from sweeperd.runtime.periodic import PeriodicTask
from tests.support.harness import eventually

Schedule = Callable[..., PeriodicTask]


@pytest.fixture
def scheduler() -> Iterator[BackgroundScheduler]:
    running = BackgroundScheduler(timezone=UTC)
    running.start()
    yield running
    running.shutdown()


class Clock:
    """A monotonic clock that stands still until it is moved, and a host's clock that can be set."""

    def __init__(self) -> None:
        self.now = 1000.0
        #: By how much the host's clock was set.
        self.set_by = 0.0

    def task(self, work: Callable[[], None], interval: float, longest: float) -> PeriodicTask:
        """A task that goes by these clocks."""
        return PeriodicTask("chore", work, interval, longest, lambda: self.now, lambda: time.time() + self.set_by)


@pytest.fixture
def schedule(scheduler: BackgroundScheduler) -> Schedule:
    def scheduled(
        work: Callable[[], None], interval: float, longest: float = 60, clock: Clock | None = None
    ) -> PeriodicTask:
        duty = clock.task(work, interval, longest) if clock else PeriodicTask("chore", work, interval, longest)
        duty.schedule(scheduler)
        return duty

    return scheduled


class Work:
    """Counts its runs; blocks while the test wants it to."""

    def __init__(self, *, blocked: bool = False) -> None:
        self.runs = 0
        self.at_once = 0
        self.most_at_once = 0
        self.go_on = threading.Event()
        if not blocked:
            self.go_on.set()

    def __call__(self) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.runs += 1
        self.go_on.wait(20)
        self.at_once -= 1


@pytest.mark.parametrize(("interval", "runs"), [(3600, 1), (0.02, 5)])
def test_it_runs_at_once_and_again_and_again(schedule: Schedule, interval: float, runs: int) -> None:
    work = Work()
    schedule(work, interval)
    eventually(lambda: work.runs >= runs)


def test_it_runs_one_at_a_time(schedule: Schedule) -> None:
    work = Work(blocked=True)
    duty = schedule(work, 0.02)
    eventually(lambda: work.runs == 1)
    assert not duty.join(0.0), "it is under way"
    threading.Event().wait(0.2)  # ten more would have been due
    assert work.runs == 1
    work.go_on.set()
    eventually(lambda: work.runs >= 3)
    assert work.most_at_once == 1


def test_replicas_do_not_march_in_step_and_none_is_late(schedule: Schedule, scheduler: BackgroundScheduler) -> None:
    schedule(lambda: None, 3600)
    (job,) = scheduler.get_jobs()
    last = datetime.now(UTC)
    waits = [(job.trigger.get_next_fire_time(last, last) - last).total_seconds() for _ in range(200)]
    assert 0.9 * 3600 <= min(waits) < 0.92 * 3600
    assert 0.98 * 3600 < max(waits) <= 3600


def test_it_survives_what_its_work_raises(schedule: Schedule, caplog: pytest.LogCaptureFixture) -> None:
    runs = []

    def work() -> None:
        runs.append(1)
        raise RuntimeError("out of luck")

    duty = schedule(work, 0.02)
    eventually(lambda: len(runs) >= 3)
    record = next(record for record in caplog.records if record.name == "sweeperd.runtime.periodic")
    assert (record.levelno, record.task) == (logging.ERROR, "chore")  # type: ignore[attr-defined]
    assert record.exc_info
    assert "out of luck" in str(record.exc_info[1])
    assert not duty.stuck


def test_a_clock_that_was_set_back(scheduler: BackgroundScheduler) -> None:
    work, set_by = Work(), [0.0]
    duty = PeriodicTask("chore", work, 0.5, 60, host_clock=lambda: time.time() + set_by[0])
    duty.schedule(scheduler)
    eventually(lambda: work.runs == 1)
    # To the scheduler, the next time lies an hour ahead.
    (job,) = scheduler.get_jobs()
    job.modify(next_run_time=datetime.now(UTC) + timedelta(hours=1))
    set_by[0] = -3600
    runs = work.runs
    eventually(lambda: duty.catch_up() or work.runs >= runs + 3)  # and it goes on by itself


def test_a_clock_that_was_set_forward(schedule: Schedule, scheduler: BackgroundScheduler) -> None:
    """A host that boots with a clock of 1970 is set to today: what was missed is one run, not billions."""
    schedule(lambda: None, 0.5)
    (job,) = scheduler.get_jobs()
    now, planned = datetime.now(UTC), datetime(1970, 1, 2, tzinfo=UTC)
    missed: list[datetime] = []
    while planned <= now and len(missed) < 10:
        missed.append(planned)
        planned = job.trigger.get_next_fire_time(planned, now)
    assert len(missed) <= 2
    assert planned - now <= timedelta(seconds=0.5)


def test_a_run_that_is_a_little_late_moves_no_other(schedule: Schedule, scheduler: BackgroundScheduler) -> None:
    schedule(lambda: None, 100)
    (job,) = scheduler.get_jobs()
    now = datetime.now(UTC)
    planned = now - timedelta(seconds=30)
    assert timedelta(seconds=90) <= job.trigger.get_next_fire_time(planned, now) - planned <= timedelta(seconds=100)


def test_a_clock_that_was_set_back_during_a_run(
    schedule: Schedule, scheduler: BackgroundScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    work = Work(blocked=True)
    duty = schedule(work, 10, clock=clock)
    eventually(lambda: work.runs == 1)
    (job,) = scheduler.get_jobs()
    planned = job.next_run_time
    clock.set_by = -3600
    duty.catch_up()
    assert job.next_run_time == planned, "it is at work"
    work.go_on.set()
    assert duty.join(clock.now + 5)
    duty.catch_up()
    eventually(lambda: work.runs == 2)
    assert [record for record in caplog.records if "set back" in record.message]


def test_nothing_to_catch_up(
    schedule: Schedule, scheduler: BackgroundScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    work = Work()
    duty = schedule(work, 10, clock=clock)
    eventually(lambda: work.runs == 1 and duty.join(clock.now + 5))
    (job,) = scheduler.get_jobs()
    planned = job.next_run_time
    clock.now += 1000
    duty.catch_up()
    assert job.next_run_time == planned, "it is late, since the machine is busy"
    clock.set_by = 3600
    duty.catch_up()
    assert job.next_run_time == planned, "the clock was set forward"
    assert not [record for record in caplog.records if "set back" in record.message]


def test_stuck_in_its_work(schedule: Schedule) -> None:
    clock = Clock()
    work = Work(blocked=True)
    duty = schedule(work, 10, longest=100, clock=clock)
    eventually(lambda: work.runs == 1)
    clock.now += 100
    assert not duty.stuck
    clock.now += 1
    assert duty.stuck
    work.go_on.set()
    assert duty.join(clock.now + 5)
    assert not duty.stuck


def test_stuck_because_it_does_not_begin() -> None:
    clock = Clock()
    duty = clock.task(Work(), 10, 60)
    clock.now += 500
    duty.schedule(BackgroundScheduler(timezone=UTC))  # one that was never started
    assert not duty.stuck
    clock.now += 35
    assert not duty.stuck
    clock.now += 1
    assert duty.stuck


def test_join_an_idle_one() -> None:
    assert PeriodicTask("chore", Work(), 10, 60).join(0.0)
