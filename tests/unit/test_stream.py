"""Runs of a script that are sent before the replies to earlier ones were read."""

import pytest
import redis

from sweeperd.embedded import Server
from sweeperd.lua import Call, Script
from sweeperd.shard import Shard

SCRIPT = Script("double", "if ARGV[1] == 'no' then return redis.error_reply('ERR no') end return ARGV[1] * 2")


def call(*args: int | str) -> list[Call]:
    return [Call([], [arg]) for arg in args]


@pytest.fixture(params=[False, True], ids=["known", "unknown"])
def client(shard: Shard, request: pytest.FixtureRequest) -> redis.Redis:
    """Of a server that knows the script, and of one that does not."""
    if not request.param:
        shard.client.script_load(SCRIPT.source)
    return shard.client


def test_replies_come_in_the_order_of_the_calls(client: redis.Redis) -> None:
    with SCRIPT.stream(client) as stream:
        stream.send(call(1, 2))
        stream.send(call(3))
        assert stream.receive() == [2, 4]
        stream.send(call(4))
        assert [stream.receive(), stream.receive()] == [[6], [8]]


def test_an_error_stands_in_its_calls_place(client: redis.Redis) -> None:
    with SCRIPT.stream(client) as stream:
        stream.send(call(1, "no", 2))
        stream.send(call(3))
        one, error, two = stream.receive()
        assert (one, str(error), two) == (2, "no", 4)
        assert stream.receive() == [6]


def test_a_connection_with_replies_on_the_way_is_not_used_again(client: redis.Redis) -> None:
    with SCRIPT.stream(client) as stream:
        stream.send(call(1))
    with SCRIPT.stream(client) as stream:
        stream.send(call(5))
        assert stream.receive() == [10]
    assert client.ping()


def test_a_connection_that_fails_is_told_of_and_replaced(client: redis.Redis, server: Server) -> None:
    with redis.Redis.from_url(server.url) as other, SCRIPT.stream(client) as stream:
        stream.send(call(1))
        assert stream.receive() == [2]
        other.client_kill_filter(_type="normal", skipme=True)

        def again() -> None:
            for _ in range(2):  # the first may still be written
                stream.send(call(2))
                stream.receive()

        with pytest.raises(redis.ConnectionError):
            again()
    with SCRIPT.stream(client) as stream:
        stream.send(call(3))
        assert stream.receive() == [6]
