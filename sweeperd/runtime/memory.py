"""Gives memory back to the system, after much was freed at once."""

import contextlib
import ctypes
import gc


def give_back() -> None:
    """
    Collect what nothing refers to any more, and have the C library return the memory that is free. glibc keeps freed
    pieces for later: a process that has replaced its daemon many times would hold as much again, and look like a leak.
    Where the C library has no such call (musl, macOS) it only collects.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
