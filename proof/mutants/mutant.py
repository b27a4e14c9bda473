"""Defines a mutant: one file of the product with one fault."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mutant:
    """
    One change of one file. `file` is relative to the package (`scripts/sweep/expire.lua`), `text` the whole file with
    the change in it; `kind` says which rule made it, `before` and `after` are the line or statement that it changed.

    `nth` counts the mutants of a file that would otherwise have the same name, from 1.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    text: str
    nth: int = 1

    @property
    def name(self) -> str:
        """Names it without the number of its line, so that it keeps its name while the file around it changes."""
        return f"{self.file}: {self.before} => {self.after}" + (f" #{self.nth}" if self.nth > 1 else "")


def numbered(mutants: Iterable[Mutant]) -> list[Mutant]:
    """The same mutants, those of one name counted."""
    seen: Counter[str] = Counter()
    result = []
    for mutant in mutants:
        seen[mutant.name] += 1
        result.append(replace(mutant, nth=seen[mutant.name]))
    return result
