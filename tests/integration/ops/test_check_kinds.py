"""`sweeperd check` of a configured kind."""

from typing import Any

import pytest
import redis
from pydantic import SecretStr

from sweeperd.ops.acl import acl_users
from sweeperd.ops.check.findings import CheckFinding
from sweeperd.ops.check.server import check_shard
from sweeperd.store import Shard
from sweeperd.sweep import kinds_of
from sweeperd.sweep.proof import prove
from tests.lua.kinds.world import DEADLINE, SEATS, scripted, settings_of
from tests.support.kind_settings import hold_seats
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


@pytest.mark.parametrize(
    "kind",
    [SEATS, scripted("function decide() return 'expire' end function plan() return {}, {} end")],
    ids=["declared", "script"],
)
def test_a_kind_that_can_be_swept(server: Server, client: redis.Redis, kind: dict[str, Any]) -> None:
    hold_seats(client, "h1", 1, DEADLINE)
    found = finding(server, kind)
    assert (found.level.value, found.says) == ("ok", "seats:ttl: 1 entry")


#: Far ahead of every test's clock, ms.
AHEAD = 4_000_000_000_000
#: One wrong word in the settings, and what the finding names.
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "key": (SEATS | {"key": "seats:holds:{id}"}, ["seats:holds:{id}", "seats:ttl"]),
    "active": (SEATS | {"active": {"state": "held"}}, ["state is HELD", "held", "`active`"]),
    "field of active": (
        SEATS | {"active": {"status": "HELD"}, "ended": {"status": "EXPIRED"}},
        ["INVALID_STATE", "`active`"],
    ),
    "deadline": (SEATS | {"deadline": "ends_at"}, ["3 sampled", "ends_at", "`deadline`"]),
    "ended of a script": (
        scripted("function decide() return 'expire' end", ended={"state": "HELD"}),
        ["state is HELD", "`ended`"],
    ),
    "ended": (SEATS | {"active": {"state": "held"}, "ended": {"state": "HELD"}}, ["state is HELD", "`ended`"]),
    "script": (scripted("function decide(hash) return 'skip', hash.state end"), ["skip", "HELD"]),
}


@pytest.mark.parametrize(("wrong", "deadline"), [*((wrong, AHEAD) for wrong in WRONG), ("active", DEADLINE)])
def test_settings_that_fit_no_entry(server: Server, client: redis.Redis, wrong: str, deadline: int) -> None:
    for number in range(3):
        hold_seats(client, f"h{number}", 1, deadline)
    kind, named = WRONG[wrong]
    found = finding(server, kind)
    assert found.level.value == "failure"
    assert [text for text in named if text not in found.says] == []
    assert found.advice


MEMBERS = {"a job": '{"task":"mail","to":"a@example.org"}', "a whole key": "seats:hold:h1"}


@pytest.mark.parametrize("sort", MEMBERS)
def test_members_that_are_not_the_ids_of_the_key(server: Server, client: redis.Redis, sort: str) -> None:
    client.hset("seats:hold:h1", "state", "HELD")
    client.zadd("seats:ttl", {MEMBERS[sort]: DEADLINE})
    found = finding(server, SEATS)
    assert found.level.value == "failure"
    assert ("no `key`" in found.says) is (sort == "a job")


def test_the_sample_covers_the_whole_index(server: Server, client: redis.Redis) -> None:
    """Of 2,000 entries without a hash and 40 living ones behind them, the sample finds a living one."""
    client.zadd("seats:ttl", {f"x{number}": number for number in range(2000)})
    for number in range(40):
        hold_seats(client, f"h{number}", 1, AHEAD + number)
    assert finding(server, SEATS).level.value == "ok"


def test_entries_that_have_all_ended(server: Server, client: redis.Redis) -> None:
    """An expired hash is back in the index; a hash that says so and never expired is what a wrong `ended` names."""
    hold_seats(client, "h1", 1, DEADLINE, state="EXPIRED", expired_at=DEADLINE + 1)
    assert finding(server, SEATS).level.value == "ok"
    assert finding(server, scripted("function decide() return 'expire' end")).level.value == "ok"
    client.hdel("seats:hold:h1", "expired_at")
    assert finding(server, SEATS).level.value == "failure"


def test_entries_that_have_ended_as_over_names(server: Server, client: redis.Redis) -> None:
    hold_seats(client, "h1", 1, DEADLINE, state="SOLD")
    assert finding(server, SEATS).level.value == "failure"
    assert finding(server, SEATS | {"over": {"state": "SOLD"}}).level.value == "ok"


def test_leftovers_of_a_proven_kind_are_a_warning(server: Server, client: redis.Redis, shard: Shard) -> None:
    kind = kinds_of(settings_of(SEATS), shard)["seat-hold"]
    prove(shard, kind)
    client.zadd("seats:ttl", {"gone": DEADLINE})
    assert finding(server, SEATS).level.value == "warning"


def test_an_empty_index(server: Server) -> None:
    assert finding(server, SEATS).level.value == "ok"


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
