"""What a daemon does: all of it, or one half, so that sweep and delivery can be scaled apart."""

import contextlib
import ctypes
import gc
from enum import StrEnum


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
