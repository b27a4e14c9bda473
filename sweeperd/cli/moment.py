"""Moments as an operator types them."""

import contextlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click
from pydantic import TypeAdapter, ValidationError

from sweeperd.config.types import Duration, PositiveDuration, milliseconds

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII | re.IGNORECASE
)
_TIME_OF_DAY = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
#: Several durations in one, such as 1h30m.
_PARTS = re.compile(r"(?:\d{1,9}(?:ms|s|m|h|d))+", re.ASCII)
_PART = re.compile(r"\d+[a-z]+", re.ASCII)
_DAY_MS = 86_400_000
_DURATION: TypeAdapter[timedelta] = TypeAdapter(Duration)
_POSITIVE_DURATION: TypeAdapter[timedelta] = TypeAdapter(PositiveDuration)


@dataclass(frozen=True, slots=True)
class Moment:
    """A fixed moment, so long before now, or the latest time of day: `now` is Redis's. ms."""

    at_ms: int = 0
    ago_ms: int | None = None
    #: Since midnight, UTC.
    of_day_ms: int | None = None

    def on(self, now_ms: int) -> int:
        """In ms since the epoch, where it is `now_ms`."""
        if self.of_day_ms is not None:
            today = now_ms - now_ms % _DAY_MS + self.of_day_ms
            return today if today <= now_ms else today - _DAY_MS
        return self.at_ms if self.ago_ms is None else max(0, now_ms - self.ago_ms)


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> Moment | None:
    """
    The callback of an option: a time as in RFC 3339, a duration (that long ago), or a time of day (the latest one). A
    time without an offset is UTC. Raises click.BadParameter.
    """
    if value is None:
        return None
    if _PARTS.fullmatch(value):
        with contextlib.suppress(ValidationError, OverflowError):
            parts = [milliseconds(_DURATION.validate_python(part)) for part in _PART.findall(value)]
            return Moment(ago_ms=sum(parts))
    if found_time := _TIME_OF_DAY.fullmatch(value):
        hours, minutes, seconds = (int(part or 0) for part in found_time.groups())
        return Moment(of_day_ms=((hours * 60 + minutes) * 60 + seconds) * 1000)
    if _RFC3339.fullmatch(value):
        with contextlib.suppress(ValueError, OverflowError):
            found = datetime.fromisoformat(value.upper())
            # Everything is whole milliseconds, so what is at or after a fraction of one is at or after the next.
            since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
            return Moment(at_ms=max(0, math.ceil(since / timedelta(milliseconds=1))))
    raise click.BadParameter(
        f"{value[:60]!r} is neither a time such as 2026-11-21T12:00:05Z or 2026-11-21T13:00:05.250+01:00 "
        "nor a time of day such as 12:00 nor a duration such as 15m or 1h30m",
        context,
        parameter,
    )


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """The callback of an option: a duration as in the settings, longer than nothing. Raises click.BadParameter."""
    try:
        return None if value is None else _POSITIVE_DURATION.validate_python(value)
    except ValidationError:
        raise click.BadParameter(f"{str(value)[:60]!r} is no duration such as 30s or 10m", context, parameter) from None
