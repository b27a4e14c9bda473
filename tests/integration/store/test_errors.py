"""What the errors of a script are taken for. Each server has words of its own for them."""

import re
import traceback
from collections.abc import Callable, Iterator

import pytest
import redis

from sweeperd.config import RedisSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.store import Shard
from sweeperd.store.errors import describe, is_full, is_refused, is_script_fault, is_server_trouble, is_unknown_command
from tests.support.servers import Binary, Server

JUDGES: list[Callable[[object], bool]] = [is_refused, is_unknown_command, is_script_fault, is_server_trouble, is_full]


def error_of(client: redis.Redis, script: str) -> redis.RedisError:
    """What running it raises."""
    with pytest.raises(redis.RedisError) as caught:
        client.eval(script, 1, "mine")
    return caught.value


def judged(error: redis.RedisError) -> list[Callable[[object], bool]]:
    """Which of the judges know it."""
    return [judge for judge in JUDGES if judge(error)]


def test_a_server_that_does_not_know_auth_repeats_no_password(redis_binary: Binary) -> None:
    with Server(redis_binary, ["--rename-command", "AUTH", ""]) as server:
        url = server.url.replace("//", "//user:hush-hush@")
        shard = Shard(RedisSettings.model_validate({"url": url}))
        with pytest.raises(RedisUnavailable, match="unknown command") as caught, shard.reaching():
            shard.read_clock()
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.fixture
def limited(server: Server, client: redis.Redis) -> Iterator[redis.Redis]:
    """A user who may use one key, and no ZREM."""
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">only-for-tests", "~mine", "+@all", "-zrem")
    with redis.Redis.from_url(server.url.replace("redis://", "redis://limited:only-for-tests@")) as user:
        yield user
    client.acl_deluser("limited")


@pytest.mark.parametrize("script", ["redis.call('ZREM', KEYS[1], 'x')", "redis.call('ZADD', 'other', 1, 'x')"])
@pytest.mark.parametrize("handed_on", [False, True], ids=["call", "pcall"])
def test_a_missing_right(limited: redis.Redis, script: str, handed_on: bool) -> None:
    script = f"return {script.replace('.call', '.pcall') if handed_on else script}"
    error = error_of(limited, script)
    assert judged(error) == [is_refused]
    assert not re.search("user_script|ACL failure in script", describe(error))


@pytest.mark.parametrize("script", ["return redis.call('NOSUCH', 'x')", "return redis.pcall('NOSUCH', 'x')"])
def test_a_command_that_the_server_does_not_have(client: redis.Redis, script: str) -> None:
    assert judged(error_of(client, script)) == [is_refused, is_unknown_command]
    with pytest.raises(redis.ResponseError) as caught:
        client.execute_command("NOSUCH", "mine")
    assert judged(caught.value) == [is_refused, is_unknown_command]


def test_a_right_to_a_command_that_the_server_does_not_have(client: redis.Redis) -> None:
    script = "return redis.acl_check_cmd and redis.acl_check_cmd('NOSUCH', KEYS[1]) or redis.call('NOSUCH', KEYS[1])"
    assert judged(error_of(client, script)) == [is_refused, is_unknown_command]


@pytest.mark.parametrize("script", ["return no.such", "no Lua"])
def test_a_fault_of_the_script(client: redis.Redis, script: str) -> None:
    assert judged(error_of(client, script)) == [is_script_fault]


@pytest.mark.parametrize("script", ["return redis.call('SET', KEYS[1], 1)", "return redis.pcall('SET', KEYS[1], 1)"])
def test_a_full_server(own_server: Server, script: str) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory", 1)
        error = error_of(client, script)
        assert judged(error) == [is_full]
        assert re.fullmatch(r"(OOM )?command not allowed when used memory > 'maxmemory'\.", describe(error))


@pytest.mark.parametrize("script", ["return redis.call('SET', KEYS[1], 1)", "return redis.pcall('SET', KEYS[1], 1)"])
def test_a_server_in_trouble(own_server: Server, script: str) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("min-replicas-to-write", 1)
        error = error_of(client, script)
        assert judged(error) == [is_server_trouble]
        assert describe(error) == "NOREPLICAS Not enough good replicas to write."
        client.replicaof("127.0.0.1", 1)
        error = error_of(client, script)
        assert judged(error) == [is_server_trouble]
        assert re.fullmatch(r"(READONLY )?You can't write against a read only replica\.", describe(error))


def test_another_type(client: redis.Redis) -> None:
    client.set("mine", 1)
    error = error_of(client, "return redis.call('HGET', KEYS[1], 'x')")
    assert judged(error) == []
    assert describe(error) == "WRONGTYPE Operation against a key holding the wrong kind of value"
