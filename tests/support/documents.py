"""
Reads the repository's documents: their text, headings, links, and the tests that they cite.

`python -m tests.support.documents DOCUMENT HEADING NUMBER` prints a block of code.
"""

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
_INLINE_CODE = re.compile(r"`[^`\n]*`")
#: `tests/a/test_b.py::test_c`, `tests/a/test_b.py`, `tests/a`.
_CITED = re.compile(r"\btests/[\w./*-]*\w(?:::\w+)*")


def documents() -> list[Path]:
    """Every document that a reader of the repository finds."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def guides() -> list[Path]:
    """The pages for users and operators, without records of decisions and evidence."""
    pages = [
        page for folder in ("tutorial", "how-to", "reference", "explanation") for page in (DOCS / folder).glob("*.md")
    ]
    return [*sorted(DOCS.glob("*.md")), *sorted(pages)]


def name(document: Path) -> str:
    """Its path from the root of the repository."""
    return str(document.relative_to(ROOT))


@cache
def prose(document: Path) -> str:
    """Its text without blocks of code."""
    return _CODE.sub("", document.read_text(encoding="utf-8"))


@cache
def anchors(document: Path) -> frozenset[str]:
    """What `#...` may name in it, by GitHub's rule."""
    found: list[str] = []
    for heading in _HEADING.findall(prose(document)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def links(document: Path) -> list[str]:
    """The targets of its links and pictures."""
    return LINK.findall(_INLINE_CODE.sub("", prose(document)))


def cited_tests(document: Path) -> list[str]:
    """The tests that it names."""
    return _CITED.findall(document.read_text(encoding="utf-8"))


def blocks(document: Path, heading: str) -> list[str]:
    """The blocks of code below this heading, before the next heading."""
    text = document.read_text(encoding="utf-8")
    begin = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert begin is not None
    end = re.compile(rf"^#{{1,{len(begin[1])}}} ", re.MULTILINE)
    # A comment in a block looks like a heading.
    outside = _CODE.sub(lambda block: block[0].replace("#", "-"), text)
    after = end.search(outside, begin.end())
    return [found[3] for found in _BLOCK.finditer(text, begin.end(), after.start() if after else len(text))]


def code(document: Path, heading: str) -> str:
    """The first block of code below this heading."""
    text = document.read_text(encoding="utf-8")
    found = _BLOCK.search(text, re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE).end())  # type: ignore[union-attr]
    assert found is not None
    return found[3]


if __name__ == "__main__":
    print(blocks(ROOT / sys.argv[1], sys.argv[2])[int(sys.argv[3])])
