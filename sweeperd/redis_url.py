"""The URL of a Redis: one server, a primary known to Sentinel, or the part of a Cluster with a prefix."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.connection

#: The form of a URL of Redis.
FORMS = (
    "not a URL of Redis: redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or "
    "rediss+cluster:// and what redis-py takes in one"
)
SENTINEL_FORM = "redis+sentinel://user:password@host1:26379,host2:26379/service/db"
CLUSTER_FORM = "redis+cluster://user:password@host1:6379,host2:6379"

MAX_PORT = 65535
_SENTINEL_PORT, _REDIS_PORT = 26379, 6379
_SENTINEL_CREDENTIALS = ("sentinel_username", "sentinel_password")
_URL = re.compile(r"(rediss?)\+(sentinel|cluster)://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?")
#: Options of redis-py in a URL that change the shown address, the type of answers, or how often a command is sent.
_RELIED_ON = frozenset(
    """
    host port path connection_class redis_connect_func decode_responses encoding encoding_errors parser_class protocol
    legacy_responses command_packer retry retry_on_timeout retry_on_error credential_provider event_dispatcher cache
    cache_factory maint_notifications_config
    """.split()  # noqa: SIM905
)
#: The most characters of a host's name, and of each of its labels.
_LONGEST_HOST, _LONGEST_LABEL = 253, 63
#: The hint if a piece of an unescaped password may be in the URL.
_ASTRAY = "an @ after the host: in user and password, `/`, `?`, `#` or `@` are written as %2F, %3F, %23 and %40"
_NODE = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?")

Node = tuple[str, int]


class Topology(StrEnum):
    """The parties that know the place of the data."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Address:
    """The content of a URL. Nothing secret is in its `repr` or in `shown`."""

    topology: Topology
    #: The URL without user, password and options, for people to read.
    shown: str
    #: The nodes to ask for the place of the data; empty for a single server.
    nodes: tuple[Node, ...] = ()
    #: Sentinel's name for the primary and its replicas.
    service: str = ""
    tls: bool = False
    #: For the connections to Redis, under redis-py's names.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: For the connections to the sentinels.
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse(url: str) -> Address:
    """Read a URL. Raises ValueError with a text that shows nothing of the URL: any part may be a misplaced password."""
    found = _URL.fullmatch(url)
    if not found:
        return _single(url)
    scheme, kind, authority, path, query = found.groups(default="")
    if "@" in path:
        raise ValueError(_ASTRAY)
    credentials, _, hosts = authority.rpartition("@")
    topology = Topology(kind)
    nodes = _nodes(hosts, _SENTINEL_PORT if topology is Topology.SENTINEL else _REDIS_PORT)
    shown = f"{scheme}+{kind}://{hosts}{path.rstrip('/')}"
    # redis-py knows how to read options and credentials, so it is given a URL in a form known to redis-py.
    plain = f"{scheme}://{credentials}{'@' if credentials else ''}host?{query}"
    options = _options(plain, _SENTINEL_CREDENTIALS if topology is Topology.SENTINEL else ())
    if topology is Topology.SENTINEL:
        return _sentinel(nodes, path, options, shown, tls=scheme == "rediss")
    return _cluster(nodes, path, options, shown, tls=scheme == "rediss")


def hash_tag(prefix: str) -> bool:
    """True if all keys with this prefix lie in one slot of a Cluster, with any text after the prefix."""
    _, brace, rest = prefix.partition("{")
    # Redis looks only at the first brace, and at the text between it and the next closing brace.
    return bool(brace) and rest.find("}") > 0


def _single(url: str) -> Address:
    scheme, _, rest = url.partition("://")
    authority, slash, path = re.split(r"[?#]", rest)[0].partition("/")
    place = authority.rpartition("@")[2]
    if scheme in ("redis", "rediss"):
        _check_place(place, path, rest)
    elif scheme == "unix" and ":" in authority and "@" not in authority and "@" in path:
        raise ValueError(_ASTRAY)
    options = _options(url)
    return Address(Topology.SINGLE, f"{scheme}://{place}{slash}{path}", tls=scheme == "rediss", options=options)


def _check_place(place: str, path: str, rest: str) -> None:
    """
    Host, path and options of redis:// and rediss://. If a path is no number, redis-py passes over the path, and if
    there is no host, redis-py takes localhost: so a password with a `/` would become the address. Raises ValueError.
    """
    if not place or place.startswith(":"):
        raise ValueError("names no host")
    check_port(place)
    check_host(place)
    _, _, query = rest.partition("?")
    names = (option.partition("=")[0] for option in query.split("&"))
    if "@" in path or "@" in rest.partition("#")[2] or any("@" in name for name in names):
        raise ValueError(_ASTRAY)
    if path and not (path.isascii() and path.isdigit()):
        raise ValueError("what follows the host is no number of a database")


def _sentinel(nodes: tuple[Node, ...], path: str, options: dict[str, Any], shown: str, *, tls: bool) -> Address:
    service, _, database = path.removeprefix("/").removesuffix("/").partition("/")
    if not service:
        raise ValueError(f"names no service that the sentinels know: {SENTINEL_FORM}")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"what follows the service is no number of a database: {SENTINEL_FORM}")
    if database:
        options["db"] = int(database)
    ours = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl_"))}
    for name in _SENTINEL_CREDENTIALS:
        if value := options.pop(name, None):
            ours[name.removeprefix("sentinel_")] = value
    return Address(Topology.SENTINEL, shown, nodes, unquote(service), tls, options, ours)


def _cluster(nodes: tuple[Node, ...], path: str, options: dict[str, Any], shown: str, *, tls: bool) -> Address:
    if path not in ("", "/", "/0") or options.get("db"):
        raise ValueError(f"a cluster has no database but 0: {CLUSTER_FORM}")
    return Address(Topology.CLUSTER, shown, nodes, "", tls, options)


def _nodes(hosts: str, default_port: int) -> tuple[Node, ...]:
    nodes = []
    for part in hosts.split(","):
        found = _NODE.fullmatch(part)
        if not found:
            raise ValueError("its hosts are not host, host:port or [IPv6]:port, separated by commas")
        check_port(part)
        check_host(part)
        nodes.append((unquote(found[1]).removeprefix("[").removesuffix("]"), int(found[2] or default_port)))
    return tuple(nodes)


def check_port(place: str) -> None:
    """Raises ValueError if `host:port` has a number that is no port. Shows nothing of the text."""
    _, colon, port = place.rpartition(":")
    if colon and port.isascii() and port.isdigit() and not 0 < int(port[:9]) <= MAX_PORT:
        raise ValueError(f"a port is a number from 1 to {MAX_PORT}")


def check_host(place: str) -> None:
    """
    Raises ValueError if the host in `host`, `host:port` or `[IPv6]:port` is no name for a look-up. Shows nothing of the
    text.
    """
    host = unquote(place if place.endswith("]") else place.partition(":")[0] or place)
    try:
        ascii_host = host.encode("idna").removesuffix(b".")
    except UnicodeError:
        ascii_host = b""
    if not ascii_host or len(ascii_host) > _LONGEST_HOST:
        raise ValueError(
            f"its host is no name: each part between dots has 1 to {_LONGEST_LABEL} characters, the whole "
            f"{_LONGEST_HOST} at most"
        )


def _options(url: str, further: Collection[str] = ()) -> dict[str, Any]:
    """
    User, password and options in a URL for redis-py, each checked; `further` are taken unchecked. Raises
    ValueError.
    """
    try:
        options: dict[str, Any] = redis.connection.parse_url(url)
    except (ValueError, TypeError):
        raise ValueError(FORMS) from None
    given = parse_qs(urlsplit(url).query, keep_blank_values=True)
    if refused := sorted(_RELIED_ON.intersection(given)):
        raise ValueError(f"the option {refused[0]} is not for a URL in these settings: sweeperd sets it")
    try:
        # Makes a connection without opening it, and so checks every option.
        known = {name: value for name, value in options.items() if name not in further}
        redis.ConnectionPool(**known).make_connection()
    except (ValueError, TypeError):
        raise ValueError(FORMS) from None
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    return options
