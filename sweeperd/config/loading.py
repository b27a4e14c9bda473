"""Loads settings from a TOML file and the environment, and reports each problem on its own line."""

import difflib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sweeperd.config.certificates import trusted_bundle
from sweeperd.config.settings import Settings
from sweeperd.config.types import check_prefix
from sweeperd.errors import ConfigError

#: `SWEEPERD_SWEEP__BATCH_SIZE` overrides `sweep.batch_size`.
ENVIRONMENT_PREFIX = "SWEEPERD_"
#: Replaces the file's name when the problem is in the environment.
ENVIRONMENT = "environment"
#: Names the configuration file unless `--config` does.
CONFIG_VARIABLE = "SWEEPERD_CONFIG"
#: Where to look for the configuration file when neither `--config` nor the variable names one.
CONFIG_PLACES = (Path("config.toml"), Path("/etc/sweeperd/config.toml"))
#: The settings that are lists: in the environment they are JSON.
JSON_KEYS = (["shards"], ["kinds"], ["webhooks", "endpoints"], ["http", "hosts"], ["events", "groups"])
#: A key of the settings, or the name of a header.
_KEY = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]*")


#: The error of the validator -> our words.
_WORDS = {
    "missing": "is missing",
    "too_long": "has {actual_length} items; up to {max_length} are allowed",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "finite_number": "must be a number",
}
#: The same by the first word of the error, which is the expected type.
_TYPES = {
    "string": "must be text",
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "list": "must be a list",
    "dict": "must be a table",
    "model": "must be a table",
}


def explain(error: ValidationError, source: str, data: Mapping[str, Any]) -> str:
    """One line for each problem, without values. `source`: the file, or ENVIRONMENT; `data`: what was validated."""
    lines: dict[tuple[int | str, ...], list[str]] = {}
    for detail in error.errors(include_url=False, include_input=False):
        lines.setdefault(_place(detail, data), []).append(_problem(detail, source))
    # Where a value may have several forms, each has its error. The form that fits furthest is the one that was meant.
    furthest = {place for place in lines if not any(place == other[: len(place)] != other for other in lines)}
    said = ((place, problem) for place in lines if place in furthest for problem in _joined(lines[place]))
    # What concerns several tables has no place, and its words name the keys.
    return "\n".join(": ".join(filter(None, (source, _key(place, source), problem))) for place, problem in said)


def _place(detail: ErrorDetails, data: Any) -> tuple[int | str, ...]:
    """Where the error is, without the names of the forms that the validator tried."""
    place: list[int | str] = []
    fields = {name.rpartition(".")[2] for name in _known(Settings)}
    for part in detail["loc"]:
        if isinstance(data, Mapping) and (part in data or part in fields):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        else:
            continue
        place.append(part)
    return tuple(place)


def _joined(problems: Sequence[str]) -> Iterable[str]:
    if len(problems) > 1 and all(problem.startswith("must be ") for problem in problems):
        return [" or ".join(dict.fromkeys(problems)).replace(" or must be ", " or ")]
    return dict.fromkeys(problems)


def _key(place: Sequence[int | str], source: str) -> str:
    if source == ENVIRONMENT:
        # A list is one variable with JSON, so the place within the list follows the variable's name.
        names = [str(part) for part in itertools.takewhile(lambda part: isinstance(part, str), place)]
        return _variable(names) + _path(place[len(names) :])
    return _path(place).removeprefix(".")


def _path(place: Sequence[int | str]) -> str:
    """Hides a part that cannot be a key, such as a URL or a header with its value, because it may hold a secret."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part if _KEY.fullmatch(part) else '…'}" for part in place
    )


def _problem(detail: ErrorDetails, source: str) -> str:
    kind = detail["type"]
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    if kind != "extra_forbidden":
        words = _WORDS.get(kind) or _TYPES.get(kind.partition("_")[0], "is not a valid value")
        limits = detail.get("ctx", {}).items()
        return words.format(
            **{name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in limits}
        ).replace("'", '"')
    names = [part for part in detail["loc"] if isinstance(part, str)]
    found = _meant(names)
    if not found:
        return "unknown key"
    if source == ENVIRONMENT and len(names) == len(detail["loc"]):
        # What is in a list has no variable.
        in_list = any(found[: len(key)] == key != found for key in JSON_KEYS)
        return "unknown key" if in_list else f"unknown key; did you mean {_variable(found)}?"
    return f"unknown key; did you mean {found[-1] if found[:-1] == names[:-1] else '.'.join(found)}?"


def _meant(names: Sequence[str]) -> list[str]:
    """The key that an unknown one probably stands for: a similar one of its section, else its name elsewhere; or []."""
    *section, name = names
    known = [key.split(".") for key in _known(Settings)]
    if close := difflib.get_close_matches(name, [last for *before, last in known if before == section], 1):
        return [*section, close[0]]
    # A table at the top is no place for a value.
    elsewhere = [key for key in known if len(key) > 1 or not any(_tables(Settings.model_fields[key[0]].annotation))]
    same = difflib.get_close_matches(name, [key[-1] for key in elsewhere], 1, 0.9)
    paths = [".".join(key) for key in elsewhere if key[-1:] == same]
    return difflib.get_close_matches(".".join(names), paths, 1, 0)[0].split(".") if paths else []


def _known(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """All keys of a section. Keys of tables and of list items follow a dot: `sweep.batch_size`."""
    for name, field in section.model_fields.items():
        yield before + name
        for table in _tables(field.annotation):
            yield from _known(table, f"{before}{name}.")


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _tables(argument)


def _variable(names: list[str]) -> str:
    return ENVIRONMENT_PREFIX + "__".join(names).upper() if names else ""


def load(
    path: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    secrets: bool = True,
    places: Sequence[Path] = CONFIG_PLACES,
) -> Settings:
    """
    Read the file at `path` (else the one named by SWEEPERD_CONFIG, else the first of `places` that exists, else none)
    and apply the environment's overrides. Without `secrets`, the endpoints' secrets in files and variables are not
    read: their files may be missing, but nothing can be signed. Raises ConfigError.
    """
    path = find_file(path, environment, places)
    data = _read(path) if path else {}
    context: dict[str, Any] = {
        "environment": environment,
        "directory": path.parent if path else Path(),
        "secrets": secrets,
        "files": set(),
        "secret_files": set(),
    }
    try:
        # A file has types, which must be right. A value from the environment is text.
        settings = Settings.model_validate(data, strict=True, context=context)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path), data)) from None
    if given := overrides(environment):
        data = _merge(data, given)
        try:
            settings = Settings.model_validate(data, context=context)
        except ValidationError as error:
            raise ConfigError(explain(error, ENVIRONMENT, data)) from None
    bundle = None
    if secrets and any(each.trusts_the_environment for each in settings.webhooks.endpoints):
        try:
            bundle = trusted_bundle(environment)
        except ValueError as error:
            raise ConfigError(f"{ENVIRONMENT}: {error}") from None
    settings.watch(context["files"], context["secret_files"], bundle)
    for number, shard in enumerate(settings.all_shards):
        try:
            # Checked last, because the url may come from the file and the prefix from the environment.
            check_prefix(shard.url, shard.prefix)
        except ValueError as error:
            key = f"shards[{number}].prefix" if settings.shards else "keys.prefix"
            raise ConfigError(f"{path or ENVIRONMENT}: {key}: {error}") from None
    return settings


def find_file(
    path: Path | None, environment: Mapping[str, str] = os.environ, places: Sequence[Path] = CONFIG_PLACES
) -> Path | None:
    """The settings file that `load` reads, if any."""
    if path is None:
        named = environment.get(CONFIG_VARIABLE)
        path = Path(named) if named else next((place for place in places if place.exists()), None)
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
    if text.startswith("\ufeff"):
        raise ConfigError(f"{path}: begins with a byte order mark; save it as UTF-8 without one")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {_last_key(text)}: {_too_much(error)}") from None


def _last_key(text: str) -> str:
    """The key of a value that tomllib cannot hold. It doesn't report the place, so the lines before it are read."""
    lines = text.splitlines(keepends=True)
    for end in range(1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # within a value of several lines
        except (ValueError, RecursionError):
            break
    before = "".join(lines[:end])
    table, key = (re.findall(form, before, re.MULTILINE) for form in (r"^\s*\[+([\w.-]+)\]+", r"^\s*([\w.-]+)\s*="))
    return ".".join([*table[-1:], *key[-1:]]) or "settings"


def _too_much(error: ValueError | RecursionError) -> str:
    return "is nested too deeply" if isinstance(error, RecursionError) else "holds a number of too many digits"


def overrides(environment: Mapping[str, str]) -> dict[str, Any]:
    """The environment's overrides, nested like the settings."""
    found: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name == CONFIG_VARIABLE:
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(key) == 1 and key[0] not in Settings.model_fields:
            continue  # Kubernetes sets variables such as SWEEPERD_SERVICE_HOST for a service of this name
        value: Any = text
        if key in JSON_KEYS:
            try:
                value = json.loads(text)
            except json.JSONDecodeError as error:
                raise ConfigError(f"{ENVIRONMENT}: {name}: is not JSON: {error}") from None
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{ENVIRONMENT}: {name}: {_too_much(error)}") from None
        place = found
        for part in key[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{ENVIRONMENT}: {name}: {part} already has a value")
        place[key[-1]] = value
    return found


def _merge(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for key, value in overrides.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
