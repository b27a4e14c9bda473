"""Defines a row of the suite: what it measures, against what, its goals, and what one round of it yields."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.lab import Lab

Bound = Literal["at_most", "at_least"]


@dataclass(frozen=True)
class Goal:
    """
    What a ratio is to reach. `what`: which part of the row it is about; `against`: instead of the row's. `noise`: two
    results that differ by no more say nothing. `tolerance`: by which part the gate lets it be worse than its baseline.
    """

    bound: Bound
    value: float
    what: str = ""
    against: str = ""
    noise: float = 0.0
    tolerance: float = 0.25

    def met(self, value: float) -> bool:
        """Whether this value reaches it."""
        return value <= self.value if self.bound == "at_most" else value >= self.value

    def worsening(self, before: float, now: float) -> float:
        """By which part `now` is worse than `before`: 0.25 is a quarter worse, negative is better."""
        return now / before - 1 if self.bound == "at_most" else 1 - now / before

    def __str__(self) -> str:
        return f"{'≤' if self.bound == 'at_most' else '≥'} {self.value:g}"


@dataclass(frozen=True)
class Sample:
    """
    One round. `ratios` are what goals are about (a goal may also name a figure), `figures` the absolute numbers, each
    with its unit in its name (`entries_per_second`), `series` what is plotted, as columns of equal length.
    """

    ratios: dict[str, float]
    figures: dict[str, float]
    series: dict[str, list[float]] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """A ratio, or else a figure. Raises KeyError if it is neither."""
        return self.ratios[name] if name in self.ratios else self.figures[name]


class NotMeasurable(Exception):
    """The row lacks something that this machine does not have; the message says what and how to get it."""


@dataclass(frozen=True)
class Row:
    """
    One row. `goals` by the name of the ratio or figure that each is about. `measure` does one round: yardstick and
    subject in turn, on servers of its own; it raises NotMeasurable if it cannot. `on_request`: takes long, so it
    runs only if it is asked for by name.
    """

    name: str
    what: str
    against: str
    goals: Mapping[str, Goal]
    measure: Callable[[Lab], Sample]
    on_request: bool = False
