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
    Calls `end`, which ends the process, `grace()` seconds after the first of these signals, or at the second one.
    Python runs signal handlers in the main thread only, between system calls, so a hung name server could block them
    all. This thread learns of the signals from a pipe.
    """

    def __init__(self, grace: Callable[[], float], end: Callable[[], object], *signals: signal.Signals) -> None:
        self._grace = grace
        self._end = end
        self._signals = frozenset(signals)
        self._pipe = -1

    def start(self) -> None:
        """Call this in the main thread. No effect if descriptors or threads have run out."""
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
