"""Keeps the threads of the process on the CPU core that other processes use least."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

#: Before the first choice of a core, and between two choices, seconds.
FIRST_AFTER, CHOOSE_EVERY = 0.5, 5.0
#: The process moves if others use this much more of its core than of the least busy one, as a share of a core.
WORTH_A_MOVE = 0.25
#: If others use this much of every core, the process is spread over all of them.
BUSY = 0.6


class CpuAffinity:
    """
    Keeps all threads of the process on one core. The threads share one interpreter lock, so they use one core at a time
    anyway. Spread over several cores, they wake each other across cores at each request: with 64 requests in flight an
    event then costs 1.3 times the CPU time, at 0.85 times the rate.
    """

    def __init__(self) -> None:
        possible = hasattr(os, "sched_setaffinity") and Path("/proc/stat").exists()
        self._allowed = os.sched_getaffinity(0) if possible else set()
        self._core: int | None = None
        self._choose_at = 0.0
        self._measured: tuple[float, Mapping[int, float], float] | None = None

    def keep(self, *, wanted: bool) -> None:
        """
        Measure and choose a core if that is due. Call this about every second. New threads inherit the core. No effect
        if the system cannot bind a process to a core, or forbids it.
        """
        if len(self._allowed) < 2 or time.monotonic() < self._choose_at:
            return
        try:
            used_by_others = self._used_by_others()
        except (OSError, ValueError):  # too many open files, or another format
            used_by_others = {}
        self._choose_at = time.monotonic() + (CHOOSE_EVERY if used_by_others else FIRST_AFTER)
        if not used_by_others:
            return
        core = choose(self._core, used_by_others) if wanted else None
        if core == self._core:
            return
        try:
            self._bind(self._allowed if core is None else {core})
        except OSError as error:  # a filter of system calls, for example
            log.info("the system does not let the process choose its core", extra={"error": str(error)})
            self._allowed = set()
            return
        log.debug("the process moves to other cores", extra={"cores": "all" if core is None else core})
        self._core = core

    def _bind(self, cores: set[int]) -> None:
        """Bind all threads to these cores. Raises OSError if the system refuses."""
        os.sched_setaffinity(0, cores)  # the current thread
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores)

    def _used_by_others(self) -> dict[int, float]:
        """
        The share of each allowed core that other processes used since the last call; empty at the first call. A process
        on all cores is assumed to use each equally.
        """
        before, self._measured = self._measured, (time.monotonic(), busy_times(), time.process_time())
        if before is None:
            return {}
        (since, busy_before, own_before), (now, busy, own) = before, self._measured
        seconds = max(now - since, 0.1)
        shares = {core: (busy.get(core, 0.0) - busy_before.get(core, 0.0)) / seconds for core in self._allowed}
        its_cores = self._allowed if self._core is None else {self._core}
        for core in its_cores:
            shares[core] -= (own - own_before) / seconds / len(its_cores)
        return shares


def choose(current: int | None, used_by_others: Mapping[int, float]) -> int | None:
    """The core to be on, or None for all of them if none is free enough, by the share that others use of each."""
    best = min(used_by_others, key=lambda core: (used_by_others[core], core))
    if used_by_others[best] > BUSY:
        return None
    if current is None or used_by_others.get(current, math.inf) > used_by_others[best] + WORTH_A_MOVE:
        return best
    return current


def busy_times() -> dict[int, float]:
    """How long each core was busy since boot, seconds, without idle time and waits for disks."""
    ticks, found = os.sysconf("SC_CLK_TCK"), {}
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *times = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _disk, *rest = map(int, times)
            # The guest times at the end are part of the first two.
            found[int(name.removeprefix("cpu"))] = (user + nice + system + sum(rest[:3])) / ticks
    return found
