"""Memory of a process that runs for months: how often Python looks for garbage, and what goes back to the system."""

import contextlib
import ctypes
import gc

#: So many new containers, and Python looks for circles of them that nothing refers to. Its own default is 700.
CONTAINERS = 50_000


def collect_rarely() -> None:
    """
    Have Python look for garbage less often. Hardly anything here refers to itself in a circle, and everything else is
    freed without a search: with the default, searches take 5 to 9 % of the time of a delivery in batches.
    """
    gc.set_threshold(CONTAINERS)


def give_back() -> None:
    """
    Collect what nothing refers to any more, and have the C library return the memory that is free. glibc keeps freed
    pieces for later: a process that has replaced its daemon many times would hold as much again, and look like a leak.
    Where the C library has no such call (musl, macOS) it only collects.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
