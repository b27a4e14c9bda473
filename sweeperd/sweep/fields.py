"""Reads the fields of an entry that is not a hash: a JSON object, or the member of the index itself."""

import json
from collections.abc import Iterator, Sequence
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
    """The parts of a member; empty if it does not fit the template."""
    texts, names = _around(parts)
    if not member.startswith(texts[0]) or len(member) < len(texts[0]) + len(texts[-1]):
        return {}
    rest, found = member[len(texts[0]) :], []
    for text in texts[1:-1]:
        part, sep, rest = rest.partition(text)
        if not sep:
            return {}
        found.append(part)
    if not rest.endswith(texts[-1]):
        return {}
    found.append(rest[: len(rest) - len(texts[-1])])
    return dict(zip(names, found, strict=True))


def _around(parts: Word) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """The texts before, between and after the parts, and the names of the parts."""
    texts, names = [b""], list[bytes]()
    for part in parts:
        if isinstance(part, Field):
            names.append(part.name.encode())
            texts.append(b"")
        else:
            texts[-1] += part.encode()
    return texts, names
