"""Ends a process that hangs while it stops."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable


class LastResort:
    """
    Calls `end`, which ends the process, if the process still runs `grace()` seconds after the first of these signals,
    or when a second one comes. Python runs the handler of a signal in the main thread only, and not before a system
    call of that thread ends, so a hung name server could hold up every handler. This thread learns of the signals from
    a pipe.
    """

    def __init__(self, grace: Callable[[], float], end: Callable[[], object], *signals: signal.Signals) -> None:
        self._grace = grace
        self._end = end
        self._signals = frozenset(signals)
        self._pipe = -1

    def start(self) -> None:
        """Call this in the main thread. Without another descriptor or thread nothing happens."""
        with contextlib.suppress(OSError, RuntimeError):
            self._pipe, writing = os.pipe()
            os.set_blocking(writing, False)
            threading.Thread(target=self._run, name="signals", daemon=True).start()
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def _run(self) -> None:
        self._await_signal(None)
        self._await_signal(time.monotonic() + self._grace())
        self._end()

    def _await_signal(self, deadline: float | None) -> None:
        """`deadline`: monotonic."""
        while deadline is None or time.monotonic() < deadline:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if select.select([self._pipe], [], [], left)[0] and self._signals.intersection(os.read(self._pipe, 64)):
                return
