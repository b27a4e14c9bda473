"""
An archive of expiries as a chain: JSON lines, each with the SHA-256 of the line before it.

`PREVIOUS` of a line is the SHA-256, in lower-case hex, of the canonical form of the line before it; that of the first
line is START, or the head of the archive that it continues. The canonical form of a line is its JSON with sorted keys,
without white space outside of strings, and with each character beyond ASCII as `\\uXXXX`. The head of an archive is the
hash of its last line. It is to be kept elsewhere: without it an end that was cut off, or a changed last line, cannot be
noticed.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: The key of the hash in each line.
PREVIOUS = "previous_sha256"
#: The hash in the first line of an archive that continues no other.
START = "0" * 64


def canonical(document: dict[str, Any]) -> str:
    """The text that is hashed. Raises ValueError where a number is infinite or no number."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class Chain:
    """Links documents to lines."""

    def __init__(self, head: str = START) -> None:
        """`head`: that of the archive which is continued."""
        self.head = head
        self.lines = 0

    def link(self, document: dict[str, Any]) -> str:
        """The document as the next line, in canonical form, without the line's end."""
        line = canonical({**document, PREVIOUS: self.head})
        self.head = hashlib.sha256(line.encode()).hexdigest()
        self.lines += 1
        return line


@dataclass(frozen=True, slots=True)
class ArchiveVerdict:
    """What an archive was found to be."""

    #: Lines that were read, the broken one included.
    lines: int
    #: The hash of the last line that is well.
    head: str
    #: The first broken line, from 1; one after the last line where the end is missing. None: all is well.
    broken_line: int | None = None
    #: What is wrong with it.
    problem: str = ""


def verify(lines: Iterable[bytes], chain_from: str = START, head: str | None = None) -> ArchiveVerdict:
    """
    Follow the chain up to the first broken line. `chain_from` is the head of the archive that this one continues;
    `head`, where it is known, is what the last line must hash to.
    """
    chain = Chain(chain_from)
    for line in lines:
        number = chain.lines + 1
        try:
            document = _parse(line)
        except ValueError as error:
            return ArchiveVerdict(number, chain.head, number, str(error))
        if document.get(PREVIOUS) != chain.head:
            return ArchiveVerdict(number, chain.head, number, _mismatch(document, number, chain_from))
        del document[PREVIOUS]
        chain.link(document)
    if head is not None and head != chain.head:
        problem = f"the end is missing, or the last line was changed: the head is {chain.head}, not {head}"
        return ArchiveVerdict(chain.lines, chain.head, chain.lines + 1, problem)
    return ArchiveVerdict(chain.lines, chain.head)


def _mismatch(document: dict[str, Any], number: int, chain_from: str) -> str:
    previous = document.get(PREVIOUS)
    if not isinstance(previous, str):
        return f"it has no {PREVIOUS}"
    if number == 1:
        return f"it continues the head {previous[:64]!a}, not {chain_from}: name that with --chain-from"
    if previous == START:
        return "another archive begins here, and does not continue this one"
    return "it does not continue the line before: that was changed, or a line between them is missing"


def _parse(line: bytes) -> dict[str, Any]:
    """Raises ValueError with a text for people."""
    try:
        document = json.loads(line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if isinstance(document, dict):
            canonical(document)
            return document
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    raise ValueError("it is no JSON object")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("it has a key twice")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is not JSON")
