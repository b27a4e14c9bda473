"""Validates a reservation as a Cycles service does, so that the service does not report it as corrupted."""

import json
import re
from collections.abc import Mapping
from typing import Any

from sweeperd.ledger.errors import InvalidReservation

UNITS = frozenset({b"USD_MICROCENTS", b"TOKENS", b"CREDITS", b"RISK_POINTS"})
#: The levels of a scope path, outermost first.
LEVELS = ("tenant", "workspace", "app", "workflow", "agent", "toolset")
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_MOST_DIMENSIONS, _LONGEST_DIMENSION = 16, 256
_LONGEST_KIND, _LONGEST_NAME = 64, 256
_MOST_TAGS, _LONGEST_TAG = 10, 64


def check_unit(unit: bytes) -> None:
    """Raises InvalidReservation unless the service knows the unit."""
    if unit not in UNITS:
        raise InvalidReservation(b"unit")


def subject(scope_path: bytes, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The subject of a reservation: `given`, or the levels of the scope path. Raises InvalidReservation."""
    if given is None:
        parts = [part.partition(":") for part in scope_path.decode("utf-8", "replace").split("/")]
        given = {level: value for level, _, value in parts}
        if len(given) < len(parts):
            raise InvalidReservation(b"subject: the scope path has a level twice")
    for level, value in given.items():
        if level == "dimensions":
            _check("subject.dimensions", _are_dimensions(value))
        else:
            _check(f"subject.{level}", level in LEVELS and isinstance(value, str) and _NAME.fullmatch(value))
    _check("subject", any(level in given for level in LEVELS))
    return given


def action(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The action of a reservation. Raises InvalidReservation if the service cannot parse it."""
    given = given or {}
    _check("action.kind", _is_text(given.get("kind"), _LONGEST_KIND))
    _check("action.name", _is_text(given.get("name"), _LONGEST_NAME))
    for field, value in given.items():
        if field == "tags":
            tags = isinstance(value, list | tuple) and len(value) <= _MOST_TAGS
            _check("action.tags", tags and all(isinstance(tag, str) and len(tag) <= _LONGEST_TAG for tag in value))
        else:
            _check(f"action.{field}", field in ("kind", "name"))
    return given


def _are_dimensions(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) <= _MOST_DIMENSIONS
        and all(isinstance(text, str) and len(text) <= _LONGEST_DIMENSION for text in value.values())
    )


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= longest


def _check(field: str, valid: object) -> None:
    if not valid:
        raise InvalidReservation(json.dumps(field)[1:-1].encode())
