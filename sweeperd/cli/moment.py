"""Parses moments and durations as operators type them."""

import contextlib
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

from sweeperd.text import timestamp

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII | re.IGNORECASE
)
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_DURATION = re.compile(r"(?:\d{1,9}(?:ms|s|m|h|d))+", re.ASCII)
_PART = re.compile(r"\d+[a-z]+", re.ASCII)
_DAY_MS = 86_400_000


#: The moment that a text means, ms since the epoch, when Redis's clock says the argument.
Moment = Callable[[int], int]


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> Moment | None:
    """The callback of an option that takes an RFC 3339 time, a duration before now, or a time of day."""
    if value is None:
        return None
    if _DURATION.fullmatch(value):
        from sweeperd.config.types import milliseconds, parse_duration  # noqa: PLC0415

        with contextlib.suppress(ValueError, OverflowError):
            ago_ms = sum(milliseconds(parse_duration(part)) for part in _PART.findall(value))
            return lambda now_ms: max(0, now_ms - ago_ms)
    if found_time := _TIME_OF_DAY.fullmatch(value):
        hours, minutes, seconds = (int(part or 0) for part in found_time.groups())
        of_day_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000
        return lambda now_ms: now_ms - (now_ms - of_day_ms) % _DAY_MS
    if _RFC3339.fullmatch(value):
        with contextlib.suppress(ValueError, OverflowError):
            found = datetime.fromisoformat(value.upper())
            # Redis's times are whole milliseconds, so a fraction is rounded up.
            since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
            at_ms = max(0, math.ceil(since / timedelta(milliseconds=1)))
            return lambda _now_ms: at_ms
    raise click.BadParameter(
        f"{value[:60]!r} is neither a time such as 2026-11-21T12:00:05Z or 2026-11-21T13:00:05.250+01:00 "
        "nor a time of day such as 12:00 nor a duration such as 15m or 1h30m",
        context,
        parameter,
    )


def left_out(ahead_ms: int) -> str:
    """What a span up to now leaves out while ids are ahead of Redis's clock; `ahead_ms`: from `end_if_ahead`."""
    return (
        "Redis's clock was set back: events that seem later than now are left out; "
        f"--until {timestamp(ahead_ms)} includes them"
    )


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """The callback of an option that takes a duration above zero, as the settings do."""
    if value is None:
        return None
    from sweeperd.config.types import parse_duration  # noqa: PLC0415

    with contextlib.suppress(ValueError, OverflowError):
        if found := parse_duration(value):
            return found
    raise click.BadParameter(f"{value[:60]!r} is not a duration such as 30s or 10m", context, parameter)
