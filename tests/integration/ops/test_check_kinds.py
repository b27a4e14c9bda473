"""`sweeperd check` of a configured kind."""

from typing import Any

import pytest
import redis
from pydantic import SecretStr

from sweeperd.ops.acl import acl_users
from sweeperd.ops.check import CheckFinding, check_shard
from sweeperd.store import Shard
from tests.lua.kinds.world import SEATS, scripted, settings_of
from tests.support.servers import Server


def finding(server: Server, kind: dict[str, Any]) -> CheckFinding:
    settings = settings_of(kind)
    redis_settings = settings.redis.model_copy(update={"url": SecretStr(server.url)})
    settings = settings.model_copy(update={"redis": redis_settings})
    shard = Shard(redis_settings)
    try:
        (found,) = [each for each in check_shard(shard, settings) if each.check == "kind seat-hold"]
    finally:
        shard.close()
    return found


@pytest.mark.parametrize("kind", [SEATS, scripted("function decide() end")], ids=["declared", "script"])
def test_a_kind_that_can_be_swept(server: Server, client: redis.Redis, kind: dict[str, Any]) -> None:
    client.zadd("seats:ttl", {"h1": 1})
    found = finding(server, kind)
    assert (found.level.value, found.says) == ("ok", "seats:ttl: 1 entries")


@pytest.mark.parametrize("right", ["jobs:running:*", "sweeperd:protected:seat-hold"])
def test_a_key_that_unless_needs_and_the_user_may_not_read(server: Server, client: redis.Redis, right: str) -> None:
    settings = settings_of(SEATS | {"unless": "EXISTS jobs:running:{id}"})
    (user,) = acl_users(settings, settings.all_shards, "all", commands=False)
    rules = [rule for rule in user.rules if rule != f"~{right}"]
    assert len(rules) < len(user.rules)
    client.execute_command("ACL", "SETUSER", "limited", "reset", ">pw", *rules)
    shard = Shard(settings.redis.model_copy(update={"url": SecretStr(server.url.replace("://", "://limited:pw@"))}))
    try:
        (found,) = [each for each in check_shard(shard, settings) if each.check == "rights"]
    finally:
        shard.close()
        client.execute_command("ACL", "DELUSER", "limited")
    assert found.level.value == "failure"
    assert right.rstrip("*") in found.says


def test_a_script_that_does_not_compile(server: Server) -> None:
    found = finding(server, scripted("--[["))
    assert found.level.value == "failure"
    assert "does not compile" in found.says


def test_an_index_of_another_type(server: Server, client: redis.Redis) -> None:
    client.hset("seats:ttl", "a", "b")
    found = finding(server, SEATS)
    assert (found.level.value, found.says) == ("failure", "seats:ttl is a hash")
