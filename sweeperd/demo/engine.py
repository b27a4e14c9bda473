"""Runs the real daemon during a demo, until the story is over or a signal ends it."""

import signal
import threading
from collections.abc import Callable

from sweeperd.config import Settings
from sweeperd.demo.screen import Screen
from sweeperd.runtime.daemon import Daemon

#: The timeout of the story, seconds; cleaning up fits into half a minute in all.
LIMIT = 22.0
#: How long to watch for duplicates after the end, seconds.
WATCH = 1.0
#: Seconds between steps.
STEP_EVERY = 0.05


class Interrupt:
    """Remembers a signal, so that the demo can stop cleanly."""

    def __init__(self) -> None:
        self._received = threading.Event()
        self.number = 0

    def wait(self, seconds: float) -> bool:
        return self._received.wait(seconds)

    def __enter__(self) -> "Interrupt":
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def conclude(self, echo: Callable[[str], None]) -> int:
        echo("\nInterrupted. The daemon has stopped, and the demo's Redis is removed.")
        return 128 + self.number

    def _on_signal(self, number: int, _frame: object) -> None:
        self.number = number
        self._received.set()


def perform(settings: Settings, over: Callable[[], bool], interrupt: Interrupt, screen: Screen) -> list[str]:
    """
    Run the daemon and call `over` every STEP_EVERY until it has been true for WATCH seconds; each call prints what has
    happened since the last one. Returns what went wrong.
    """
    problems = []
    over_at: float | None = None
    daemon = Daemon(settings)
    daemon.start()
    try:
        while not interrupt.wait(STEP_EVERY):
            if screen.seconds > LIMIT:
                problems.append(f"the demo did not finish within {LIMIT:.0f} s")
                break
            if over():
                over_at = over_at or screen.seconds
                if screen.seconds > over_at + WATCH:
                    break
    finally:
        if not daemon.stop():
            problems.append("the daemon did not stop in time")
    return problems
