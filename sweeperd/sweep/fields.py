"""Reads the fields of an entry that is not a hash: a JSON object, or the member of the index itself."""

import json
import re
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
    """The parts of a member; empty if it does not fit the template."""
    pattern = b"".join(b"(.*?)" if isinstance(part, Field) else re.escape(part.encode()) for part in parts)
    names = [part.name.encode() for part in parts if isinstance(part, Field)]
    found = re.fullmatch(pattern, member, re.DOTALL)
    return dict(zip(names, found.groups(), strict=True)) if found else {}
