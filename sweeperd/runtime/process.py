"""What a daemon does: all of it, or one half, so that sweep and delivery can be scaled apart."""

import contextlib
import ctypes
import gc
import logging
import math
import os
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from sweeperd.config import Settings

log = logging.getLogger(__name__)


class Role(StrEnum):
    """The values of `--role`."""

    ALL = "all"
    #: Sweeps and walks; keeps the groups of the endpoints, and delivers nothing.
    SWEEP = "sweep"
    #: Delivers, and maintains the stream.
    DELIVER = "deliver"

    @property
    def sweeps(self) -> bool:
        """Whether it decides entries."""
        return self is not Role.DELIVER

    @property
    def delivers(self) -> bool:
        """Whether it sends events."""
        return self is not Role.SWEEP


# ---- memory of a process that runs for months: how often Python looks for garbage, and what the C library keeps


#: So many new containers, and Python looks for circles of them that nothing refers to. Its own default is 700.
CONTAINERS = 50_000

#: The parameter of `mallopt` that limits the arenas, from glibc's malloc.h; and how many there are to be.
M_ARENA_MAX, ARENAS = -8, 2


def collect_rarely() -> None:
    """
    Have Python look for garbage less often. Hardly anything here refers to itself in a circle, and everything else is
    freed without a search: with the default, searches take 5 to 9 % of the time of a delivery in batches.
    """
    gc.set_threshold(CONTAINERS)


def share_arenas() -> None:
    """
    Have the C library take memory for all threads from two arenas. By default glibc gives up to eight for each core to
    the threads, and each keeps what was freed in it: with dozens of senders that is a fifth of the process. Only one
    thread runs in the interpreter at a time, so hardly ever does one wait for another here. To be called before
    threads are started. Where the C library has no such call nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """
    Collect what nothing refers to any more, and have the C library return the memory that is free. glibc keeps freed
    pieces for later: a process that has replaced its daemon many times would hold as much again, and look like a leak.
    Where the C library has no such call (musl, macOS) it only collects.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


# ---- keeps the process on one core of the machine
# Its threads share one interpreter, so they use one core at a time in any case. Spread over several cores they wake
# each other across them at every request, which costs more than the request itself where each carries a single event.


#: How long the cores are watched before the first choice, and between two choices; seconds.
FIRST_AFTER, CHOOSE_EVERY = 0.5, 5.0
#: The process moves where other processes use so much more of its core than of the least busy one: a share of a core.
WORTH_A_MOVE = 0.25

#: Where other processes use so much of every core, the process is spread over all of them.
BUSY = 0.6

#: Core -> how long it was busy so far, seconds.
BusyTimes = Mapping[int, float]


def is_wanted(settings: Settings, role: Role) -> bool:
    """Whether the settings ask for one core: `auto` does where the process delivers."""
    webhooks = settings.webhooks
    if webhooks.one_core == "auto":
        return role.delivers and bool(webhooks.endpoints)
    return webhooks.one_core == "on"


def choose(current: int | None, used_by_others: Mapping[int, float], *, always: bool = False) -> int | None:
    """
    The core to be on; None: none is free enough, so that the process is better off on all of them, unless it is to be
    on one `always`. `used_by_others`: the share of each core that other processes used lately.
    """
    best = min(used_by_others, key=lambda core: (used_by_others[core], core))
    if used_by_others[best] > BUSY and not always:
        return None
    if current is None or used_by_others.get(current, math.inf) > used_by_others[best] + WORTH_A_MOVE:
        return best
    return current


class OneCore:
    """The core of this process. Where the system cannot bind a process to a core, nothing happens."""

    def __init__(self) -> None:
        possible = hasattr(os, "sched_setaffinity") and Path("/proc/stat").exists()
        self._allowed = os.sched_getaffinity(0) if possible else set()
        self._core: int | None = None
        self._choose_at = 0.0
        self._measured: tuple[float, BusyTimes, float] | None = None

    def keep(self, *, wanted: bool, always: bool) -> None:
        """
        Call it every second or so; `always` as for `choose`. A thread that is started later inherits the core of the
        thread that starts it.
        """
        if len(self._allowed) < 2 or time.monotonic() < self._choose_at:
            return
        try:
            used_by_others = self._used_by_others()
        except OSError:  # no file can be opened, for example; the core can wait
            used_by_others = {}
        self._choose_at = time.monotonic() + (CHOOSE_EVERY if used_by_others else FIRST_AFTER)
        if not used_by_others:
            return
        core = choose(self._core, used_by_others, always=always) if wanted else None
        if core == self._core:
            return
        try:
            self._bind(self._allowed if core is None else {core})
        except OSError as error:  # a filter of system calls, for example
            log.info("the system does not let the process choose its core", extra={"error": str(error)})
            self._allowed = set()
            return
        log.info("the process keeps to one core" if self._core is None else "the process moves to other cores")
        self._core = core

    def _bind(self, cores: set[int]) -> None:
        """Bind all threads to these cores. Raises OSError where the system refuses."""
        os.sched_setaffinity(0, cores)  # the current thread
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores)

    def _used_by_others(self) -> dict[int, float]:
        """
        The share of each allowed core that other processes used since the last call; empty at the first call. Where the
        process is on all of them, its own part of each is taken to be the same.
        """
        before, self._measured = self._measured, (time.monotonic(), _busy_times(), time.process_time())
        if before is None:
            return {}
        (since, busy_before, own_before), (now, busy, own) = before, self._measured
        seconds = max(now - since, 0.1)
        shares = {core: (busy.get(core, 0.0) - busy_before.get(core, 0.0)) / seconds for core in self._allowed}
        its_cores = self._allowed if self._core is None else {self._core}
        for core in its_cores:
            shares[core] -= (own - own_before) / seconds / len(its_cores)
        return shares


def _busy_times() -> dict[int, float]:
    """Of each core, since the boot: all but idle time and waits for disks."""
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *times = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _disk, *rest = map(int, times)
            # The last two, guest times, are part of the first two.
            found[int(name.removeprefix("cpu"))] = (user + nice + system + sum(rest[:3])) / ticks
    return found
