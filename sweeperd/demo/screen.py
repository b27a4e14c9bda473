"""Prints what happens in a demo."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import click

#: Label -> style.
STYLES: dict[str, dict[str, Any]] = {
    "reserved": {"fg": "cyan"},
    "extended": {"fg": "cyan"},
    "committed": {"fg": "blue"},
    "released": {"fg": "blue"},
    "too late": {"fg": "red"},
    "due": {"fg": "yellow"},
    "expired": {"fg": "red", "bold": True},
    "budget back": {"fg": "green", "bold": True},
    "webhook": {"fg": "magenta"},
    "service": {"fg": "cyan"},
    "redis": {"fg": "green"},
}


class Screen:
    """Prints a line per event, with the seconds since the start."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self.echo = echo
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def title(self, text: str, fg: str | None = None) -> None:
        self.echo("\n" + click.style(text, fg=fg, bold=True))

    def fact(self, label: str, text: str) -> None:
        self.echo(f"  {click.style(f'{label:<10}', bold=True)}{text}")

    def line(self, label: str, text: str) -> None:
        what = click.style(f"{label:<12}", **STYLES[label])
        self.echo(f"{self.seconds:5.1f}s  {what}{text}".rstrip())

    def verdict(self, good: str, faults: Sequence[str]) -> bool:
        """Print that something is good, or its faults. Returns whether it has none."""
        if not faults:
            self.echo(f"  {mark(True)}    {good}")
        for fault in faults:
            self.echo(f"  {mark(False)} {fault}")
        return not faults


def mark(good: bool) -> str:
    return click.style("ok", fg="green", bold=True) if good else click.style("WRONG", fg="red", bold=True)


def give_up(echo: Callable[[str], None], problem: str) -> int:
    """Print why the demo cannot go on. Returns the exit code."""
    echo(click.style(f"sweeperd: {problem}", fg="red"))
    return 1
