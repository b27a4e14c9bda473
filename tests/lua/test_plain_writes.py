"""The rule of plain writes: the guard under which all tests run the scripts finds what breaks it."""

import hashlib
import re

import pytest
import redis

from sweeperd.store.scripts import INCLUDE, Script, own_text, script_names
from tests.support.plain_writes import MARK, WRITES, guarded

pytestmark = pytest.mark.every_redis

#: Only this one may use the `cjson` that all scripts of a server share.
OWN_CJSON = "include/json"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("redis.call('SET', 'a', 1) return redis.call('GET', 'a')", "the read GET after SET"),
        ("redis.call('SET', 'a', 1) redis.pcall('HSET', 'a', 'b', 'c')", "an attempt of HSET after SET"),
        ("redis.call('SET', 'a', 1) redis.call('ZADD', 'a', 1, 'm')", "ZADD failed after SET"),
        ("redis.call('SET', 'a', 1) return cjson.encode({})", "cjson.encode after SET"),
        ("local json = cjson.new() redis.call('SET', 'a', 1) return json.encode({})", "cjson.encode after SET"),
        ("local format = string.format redis.call('SET', 'a', 1) return format('%d', 1)", "string.format after SET"),
        ("redis.pcall('SET', 'a', 1) return math.max(1, 2)", "math.max after SET"),
        ("redis.call('ZREM', 'a', 'm') redis.pcall('XADD', 'a', '*', 'f', 'v') redis.call('EXISTS', 'a')", "XADD"),
    ],
)
def test_what_breaks_the_rule(client: redis.Redis, text: str, problem: str) -> None:
    with pytest.raises(redis.ResponseError, match=f"{MARK}sweep/page: .*{problem}"):
        client.eval(guarded("sweep/page", text), 0)


@pytest.mark.parametrize(
    "text",
    [
        "local text = cjson.encode({}) redis.call('SET', 'a', text) redis.call(unpack({'ZADD', 'z', 1, text}))",
        "redis.call('ZREM', 'a', 'm') redis.pcall('XADD', 'a', '*', 'f', 'v') redis.call('DEL', 'a')",
        "redis.pcall('ZREM', 'a', '\\0sweeperd check') redis.call('GET', 'a')",
        "pcall(redis.call, 'XADD', 'a', '0-0', 'f', 'v') redis.call('GET', 'a')",
        "redis.call('SET', 'a', 1) redis.pcall('PUBLISH', 'c', 'm') redis.call('PEXPIRE', 'a', 1000)",
    ],
)
def test_what_keeps_the_rule(client: redis.Redis, text: str) -> None:
    client.eval(guarded("sweep/page", text), 0)


def test_the_scripts_are_guarded() -> None:
    guard, other = Script("ledger/reserve").source[:100], Script("sweep/page")
    assert other.source.startswith(guard)
    assert other.sha == hashlib.sha1(other.source.encode(), usedforsecurity=False).hexdigest()
    assert not Script("a script of a test", "return 1").source.startswith(guard)


def test_every_write_is_known(client: redis.Redis) -> None:
    names = [*script_names(), *script_names(INCLUDE)]
    words = {word for name in names for word in re.findall(r"'([A-Z]{3,})'", own_text(name))}
    flags = {name.upper(): about["flags"] for name, about in client.command().items()}
    written = {word for word in words if "write" in flags.get(word, ())}
    assert written
    assert written <= WRITES


def test_json_has_settings_of_its_own() -> None:
    names = [*script_names(), *script_names(INCLUDE)]
    using = {name for name in names if re.search(r"\bcjson\.", re.sub(r"--.*", "", own_text(name)))}
    assert using == {OWN_CJSON}
