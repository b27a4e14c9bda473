"""Runs the real daemon during a demo, until the story is over or a signal ends it."""

from collections.abc import Callable

from sweeperd.config import Settings
from sweeperd.demo.screen import Screen
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.signals import Stop

#: The timeout of the story, seconds; cleaning up fits into half a minute in all.
LIMIT = 22.0
#: How long to watch for duplicates after the end, seconds.
WATCH = 1.0
#: Seconds between steps.
STEP_EVERY = 0.05


def interrupted(stop: Stop, echo: Callable[[str], None]) -> int:
    """Print that a signal has ended the demo. Returns the exit code."""
    echo("\nInterrupted. The daemon has stopped, and the demo's Redis is removed.")
    return 128 + stop.number


def perform(settings: Settings, over: Callable[[], bool], stop: Stop, screen: Screen) -> list[str]:
    """
    Run the daemon and call `over` every STEP_EVERY until it has been true for WATCH seconds; each call prints what has
    happened since the last one. Returns what went wrong.
    """
    problems = []
    over_at: float | None = None
    daemon = Daemon(settings)
    daemon.start()
    try:
        while not stop.wait(STEP_EVERY):
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
