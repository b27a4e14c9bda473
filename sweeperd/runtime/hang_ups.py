"""
SIGHUPs that come before the process knows whether it is a daemon, which reads its settings again at a SIGHUP.

`__main__` imports this module before all others, so it imports nothing that takes time.
"""

import os
import signal

_held: list[int] = []
_begun = False


def hold() -> None:
    """
    Call it first of all: no SIGHUP ends the process from here on. A daemon asks `came` once it has a handler of its
    own; any other command calls `release`. A SIGHUP that is ignored (nohup) stays so.
    """
    global _begun  # noqa: PLW0603 - there is one process
    _begun = True
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _hold)


def in_own_process() -> bool:
    """Whether the process is that of the command, and not of a program that calls it, such as a test."""
    return _begun


def came() -> bool:
    """Whether one was held."""
    return bool(_held)


def release() -> None:
    """From here on a SIGHUP ends the process; one that was held ends it now."""
    if signal.getsignal(signal.SIGHUP) is _hold:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if came():
            os.kill(os.getpid(), signal.SIGHUP)


def _hold(number: int, _frame: object) -> None:
    _held.append(number)
