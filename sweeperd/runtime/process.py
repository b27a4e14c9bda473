"""
The process: its role, and the SIGHUPs that come before the process knows whether it is a daemon, which reads its
settings again at a SIGHUP.

`__main__` imports this module before all others, so this module imports nothing that takes time.
"""

import contextlib
import os
import resource
import signal
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
        """Whether the process decides entries."""
        return self is not Role.DELIVER

    @property
    def delivers(self) -> bool:
        """Whether the process sends events."""
        return self is not Role.SWEEP


def hold_hang_ups() -> None:
    """
    Call this first of all: no SIGHUP ends the process from here on. A daemon asks `hung_up` when the daemon has a
    handler; any other command calls `release_hang_ups`. If SIGHUP is ignored (nohup), nothing changes.
    """
    global _begun  # noqa: PLW0603 - there is one process
    _begun = True
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hold)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit: each endpoint takes several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS refuses infinity
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def in_own_process() -> bool:
    """Whether this is the process of the command, not of a program that calls the command, such as a test."""
    return _begun


def hung_up() -> bool:
    """Whether a SIGHUP was held."""
    return bool(_held)


def release_hang_ups() -> None:
    """From here on a SIGHUP ends the process; if a SIGHUP was held, the process ends now."""
    if signal.getsignal(signal.SIGHUP) is _hold:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if hung_up():
            os.kill(os.getpid(), signal.SIGHUP)


def _hold(number: int, _frame: object) -> None:
    _held.append(number)
