"""Bytes from Redis as numbers, and as text for people."""

import functools
import json
from datetime import UTC, datetime


def decode(value: bytes) -> str:
    """As UTF-8; what is not UTF-8 is shown escaped (`\\xff`)."""
    return value.decode("utf-8", "backslashreplace")


def whole(value: bytes) -> int | None:
    """A number without a sign, of 19 digits at most: int64 has no more. None where it is no such number."""
    return int(value) if value.isdigit() and len(value) <= 19 else None


def strings(value: bytes) -> tuple[bytes, ...]:
    """The strings of a JSON array, in bytes. Raises ValueError where it is none."""
    if value == b"[]":
        return ()  # as it is nearly always
    items = json.loads(value.decode("utf-8", "surrogateescape"))
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("not an array of strings")
    return tuple(item.encode("utf-8", "surrogateescape") for item in items)


def moment_ms(score: bytes | float) -> float:
    """The score of a sorted set as ms since the epoch: from 0 to 2^53, also where it is less, more, or infinite."""
    return min(max(float(score), 0.0), 2.0**53)


def decode_list(value: bytes) -> tuple[str, ...]:
    """A JSON array of strings, each as `shown` shows it. Raises ValueError where it is none."""
    return tuple(decode(item) for item in strings(value))


def rfc3339(milliseconds: int) -> str:
    """Milliseconds since the epoch as `2026-11-21T08:00:05.123Z`. Raises OverflowError, ValueError beyond year 9999."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    """What expires together has the same seconds, again and again."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def span(seconds: float) -> str:
    """A duration for people: `0.4 s`, `12 s`, `3 m 5 s`, `2 h 10 m`, `4 d 3 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def per_second(rate: float) -> str:
    """A rate for people: `0.13`, `12.5`, `1,234`. The status page writes it in the same way."""
    return f"{rate:,.{0 if rate >= 100 else 1 if rate >= 10 else 2}f}"


def parse_rfc3339(instant: str) -> int:
    """The opposite of `rfc3339`. Raises ValueError for a text of another form."""
    return round(datetime.fromisoformat(instant).timestamp() * 1000)
