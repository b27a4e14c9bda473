"""
The kernel: threads, locks, time and randomness of the simulation, all decided by one seed.

Each thread is a greenlet. The hub, the greenlet that calls `Kernel.run`, picks the next ready one by the seed; if none
is ready, the hub moves the clock to the next timer. `install` replaces what `threading`, `queue` and `time` are built
on, before anything else is imported, so conditions, pools and schedulers above them work unchanged.

A `Host` is one imitated machine with one process: its wall clock may be wrong, it may be stopped, woken and killed.
"""

import _thread
import datetime as real_datetime
import heapq
import itertools
import os
import queue
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

import greenlet

#: The monotonic clock begins here, and the servers' clocks at this time since the epoch, seconds.
BEGINNING, EPOCH = 1_000.0, 1_800_000_000.0
#: What a switch to another thread takes, seconds: so a loop without a wait cannot stop the clock.
SWITCH = 2e-6
#: The real clock, for reports.
REAL_CLOCK = time.monotonic
#: So many switches without a timer in between are a livelock.
MOST_SWITCHES = 200_000


class Failure(Exception):
    """The simulation has found a fault: the invariant, and what breaks it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant, self.what = invariant, what
        # Raised in a thread, the program might catch it.
        KERNEL.failure = KERNEL.failure or self


class Host:
    """One machine with one process. `skew`: how much its wall clock is ahead, seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.skew = 0.0
        self.stopped = self.dead = False
        #: Ready tasks that wait until the process is woken.
        self.frozen: list[Task] = []
        #: The tasks of a dead process: kept, because a collected greenlet would run its `finally`.
        self.tasks: list[Task] = []
        #: Where the lines of its log go, and whether nobody reads them any more.
        self.log: Any = None
        self.log_unread = False
        #: What becomes of the process at its `os._exit`.
        self.exit: Callable[[], None] = lambda: None


class Task:
    """One thread."""

    def __init__(self, ident: int, name: str, host: Host, run: Callable[[], None], hub: Any) -> None:
        self.ident, self.name, self.host = ident, name, host
        self.greenlet = greenlet.greenlet(run, parent=hub)
        #: Counts the parks: a timer of an earlier park wakes nobody.
        self.park = 0
        self.parked = self.woken = False


class Kernel:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed} kernel")
        self.now = BEGINNING
        #: How likely a thread is interrupted when it takes a lock, and what the servers' clocks are ahead, seconds.
        self.preemption, self.server_skew = 0.0, 0.0
        self.current: Task | None = None
        self.hub: Any = None
        self.ready: list[Task] = []
        #: When, a running number, what to call.
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count(1)
        self.idents = itertools.count(100_000)
        self.numbers = itertools.count(1)
        self.switches = 0
        self.world = Host("world")
        #: Called with the thread's name and the error of a thread that has died.
        self.on_death: Callable[[Host, str, BaseException], None] = self._print_death
        self.failure: Failure | None = None

    def wall(self) -> float:
        """The wall clock of the running host; in the hub, of the servers. Seconds since the epoch."""
        return self.server_time() if self.current is None else EPOCH - BEGINNING + self.now + self.current.host.skew

    def server_time(self) -> float:
        """The servers' clock. Seconds since the epoch."""
        return EPOCH - BEGINNING + self.now + self.server_skew

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call in the hub at this time."""
        heapq.heappush(self.timers, (when, next(self.count), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call in the hub after so many seconds."""
        self.at(self.now + seconds, call)

    def spawn(self, name: str, run: Callable[[], None], host: Host | None = None) -> Task:
        """A new thread, on the host of the running one if none is given."""
        owner = host or (self.current.host if self.current else self.world)
        task = Task(next(self.idents), name, owner, run, self.hub)
        owner.tasks.append(task)
        self.ready.append(task)
        return task

    def pause(self, seconds: float | None) -> bool:
        """Put the running thread to sleep. Returns whether `wake` ended the sleep."""
        task = self.current
        if task is None:
            raise RuntimeError("the hub cannot wait")
        task.park += 1
        task.parked, task.woken = True, False
        if seconds is not None:
            park = task.park

            def ring() -> None:
                if task.parked and task.park == park:
                    task.parked = False
                    self.ready.append(task)

            self.after(max(0.0, seconds), ring)
        self._leave()
        return task.woken

    def wake(self, task: Task) -> None:
        """End the sleep of a thread."""
        if task.parked:
            task.parked, task.woken = False, True
            self.ready.append(task)

    def yield_(self) -> None:
        """Let other ready threads run."""
        if self.current is not None:
            self.ready.append(self.current)
            self._leave()

    def run(self, until: float) -> None:
        """Run until this time, from the hub. Raises Failure."""
        self.hub = greenlet.getcurrent()
        while self.failure is None:
            while self.ready:
                self._run_one()
                if self.failure is not None:
                    raise self.failure
            if not self.timers or self.timers[0][0] > until:
                self.now = max(self.now, until)
                return
            when, _, call = heapq.heappop(self.timers)
            self.now = max(self.now, when)
            self.switches = 0
            call()
        raise self.failure

    def stop(self, host: Host) -> None:
        """As SIGSTOP."""
        host.stopped = True

    def resume(self, host: Host) -> None:
        """As SIGCONT."""
        host.stopped = False
        self.ready += host.frozen
        host.frozen = []

    def kill(self, host: Host) -> None:
        """As kill -9: no thread of the host runs again."""
        host.dead = True
        self.ready = [task for task in self.ready if task.host is not host]

    def _leave(self) -> None:
        self.hub.switch()

    def _run_one(self) -> None:
        position = self.random.randrange(len(self.ready)) if len(self.ready) > 1 else 0
        self.ready[position], self.ready[-1] = self.ready[-1], self.ready[position]
        task = self.ready.pop()
        if task.host.dead:
            return
        if task.host.stopped:
            task.host.frozen.append(task)
            return
        self.now += SWITCH
        self.switches += 1
        if self.switches > MOST_SWITCHES:
            raise Failure("no livelock", f"{task.name} on {task.host.name} runs on and on")
        self.current = task
        try:
            task.greenlet.switch()
        finally:
            self.current = None

    def _print_death(self, host: Host, name: str, error: BaseException) -> None:
        sys.stderr.write(f"{name} on {host.name}:\n{''.join(traceback.format_exception(error))}")


#: The running simulation. Only `install` and `begin` set it.
KERNEL = Kernel(0)


class Lock:
    """`_thread.lock`."""

    def __init__(self) -> None:
        self._locked = False
        self._waiting: deque[Task] = deque()
        #: Locks that all hosts share, such as those of modules, are never given up to another thread.
        self._own = KERNEL.current is not None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = KERNEL
        if self._own and kernel.preemption and kernel.current and kernel.random.random() < kernel.preemption:
            kernel.yield_()
        if not self._locked:
            self._locked = True
            return True
        if not blocking:
            return False
        task = kernel.current
        if task is None:
            raise RuntimeError("the hub waits for a lock")
        end = None if timeout < 0 else kernel.now + timeout
        while self._locked:
            if end is not None and kernel.now >= end:
                return False
            self._waiting.append(task)
            kernel.pause(None if end is None else end - kernel.now)
            if task in self._waiting:
                self._waiting.remove(task)
        self._locked = True
        return True

    def release(self) -> None:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        while self._waiting:
            task = self._waiting.popleft()
            if not task.host.dead:
                KERNEL.wake(task)
                break

    def locked(self) -> bool:
        return self._locked

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._locked = False
        self._waiting.clear()


def _ident() -> int:
    return KERNEL.current.ident if KERNEL.current else _MAIN


_MAIN = _thread.get_ident()


def _start(thread: Any) -> None:
    """`Thread.start`."""
    if thread._started.is_set():
        raise RuntimeError("threads can only be started once")

    def run() -> None:
        try:
            thread.run()
        except SystemExit:
            pass
        except Failure as failure:
            KERNEL.failure = KERNEL.failure or failure
        except greenlet.GreenletExit:
            raise
        except BaseException as error:
            KERNEL.on_death(task.host, thread.name, error)
        finally:
            if not task.host.dead:
                threading._active.pop(task.ident, None)  # type: ignore[attr-defined]
                thread.simulated_end.set()
                task.host.tasks.remove(task)

    thread.simulated_end = threading.Event()
    task = KERNEL.spawn(thread.name, run)
    thread._ident = task.ident
    threading._active[task.ident] = thread  # type: ignore[attr-defined]
    thread._started.set()


def _join(thread: Any, timeout: float | None = None) -> None:
    if not thread._started.is_set():
        raise RuntimeError("cannot join thread before it is started")
    thread.simulated_end.wait(None if timeout is None else max(0.0, timeout))


def _is_alive(thread: Any) -> bool:
    return bool(thread._started.is_set()) and not (
        thread.simulated_end.is_set() if hasattr(thread, "simulated_end") else False
    )


def _hash(thread: Any) -> int:
    """`hash`: threads are kept in sets, whose order must not depend on addresses."""
    if "simulated_number" not in vars(thread):
        thread.simulated_number = next(KERNEL.numbers)
    return int(thread.simulated_number)


class _Datetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, real_datetime.datetime)


class Datetime(real_datetime.datetime, metaclass=_Datetime):
    """`datetime` for the modules that ask it for the present time."""

    @classmethod
    def now(cls, tz: real_datetime.tzinfo | None = None) -> Any:
        return real_datetime.datetime.fromtimestamp(KERNEL.wall(), tz)


def install() -> None:
    """Replace threads, clocks and the system's randomness. Call this before any other import."""
    own: Any = threading
    own._allocate_lock = own.Lock = Lock
    own._CRLock, own.RLock = None, own._PyRLock
    own.get_ident = own.get_native_id = _ident
    own.Thread.start, own.Thread.join, own.Thread.is_alive = _start, _join, _is_alive
    own.Thread.__hash__ = _hash
    own._time = lambda: KERNEL.now
    import _threading_local  # noqa: PLC0415 - built on the locks above

    own.local = _threading_local.local
    any_queue: Any = queue
    any_queue.SimpleQueue, any_queue.time = any_queue._PySimpleQueue, own._time
    clock: Any = time
    cpu = itertools.count(1)
    clock.time = lambda: KERNEL.wall()  # noqa: PLW0108 - each run has a kernel of its own
    clock.monotonic = clock.perf_counter = own._time
    clock.thread_time = clock.process_time = lambda: next(cpu) * 2e-5
    clock.time_ns = lambda: int(KERNEL.wall() * 1e9)
    clock.monotonic_ns = clock.perf_counter_ns = lambda: int(KERNEL.now * 1e9)
    clock.sleep = lambda seconds: KERNEL.pause(seconds)  # noqa: PLW0108
    own_random: Any = random
    os.urandom = own_random._urandom = own_random.randbytes


def begin(seed: int) -> Kernel:
    """The kernel of a new run; all randomness begins anew."""
    global KERNEL  # noqa: PLW0603 - what `threading` calls has no other way to it
    random.seed(f"{seed} program")
    KERNEL = Kernel(seed)
    KERNEL.hub = greenlet.getcurrent()
    return KERNEL


def give_datetime(*modules: Any) -> None:
    """Virtual `datetime.now` for these modules."""
    for module in modules:
        module.datetime = Datetime
