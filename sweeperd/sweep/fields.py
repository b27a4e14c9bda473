"""Reads the fields of an entry that is not a hash: a JSON object, or the member of the index itself."""

import json
from collections.abc import Iterator
from typing import Any

from sweeperd.config.templates import Field, Word


def json_fields(text: bytes) -> dict[bytes, bytes]:
    """The texts, numbers and booleans of a JSON object, nested ones as `a.b`; empty if the text is not an object."""
    try:
        document = json.loads(text, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return {}
    return dict(_texts(document, "")) if isinstance(document, dict) else {}


def _texts(document: dict[str, Any], before: str) -> Iterator[tuple[bytes, bytes]]:
    for name, value in document.items():
        path = before + (f'"{name}"' if "." in name else name)
        if isinstance(value, dict):
            yield from _texts(value, f"{path}.")
        elif isinstance(value, bool):
            yield _bytes(path), str(value).lower().encode()
        elif isinstance(value, str):
            yield _bytes(path), _bytes(value)
        elif isinstance(value, list):
            yield _bytes(path), json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def member_fields(parts: Word, member: bytes) -> dict[bytes, bytes]:
    """
    The parts of a member; empty if it does not fit the template. A regular expression would backtrack for minutes if a
    member has many separators.
    """
    names = [part.name.encode() for part in parts if isinstance(part, Field)]
    texts = "".join("\0" if isinstance(part, Field) else part for part in parts).encode().split(b"\0")
    first, *between, last = texts
    if not member.startswith(first):
        return {}
    rest, values = member[len(first) :], list[bytes]()
    for text in between:
        value, separator, rest = rest.partition(text)
        if not separator:
            return {}
        values.append(value)
    if not rest.endswith(last):
        return {}
    return dict(zip(names, [*values, rest[: len(rest) - len(last)]], strict=True))
