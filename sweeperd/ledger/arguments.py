"""Checks what a caller passes in, and turns it into what the scripts take: bytes."""

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sweeperd.ledger.models import Name

INT64_MAX = 2**63 - 1
#: The greatest `max_extensions`: up to here the scripts count exactly.
MAX_EXTENSIONS = 2**53
#: The shortest `audit_retention`, ms.
LEAST_RETENTION = 3_600_000
#: What a name can be. (bytes() of an int is that many NUL bytes.)
_NAMES = (str, bytes, bytearray, memoryview)
#: How many scopes one operation takes at most: a script stays bounded.
MAX_SCOPES = 256


def name(what: str, value: Name) -> bytes:
    """The bytes of a name. Raises TypeError for what is neither text nor bytes, ValueError for an empty name."""
    if not isinstance(value, _NAMES):
        raise TypeError(f"{what} is a {type(value).__name__}, neither str nor bytes")
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if not raw:
        raise ValueError(f"{what} is empty")
    return raw


def scope_list(scopes: Sequence[Name]) -> list[bytes]:
    """The bytes of each scope. Raises TypeError for a single name, ValueError for none or more than MAX_SCOPES."""
    if isinstance(scopes, _NAMES):
        raise TypeError("scopes is one name, not a sequence of names")
    if not 0 < len(scopes) <= MAX_SCOPES:
        raise ValueError(f"scopes are from 1 to {MAX_SCOPES}, not {len(scopes)}")
    return [name("scope", scope) for scope in scopes]


def amount(what: str, value: int) -> bytes:
    """A whole number from 0 to 2^63-1 as decimal text. Raises TypeError, ValueError."""
    return whole(what, value, most=INT64_MAX)


def whole(what: str, value: int, *, most: int) -> bytes:
    """A whole number from 0 to `most` as decimal text. Raises TypeError, ValueError."""
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{what} is not from 0 to {most}: {value}")
    return b"%d" % value


def milliseconds(what: str, duration: timedelta, *, least: int) -> int:
    """A duration in whole ms, rounded down. Raises ValueError where it is shorter than `least` ms."""
    rounded = duration // timedelta(milliseconds=1)
    if rounded < least:
        raise ValueError(f"{what} is shorter than {least} ms: {duration}")
    return rounded


def json_text(mapping: Mapping[str, Any] | None) -> bytes:
    """A mapping as JSON with sorted keys, so that equal mappings give equal text; None gives the empty text."""
    return b"" if mapping is None else json.dumps(dict(mapping), separators=(",", ":"), sort_keys=True).encode()


def request_hash(*request: str | bytes) -> bytes:
    """The SHA-256 of a request. The length of each part goes in before it, so that no two requests give one text."""
    digest = hashlib.sha256()
    for part in request:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(raw) + raw)
    return digest.hexdigest().encode()
