"""The screen of the demo: lines as things happen, then the check of the books."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from sweeperd.config.settings import HttpSettings
from sweeperd.ledger import Balance

#: The happenings, and their colours.
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
#: The last words of the demo.
NEXT_STEP = f"""
Next: docs/install.md connects sweeperd to your own Redis. `sweeperd check` says
whether that Redis is ready; the daemon's status page is at
http://{HttpSettings().listen}/."""


@dataclass(frozen=True)
class Evidence:
    """The end of the demo: what is there, and what should be there."""

    books: Sequence[Balance]
    #: Scope to the amount charged there by the commits.
    charged: Mapping[str, int]
    #: Reservation to the due state, and to the state found.
    expected: Mapping[str, str]
    states: Mapping[str, str]
    #: Reservation to the number of verified webhooks.
    verified: Mapping[str, int]
    refused: int = 0
    indexed: int = 0
    #: Other faults: the demo took too long, or the daemon logged an error.
    trouble: Sequence[str] = ()

    def fault(self, book: Balance) -> str:
        """The fault of a budget after the end of the story; empty if there is none. The demo makes no debt."""
        scope, rest = book.scope, book.allocated - book.spent - book.reserved
        charged = self.charged.get(scope, 0)
        if book.remaining != rest:
            return f"{scope}: {book.remaining:,} remaining, but allocated - spent - reserved is {rest:,}"
        if book.reserved:
            return f"{scope}: {book.reserved:,} reserved, though every reservation should have ended"
        return "" if book.spent == charged else f"{scope}: {book.spent:,} spent, but {charged:,} were charged"

    @property
    def faults(self) -> list[str]:
        return [*self.budget_faults(), *self.state_faults(), *self.webhook_faults(), *self.trouble]

    def budget_faults(self) -> list[str]:
        """Budgets that do not balance."""
        return [fault for fault in map(self.fault, self.books) if fault]

    def state_faults(self) -> list[str]:
        """Reservations in another state than due, or still in the index."""
        left = [f"{self.indexed} reservations are still in the index"] if self.indexed else []
        return left + [
            f"{name} is {self.states.get(name)}, and should be {state}"
            for name, state in self.expected.items()
            if self.states.get(name) != state
        ]

    def webhook_faults(self) -> list[str]:
        """Webhooks that are missing, or should not have come."""
        refused = [f"{self.refused} webhooks had a signature that did not verify"] if self.refused else []
        counts = {
            name: (self.verified.get(name, 0), int(self.expected.get(name) == "EXPIRED"))
            for name in {**self.expected, **self.verified}
        }
        return refused + [
            f"{name}: {count} webhooks verified, and there should be {due}"
            for name, (count, due) in counts.items()
            if count != due
        ]


class Screen:
    """Writes each happening in a line, with the seconds since the start."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self.echo = echo
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def title(self, text: str) -> None:
        """Begin the next part."""
        self.echo("\n" + click.style(text, bold=True))

    def fact(self, label: str, text: str) -> None:
        """Write a fact about the whole demo."""
        self.echo(f"  {click.style(f'{label:<10}', bold=True)}{text}")

    def line(self, label: str, text: str) -> None:
        """Write what has happened just now."""
        what = click.style(f"{label:<12}", **STYLES[label])
        self.echo(f"{self.seconds:5.1f}s  {what}{text}".rstrip())

    def conclude(self, evidence: Evidence, warnings: Sequence[str], longest_lag_ms: int) -> int:
        """Show the books and what they prove. Returns the exit code."""
        self._table(evidence)
        self.title("In all")
        counts = Counter(evidence.expected.values())
        settled = f"{counts['COMMITTED']} committed, {counts['RELEASED']} released, {counts['EXPIRED']} expired"
        self.verdict(
            f"{len(evidence.books)} budgets balance, and nothing is reserved any more", evidence.budget_faults()
        )
        self.verdict(f"{len(evidence.expected)} reservations: {settled}; the index is empty", evidence.state_faults())
        self.verdict(
            f"{counts['EXPIRED']} verified webhooks: exactly one for each expiry, none for the others",
            evidence.webhook_faults(),
        )
        self.verdict(
            f"no errors; all came back within {longest_lag_ms / 1000:.2f} s of the end of their grace", evidence.trouble
        )
        for warning in warnings:
            self.echo(click.style(f"  the daemon's log: {warning}", dim=True))
        if evidence.faults:
            self._end("red", "The books do not balance.")
            return 1
        self._end(
            "green", f"All books balance. {counts['EXPIRED']} forgotten reservations came back, each exactly once."
        )
        self.echo(NEXT_STEP)
        return 0

    def _table(self, evidence: Evidence) -> None:
        self.title("The books: remaining = allocated - spent - reserved")
        head = f"  {'budget':<21}{'unit':<8}{'allocated':>9}{'remaining':>11}{'reserved':>10}{'spent':>8}"
        self.echo(click.style(head, dim=True))
        for book in evidence.books:
            *above, name = book.scope.split("/")
            numbers = f"{book.allocated:>9,}{book.remaining:>11,}{book.reserved:>10,}{book.spent:>8,}"
            self.echo(f"  {'  ' * len(above) + name:<21}{book.unit:<8}{numbers}   {mark(not evidence.fault(book))}")

    def verdict(self, good: str, faults: Sequence[str]) -> bool:
        """Write that something is as it should be, or its faults. Returns whether it has none."""
        if not faults:
            self.echo(f"  {mark(True)}    {good}")
        for fault in faults:
            self.echo(f"  {mark(False)} {fault}")
        return not faults

    def _end(self, colour: str, text: str) -> None:
        self.echo("\n" + click.style(text, fg=colour, bold=True))


def mark(good: bool) -> str:
    """Whether something is as it should be."""
    return click.style("ok", fg="green", bold=True) if good else click.style("WRONG", fg="red", bold=True)


def give_up(echo: Callable[[str], None], problem: str) -> int:
    """Say why the demo cannot go on. Returns the exit code."""
    echo(click.style(f"sweeperd: {problem}", fg="red"))
    return 1
