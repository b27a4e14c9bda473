"""The addresses in settings: Redis's and a receiver's URL, a proxy's, and the host and port to listen on."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

from sweeperd import redis_url
from sweeperd.config.references import fetched, unread


def _redis_url(value: SecretStr) -> SecretStr:
    redis_url.parse(value.get_secret_value())
    return value


def _http_url(value: SecretStr) -> SecretStr:
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
        # It may be a piece of a password, which would be shown with the path and sent to another host.
        raise ValueError(
            "an @ after the host: user and password are written with %2F, %3F, %23 and %40 for `/`, `?`, `#` and `@`, "
            "and a path with %40"
        )
    redis_url.check_host(parts.hostname or "")
    return value


def _proxy(value: object, info: ValidationInfo) -> object:
    return None if unread(value, info) else fetched(value, info)


def _proxy_url(value: SecretStr | None) -> SecretStr | None:
    if value is None:
        return None
    if not _http_url(value).get_secret_value().lower().startswith("http:"):
        raise ValueError("must begin with http://: TLS goes through the proxy to the receiver, not to the proxy itself")
    return value


#: The name of a host, without port.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})$")]
RedisUrl = Annotated[SecretStr, BeforeValidator(fetched), AfterValidator(_redis_url)]
HttpUrl = Annotated[SecretStr, AfterValidator(_http_url)]
#: It may hold a password, so it may stand in a file or in the environment.
OptionalProxyUrl = Annotated[SecretStr | None, BeforeValidator(_proxy), AfterValidator(_proxy_url)]


def check_prefix(url: RedisUrl, prefix: str) -> None:
    """Raises ValueError where the scripts could not run, because their keys would be spread over a Cluster."""
    topology = redis_url.parse(url.get_secret_value()).topology
    if topology is redis_url.Topology.CLUSTER and not redis_url.hash_tag(prefix):
        raise ValueError(
            'needs a hash tag, such as "{tenant-a}:", so that all keys lie in one slot of the cluster behind the url'
        )


def host_and_port(listen: str) -> tuple[str, int]:
    """Raises ValueError where it is not `host:port`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError('must be "host:port", or "" to turn HTTP off')
    if int(port) > redis_url.MAX_PORT:
        raise ValueError(f"a port is a number from 0 (any free one) to {redis_url.MAX_PORT}")
    if host:
        redis_url.check_host(host)
    return host.removeprefix("[").removesuffix("]"), int(port)
