"""Each outcome of a configured kind: when it comes, and all that it changes. Both forms, each version of Redis."""

import copy

import pytest
import redis

from tests.lua.kinds.world import DEADLINE, ID, SCRIPT, SEATS, Seats, scripted
from tests.support.servers import Binary, Server

DAY = 86_400_000


@pytest.mark.every_redis
def test_an_overdue_hold_gives_back_once_and_says_so(seats: Seats) -> None:
    at = DEADLINE + 1
    decision = seats.run(at=at)
    assert (decision.outcome, decision.tenant, decision.lag_ms, decision.missing) == ("expired", b"c1", 1, ())
    assert seats.seats() == (13, 2)
    key = seats.key("seats:hold:h1")
    assert seats.client.hgetall(key) | {} == {
        b"state": b"EXPIRED",
        b"show": b"s1",
        b"qty": b"3",
        b"customer": b"c1",
        b"expires_at": b"%d" % DEADLINE,
        b"expired_at": b"%d" % at,
    }
    assert 7 * DAY <= seats.client.pttl(key) + 1000 <= 7 * DAY * 1.02
    assert not seats.client.exists(seats.kind.index, seats.kind.quarantine)
    (event,) = seats.events()
    assert event.pop(b"data.qty", b"3") == b"3"
    assert event == {
        b"type": b"seat-hold.expired",
        b"kind": b"seat-hold",
        b"id": ID,
        b"tenant": b"c1",
        b"expires_at": b"%d" % DEADLINE,
        b"expired_at": b"%d" % at,
        b"trace_id": b"0123456789abcdef0123456789abcdef",
        b"data.show": b"s1",
        b"missing": b"[]",
    }
    before = seats.snapshot()
    seats.client.zadd(seats.kind.index, {ID: DEADLINE})
    assert (seats.run().outcome, seats.run().outcome) == ("skipped", "skipped")
    assert seats.snapshot() == before


@pytest.mark.parametrize(
    ("at", "outcome"), [(DEADLINE - 1, "not_due"), (DEADLINE, "not_due"), (DEADLINE + 1, "expired")]
)
def test_the_edge_of_the_deadline(seats: Seats, at: int, outcome: str) -> None:
    assert seats.run(at=at).outcome == outcome


@pytest.mark.parametrize(("late", "outcome"), [(0, "not_due"), (1, "in_grace"), (5000, "in_grace"), (5001, "expired")])
@pytest.mark.parametrize("kind", [SEATS, scripted(SCRIPT)], ids=["declared", "script"])
def test_the_edge_of_the_grace(client: redis.Redis, kind: dict[str, object], late: int, outcome: str) -> None:
    seats = Seats(client, kind | {"grace": "5s"})
    seats.show()
    seats.hold()
    before = seats.snapshot()
    assert seats.run(at=DEADLINE + late).outcome == outcome
    assert (seats.snapshot() == before) == (outcome != "expired")


@pytest.mark.every_redis
def test_not_due_sets_the_index_right(seats: Seats) -> None:
    seats.hold(expires_at=9_000_000_000_000)
    before = seats.snapshot()
    assert seats.run().outcome == "not_due"
    before[seats.kind.index][ID] = 9_000_000_000_000
    assert seats.snapshot() == before


@pytest.mark.every_redis
@pytest.mark.parametrize(
    ("arrange", "outcome", "detail"),
    [
        ({"state": "SOLD"}, "skipped", "SOLD"),
        ({"state": "EXPIRED"}, "skipped", "EXPIRED"),
        ({"state": "x" * 100}, "skipped", "x" * 64),
    ],
)
def test_what_has_ended_leaves_the_index_and_nothing_else(
    seats: Seats, arrange: dict[str, str], outcome: str, detail: str
) -> None:
    seats.hold(**arrange)
    before = copy.deepcopy(seats.snapshot())
    decision = seats.run()
    assert (decision.outcome, decision.detail) == (outcome, detail)
    del before[seats.kind.index]
    assert seats.snapshot() == before


@pytest.mark.every_redis
def test_an_orphan_leaves_the_index_and_nothing_else(seats: Seats) -> None:
    seats.client.delete(seats.key("seats:hold:h1"))
    before = seats.snapshot()
    assert seats.run().outcome == "not_found"
    del before[seats.kind.index]
    assert seats.snapshot() == before


@pytest.mark.every_redis
def test_another_type_is_set_aside(seats: Seats) -> None:
    seats.client.delete(seats.key("seats:hold:h1"))
    seats.client.set(seats.key("seats:hold:h1"), "text")
    seats.check_quarantined("WRONG_TYPE")


@pytest.mark.parametrize(
    "value", [None, "", "nan", "1e13", "-1", "+1", "01", " 1", "1.0", "1700000000", "99999999999", "9" * 17]
)
def test_a_deadline_that_is_none_is_set_aside(seats: Seats, value: str | None) -> None:
    seats.client.delete(seats.key("seats:hold:h1"))
    seats.hold(expires_at=value)
    seconds = value in ("1700000000", "99999999999")
    decision = seats.check_quarantined("INVALID_EXPIRY")
    assert ("expires_at" in decision.why, "seconds" in decision.why) == (True, seconds)


def test_the_earliest_deadline_that_is_one(seats: Seats) -> None:
    """Twelve digits: less is taken for seconds."""
    seats.hold(expires_at="100000000000")
    assert seats.run().outcome == "expired"


def test_a_missing_state_is_no_end(client: redis.Redis) -> None:
    seats = Seats(client)
    seats.show()
    seats.hold(state=None)
    seats.check_quarantined("INVALID_STATE")


@pytest.mark.parametrize("field", ["show", "qty"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_field_is_set_aside_before_any_other_fault(
    client: redis.Redis, field: str, value: str | None
) -> None:
    seats = Seats(client)
    seats.client.set("seats:s1", "a wrong type as well")
    seats.hold(**{field: value})
    seats.check_quarantined("MISSING_FIELD", why=field)


@pytest.mark.every_redis
@pytest.mark.parametrize("kind", [SEATS, scripted(SCRIPT)], ids=["declared", "script"])
def test_the_hash_goes_at_once_without_retention(client: redis.Redis, kind: dict[str, object]) -> None:
    seats = Seats(client, kind | {"retention": "0s"})
    seats.show()
    seats.hold()
    assert seats.run().outcome == "expired"
    assert set(seats.client.keys()) == {b"seats:s1", b"sweeperd:events"}
    seats.client.zadd(seats.kind.index, {ID: DEADLINE})
    assert seats.run().outcome == "not_found"
    assert seats.seats() == (13, 2)


@pytest.mark.parametrize("rid", [b"", b" ", b"a b", b"\xff\x00", b"{x}", b"*", b"x" * 600, b"a\nb"])
def test_ids_pass_through_unharmed(seats: Seats, rid: bytes) -> None:
    seats.hold(rid)
    assert seats.run(rid).outcome == "expired"
    assert seats.events()[0][b"id"] == rid


def test_a_counter_that_does_not_exist_is_named_and_not_made(seats: Seats) -> None:
    seats.client.delete("seats:s1")
    decision = seats.run()
    assert (decision.outcome, decision.missing) == ("expired", ("seats:s1",))
    assert seats.events()[0][b"missing"] == b'["seats:s1"]'
    assert not seats.client.exists("seats:s1")


# ---- a full Redis


@pytest.mark.every_redis
@pytest.mark.parametrize("form", ["declared", "script"])
def test_it_works_at_maxmemory(redis_binary: Binary, form: str) -> None:
    with (
        Server(redis_binary, ["--maxmemory-policy", "noeviction"]) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
    ):
        for case in ("expired", "quarantined", "not_due", "skipped", "not_found"):
            client.config_set("maxmemory", 0)
            client.flushall()
            seats = Seats(client, None if form == "declared" else scripted(SCRIPT))
            seats.show(held="x" if case == "quarantined" else "5")
            seats.hold(
                state="SOLD" if case == "skipped" else "HELD",
                expires_at=9_000_000_000_000 if case == "not_due" else DEADLINE,
            )
            if case == "not_found":
                client.delete("seats:hold:h1")
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                client.set("more", "x")
            assert seats.run().outcome == case
            assert seats.seats() == (13, 2) if case == "expired" else True


@pytest.mark.parametrize("form", ["declared", "script"])
@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, "deferred"),
        ({"qty": "nan"}, "deferred"),
        ({"state": "SOLD"}, "skipped"),
        ({"expires_at": 9_000_000_000_000}, "not_due"),
        ({"expires_at": "soon"}, "quarantined"),
        (None, "not_found"),
    ],
)
def test_above_the_memory_limit_what_would_expire_stays_as_it_is(
    client: redis.Redis, form: str, fields: dict[str, object] | None, outcome: str
) -> None:
    seats = Seats(client, None if form == "declared" else scripted(SCRIPT))
    seats.show()
    seats.hold(**(fields or {}))
    if fields is None:
        client.delete("seats:hold:h1")
    before = seats.snapshot()
    assert seats.run(defers=True).outcome == outcome
    assert (seats.snapshot() == before) is (outcome == "deferred")


def test_above_the_memory_limit_a_protected_entry_is_protected(client: redis.Redis) -> None:
    seats = Seats(client, SEATS | {"unless": {"paid": "yes"}})
    seats.show()
    seats.hold(paid="yes")
    assert (seats.run(defers=True).detail, client.zcard("sweeperd:protected:seat-hold")) == ("protected", 1)


# ---- the server says no


@pytest.mark.every_redis
@pytest.mark.parametrize("key", ["sweeperd:events", "seats:ttl", "sweeperd:quarantine:seat-hold"])
def test_a_key_of_the_wrong_type_fails_the_call_before_it_has_written(seats: Seats, key: str) -> None:
    if "quarantine" in key:
        seats.show(held="x")
    seats.client.delete(key)
    seats.client.hset(key, "a", "text")
    before = seats.snapshot()
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            seats.run()
        assert seats.snapshot() == before


@pytest.mark.every_redis
def test_an_event_stream_that_takes_no_more_changes_nothing(seats: Seats) -> None:
    seats.client.xadd("sweeperd:events", {"by": "hand"}, id="18446744073709551615-18446744073709551615")
    before = seats.snapshot()
    with pytest.raises(redis.ResponseError):
        seats.run()
    assert seats.snapshot() == before


@pytest.mark.every_redis
@pytest.mark.parametrize("pattern", ["seats:s1", "seats:ttl", "sweeperd:events", "seats:hold:*"])
@pytest.mark.parametrize("readable", [True, False])
def test_a_missing_right_to_a_key_moves_nothing(seats: Seats, server: Server, pattern: str, readable: bool) -> None:
    if readable and server.binary.numbers < (7, 0):
        pytest.skip("rights to read only came with Redis 7.0")
    keys = ["seats:s1", "seats:ttl", "sweeperd:*", "seats:hold:*"]
    if pattern == "sweeperd:events":
        keys.remove("sweeperd:*")
        keys.append("sweeperd:quarantine*")
    else:
        keys.remove(pattern)
    refused(
        seats, server, f"on >pw {' '.join('~' + key for key in keys)} &* +@all" + (f" %R~{pattern}" if readable else "")
    )


def refused(seats: Seats, server: Server, rules: str) -> None:
    seats.client.execute_command("ACL", "SETUSER", "limited", "reset", *rules.split())
    try:
        before = seats.snapshot()
        with redis.Redis(port=server.port, username="limited", password="pw", protocol=2) as limited:
            admin, seats.client = seats.client, limited
            try:
                with pytest.raises(redis.ResponseError, match=r"NOPERM|permission|can't"):
                    seats.run()
            finally:
                seats.client = admin
        assert seats.snapshot() == before
    finally:
        seats.client.execute_command("ACL", "DELUSER", "limited")
