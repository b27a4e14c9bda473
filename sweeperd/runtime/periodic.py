"""A background task of the daemon: the work, the interval, whether a run is stuck, and what wakes a task early."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import redis
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger
from hiredis import pack_command

from sweeperd.progress import Progress
from sweeperd.runtime.sweeps import NEWS, OTHERS, Watch
from sweeperd.store.connect import ClusterClient
from sweeperd.store.scripts import Command, run_commands
from sweeperd.store.shard import Shard

log = logging.getLogger(__name__)

#: The part of the interval by which runs are spread, so that replicas do not all run at the same moment.
JITTER = 0.1
#: If the next run is planned later than one interval and this time from now, the host's clock was set; seconds.
PLANNED_LATE = 0.5


class _Interval(IntervalTrigger):  # type: ignore[misc]
    """
    An interval that leaves out missed runs, and keeps its plan if a run comes in between. The scheduler asks for each
    missed run in turn, to merge the missed runs into a single run. If the host's clock is set from 1970 to today, as on
    a computer without a battery, there would be billions of them.
    """

    #: The next run by the interval, if another run was put before it.
    planned: datetime | None = None

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """The first run after `previous`; a run that is due now if this time has long passed."""
        planned = self.planned
        if planned is not None and planned > now:
            return planned
        self.planned = None
        if planned is not None and previous is not None and previous < planned:
            return now + timedelta(microseconds=1)  # a moment that has come would be merged with the run at `previous`
        if previous is not None:
            previous = max(previous, now - self.interval)
        following: datetime | None = super().get_next_fire_time(previous, now)
        return following


class _Job(Protocol):
    next_run_time: datetime
    trigger: _Interval

    def modify(self, *, next_run_time: datetime) -> object: ...


class PeriodicTask:
    """
    Runs `work` at once and then every `interval` seconds or a little sooner, never twice at a time. An exception is
    logged, and does not end the task. If a run takes longer than `longest` seconds, the task counts as stuck.

    A run that was woken may do less than a planned run. So if a planned run becomes due during a woken run, it follows
    the woken run. If it becomes due during another planned run, it is left out.
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
        #: Between two runs that begin at the same time.
        self._turn = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        #: Whether `wake` asked for the next run, whether `wake` asked for the present run, and whether a planned run
        #: follows the present run.
        self._woken = self._runs_woken = self._owed = False
        #: When the last run began or ended, by the monotonic clock.
        self._changed_at = self._clock()
        self._job: _Job | None = None

    def schedule(self, scheduler: BackgroundScheduler) -> None:
        """Give the task to the scheduler."""
        self._changed_at = self._clock()
        self._job = scheduler.add_job(
            self._run,
            # The scheduler only adds jitter, and a run must not come later than the interval says.
            _Interval(seconds=self._interval * (1 - JITTER), jitter=self._interval * JITTER, timezone=UTC),
            name=self.name,
            next_run_time=datetime.now(UTC),
            # A run may be asked for in the moment in which the scheduler still counts the last run.
            max_instances=2,
            coalesce=True,
            misfire_grace_time=None,
        )

    @property
    def stuck(self) -> bool:
        """Whether a run takes too long, or has not begun when due."""
        silent_for = self._clock() - self._changed_at
        return silent_for > (3 * self._interval + 5 if self._idle.is_set() else self._longest)

    def catch_up(self) -> None:
        """
        Run now if the host's clock was set back. The scheduler goes by the host's clock: if the clock is set back by an
        hour, the scheduler waits for an hour. Then a run is planned for later than one interval from now, however busy
        the host is and whatever was under way when the clock was set.
        """
        if self._job is None or not self._idle.is_set():
            return
        if self._job.next_run_time.timestamp() > self._host_clock() + self._interval + PLANNED_LATE:
            log.warning("the host's clock was set back; running at once", extra={"task": self.name})
            self._changed_at = self._clock()
            self._job.trigger.planned = None
            self._move(self._job, datetime.now(UTC))

    @property
    def idle(self) -> bool:
        """Whether no run is under way."""
        return self._idle.is_set()

    def wake(self) -> None:
        """Run now, out of turn; the next run by the interval stays as planned. Call this only while idle."""
        if self._job is None:
            return
        now, planned = datetime.now(UTC), self._job.next_run_time
        self._woken = True
        if planned > now:
            self._job.trigger.planned = planned
        else:
            self._owed = True  # the planned run is due too, and has not begun
        self._move(self._job, now)

    def _move(self, job: _Job, to: datetime) -> None:
        with contextlib.suppress(JobLookupError):  # the scheduler has ended since then
            job.modify(next_run_time=to)

    def join(self, deadline: float) -> bool:
        """Wait until `deadline` (monotonic) for the run that is under way. Returns whether the run has ended."""
        return self._idle.wait(max(0.0, deadline - self._clock()))

    def _run(self) -> None:
        with self._turn:
            if not self._idle.is_set():
                self._owed = self._owed or self._runs_woken
                return
            self._idle.clear()
        more = True
        while more:
            self._runs_woken, self._woken = self._woken, False
            self._changed_at = self._clock()
            try:
                self._work()
            except Exception:
                log.exception("a task failed", extra={"task": self.name})
            with self._turn:
                self._changed_at = self._clock()
                more, self._owed = self._owed, False
                if not more:
                    self._idle.set()


class Lookout:
    """
    The thread that looks for deadlines between two ticks: each kind's index is asked for its first score after the
    score that was seen, and when this moment has come, or the end of a known grace, the tick's job is moved to now.

    Only plain reads are sent, on a connection of their own, for all kinds of a shard in one round trip. The process
    whose tick was noted last looks each `precision`. The others look once a second, and act only if an entry is overdue
    and no process has the lease of the sweep. After a tick that failed no process looks: the next tick comes by the
    interval. The thread ends with `stop`.
    """

    def __init__(self, shard: Shard, stop: threading.Event, watched: Sequence[tuple[Watch, PeriodicTask]]) -> None:
        self._shard = shard
        self._stop = stop
        self._watched = watched
        self._connection: Any = None
        self.progress = Progress()
        self.thread = threading.Thread(target=self._run, name=f"lookout-{shard.name}", daemon=True)

    @property
    def has_died(self) -> bool:
        """Whether the thread was started and runs no more."""
        return self.thread.ident is not None and not self.thread.is_alive()

    def join(self, deadline: float) -> bool:
        """Wait until `deadline` (monotonic) for the thread. Returns whether the thread has ended."""
        if self.thread.ident is not None:
            self.thread.join(max(0.0, deadline - time.monotonic()))
        return not self.thread.is_alive()

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            self.progress.step()
            try:
                self._look()
            except Exception as error:
                self._disconnect()
                if not isinstance(error, redis.RedisError):
                    log.exception("the look for deadlines failed", extra={"shard": self._shard.name})
                for watch, _ in self._watched:
                    watch.look_at = time.monotonic() + OTHERS
        self.progress.rest()
        self._disconnect()

    def _pause(self) -> float:
        """Seconds to the next look, at most a `precision`: a tick that ends may bring the next look forward."""
        next_look = min(watch.look_at for watch, _ in self._watched) - time.monotonic()
        return max(0.0, min(next_look, self._watched[0][0].precision))

    def _look(self) -> None:
        now = time.monotonic()
        asked: list[tuple[Watch, PeriodicTask, dict[str, Command]]] = []
        for watch, task in self._watched:
            if now < watch.look_at:
                continue
            watch.look_at = now + watch.precision
            if not task.idle or (watch.woken and now - watch.woken_at < OTHERS):
                continue
            if not (watch.armed and watch.allowed()):
                self._disconnect()  # the server may have been demoted
            elif watch.leads and not watch.doubtful and watch.is_late and now - watch.read_at < NEWS:
                self._wake(watch, task, now)
            else:
                asked.append((watch, task, watch.questions(now)))
        if not asked:
            return
        replies = iter(self._ask([command for *_, questions in asked for command in questions.values()]))
        for watch, task, questions in asked:
            if watch.answered({name: next(replies) for name in questions}, now):
                self._wake(watch, task, now)

    def _wake(self, watch: Watch, task: PeriodicTask, now: float) -> None:
        watch.woken, watch.woken_at, watch.look_at = True, now, now + watch.precision
        task.wake()

    def _ask(self, commands: Sequence[Command]) -> list[Any]:
        """The replies, errors of a single command among them. Raises redis.RedisError if the connection fails."""
        client = self._shard.client
        if isinstance(client, ClusterClient):
            return run_commands(client, commands)
        if self._connection is None:
            self._connection = client.connection_pool.get_connection()
        # A pipeline of redis-py takes three times as much of the processor, 20 times a second.
        self._connection.send_packed_command([b"".join([pack_command(command) for command in commands])])
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._shard.client.connection_pool.release(self._connection)
            self._connection = None
