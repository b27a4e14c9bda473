"""Bugs that users of other systems reported, rebuilt as kinds: they are caught, or cannot be expressed."""

from typing import Any

import redis

from sweeperd.store import Shard
from tests.integration.kit.faults import Fault
from tests.integration.kit.test_faults import caught
from tests.lua.kinds.world import DEADLINE, SCRIPT, Seats, scripted
from tests.support.builders import make_sweeper


def tick(seats: Seats, shard: Shard) -> None:
    make_sweeper(shard, seats.kind).tick()


def test_a_backlog_is_drained_however_long_it_is(client: redis.Redis, shard: Shard) -> None:
    """kombu 164: a pass restored ten entries, so what came in faster was never restored."""
    seats = Seats(client)
    seats.show(held=3 * 2500)
    pipeline = client.pipeline(transaction=False)
    for number in range(2500):
        fields: dict[Any, Any] = {"state": "HELD", "show": "s1", "qty": 3, "customer": "c", "expires_at": DEADLINE}
        pipeline.hset(f"seats:hold:{number}", mapping=fields)
        pipeline.zadd("seats:ttl", {str(number): DEADLINE + number})
    pipeline.execute()
    tick(seats, shard)
    assert seats.seats() == (10 + 3 * 2500, 0)
    assert client.xlen("sweeperd:events") == 2500


def test_an_end_has_its_event_without_a_notification_of_redis(client: redis.Redis, shard: Shard) -> None:
    """
    spring-session 3468: the clean-up touched another key than the one that notifications were awaited of, so no event
    came, and what hung on the event was not cleaned up. A kind's event is written in the same step as the end.
    """
    client.config_set("notify-keyspace-events", "")
    kind: dict[str, Any] = {
        "name": "session",
        "index": "sessions:ttl",
        "key": "sessions:{id}",
        "deadline": "expires_at",
        "active": {"state": "OPEN"},
        "retention": "0s",
        "give_back": ["SREM users:{user} {id}"],
        "event": ["user"],
    }
    seats = Seats(client, kind)
    client.hset("sessions:a", mapping={"state": "OPEN", "user": "ada", "expires_at": DEADLINE})
    client.zadd("sessions:ttl", {"a": DEADLINE})
    client.sadd("users:ada", "a", "b")
    tick(seats, shard)
    assert client.smembers("users:ada") == {b"b"}
    assert not client.exists("sessions:a", "sessions:ttl")
    (event,) = seats.events()
    assert (event[b"type"], event[b"id"], event[b"data.user"]) == (b"session.expired", b"a", b"ada")


def test_a_hold_of_a_process_that_died_is_given_back_once(client: redis.Redis, shard: Shard) -> None:
    """litellm 27639: what a request had reserved stayed in the counter where the request never came to its end."""
    kind: dict[str, Any] = {
        "name": "spend-hold",
        "index": "spend:ttl",
        "key": "spend:hold:{id}",
        "deadline": "until",
        "active": {"state": "HELD"},
        "ended": {"state": "GONE"},
        "give_back": ["INCRBY spend:{user} -{amount} MIN 0"],
    }
    seats = Seats(client, kind)
    for entry, amount in (("r1", 30), ("r2", 12)):
        hold: dict[Any, Any] = {"state": "HELD", "user": "u", "amount": amount, "until": DEADLINE}
        client.hset(f"spend:hold:{entry}", mapping=hold)
        client.zadd("spend:ttl", {entry: DEADLINE})
    client.set("spend:u", 50)
    for _ in range(3):
        tick(seats, shard)
        client.zadd("spend:ttl", {"r1": DEADLINE, "r2": DEADLINE})
    assert client.get("spend:u") == b"8"
    client.delete("spend:u")
    client.hset("spend:hold:r3", mapping={"state": "HELD", "user": "u", "amount": 5, "until": DEADLINE})
    client.zadd("spend:ttl", {"r3": DEADLINE})
    tick(seats, shard)
    assert not client.exists("spend:u"), "a counter that is gone is not made again"


def test_an_entry_is_in_the_index_or_has_ended_whenever_the_script_stops(client: redis.Redis, shard: Shard) -> None:
    """asynq 1144: a task was active with no entry in the index of leases, so that nothing looked at it again."""
    seats = Seats(client)
    seats.show()
    seats.hold()
    client.xadd("sweeperd:events", {"by": "hand"}, id="18446744073709551615-18446744073709551615")
    tick(seats, shard)  # fails at its only write that can fail
    assert client.zrange("seats:ttl", 0, -1) == [b"h1"]
    client.delete("sweeperd:events")
    tick(seats, shard)
    assert (client.zcard("seats:ttl"), client.hget("seats:hold:h1", "state")) == (0, b"EXPIRED")


#: A value that is not there cannot be joined to a text.
JOINS = SCRIPT.replace("'seats:' .. hash.show", "'seats:' .. hash.hall")


def test_a_script_that_fails_on_an_unexpected_row_has_written_nothing(client: redis.Redis) -> None:
    """
    redisson 5120: the script took the entries out of its index, failed on a value that another client had removed, and
    Redis kept the first write: nothing looked at these entries again.
    """
    seats = Seats(client, scripted(JOINS))
    seats.show()
    seats.hold()
    seats.check_quarantined("SCRIPT_ERROR")


def test_a_write_before_what_fails_is_caught() -> None:
    """The same bug, as a kind's script that takes the entry out of the index and then misses a counter."""
    missing = "      return miss(use)\n"
    assert caught(Fault("", "seat-holds", missing, "      call('ZREM', index, id)\n      error('no counter')\n"))
