"""Signals that end a command."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from sweeperd import hang_ups


def end_at_once(code: int) -> None:
    """
    SIGTERM and SIGINT end the process with this code: nothing has begun that would have to be finished. A process that
    is the first of its container has to do so itself, since the kernel ignores such a signal for it.
    """

    def end(_number: int, _frame: object) -> None:
        sys.exit(code)

    if hang_ups.in_own_process():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)


@contextlib.contextmanager
def stop_on_signals(*, last: bool = False) -> Iterator[threading.Event]:
    """
    The first SIGTERM, SIGINT or SIGHUP sets the event, the second ends the process at once. `last`: the process ends
    after the block, and no such signal changes its exit code any more, if the process is that of the command.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        stop.set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last and hang_ups.in_own_process() else handler)
