"""Bytes from Redis as text for people."""

from datetime import UTC, datetime


def shown(value: bytes) -> str:
    """As UTF-8; what is not UTF-8 is shown escaped (`\\xff`)."""
    return value.decode("utf-8", "backslashreplace")


def rfc3339(milliseconds: int) -> str:
    """Milliseconds since the epoch as `2026-11-21T08:00:05.123Z`. Raises OverflowError, ValueError beyond year 9999."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
