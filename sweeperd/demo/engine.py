"""Runs a demo: the real daemon beside a story that is told step by step, until it is over or a signal ends it."""

import signal
import threading
from collections.abc import Callable

from sweeperd.config import Settings
from sweeperd.demo.screen import Screen
from sweeperd.runtime.daemon import Daemon

#: The demo gives up after this many seconds: early enough to clean up everything within half a minute.
LIMIT = 22.0
#: How long to watch that nothing comes twice, seconds.
WATCH = 1.0
#: Between two steps, seconds.
STEP_EVERY = 0.05


class Interrupt:
    """Remembers a signal to end, so that everything started can be stopped in good order."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.number = 0

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; returns True if a signal came."""
        return self._asked.wait(seconds)

    def __enter__(self) -> "Interrupt":
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def conclude(self, echo: Callable[[str], None]) -> int:
        """Say that the demo was interrupted. Returns the exit code."""
        echo("\nInterrupted. The daemon has stopped; the demo's Redis and its data are gone.")
        return 128 + self.number

    def _on_signal(self, number: int, _frame: object) -> None:
        self.number = number
        self._asked.set()


def perform(settings: Settings, over: Callable[[], bool], interrupt: Interrupt, screen: Screen) -> list[str]:
    """
    Run the daemon and call `over` every STEP_EVERY, until it has been true for WATCH seconds. `over` tells what has
    happened since its last call and says whether the story is complete. Returns what went wrong.
    """
    problems = []
    over_at: float | None = None
    daemon = Daemon(settings)
    daemon.start()
    try:
        while not interrupt.wait(STEP_EVERY):
            if screen.seconds > LIMIT:
                problems.append(f"it was not over after {LIMIT:.0f} s")
                break
            if over():
                over_at = over_at or screen.seconds
                if screen.seconds > over_at + WATCH:
                    break
    finally:
        if not daemon.stop():
            problems.append("the daemon did not stop in time")
    return problems
