"""What is wrong with the settings: a line for each problem with file and key, and a similar key for an unknown one."""

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sweeperd.config.settings import Settings

#: `SWEEPERD_SWEEP__BATCH_SIZE` overrides `sweep.batch_size`.
ENVIRONMENT_PREFIX = "SWEEPERD_"
#: Stands for the file's name where the problem is in the environment.
ENVIRONMENT = "environment"

#: A key of the settings, or the name of a header.
_KEY = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]*")


def explain(error: ValidationError, source: str) -> str:
    """One line for each problem; `source` is the file, or ENVIRONMENT. No value of a setting is in it."""
    return "\n".join(f"{source}: {_key(detail, source)}: {_problem(detail, source)}" for detail in error.errors())


def _key(detail: ErrorDetails, source: str) -> str:
    place = detail["loc"]
    if source == ENVIRONMENT:
        # What an override breaks is named as its variable. The items of a list have none: it is JSON, and the place
        # within it follows.
        names = [str(part) for part in itertools.takewhile(lambda part: isinstance(part, str), place)]
        return _variable(names) + _path(place[len(names) :]) or "settings"
    return _path(place).removeprefix(".") or "settings"


def _path(place: Sequence[int | str]) -> str:
    """A key that is none, such as a URL or a header with its value, may hold a secret, so it is not shown."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part if _KEY.fullmatch(part) else '…'}" for part in place
    )


def _problem(detail: ErrorDetails, source: str) -> str:
    if detail["type"] == "extra_forbidden":
        return "unknown key" + _similar(_names(detail), has_variable=source == ENVIRONMENT and not _in_list(detail))
    return detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _similar(names: list[str], *, has_variable: bool) -> str:
    close = difflib.get_close_matches(".".join(names), _known(Settings), 1)
    if not close:
        return ""
    found = close[0].split(".")
    if has_variable:
        return f"; did you mean {_variable(found)}?"
    return f"; did you mean {found[-1] if found[:-1] == names[:-1] else close[0]}?"


def _known(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """All keys of a section, those of its tables and of the items of its lists with dots: `sweep.batch_size`."""
    for name, field in section.model_fields.items():
        yield before + name
        for table in _tables(field.annotation):
            yield from _known(table, f"{before}{name}.")


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _tables(argument)


def _in_list(detail: ErrorDetails) -> bool:
    return any(isinstance(part, int) for part in detail["loc"])


def _names(detail: ErrorDetails) -> list[str]:
    return [part for part in detail["loc"] if isinstance(part, str)]


def _variable(names: list[str]) -> str:
    return ENVIRONMENT_PREFIX + "__".join(names).upper() if names else ""
