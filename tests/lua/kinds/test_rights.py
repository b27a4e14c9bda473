"""A right that is taken away on an open connection: nothing is moved, and what is due happens once it is back."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.lua.kinds.world import SEATS, Seats, scripted
from tests.support.servers import Server

pytestmark = pytest.mark.every_redis

#: A plan with each command; the keys that it adds to exist.
GIVE_BACK = {
    "hset": "HSET seats:a f v",
    "hdel": "HDEL seats:a g",
    "incrby": "INCRBY seats:n 1",
    "set": "SET seats:b v",
    "del": "DEL seats:c",
    "zadd": "ZADD seats:d 1 m",
    "zrem": "ZREM seats:d x",
    "sadd": "SADD seats:e m",
    "srem": "SREM seats:e x",
    "lpush": "LPUSH seats:f v",
    "rpush": "RPUSH seats:f v",
    "pexpire": "PEXPIRE seats:g 1000",
}
PLAN = ", ".join("{" + ", ".join(f"'{word}'" for word in command.split()) + "}" for command in GIVE_BACK.values())
SCRIPT = f"""
function decide() return 'expire' end
function plan() return {{{PLAN}}} end
"""
DECIDES = "function decide(_, now) return {} end function plan() return {{}} end"
REFUSED = r"(?i)NOPERM|no permission|can't run|can't access"


class Revoked:
    """The seats as a user sees them whose rights are taken away while connected."""

    def __init__(self, server: Server, client: redis.Redis) -> None:
        self._client, self._server = client, server
        self.allow("reset", "on", ">pw", "+@all", "~*", "&*")
        self.limited = redis.Redis(port=server.port, username="limited", password="pw", protocol=2)
        self.limited.ping()

    def allow(self, *rules: str) -> None:
        self._client.execute_command("ACL", "SETUSER", "limited", *rules)

    def check(self, seats: Seats, command: str, outcome: str) -> None:
        """Without the command nothing is moved, and with it the outcome comes."""
        seats.client, mine = self.limited, seats.client
        before = seats.snapshot()
        self.allow(f"-{command}")
        for _ in range(2):
            with pytest.raises(redis.ResponseError, match=REFUSED):
                seats.run()
            self.allow(f"+{command}")
            assert seats.snapshot() == before
            self.allow(f"-{command}")
        self.allow(f"+{command}")
        assert seats.run().outcome == outcome
        seats.client = mine
        assert len(seats.events()) == (outcome == "expired")


@pytest.fixture
def revoked(server: Server, client: redis.Redis) -> Iterator[Revoked]:
    user = Revoked(server, client)
    yield user
    user.limited.close()
    client.execute_command("ACL", "DELUSER", "limited")


def made(client: redis.Redis, kind: dict[str, Any]) -> Seats:
    seats = Seats(client, kind)
    seats.show()
    seats.hold()
    client.hset("seats:a", mapping={"g": "1", "h": "1"})
    client.set("seats:n", 1)
    client.set("seats:g", 1)
    return seats


@pytest.mark.parametrize("command", [*GIVE_BACK, "xadd"])
@pytest.mark.parametrize("kind", [SEATS | {"give_back": list(GIVE_BACK.values())}, scripted(SCRIPT)])
def test_a_command_that_an_expiry_writes_with(
    client: redis.Redis, revoked: Revoked, kind: dict[str, Any], command: str
) -> None:
    revoked.check(made(client, kind), command, "expired")


@pytest.mark.parametrize("command", ["hset", "xadd", "zadd", "zrem", "pexpire"])
def test_a_command_that_an_everyday_plan_needs(client: redis.Redis, revoked: Revoked, command: str) -> None:
    revoked.check(made(client, SEATS), command, "expired")


@pytest.mark.parametrize("command", ["hset", "xadd", "zadd", "zrem", "del"])
def test_a_command_that_an_entry_needs_whose_hash_goes(client: redis.Redis, revoked: Revoked, command: str) -> None:
    revoked.check(made(client, SEATS | {"retention": "0s"}), command, "expired")


def test_a_user_of_some_entries_needs_no_right_to_others(client: redis.Redis, revoked: Revoked) -> None:
    """On 6.2 the right to DEL is tried with a key that is not there, and that need not be the user's."""
    seats = made(client, SEATS | {"retention": "0s"})
    revoked.allow("resetkeys", "~seats:hold:h*", "~seats:s*", "~seats:ttl", "~sweeperd*")
    seats.client = revoked.limited
    assert seats.run().outcome == "expired"
    assert not client.exists("seats:hold:h1")


@pytest.mark.parametrize(
    ("commands", "arrange", "outcome"),
    [
        (["zrem", "zadd", "hset"], lambda seats: seats.hold(expires_at="nan"), "quarantined"),
        (["zrem", "zadd"], lambda seats: seats.hold(expires_at=9_000_000_000_000), "not_due"),
        (["zrem"], lambda seats: seats.hold(state="SOLD"), "skipped"),
        (["zrem"], lambda seats: seats.client.delete("seats:hold:h1"), "not_found"),
    ],
)
def test_a_command_that_another_outcome_writes_with(
    client: redis.Redis, revoked: Revoked, commands: list[str], arrange: Callable[[Seats], object], outcome: str
) -> None:
    for command in commands:
        client.flushall()
        seats = made(client, SEATS)
        arrange(seats)
        revoked.check(seats, command, outcome)


@pytest.mark.parametrize("answer", ["'wait', now + 1000", "'extend', now + 10000000"])
def test_a_command_that_moves_an_entry(client: redis.Redis, revoked: Revoked, answer: str) -> None:
    for command in ["zrem", "zadd", *(["hset"] if "extend" in answer else [])]:
        client.flushall()
        revoked.check(made(client, scripted(DECIDES.format(answer))), command, "not_due")


def test_a_message_goes_out_once_and_not_while_the_stream_takes_no_entry(client: redis.Redis) -> None:
    kind = SEATS | {"give_back": ["PUBLISH seats:free {show}"], "channels": ["seats:*"]}
    seats = made(client, kind)
    heard = client.pubsub(ignore_subscribe_messages=True)
    heard.subscribe("seats:free")
    heard.get_message(timeout=1)
    last = "18446744073709551615-18446744073709551615"
    client.xadd("sweeperd:events", {"by": "hand"}, id=last)
    before = seats.snapshot()
    for _ in range(2):
        with pytest.raises(redis.ResponseError):
            seats.run()
    assert seats.snapshot() == before
    assert heard.get_message(timeout=0.2) is None
    client.delete("sweeperd:events")
    assert seats.run().outcome == "expired"
    message = heard.get_message(timeout=5)
    assert message is not None
    assert message["data"] == b"s1"
    assert heard.get_message(timeout=0.2) is None
    heard.close()
