"""Reads the settings from a TOML file and the environment."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sweeperd.config.addresses import check_prefix
from sweeperd.config.problems import ENVIRONMENT, ENVIRONMENT_PREFIX, explain
from sweeperd.config.settings import Settings
from sweeperd.errors import ConfigError

#: Names the configuration file where `--config` does not.
CONFIG_VARIABLE = "SWEEPERD_CONFIG"
#: Where a configuration file is looked for when nothing names one.
CONFIG_PLACES = (Path("config.toml"), Path("/etc/sweeperd/config.toml"))
#: The settings that are lists: in the environment they are JSON.
JSON_KEYS = (["shards"], ["kinds"], ["webhooks", "endpoints"], ["http", "hosts"])


def load(path: Path | None = None, environment: Mapping[str, str] = os.environ, *, secrets: bool = True) -> Settings:
    """
    Read the file at `path` (else the one that SWEEPERD_CONFIG names, else the first of the usual places that exists,
    else none) and put the environment's overrides on top. Without `secrets` the secrets of endpoints that stand in
    files and variables are not read: nothing can be signed then, and their files need not be there. Raises ConfigError.
    """
    path = _find(path, environment)
    data = _read(path) if path else {}
    context = {"environment": environment, "directory": path.parent if path else Path(), "secrets": secrets}
    try:
        # A file has types, so it is held to them; what comes from the environment is text.
        settings = Settings.model_validate(data, strict=True, context=context)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from None
    overrides = _overrides(environment)
    if overrides:
        try:
            settings = Settings.model_validate(_merge(data, overrides), context=context)
        except ValidationError as error:
            raise ConfigError(explain(error, ENVIRONMENT)) from None
    for number, shard in enumerate(settings.all_shards):
        try:
            # Only now: one of the two may come from the file and the other from the environment.
            check_prefix(shard.url, shard.prefix)
        except ValueError as error:
            key = f"shards[{number}].prefix" if settings.shards else "keys.prefix"
            raise ConfigError(f"{path or ENVIRONMENT}: {key}: {error}") from None
    return settings


def _find(path: Path | None, environment: Mapping[str, str]) -> Path | None:
    if path is None and environment.get(CONFIG_VARIABLE):
        path = Path(environment[CONFIG_VARIABLE])
    if path is not None:
        return path
    return next((place for place in CONFIG_PLACES if place.exists()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _overrides(environment: Mapping[str, str]) -> dict[str, Any]:
    """The environment's overrides, nested as the settings are."""
    found: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name == CONFIG_VARIABLE:
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(key) == 1 and key[0] not in Settings.model_fields:
            continue  # Kubernetes puts SWEEPERD_SERVICE_HOST and the like next to a service of that name
        value: Any = text
        if key in JSON_KEYS:
            try:
                value = json.loads(text)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{ENVIRONMENT}: {name}: is not JSON: {error}") from None
        place = found
        for part in key[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{ENVIRONMENT}: {name}: {part} has a value already")
        place[key[-1]] = value
    return found


def _merge(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for key, value in overrides.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
