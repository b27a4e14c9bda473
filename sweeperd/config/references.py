"""References in settings: what is secret may stand in a file (`file:PATH`) or in the environment (`env:NAME`)."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationInfo


def fetched(value: object, info: ValidationInfo) -> object:
    """What the text refers to, or the text itself. Raises ValueError where that cannot be read."""
    if not isinstance(value, str):
        return value
    if value.startswith("file:"):
        try:
            return Path(value.removeprefix("file:")).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ValueError(f"the file cannot be read: {reason}") from None
    if value.startswith("env:"):
        variable = value.removeprefix("env:")
        environment: Mapping[str, str] = (info.context or {}).get("environment", os.environ)
        if variable not in environment:
            raise ValueError(f"the environment has no variable {variable}")
        return environment[variable]
    return value


def unread(value: object, info: ValidationInfo) -> bool:
    """Whether it stands elsewhere, and the command that loads the settings needs no secrets."""
    elsewhere = isinstance(value, str) and value.startswith(("file:", "env:"))
    return elsewhere and not (info.context or {}).get("secrets", True)
