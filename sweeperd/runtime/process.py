"""
Prepares the process before it knows its command: its role, its signals, its limits.

`__main__` imports this module first, so it imports nothing slow.
"""

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Iterator
from enum import StrEnum

_held: list[int] = []
_begun = False


class Role(StrEnum):
    ALL = "all"
    #: Sweeps and walks; keeps the groups of the endpoints, and delivers nothing.
    SWEEP = "sweep"
    #: Delivers, and maintains the stream.
    DELIVER = "deliver"

    @property
    def sweeps(self) -> bool:
        return self is not Role.DELIVER

    @property
    def delivers(self) -> bool:
        return self is not Role.SWEEP


def hold_hang_ups() -> None:
    """
    Call this first, so that no SIGHUP ends the process before a daemon has a handler and checks `hung_up`. Other
    commands call `release_hang_ups`. No effect if SIGHUP is ignored (nohup).
    """
    global _begun  # noqa: PLW0603 - there is one process
    _begun = True
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hold)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, because each endpoint needs several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses infinity
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """
    Import without garbage collections, which find nothing then and take a fifth of the time of an import. Pydantic does
    not search all installed packages for its plugins, because no settings need them; set PYDANTIC_DISABLE_PLUGINS to
    something else to let it.
    """
    if not _begun or not gc.isenabled():
        yield
        return
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def in_own_process() -> bool:
    """Whether the command has its own process, unlike in a test that calls it."""
    return _begun


def hung_up() -> bool:
    return bool(_held)


def release_hang_ups() -> None:
    """Let a SIGHUP end the process, at once if one was held."""
    if signal.getsignal(signal.SIGHUP) is _hold:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if hung_up():
            os.kill(os.getpid(), signal.SIGHUP)


def _hold(number: int, _frame: object) -> None:
    _held.append(number)
