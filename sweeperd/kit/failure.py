"""What a property of the kit is, and what is told where it does not hold."""

from collections.abc import Callable
from dataclasses import dataclass

from sweeperd.kit.lab import Lab
from sweeperd.kit.samples import Sample


@dataclass(frozen=True)
class Failure:
    """An input that breaks a property, and how."""

    sample: str
    problem: str
    #: The smallest entry that was found to break it in the same way, JSON; and the line of the script that is to blame,
    #: where the server names one.
    entry: str = ""
    line: str = ""

    @property
    def report(self) -> list[str]:
        """For people, in lines."""
        more = ((name, text) for name, text in (("entry", self.entry), ("line", self.line)) if text)
        return [f"input: {self.sample}", self.problem, *(f"{name}: {text}" for name, text in more)]


#: A property: None where it holds.
Property = Callable[[Lab, Sample], Failure | None]
