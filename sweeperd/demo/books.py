"""Checks the demo's books at the end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from sweeperd.config.settings import HttpSettings
from sweeperd.demo.screen import Screen, mark
from sweeperd.ledger import Balance

NEXT_STEP = f"""
Next: docs/how-to/install.md connects sweeperd to your own Redis. `sweeperd
check` says whether that Redis is ready. Once a daemon runs, its status page
is at http://{HttpSettings().listen}/."""


@dataclass(frozen=True)
class Evidence:
    """What the demo left behind, and what it should have."""

    books: Sequence[Balance]
    #: Scope -> what the commits charged.
    charged: Mapping[str, int]
    #: Reservation -> state.
    expected: Mapping[str, str]
    states: Mapping[str, str]
    #: Reservation -> number of verified webhooks.
    verified: Mapping[str, int]
    refused: int = 0
    indexed: int = 0
    #: A timeout of the demo, or errors in the daemon's log.
    trouble: Sequence[str] = ()

    def fault(self, book: Balance) -> str:
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
        return [fault for fault in map(self.fault, self.books) if fault]

    def state_faults(self) -> list[str]:
        left = [f"{self.indexed} reservations are still in the index"] if self.indexed else []
        return left + [
            f"{name} is {self.states.get(name)} instead of {state}"
            for name, state in self.expected.items()
            if self.states.get(name) != state
        ]

    def webhook_faults(self) -> list[str]:
        refused = [f"{self.refused} webhooks had an invalid signature"] if self.refused else []
        counts = {
            name: (self.verified.get(name, 0), int(self.expected.get(name) == "EXPIRED"))
            for name in {**self.expected, **self.verified}
        }
        return refused + [
            f"{name}: {count} webhooks verified instead of {due}"
            for name, (count, due) in counts.items()
            if count != due
        ]


def conclude(screen: Screen, evidence: Evidence, warnings: Sequence[str], longest_lag_ms: int) -> int:
    """Show the books and the verdict. Returns the exit code."""
    _show(screen, evidence)
    screen.title("Summary")
    counts = Counter(evidence.expected.values())
    settled = f"{counts['COMMITTED']} committed, {counts['RELEASED']} released, {counts['EXPIRED']} expired"
    lag = f"{longest_lag_ms / 1000:.2f} s"
    screen.verdict(f"{len(evidence.books)} budgets balance, and nothing is reserved", evidence.budget_faults())
    screen.verdict(f"{len(evidence.expected)} reservations: {settled}; the index is empty", evidence.state_faults())
    screen.verdict(f"{counts['EXPIRED']} verified webhooks, exactly one per expiry", evidence.webhook_faults())
    screen.verdict(f"no errors; every expiry came within {lag} of the end of its grace", evidence.trouble)
    for warning in warnings:
        screen.echo(click.style(f"  the daemon's log: {warning}", dim=True))
    if evidence.faults:
        screen.title("The books do not balance.", fg="red")
        return 1
    text = f"All books balance. {counts['EXPIRED']} forgotten reservations came back, each exactly once."
    screen.title(text, fg="green")
    screen.echo(NEXT_STEP)
    return 0


def _show(screen: Screen, evidence: Evidence) -> None:
    screen.title("The books: remaining = allocated - spent - reserved")
    head = f"  {'budget':<21}{'unit':<8}{'allocated':>9}{'remaining':>11}{'reserved':>10}{'spent':>8}"
    screen.echo(click.style(head, dim=True))
    for book in evidence.books:
        *above, name = book.scope.split("/")
        numbers = f"{book.allocated:>9,}{book.remaining:>11,}{book.reserved:>10,}{book.spent:>8,}"
        screen.echo(f"  {'  ' * len(above) + name:<21}{book.unit:<8}{numbers}   {mark(not evidence.fault(book))}")
