"""Validates the values that several sections have: durations, names and addresses."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)

from sweeperd import redis_url
from sweeperd.config.commands import command
from sweeperd.config.secrets import fetched, fetched_secret, unread

#: How the names of sweeperd's own keys begin, after the prefix.
OWN_KEYS = "sweeperd:"
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: The present time plus a duration must stay within what Redis and Python can hold.
_YEAR = timedelta(days=365)
DURATION = r"(\d{1,9})(ms|s|m|h|d)"
_PERCENTAGE = re.compile(r"(\d{1,9})%")


def _bounded(value: timedelta, most: timedelta) -> timedelta:
    if value > most:
        raise ValueError(f'must be at most "{most.days}d"')
    return value


def parse_duration(value: object) -> timedelta:
    """Raises ValueError if the value is not a duration."""
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str) or not (match := re.fullmatch(DURATION, value)):
        raise ValueError('must be a duration such as "250ms", "5s", "10m", "72h" or "30d"')
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _percentage(value: object) -> object:
    if value == "":
        return None
    if isinstance(value, str) and (match := _PERCENTAGE.fullmatch(value)):
        return int(match[1])
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value  # as `model_dump` gives it
    raise ValueError('must be a percentage such as "110%"')


def milliseconds(duration: timedelta) -> int:
    """A duration in whole milliseconds, the unit of the scripts and of Redis's commands."""
    return duration // timedelta(milliseconds=1)


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0")
    return value


def duration_text(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads."""
    ms = milliseconds(value)
    unit = next(unit for unit in reversed(_UNITS) if ms % milliseconds(timedelta(**{_UNITS[unit]: 1})) == 0)
    return f"{ms // milliseconds(timedelta(**{_UNITS[unit]: 1}))}{unit if ms else 's'}"


def as_text(pattern: str, show: Callable[[Any], str] = str) -> tuple[Any, Any]:
    """The JSON schema of a setting that is written as text, and how to show its value as text."""
    shown = PlainSerializer(lambda value: "" if value is None else show(value), when_used="json")
    return WithJsonSchema({"type": "string", "pattern": pattern}), shown


def matching(pattern: str, words: str) -> tuple[Any, Any]:
    """Checks that a text matches the pattern, with these words in the error instead of the pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(words)
        return text

    return AfterValidator(check), WithJsonSchema({"type": "string", "pattern": pattern})


_WRITTEN = as_text(f"^{DURATION}$", duration_text)
#: A time-out or an interval.
Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), AfterValidator(lambda value: _bounded(value, _YEAR)), *_WRITTEN
]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
#: How long something is kept, or counts.
Retention = Annotated[
    timedelta, BeforeValidator(parse_duration), AfterValidator(lambda value: _bounded(value, 100 * _YEAR)), *_WRITTEN
]
PositiveRetention = Annotated[Retention, AfterValidator(_positive)]
#: "" turns the setting off: None.
OptionalDuration = Annotated[
    PositiveDuration | None,
    BeforeValidator(lambda value: None if value == "" else value),
    *as_text(f"^({DURATION})?$", duration_text),
]
#: A share in percent, such as 110; "" turns the setting off: None.
OptionalPercentage = Annotated[
    Annotated[int, Field(ge=1, le=1000)] | None,
    BeforeValidator(_percentage),
    *as_text(f"^({_PERCENTAGE.pattern})?$", "{}%".format),
]
#: A name in metrics, in log lines and in the names of consumer groups.
Identifier = Annotated[
    str,
    *matching(
        r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        "must be up to 64 letters, digits and `._-`, and begin with a letter or a digit",
    ),
]


class Section(BaseModel):
    """A table of the settings."""

    # No section is validated by itself, so it doesn't need its own validator.
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True, defer_build=True
    )


def current_url(url: SecretStr) -> str:
    """The URL of a Redis, which a command may print. Raises ValueError."""
    found = command(url.get_secret_value())
    return url.get_secret_value() if found is None else found.value("url")


def _redis_url(value: SecretStr) -> SecretStr:
    redis_url.parse(current_url(value))
    return value


def _credential(value: SecretStr) -> SecretStr:
    command(value.get_secret_value())
    return value


def _http_url(value: SecretStr) -> SecretStr:
    if re.search(r"[\s\x00-\x1f\x7f]", value.get_secret_value()):
        raise ValueError("holds white space or a control character; write a space within a URL as %20")
    authority = re.split("[/?#]", value.get_secret_value().partition("://")[2])[0]
    redis_url.check_port(authority.rpartition("@")[2])
    try:
        parts = urlsplit(value.get_secret_value())
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("not a URL with http:// or https:// and a host")
    if "@" in parts.path or "@" in parts.fragment or parts.netloc.endswith(":"):
        # The text may be part of a password, which would be shown with the path and sent to another host.
        raise ValueError(
            "an @ after the host: in user and password, write `/`, `?`, `#` and `@` as %2F, %3F, %23 and %40; in a "
            "path, write `@` as %40"
        )
    redis_url.check_host(parts.hostname or "")
    return value


def _proxy(value: object, info: ValidationInfo) -> object:
    return None if unread(value, info) else fetched_secret(value, info)


def _proxy_url(value: SecretStr) -> SecretStr:
    if not _http_url(value).get_secret_value().lower().startswith("http:"):
        raise ValueError("must begin with http://: TLS goes through the proxy to the receiver, not to the proxy itself")
    return value


def _shown_host(secret: SecretStr) -> str:
    """The URL without user, password, path and query, which may be credentials."""
    url = urlsplit(secret.get_secret_value())
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{'/…' if url.path.strip('/') or url.query else ''}"


#: The name of a host, without port.
HostName = Annotated[
    str, *matching(r"^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})$", "must be the name of a host, without a port")
]
RedisUrl = Annotated[
    SecretStr,
    BeforeValidator(fetched),
    AfterValidator(_redis_url),
    PlainSerializer(lambda url: redis_url.parse(current_url(url)).shown, when_used="json"),
]
#: A user or a password of Redis, or `exec:` and the command that prints it.
Credential = Annotated[SecretStr, BeforeValidator(fetched), AfterValidator(_credential)]
HttpUrl = Annotated[SecretStr, AfterValidator(_http_url), PlainSerializer(_shown_host, when_used="json")]
#: The URL may hold a password, so it may be a reference to a file or to the environment.
OptionalProxyUrl = Annotated[Annotated[SecretStr, AfterValidator(_proxy_url)] | None, BeforeValidator(_proxy)]


def check_prefix(url: RedisUrl, prefix: str) -> None:
    """
    Raises ValueError if the keys could be taken for sweeperd's own under a shorter prefix, which `uninstall` removes,
    or would be spread over the slots of a Cluster, where no script could run.
    """
    if OWN_KEYS in prefix:
        raise ValueError(f'must not hold "{OWN_KEYS}", which begins the names of sweeperd\'s own keys')
    topology = redis_url.parse(current_url(url)).topology
    if topology is redis_url.Topology.CLUSTER and not redis_url.hash_tag(prefix):
        raise ValueError(
            'needs a hash tag, such as "{tenant-a}:", so that all keys are in one slot of the cluster at the url'
        )


def host_and_port(listen: str) -> tuple[str, int]:
    """Raises ValueError if the text is not `host:port`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError('must be "host:port", or "" to turn HTTP off')
    if int(port) > redis_url.MAX_PORT:
        raise ValueError(f"a port is a number from 0 (any free one) to {redis_url.MAX_PORT}")
    if host:
        redis_url.check_host(host)
    return host.removeprefix("[").removesuffix("]"), int(port)
