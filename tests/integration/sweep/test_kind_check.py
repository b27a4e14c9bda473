"""Tests the checks of a kind before its first sweep on a server."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from sweeperd.errors import KindRefused
from sweeperd.store import Shard
from sweeperd.sweep import configured, kind_script
from sweeperd.sweep.kind_script import HIDDEN_GLOBALS
from tests.lua.kinds.forms import MEMBER, SCORED
from tests.lua.kinds.world import SEATS, Seats, scripted
from tests.support.fixtures import full
from tests.support.servers import Binary, Server

pytestmark = pytest.mark.every_redis

ESCAPES = [
    "--[[ x",
    "--[==[ x",
    "end redis.call('SET', 'out', '1') do",
    "return end function x()",
    "local x = [[ x",
    "x = 'abc",
    "function decide( return 'expire' end",
    "return {}, {} end end do do",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_a_file_that_does_not_compile_alone_never_runs(client: redis.Redis, text: str) -> None:
    seats = Seats(client, scripted(text))
    with pytest.raises(KindRefused, match="does not compile, line 1"):
        seats.kind.check(client)


def test_the_line_of_an_error_is_the_files(client: redis.Redis) -> None:
    seats = Seats(client, scripted("function decide()\nend\nfunction plan()\n  return {}} \nend"))
    with pytest.raises(KindRefused, match="line 4"):
        seats.kind.check(client)


def test_a_return_at_the_end_of_the_file_is_refused(client: redis.Redis) -> None:
    with pytest.raises(KindRefused, match="does not compile"):
        Seats(client, scripted("function decide() end\nreturn 5")).kind.check(client)


@pytest.mark.parametrize("kind", [SEATS, scripted("function decide() end function plan() end")])
def test_a_kind_that_can_be_swept_passes(client: redis.Redis, kind: dict[str, Any]) -> None:
    before = Seats(client, kind).snapshot()
    seats = Seats(client, kind)
    seats.kind.check(client)
    assert seats.snapshot() == before


def test_a_script_without_commands_is_refused_if_the_server_cannot_be_asked(client: redis.Redis) -> None:
    kind = scripted("function decide() end function plan() end", commands=None)
    seats = Seats(client, kind)
    if str(client.info("server")["redis_version"]).startswith("6."):
        with pytest.raises(KindRefused, match=r"seat-hold: Redis 6\.2 .* commands = \["):
            seats.kind.check(client)
    else:
        seats.kind.check(client)


def test_globals_that_are_not_known_here_are_taken_away(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later server may have more of them, which no script may see, and which are no reason to stop."""
    hidden = [name for name in HIDDEN_GLOBALS if name not in ("redis", "cjson")]
    monkeypatch.setattr(configured, "HIDDEN_GLOBALS", hidden)
    monkeypatch.setattr(kind_script, "HIDDEN_GLOBALS", hidden)
    seen = "{seen = type(redis) .. type(cjson)}"
    seats = Seats(client, scripted(f"function decide() return 'expire' end function plan() return {{}}, {seen} end"))
    seats.show()
    seats.hold(b"before")
    assert seats.run(b"before").outcome == "expired"
    assert seats.events()[-1][b"data.seen"] == b"tabletable", "or this shows nothing"
    seats.kind.check(client)
    before = seats.kind.script.source
    seats.hold(b"after")
    assert seats.run(b"after").outcome == "expired"
    assert seats.events()[-1][b"data.seen"] == b"nilnil"
    assert "cjson" in seats.kind.explainer.source.partition(seen)[0], "so too where it is only asked"
    seats.kind.check(client)
    assert seats.kind.script.source == before, "it stays the same script"


def test_a_file_that_leaves_no_room_for_further_globals_is_refused(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are local variables, of which a function of Lua has up to 200, its parameters included."""
    hidden = [name for name in HIDDEN_GLOBALS if name != "redis"]
    monkeypatch.setattr(configured, "HIDDEN_GLOBALS", hidden)
    monkeypatch.setattr(kind_script, "HIDDEN_GLOBALS", hidden)

    variables = ", ".join(f"v{number}" for number in range(200 - 7 - len(hidden)))
    decides = "function decide() return 'expire' end function plan() return {} end"
    seats = Seats(client, scripted(f"local {variables}\n{decides}"))
    seats.hold()
    assert seats.run().outcome == "expired"
    with pytest.raises(KindRefused, match=r"does not compile, line .*local variables"):
        seats.kind.check(client)


class BeforeRedis7(redis.Redis):
    """Says of its server that its scripts cannot ask for a right before they write."""

    def info(self, *_: Any, **__: Any) -> dict[str, str]:
        return {"redis_version": "6.2.14"}


@contextlib.contextmanager
def limited(client: redis.Redis, server: Server, *lacks: str) -> Iterator[redis.Redis]:
    """A user that lacks these rights, and has one connection; on a Redis 6.2, or on one that is taken for it."""
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", *lacks)
    made = redis.Redis if server.binary.numbers < (7, 0) else BeforeRedis7
    try:
        with made(port=server.port, username="limited", password="pw", protocol=2, max_connections=1) as user:
            yield user
    finally:
        client.execute_command("ACL", "DELUSER", "limited")


@pytest.mark.parametrize("right", ["-hset", "-zrem", "-xadd", "-pexpire", "-zadd"])
def test_on_redis_6_a_missing_right_is_known_before_the_sweep(client: redis.Redis, server: Server, right: str) -> None:
    seats = Seats(client)
    seats.show()
    seats.hold()
    before = seats.snapshot()
    with limited(client, server, right) as user:
        with pytest.raises(KindRefused, match=right[1:].upper()):
            seats.kind.check(user)
        assert user.ping() is True, "its connection is free again, and nothing waits on it"
    assert seats.snapshot() == before


def test_on_redis_6_the_writes_of_a_plan_are_asked_for_too(client: redis.Redis, server: Server) -> None:
    seats = Seats(client, SEATS | {"give_back": ["RPUSH seats:log {qty}", "HINCRBY seats:{show} free {qty}"]})
    with limited(client, server, "-rpush") as user, pytest.raises(KindRefused, match=r"no right to RPUSH$"):
        seats.kind.check(user)
    with limited(client, server, "-hincrby") as user:
        seats.kind.check(user)  # a sum is written with HSET


@pytest.mark.parametrize(
    ("kind", "used"),
    [(SEATS, set()), (SCORED, {"hdel", "persist"}), (MEMBER, {"hdel"})],
    ids=["field", "score", "member"],
)
def test_on_redis_6_what_a_score_as_the_deadline_needs_is_asked_for_too(
    client: redis.Redis, server: Server, kind: dict[str, Any], used: set[str]
) -> None:
    """HDEL removes the note about a score, and PERSIST ends the TTL of an entry that was renewed."""
    for right in ("hdel", "persist"):
        refused = pytest.raises(KindRefused, match=rf"no right to {right.upper()}$")
        with limited(client, server, f"-{right}") as user, refused if right in used else contextlib.nullcontext():
            Seats(client, kind).kind.check(user)


def test_on_redis_6_a_command_that_was_renamed_is_refused(redis_binary: Binary) -> None:
    with Server(redis_binary, ["--rename-command", "RPUSH", ""]) as server:
        with BeforeRedis7(port=server.port, protocol=2) as client:
            seats = Seats(client, SEATS | {"give_back": ["RPUSH seats:log {qty}"]})
            with pytest.raises(KindRefused, match=r"no right to RPUSH$"):
                seats.kind.check(client)


def test_on_redis_6_a_check_that_fails_leaves_no_transaction_open(client: redis.Redis, server: Server) -> None:
    with limited(client, server, "-discard") as user:
        with pytest.raises(redis.ResponseError, match="permission"):
            Seats(client).kind.check(user)
        assert user.ping() is True


def test_on_redis_6_a_full_redis_is_not_a_missing_right(client: redis.Redis, server: Server, shard: Shard) -> None:
    with limited(client, server) as user, full(shard):
        Seats(client).kind.check(user)
