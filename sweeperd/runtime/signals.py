"""Turns signals into the end of a command."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from sweeperd.runtime.process import deadly, in_own_process


class Stop(threading.Event):
    """Is set at a signal, and keeps its number."""

    number = 0


def end_at_once(code: int) -> None:
    """Exit with this code at SIGTERM or SIGINT, because nothing has started that needs a clean stop."""

    def end(_number: int, _frame: object) -> None:
        sys.exit(code)

    if in_own_process():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)


@contextlib.contextmanager
def stop_on_signals(*, last: bool = False, again: bool = True) -> Iterator[Stop]:
    """
    Set the event at the first SIGTERM, SIGINT or SIGHUP; the second ends the process. `last`: the process exits after
    the block, so signals are ignored from then on, unless the command shares its process. Not `again`: later signals
    change nothing, because the block has to remove what it started, such as a server.
    """
    stop = Stop()

    def on_signal(number: int, _frame: object) -> None:
        for each in numbers if again else ():
            signal.signal(each, deadly())
        stop.number = number
        stop.set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last and in_own_process() else handler)
