"""Converts bytes and numbers from Redis to text for operators, and back."""

import contextlib
import difflib
import functools
import json
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime

_BYTE = re.compile(rb"\\x([0-9a-f]{2})")
_CHARACTER = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|([nrt]))")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the end of a message, if a known name is close to this one; else empty."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def counted(number: int, one: str, many: str = "") -> str:
    """`1 event` or `2 events`. `many`: the plural if it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def glob(text: bytes) -> bytes:
    """The pattern of SCAN that matches this text alone."""
    return re.sub(rb"([\\*?\[\]^-])", rb"\\\1", text)


def decode(value: bytes) -> str:
    """Decode UTF-8. Invalid bytes are escaped (`\\xff`)."""
    return value.decode("utf-8", "backslashreplace")


def is_utf8(text: str) -> bool:
    """Whether a text of the command line or the environment is UTF-8. Invalid bytes are lone surrogates in Python."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole(value: bytes) -> int | None:
    """Parse an unsigned number of up to 19 digits, as many as int64 has; None if malformed."""
    return int(value) if value.isdigit() and len(value) <= 19 else None


def integer(value: bytes) -> int | None:
    """Parse a number like `whole`, or its negative."""
    number = whole(value.removeprefix(b"-"))
    return -number if number is not None and value.startswith(b"-") else number


def strings(value: bytes) -> tuple[bytes, ...]:
    """The strings of a JSON array as bytes. Raises ValueError if the value is not an array of strings."""
    if value == b"[]":
        return ()  # the common case
    try:
        items = json.loads(value.decode("utf-8", "surrogateescape"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("not an array of strings")
    return tuple(item.encode("utf-8", "surrogateescape") for item in items)


def moment_ms(score: bytes | float) -> float:
    """The score of a sorted set as ms since the epoch, clamped to 0 to 2^53."""
    return min(max(float(score), 0.0), 2.0**53)


def decode_list(value: bytes) -> tuple[str, ...]:
    """The decoded strings of a JSON array. Raises ValueError if the value is not an array of strings."""
    return tuple(decode(item) for item in strings(value))


def rfc3339(milliseconds: int) -> str:
    """Milliseconds since the epoch as `2026-11-21T08:00:05.123Z`. Raises OverflowError, ValueError beyond year 9999."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """Cached, because entries that expire together share their second."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def timestamp(milliseconds: float | None) -> str | None:
    """A time in ms since the epoch as RFC 3339; None without a time or beyond the year 9999."""
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return None if milliseconds is None else rfc3339(int(milliseconds))
    return None


def span(seconds: float) -> str:
    """A readable duration: `0.4 s`, `12 s`, `3 m 5 s`, `2 h`, `4 d 3 h`. The status page uses the same format."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, part, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def per_second(rate: float) -> str:
    """A readable rate: `0.13`, `12.5`, `1,234`. The status page uses the same format."""
    return f"{rate:,.{0 if rate >= 100 else 1 if rate >= 10 else 2}f}"


def candidates(text: str) -> list[bytes]:
    """
    The bytes that an operator may mean by this text, the most literal first: the text itself; with `\\xff` as a byte,
    as `decode` shows invalid UTF-8; with `\\u202e` and `\\n` as characters, as tables show control characters; with
    `\\x9b` as a character.
    """
    literal = os.fsencode(text)
    found = [literal, _BYTE.sub(lambda escape: bytes.fromhex(escape[1].decode()), literal)]
    for x_is_a_byte in (True, False):
        with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate is not a character
            of_character = functools.partial(_character, x_is_a_byte=x_is_a_byte)
            found.append(os.fsencode(_CHARACTER.sub(of_character, text)))
    return list(dict.fromkeys(found))


def _character(escape: re.Match[str], *, x_is_a_byte: bool) -> str:
    byte, code, letter = escape.groups()
    if byte is not None:
        return os.fsdecode(bytes.fromhex(byte)) if x_is_a_byte else chr(int(byte, 16))
    return chr(int(code, 16)) if code is not None else _LETTERS[letter]
