"""What hangs on a connection to Redis, for both ledgers."""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import AsyncLedger, Ledger, NoBudget
from tests.support.blocking import blocking
from tests.support.harness import eventually
from tests.support.servers import Binary, Server, free_port
from tests.topology.servers import SENTINEL_PASSWORD, SERVICE, SentinelProcess

Connect = Callable[[str], Ledger]


@pytest.fixture(params=["Ledger", "AsyncLedger"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """A ledger for a URL, closed at the end."""
    with ExitStack() as stack:

        def connect(url: str) -> Ledger:
            if request.param == "Ledger":
                return stack.enter_context(contextlib.closing(Ledger.from_url(url)))
            made = blocking(lambda: AsyncLedger.from_url(url))
            stack.callback(made.close)
            return made

        yield connect


def ours(client: redis.Redis) -> int:
    """How many connections the server has from the ledger."""
    return sum(each["name"] == "sweeperd" for each in client.client_list())


def test_a_database(server: Server, client: redis.Redis, connect: Connect) -> None:
    connect(f"redis://127.0.0.1:{server.port}/3").open_budget("s", "TOKENS", 1)
    assert client.dbsize() == 0
    assert client.info("keyspace")["db3"]["keys"] == 1


def test_a_wrong_password(own_server: Server, connect: Connect) -> None:
    with redis.Redis.from_url(own_server.url) as admin:
        admin.config_set("requirepass", "right")
        ledger = connect(own_server.url.replace("//", "//:hush-hush@"))
        with pytest.raises(RedisUnavailable, match=r"invalid .*password") as caught:
            ledger.budget("s", "TOKENS")
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_the_connections_to_a_demoted_primary_are_closed(own_server: Server, connect: Connect) -> None:
    """So the next call asks again for the primary. 6.2 wraps the error of a script that writes."""
    ledger = connect(own_server.url)
    ledger.open_budget("s", "TOKENS", 100)
    with redis.Redis.from_url(own_server.url) as admin:
        assert ours(admin) == 1
        admin.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(RedisUnavailable, match=r"READONLY|replica"):
            ledger.event("a", ["s"], "TOKENS", 1, idempotency_key="1")
        eventually(lambda: ours(admin) == 0)
        admin.replicaof("NO", "ONE")
        assert ledger.event("a", ["s"], "TOKENS", 1, idempotency_key="1").charged == 1


def test_a_sentinel_that_refuses_is_passed_over(own_server: Server, redis_binary: Binary, connect: Connect) -> None:
    """The first node is a Redis without Sentinel."""
    with (
        Server(redis_binary) as other,
        contextlib.closing(SentinelProcess(redis_binary, own_server.port, 1)) as sentinel,
    ):
        with redis.Redis.from_url(other.url) as admin:
            admin.config_set("requirepass", SENTINEL_PASSWORD)
        hosts = f"127.0.0.1:{other.port},127.0.0.1:{sentinel.port}"

        def answers() -> bool:
            with sentinel.client() as client, contextlib.suppress(redis.ConnectionError):
                return str(client.sentinel_master(SERVICE)["flags"]) == "master"
            return False

        eventually(answers)
        ledger = connect(f"redis+sentinel://{hosts}/{SERVICE}/0?sentinel_password=s3ntinel%25")
        with pytest.raises(NoBudget):
            ledger.budget("s", "TOKENS")
        with sentinel.client() as client, redis.Redis.from_url(own_server.url) as admin:
            assert (ours(client), ours(admin)) == (1, 1)
            ledger.close()
            eventually(lambda: (ours(client), ours(admin)) == (0, 0))


def test_no_sentinel_knows_the_primary(redis_binary: Binary, connect: Connect) -> None:
    with Server(redis_binary) as other:
        ledger = connect(f"redis+sentinel://127.0.0.1:{other.port}/{SERVICE}/0?sentinel_password=hush-hush")
        with pytest.raises(RedisUnavailable, match=f"{SERVICE}: 127") as caught:
            ledger.budget("s", "TOKENS")
    assert "hush" not in "".join(traceback.format_exception(caught.value))
