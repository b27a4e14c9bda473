"""URLs of Redis: what each form says, what is refused, and that nothing secret is shown."""

from typing import Any

import pytest
import redis
from redis import ResponseError
from redis.sentinel import MasterNotFoundError

from sweeperd.config import RedisSettings
from sweeperd.errors import ConfigError, RedisUnavailable
from sweeperd.redis_url import Topology, hash_tag, parse
from sweeperd.store import Shard
from sweeperd.store.connect import client_options, connect
from sweeperd.store.errors import is_server_trouble, is_unanswered
from tests.support.fixtures import Load


def test_sentinel_in_full() -> None:
    found = parse(
        "rediss+sentinel://us%40er:p%2Fss@one:1,[::1]:2,three/my%20service/7"
        "?sentinel_username=watch&sentinel_password=s%25cret&ssl_ca_certs=/ca.pem&socket_keepalive=yes&max_connections=9"
    )
    assert (found.topology, found.service, found.tls) == (Topology.SENTINEL, "my service", True)
    assert found.nodes == (("one", 1), ("::1", 2), ("three", 26379))
    common = {"ssl_ca_certs": "/ca.pem", "socket_keepalive": True}
    assert found.options == common | {"username": "us@er", "password": "p/ss", "db": 7, "max_connections": 9}
    assert found.sentinel_options == common | {"username": "watch", "password": "s%cret"}
    assert found.shown == "rediss+sentinel://one:1,[::1]:2,three/my%20service/7"


def test_sentinel_in_short() -> None:
    found = parse("redis+sentinel://one/service")
    assert (found.nodes, found.service, found.tls) == ((("one", 26379),), "service", False)
    assert (found.options, found.sentinel_options) == ({}, {})


def test_cluster() -> None:
    found = parse("redis+cluster://user:pa:ss@one:7000,two/?socket_keepalive=yes")
    assert (found.topology, found.nodes, found.tls) == (Topology.CLUSTER, (("one", 7000), ("two", 6379)), False)
    assert found.options == {"username": "user", "password": "pa:ss", "socket_keepalive": True}
    assert found.shown == "redis+cluster://one:7000,two"
    assert parse("rediss+cluster://one/0").tls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:sesame@one:1/2?password=sesame", "redis://one:1/2"),
        ("rediss://:sesame@one", "rediss://one"),
        ("redis://one/", "redis://one/"),
        ("redis://one?db=3&password=se@same", "redis://one"),
        ("rediss://user:se%2Fsame@[::1]:1/15", "rediss://[::1]:1/15"),
        ("unix://user:sesame@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("unix:///run/redis@home.sock", "unix:///run/redis@home.sock"),
    ],
)
def test_a_single_server(url: str, shown: str) -> None:
    found = parse(url)
    assert (found.topology, found.shown) == (Topology.SINGLE, shown)
    assert "sesame" not in repr(found)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://u:sesame@one", "service"),
        ("redis+sentinel://u:sesame@one/", "service"),
        ("redis+sentinel://u:sesame@one//0", "service"),
        ("redis+sentinel://u:sesame@one/service/sesame", "database"),
        ("redis+sentinel://u:sesame@one/service/0/1", "database"),
        ("redis+sentinel://u:sesame@/service", "hosts"),
        ("redis+sentinel://u:sesame@one,,two/service", "hosts"),
        ("redis+sentinel://u:sesame@one:six/service", "hosts"),
        ("redis+sentinel://u:sesame@one:0/service", "65535"),
        ("redis+sentinel://u:sesame@one:65536/service", "65535"),
        ("redis+sentinel://u:sesame@::1/service", "hosts"),
        ("redis+sentinel://u:ses/ame@one/service", "%40"),
        ("redis+sentinel://u:sesame@one/service?colour=sesame", "URL of Redis"),
        ("redis+sentinel://u:sesame@one/service?socket_timeout=sesame", "URL of Redis"),
        ("redis+cluster://u:sesame@one/1", "database 0"),
        ("redis+cluster://u:sesame@one/?db=1", "database 0"),
        ("redis+cluster://u:sesame@one/service", "database 0"),
        ("redis+cluster://u:sesame@one:x", "hosts"),
        ("redis+cluster://u:sesame@one/?sentinel_password=sesame", "URL of Redis"),
        ("redis://u:sesame@one/?sentinel_password=sesame", "URL of Redis"),
        ("redis://u:sesame@one:x/", "URL of Redis"),
        ("redis+ring://u:sesame@one/", "URL of Redis"),
        # A password that holds a character of the URL's own syntax, not escaped: it would be taken for host and path.
        ("redis://:/sesame@one:6379/0", "host"),
        ("redis://u:/sesame@one:6379/0", "%40"),
        ("redis://u:7/sesame@one:6379/0", "%40"),
        ("rediss://:?sesame@one", "host"),
        ("redis://u:7?sesame@one", "%40"),
        ("redis://u:7#sesame@one", "%40"),
        ("redis://", "host"),
        ("redis:///0", "host"),
        ("redis://u:sesame@:6379/0", "host"),
        ("rediss://one/sesame", "database"),
        ("redis://one/0/1", "database"),
        ("redis://one/-1", "database"),
        ("unix://:/sesame@/run/redis.sock", "%40"),
        ("redis+sentinel://u:7/sesame@one/service", "%40"),
        ("redis+cluster://u:7/sesame@one", "%40"),
        *(
            (f"{url}?{option}={value}", f"the option {option}")
            for url in ("redis://u:sesame@one/", "redis+sentinel://one/service", "redis+cluster://one/", "unix:///a")
            for option, value in [
                ("decode_responses", "True"),
                ("encoding", "latin-1"),
                ("protocol", "3"),
                ("retry_on_timeout", "yes"),
                ("retry_on_error", "sesame"),
                ("host", "sesame"),
                ("redis_connect_func", "x"),
                ("legacy_responses", ""),
                ("credential_provider", "x"),
                ("path", "/sesame"),
                ("parser_class", "x"),
            ]
        ),
        (f"redis://u:sesame@{'a' * 64}/", "valid name"),
        ("redis://u:sesame@a..b:6379/", "valid name"),
        (f"redis+sentinel://u:sesame@one,{'a' * 64}/service", "valid name"),
        (f"redis+cluster://u:sesame@{'a' * 64}", "valid name"),
    ],
)
def test_refused(url: str, problem: str, config: Load) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        config(f'[redis]\nurl = "{url}"\n[keys]\nprefix = "{{a}}"')
    _, key, text = str(refused.value).partition("redis.url: ")
    assert key
    assert "sesame" not in text


@pytest.mark.parametrize(
    ("prefix", "one_slot"),
    [
        ("{a}:", True),
        ("tenants:{a}", True),
        ("{a}{", True),
        ("{{a}", True),
        ("", False),
        ("a:", False),
        ("{}", False),
        ("{}{a}", False),
        ("{a", False),
        ("a}", False),
        ("}a{", False),
    ],
)
def test_a_cluster_needs_a_hash_tag(prefix: str, one_slot: bool, config: Load) -> None:
    assert hash_tag(prefix) is one_slot
    toml = f'[redis]\nurl = "redis+cluster://user:sesame@one"\n[keys]\nprefix = "{prefix}"'
    if one_slot:
        assert config(toml).keys.prefix == prefix
        return
    with pytest.raises(ConfigError, match=r"keys\.prefix: .*hash tag") as refused:
        config(toml)
    assert "sesame" not in str(refused.value)


def test_url_and_prefix_may_come_from_different_places(config: Load) -> None:
    url = "redis+cluster://one"
    assert config(f'[redis]\nurl = "{url}"', {"SWEEPERD_KEYS__PREFIX": "{a}"}).keys.prefix == "{a}"
    assert config('[keys]\nprefix = "{a}"', {"SWEEPERD_REDIS__URL": url}).keys.prefix == "{a}"
    with pytest.raises(ConfigError, match="hash tag"):
        config("", {"SWEEPERD_REDIS__URL": url})


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://sesame:sesame@127.0.0.1:1,127.0.0.1:2/service?sentinel_username=sesame&sentinel_password=sesame",
        "redis+cluster://sesame:sesame@127.0.0.1:1,127.0.0.1:2",
        "redis://sesame:sesame@127.0.0.1:1",
    ],
)
def test_nobody_is_there(url: str) -> None:
    shard = Shard(RedisSettings.model_validate({"url": url}), "{a}:")
    with pytest.raises(RedisUnavailable) as told, shard.reaching():
        shard.read_clock()
    text = str(told.value)
    assert "127.0.0.1:1" in text
    pool = shard.client.connection_pool
    for shown in (text, shard.address, repr(shard.client), repr(pool), repr(pool.make_connection())):
        assert "sesame" not in shown
    shard.close()


@pytest.mark.parametrize("kind", ["sentinel://127.0.0.1/service", "cluster://127.0.0.1", None])
def test_nothing_is_sent_twice_in_silence(kind: str | None) -> None:
    url = f"redis+{kind}" if kind else "redis://127.0.0.1"
    options = client_options(connect_timeout=2, socket_timeout=3, connections=100)
    client = connect(parse(url), url, b"{a}", options, lambda connection: connection.on_connect())
    connection: Any = client.connection_pool.make_connection()
    assert connection.retry.get_retries() == 0
    assert (connection.socket_connect_timeout, connection.socket_timeout) == (2, 3)
    for sentinel in getattr(getattr(client.connection_pool, "sentinel_manager", None), "sentinels", []):
        asking = sentinel.connection_pool.make_connection()
        assert asking.retry.get_retries() == 0
        assert (asking.socket_connect_timeout, asking.socket_timeout) == (2, 3)


@pytest.mark.parametrize(
    "text",
    [
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "ERR Error running script: @user_script:1: Script attempted to access a non local key in a cluster node",
        "Script attempted to execute a command while the cluster is down",
    ],
)
def test_what_a_fail_over_or_a_moving_slot_says_is_trouble_of_the_server(text: str) -> None:
    assert is_server_trouble(ResponseError(text))


@pytest.mark.parametrize(
    ("error", "unanswered"),
    [
        (redis.ConnectionError("Connection closed by server."), True),
        (redis.TimeoutError("Timeout reading from socket"), True),
        (redis.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."), False),
        (redis.TimeoutError("Timeout connecting to server"), False),
        (redis.BusyLoadingError("LOADING"), False),
        (redis.AuthenticationError("WRONGPASS"), False),
        (MasterNotFoundError("No master found for 'mymaster'"), False),
        (ResponseError("OOM"), False),
    ],
)
def test_what_may_have_been_done_without_an_answer(error: Exception, unanswered: bool) -> None:
    assert is_unanswered(error) is unanswered
