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
_DURATION: TypeAdapter[timedelta] = TypeAdapter(Duration)
_POSITIVE_DURATION: TypeAdapter[timedelta] = TypeAdapter(PositiveDuration)


@dataclass(frozen=True, slots=True)
class Moment:
    """A fixed moment, or so long before now: `now` is Redis's. ms."""

    at_ms: int = 0
    ago_ms: int | None = None

    def on(self, now_ms: int) -> int:
        """In ms since the epoch, where it is `now_ms`."""
        return self.at_ms if self.ago_ms is None else max(0, now_ms - self.ago_ms)


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> Moment | None:
    """
    The callback of an option: a time as in RFC 3339, or a duration: that long ago. A time without an offset is UTC.
    Raises click.BadParameter.
    """
    if value is None:
        return None
    with contextlib.suppress(ValidationError):
        return Moment(ago_ms=milliseconds(_DURATION.validate_python(value)))
    if _RFC3339.fullmatch(value):
        with contextlib.suppress(ValueError, OverflowError):
            found = datetime.fromisoformat(value.upper())
            # Everything is whole milliseconds, so what is at or after a fraction of one is at or after the next.
            since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)
            return Moment(at_ms=max(0, math.ceil(since / timedelta(milliseconds=1))))
    raise click.BadParameter(
        f"{value[:60]!r} is neither a time such as 2026-11-21T12:00:05Z or 2026-11-21T13:00:05.250+01:00 "
        "nor a duration such as 15m",
        context,
        parameter,
    )


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """The callback of an option: a duration as in the settings, longer than nothing. Raises click.BadParameter."""
    try:
        return None if value is None else _POSITIVE_DURATION.validate_python(value)
    except ValidationError:
        raise click.BadParameter(f"{str(value)[:60]!r} is no duration such as 30s or 10m", context, parameter) from None
