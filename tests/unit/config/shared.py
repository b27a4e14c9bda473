"""Gives the tests of the settings an endpoint, the defaults, and what the problems say."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from sweeperd.config import Settings
from sweeperd.errors import ConfigError

ENDPOINT = '[[webhooks.endpoints]]\nname = "billing"\nurl = "https://billing.example.com/hook"\n'
DURATION = "a duration"
NO_REDIS_URL = "not a URL of Redis"
BLANK_URL = "white space or a control character"
NO_HTTP_URL = "not a URL with http:// or https:// and a host"
ASTRAY = "an @ after the host"


def flat(section: BaseModel, stem: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; secrets as they are."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from flat(value, f"{stem}{name}.")
        else:
            yield stem + name, value.get_secret_value() if isinstance(value, SecretStr) else value


#: Held to `config.example.toml` by test_example.
DEFAULTS = dict(flat(Settings()))


def problems(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return str(error.value).splitlines()
