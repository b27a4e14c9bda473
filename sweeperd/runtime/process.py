"""
Prepares the process before it knows its command: its role, its signals, its limits.

`__main__` imports this module first, so it imports nothing slow.
"""

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from enum import StrEnum
from types import FrameType

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


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """
    SIGTERM and SIGINT end the process without a traceback in this block. Afterwards SIGINT interrupts as ever, and
    SIGTERM still ends the first process of a container.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores it for a job in the background
        signal.signal(signal.SIGINT, _end)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    yield
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, deadly())):
        if signal.getsignal(number) is _end:
            signal.signal(number, handler)


def deadly() -> Callable[[int, FrameType | None], None] | signal.Handlers:
    """
    The handler with which a signal ends this process at once. It is the kernel's, which works even if the main thread
    hangs, but the kernel ignores these signals for the first process of a container.
    """
    return _end if os.getpid() == 1 else signal.SIG_DFL


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


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # as a shell reports the signal
