"""Places in a sorted set whose entries leave, stay or move while it is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class IndexEntry(NamedTuple):
    """One entry of the index."""

    id: bytes
    score: bytes
    #: Whether it was in grace when the page was read. False where the page was read without a grace scan.
    in_grace: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading goes on: at this score, after this many entries of exactly that score, which stay."""

    score: bytes = b"-inf"
    passed: int = 0

    def after(self, entries: Iterable[tuple[IndexEntry, bool]]) -> "Position":
        """The position after these entries, each with whether it stays where it is."""
        score, passed = self.score, self.passed
        for entry, stays in entries:
            if entry.score != score:
                score, passed = entry.score, 0
            passed += stays
        return Position(score, passed)

    def after_all(self, entries: Iterable[IndexEntry]) -> "Position":
        """The position after these entries, all of which stay."""
        return self.after((entry, True) for entry in entries)

    def precedes(self, other: "Position") -> bool:
        """Whether this position comes before the other one."""
        return (float(self.score), self.passed) < (float(other.score), other.passed)


#: Before the first entry.
START = Position()
