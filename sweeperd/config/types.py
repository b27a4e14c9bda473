"""The types that settings are made of: durations, names, and the section that refuses unknown keys."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str) or not (match := _DURATION.fullmatch(value)):
        raise ValueError('a duration is text such as "250ms", "5s", "10m", "72h" or "30d"')
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def milliseconds(duration: timedelta) -> int:
    """A duration in whole milliseconds, as the scripts and Redis's commands take it."""
    return duration // timedelta(milliseconds=1)


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than nothing")
    return value


def _or_off(value: object) -> object:
    """The empty text turns it off."""
    return None if value in ("", None) else _duration(value)


def _positive_or_off(value: timedelta | None) -> timedelta | None:
    return None if value is None else _positive(value)


Duration = Annotated[timedelta, BeforeValidator(_duration)]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
#: "" turns it off: None.
OptionalDuration = Annotated[timedelta | None, BeforeValidator(_or_off), AfterValidator(_positive_or_off)]
#: Stands in metrics, in log lines and in the names of consumer groups.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Section(BaseModel):
    """A table of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)
