"""Keeps the figures of a step in RELEASE_DIR."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

NAME = "figures.json"


def directory() -> Path:
    """Where the command that runs writes its files."""
    return Path(os.environ["RELEASE_DIR"])


def keep(figures: Mapping[str, str]) -> None:
    """Write them."""
    (directory() / NAME).write_text(json.dumps(figures, indent=1), encoding="utf-8")


def skip(step: str, reason: str) -> int:
    """Keep the reason instead of figures. Returns the exit code."""
    keep({step: f"not run: {reason}"})
    return 0
