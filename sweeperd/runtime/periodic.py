"""Runs a background task of the daemon at an interval and detects that it is stuck."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

log = logging.getLogger(__name__)

#: The part of the interval by which runs are spread, so that replicas do not run at the same moment.
JITTER = 0.1
#: A next run that is further ahead than the interval and this, seconds, shows that the host's clock was set.
PLANNED_LATE = 0.5


class _Interval(IntervalTrigger):  # type: ignore[misc]
    """
    An interval that skips missed runs. The scheduler would compute each one to coalesce them, which are billions if the
    host's clock is set from 1970 to today, as on a computer without a battery.
    """

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """The first run after `previous`, or now if that has long passed."""
        if previous is not None:
            previous = max(previous, now - self.interval)
        following: datetime | None = super().get_next_fire_time(previous, now)
        return following


class _Job(Protocol):
    next_run_time: datetime

    def modify(self, *, next_run_time: datetime) -> object: ...


class PeriodicTask:
    """
    Runs `work` at once and then every `interval` seconds or a little sooner, never concurrently. Exceptions are logged.
    A run that takes longer than `longest` seconds is stuck.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        interval: float,
        longest: float,
        clock: Callable[[], float] = time.monotonic,
        host_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._host_clock = clock, host_clock
        self.name = name
        self._work = work
        self._interval = interval
        self._longest = longest
        self._turn = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        #: When the last run began or ended.
        self._changed_at = self._clock()
        self._job: _Job | None = None

    def schedule(self, scheduler: BackgroundScheduler) -> None:
        self._changed_at = self._clock()
        self._job = scheduler.add_job(
            self._run,
            # The scheduler only adds jitter, and a run must not be late.
            _Interval(seconds=self._interval * (1 - JITTER), jitter=self._interval * JITTER, timezone=UTC),
            name=self.name,
            next_run_time=datetime.now(UTC),
            # `catch_up` may start a run while the scheduler still counts the last one.
            max_instances=2,
            coalesce=True,
            misfire_grace_time=None,
        )

    @property
    def stuck(self) -> bool:
        """Whether a run takes too long or is overdue."""
        silent_for = self._clock() - self._changed_at
        return silent_for > (3 * self._interval + 5 if self._idle.is_set() else self._longest)

    def catch_up(self) -> None:
        """
        Run now if the host's clock was set back. The scheduler follows that clock, so if it is set back by an hour, the
        scheduler waits for an hour, and the next run is further ahead than one interval.
        """
        if self._job is None or not self._idle.is_set():
            return
        if self._job.next_run_time.timestamp() > self._host_clock() + self._interval + PLANNED_LATE:
            log.warning("the host's clock was set back; running at once", extra={"task": self.name})
            self._changed_at = self._clock()
            with contextlib.suppress(JobLookupError):  # the scheduler has ended since then
                self._job.modify(next_run_time=datetime.now(UTC))

    def join(self, deadline: float) -> bool:
        """Wait until `deadline` (monotonic) for the current run. Returns whether it has ended."""
        return self._idle.wait(max(0.0, deadline - self._clock()))

    def _run(self) -> None:
        with self._turn:
            if not self._idle.is_set():
                return
            self._idle.clear()
        self._changed_at = self._clock()
        try:
            self._work()
        except Exception:
            log.exception("a task failed", extra={"task": self.name})
        finally:
            self._changed_at = self._clock()
            self._idle.set()
