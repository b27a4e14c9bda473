"""Reads `config.example.toml`, the one source of what each setting is for, its default and an example."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: The directory of the package. A wheel has the shipped files in it; a checkout has them beside it.
_PACKAGE = Path(__file__).parents[1]
#: Names the schema for editors.
SCHEMA_LINE = "#:schema https://raw.githubusercontent.com/sweeperd/sweeperd/main/docs/schemas/config.schema.json"
_TABLE = re.compile(r"#?(\[+[\w.]+\]+)")
_KEY = re.compile(r"#?((\w+) = .*)")


@dataclass(frozen=True)
class Example:
    """A key of the settings in the example."""

    #: `[sweep]` or `[[kinds]]`; empty for a key before the first table.
    table: str
    key: str
    #: The comment, one line of the file each.
    comment: tuple[str, ...]
    #: The key and its default; in a list of tables, an example.
    line: str

    @property
    def place(self) -> str:
        """The key with its table: `sweep.batch_size`, `kinds[].name`."""
        after = {0: "", 1: ".", 2: "[]."}[self.table.count("[")]
        return self.table.strip("[]") + after + self.key


def shipped(source: str) -> str:
    """The text of a file that comes with sweeperd, by its path in the repository. Raises FileNotFoundError."""
    inside = _PACKAGE / Path(source).name
    return (inside if inside.is_file() else _PACKAGE.parent / source).read_text(encoding="utf-8")


def examples() -> Iterator[Example]:
    """Every key of the settings, in order. Raises FileNotFoundError."""
    table, comment = "", list[str]()
    for line in shipped("config.example.toml").splitlines():
        if line.startswith("# "):
            comment.append(line)
            continue
        if found := _TABLE.fullmatch(line):
            table = found[1]
        elif found := _KEY.match(line):
            yield Example(table, found[2], tuple(comment), found[1])
        comment = []
