"""Parses the URL of a Redis server, of a primary behind Sentinel, or of a Cluster."""

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis.connection

#: The library name and version that a connection reports. Computed once, because redis-py would search the installed
#: packages for each connection, which takes a millisecond. Older versions lack this option.
DRIVER: dict[str, Any] = {}
with contextlib.suppress(ImportError):
    from redis.driver_info import DriverInfo

    DRIVER["driver_info"] = DriverInfo(lib_version=redis.__version__)

#: The message for a malformed URL.
FORMS = (
    "not a URL of Redis: redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or "
    "rediss+cluster:// and what redis-py takes in one"
)
SENTINEL_FORM = "redis+sentinel://user:password@host1:26379,host2:26379/service/db"
CLUSTER_FORM = "redis+cluster://user:password@host1:6379,host2:6379"

MAX_PORT = 65535
_SENTINEL_PORT, _REDIS_PORT = 26379, 6379
_LOOPBACK = {"127.0.0.1": "localhost", "::1": "localhost"}
_SENTINEL_CREDENTIALS = ("sentinel_username", "sentinel_password")
_URL = re.compile(r"(rediss?)\+(sentinel|cluster)://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?")
#: Options of redis-py that would change the displayed address, the type of replies, or how often a command is sent.
_RELIED_ON = frozenset(
    """
    host port path connection_class redis_connect_func decode_responses encoding encoding_errors parser_class protocol
    legacy_responses command_packer retry retry_on_timeout retry_on_error credential_provider event_dispatcher cache
    cache_factory maint_notifications_config
    """.split()  # noqa: SIM905
)
#: The longest host name and DNS label, characters.
_LONGEST_HOST, _LONGEST_LABEL = 253, 63
#: The message if part of an unescaped password may be in the URL.
_ASTRAY = "an @ after the host: in user and password, escape `/`, `?`, `#` and `@` as %2F, %3F, %23 and %40"
_NODE = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?")

Node = tuple[str, int]


class Topology(StrEnum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Address:
    """A parsed URL. Neither its `repr` nor `shown` contains secrets."""

    topology: Topology
    #: The URL without user, password and options, for display.
    shown: str
    #: The sentinels or cluster nodes to query; empty for a single server.
    nodes: tuple[Node, ...] = ()
    #: Sentinel's name for the primary and its replicas.
    service: str = ""
    tls: bool = False
    #: redis-py's options of the connections to Redis.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: redis-py's options of the connections to the sentinels.
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse(url: str) -> Address:
    """Parse a URL. Raises ValueError. The message quotes nothing, because any part may be a misplaced password."""
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
    # redis-py parses options and credentials, from a URL in a form that it knows.
    plain = f"{scheme}://{credentials}{'@' if credentials else ''}host?{query}"
    options = _options(plain, _SENTINEL_CREDENTIALS if topology is Topology.SENTINEL else ())
    if topology is Topology.SENTINEL:
        return _sentinel(nodes, path, options, shown, tls=scheme == "rediss")
    if path not in ("", "/", "/0") or options.get("db"):
        raise ValueError(f"a cluster has only database 0: {CLUSTER_FORM}")
    return Address(topology, shown, nodes, "", scheme == "rediss", options)


def place(url: str) -> tuple[object, ...]:
    """Equal for the URLs of one database that only differ in user, options or spelling. Raises ValueError."""
    found = parse(url)
    database = found.options.get("db", 0)
    if found.topology is not Topology.SINGLE:
        return found.topology, frozenset(found.nodes), found.service, database
    given = redis.connection.parse_url(url)
    host = given.get("host", "").lower().removesuffix(".")
    return given.get("path"), _LOOPBACK.get(host, host), given.get("port", _REDIS_PORT), database


def hash_tag(prefix: str) -> bool:
    """Whether all keys with this prefix are in one slot of a Cluster."""
    _, brace, rest = prefix.partition("{")
    # Redis hashes the text between the first opening brace and the next closing one.
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
    Check host, path and options of redis:// and rediss://. redis-py ignores a path that is not a number and defaults to
    localhost, so a password with a `/` would become the address. Raises ValueError.
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
        raise ValueError("the part after the host is not a database number")


def _sentinel(nodes: tuple[Node, ...], path: str, options: dict[str, Any], shown: str, *, tls: bool) -> Address:
    service, _, database = path.removeprefix("/").removesuffix("/").partition("/")
    if not service:
        raise ValueError(f"names no service: {SENTINEL_FORM}")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError(f"the part after the service is not a database number: {SENTINEL_FORM}")
    if database:
        options["db"] = int(database)
    ours = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl_"))}
    for name in _SENTINEL_CREDENTIALS:
        if value := options.pop(name, None):
            ours[name.removeprefix("sentinel_")] = value
    return Address(Topology.SENTINEL, shown, nodes, unquote(service), tls, options, ours)


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
    """Raises ValueError if the number in `host:port` is not a port. Quotes nothing of the text."""
    _, colon, port = place.rpartition(":")
    if colon and port.isascii() and port.isdigit() and not 0 < int(port[:9]) <= MAX_PORT:
        raise ValueError(f"the port must be from 1 to {MAX_PORT}")


def check_host(place: str) -> None:
    """
    Raises ValueError if the host in `host`, `host:port` or `[IPv6]:port` is not a valid host name. Quotes nothing of
    the text.
    """
    host = unquote(place if place.endswith("]") else place.partition(":")[0] or place)
    try:
        ascii_host = host.encode("idna").removesuffix(b".")
    except UnicodeError:
        ascii_host = b""
    if not ascii_host or len(ascii_host) > _LONGEST_HOST:
        raise ValueError(
            f"its host is not a valid name: each label has 1 to {_LONGEST_LABEL} characters, and the whole name up to "
            f"{_LONGEST_HOST}"
        )


def _options(url: str, further: Collection[str] = ()) -> dict[str, Any]:
    """The checked credentials and options of a URL for redis-py; `further` stay unchecked. Raises ValueError."""
    try:
        options: dict[str, Any] = redis.connection.parse_url(url)
    except (ValueError, TypeError):
        raise ValueError(FORMS) from None
    given = parse_qs(urlsplit(url).query, keep_blank_values=True)
    if refused := sorted(_RELIED_ON.intersection(given)):
        raise ValueError(f"the URL must not set the option {refused[0]}: sweeperd sets it")
    try:
        # Creates a connection without opening it, which checks every option.
        known = {name: value for name, value in options.items() if name not in further}
        redis.ConnectionPool(**DRIVER, **known).make_connection()
    except (ValueError, TypeError):
        raise ValueError(FORMS) from None
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    return options
