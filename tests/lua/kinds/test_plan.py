"""A plan is checked as a whole: what would fail is a quarantine, and nothing has moved."""

import json
from typing import Any

import pytest
import redis

from tests.lua.kinds.world import ID, SEATS, Seats, scripted

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


def lua(plan: Any) -> str:
    """A list of commands in Lua."""
    if isinstance(plan, list):
        return "{" + ", ".join(map(lua, plan)) + "}"
    return json.dumps(plan)


def planned(client: redis.Redis, plan: str, **changes: Any) -> Seats:
    script = f"function decide() return 'expire' end\nfunction plan(hash, now, id)\n  return {plan}\nend"
    seats = Seats(client, scripted(script, **changes))
    seats.show()
    seats.hold()
    return seats


def write(*words: str) -> list[str]:
    return list(words)


# ---- what is allowed, and does what it says


@pytest.mark.parametrize(
    ("commands", "key", "after"),
    [
        ([write("HSET", "seats:x", "a", "1", "b", "2")], "seats:x", {b"a": b"1", b"b": b"2"}),
        ([write("HSET", "seats:x", "a", "1"), write("HDEL", "seats:x", "b")], "seats:x", {b"a": b"1"}),
        ([write("HINCRBY", "seats:s1", "free", "-10", "MIN", "0")], "seats:s1", {b"free": b"0", b"held": b"5"}),
        ([write("HINCRBY", "seats:s1", "free", "-0")], "seats:s1", {b"free": b"10", b"held": b"5"}),
        ([write("INCRBY", "seats:n", "7"), write("INCRBY", "seats:n", "-1")], "seats:n", b"11"),
        ([write("SET", "seats:x", "v")], "seats:x", b"v"),
        ([write("SET", "seats:n", "v", "PX", "100000")], "seats:n", b"v"),
        ([write("DEL", "seats:n")], "seats:n", None),
        ([write("ZADD", "seats:z", "-3", "m"), write("ZREM", "seats:z", "old")], "seats:z", {b"m": -3.0}),
        ([write("SADD", "seats:set", "b"), write("SREM", "seats:set", "a")], "seats:set", {b"b"}),
        ([write("RPUSH", "seats:l", "1", "2"), write("LPUSH", "seats:l", "0")], "seats:l", [b"0", b"1", b"2"]),
        ([], "seats:n", b"5"),
    ],
)
def test_each_command_does_what_it_says(client: redis.Redis, commands: list[Any], key: str, after: Any) -> None:
    seats = planned(client, lua(commands))
    client.set("seats:n", 5)
    client.zadd("seats:z", {"old": 1})
    client.sadd("seats:set", "a")
    assert seats.run().outcome == "expired"
    assert seats.snapshot().get(key.encode()) == after


def test_pexpire_and_px_set_the_ttl(client: redis.Redis) -> None:
    seats = planned(client, lua([write("PEXPIRE", "seats:s1", "60000"), write("SET", "seats:x", "v", "PX", "60000")]))
    assert seats.run().outcome == "expired"
    assert 0 < client.pttl("seats:s1") <= 60_000
    assert 0 < client.pttl("seats:x") <= 60_000


def test_publish_reaches_a_declared_channel(client: redis.Redis) -> None:
    seats = planned(client, lua([write("PUBLISH", "seats:free", "s1")]), channels=["seats:*"])
    with client.pubsub() as listener:
        listener.subscribe("seats:free")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        assert seats.run().outcome == "expired"
        assert listener.get_message(timeout=5)["data"] == b"s1"


def test_a_message_is_not_sent_while_the_stream_is_full(client: redis.Redis) -> None:
    seats = planned(client, lua([write("PUBLISH", "seats:free", "s1")]), channels=["seats:*"])
    client.xadd("sweeperd:events", {"by": "hand"}, id="18446744073709551615-18446744073709551615")
    with client.pubsub() as listener:
        listener.subscribe("seats:free")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        for _ in range(2):
            with pytest.raises(redis.ResponseError, match="exhausted"):
                seats.run()
        client.delete("sweeperd:events")
        assert seats.run().outcome == "expired"
        assert listener.get_message(timeout=5)["data"] == b"s1"
        assert listener.get_message(timeout=0.1) is None


# ---- what is refused

INVALID: dict[str, Any] = {
    "no such command": [write("FLUSHALL")],
    "lower case": [write("hset", "seats:x", "a", "1")],
    "EVAL": [write("EVAL", "return 1", "0")],
    "another key": [write("SET", "other", "v")],
    "a key that only begins so": [write("SET", "xseats:a", "v")],
    "its own hash": [write("HSET", "seats:hold:h1", "state", "HELD")],
    "another hold": [write("DEL", "seats:hold:h2")],
    "the index": [write("ZADD", "seats:ttl", "0", "h1")],
    "sweeperd's": [write("DEL", "sweeperd:events")],
    "a budget": [write("DEL", "budget:x")],
    "the other kind's index": [write("DEL", "seats:other-ttl")],
    "the other kind's entry": [write("DEL", "seats:other:1")],
    "no key": [write("DEL")],
    "an empty key": [write("DEL", "")],
    "a long key": [write("DEL", "seats:" + "x" * 1019)],
    "two keys": [write("DEL", "seats:a", "seats:b")],
    "odd pairs": [write("HSET", "seats:x", "a")],
    "no pair": [write("HSET", "seats:x")],
    "no field": [write("HDEL", "seats:x")],
    "too many words": [write("SADD", "seats:x", *map(str, range(127)))],
    "a float": [write("HINCRBY", "seats:s1", "free", "1.5")],
    "a plus": [write("HINCRBY", "seats:s1", "free", "+5")],
    "leading zeros": [write("HINCRBY", "seats:s1", "free", "007")],
    "an exponent": [write("HINCRBY", "seats:s1", "free", "1e3")],
    "two signs": [write("HINCRBY", "seats:s1", "free", "--3")],
    "beyond int64": [write("HINCRBY", "seats:s1", "free", str(INT64_MAX))],
    "an amount beyond int64": [write("HINCRBY", "seats:s1", "free", str(INT64_MAX + 1))],
    "below MIN": [write("HINCRBY", "seats:s1", "held", "-6", "MIN", "0")],
    "no number after MIN": [write("HINCRBY", "seats:s1", "held", "-1", "MIN", "x")],
    "a word after the amount": [write("HINCRBY", "seats:s1", "held", "-1", "MAX", "9")],
    "no such field": [write("HINCRBY", "seats:s1", "nothing", "1")],
    "a field that is no number": [write("HINCRBY", "seats:s1", "text", "1")],
    "another type": [write("SADD", "seats:s1", "a")],
    "HINCRBY on another type": [write("HINCRBY", "seats:n", "a", "1")],
    "INCRBY on another type": [write("INCRBY", "seats:s1", "1")],
    "INCRBY of no number": [write("INCRBY", "seats:text", "1")],
    "SET on another type": [write("SET", "seats:s1", "v")],
    "PX of nothing": [write("SET", "seats:x", "v", "PX", "0")],
    "EX": [write("SET", "seats:x", "v", "EX", "1")],
    "NX": [write("SET", "seats:x", "v", "NX")],
    "a TTL of nothing": [write("PEXPIRE", "seats:s1", "0")],
    "a TTL below nothing": [write("PEXPIRE", "seats:s1", "-1")],
    "a TTL of 101 years": [write("PEXPIRE", "seats:s1", "3187296000000")],
    "an infinite score": [write("ZADD", "seats:z", "inf", "m")],
    "a hexadecimal score": [write("ZADD", "seats:z", "0x10", "m")],
    "a huge score": [write("ZADD", "seats:z", "9007199254740993", "m")],
    "an option of ZADD": [write("ZADD", "seats:z", "NX", "1", "m")],
    "no channel declared": [write("PUBLISH", "seats:free", "m")],
    "DEL and another": [write("DEL", "seats:n"), write("INCRBY", "seats:n", "1")],
    "another and DEL": [write("INCRBY", "seats:n", "1"), write("DEL", "seats:n")],
    "SET twice": [write("SET", "seats:x", "1"), write("SET", "seats:x", "2")],
    "two types of a new key": [write("SADD", "seats:x", "1"), write("LPUSH", "seats:x", "2")],
    "a field set twice": [write("HSET", "seats:x", "a", "1", "a", "2")],
    "a field set and deleted": [write("HSET", "seats:x", "a", "1"), write("HDEL", "seats:x", "a")],
    "a field set and added to": [write("HSET", "seats:s1", "free", "1"), write("HINCRBY", "seats:s1", "free", "1")],
    "fine, then wrong": [write("HINCRBY", "seats:s1", "free", "1"), write("HINCRBY", "seats:s1", "text", "1")],
    "sums below MIN together": [write("HINCRBY", "seats:s1", "held", "-3", "MIN", "0")] * 2,
    "sums beyond int64 together": [write("HINCRBY", "seats:s1", "free", str(2**62))] * 2,
    "an intermediate sum beyond int64": [
        write("HINCRBY", "seats:s1", "free", str(INT64_MAX - 10)),
        write("HINCRBY", "seats:s1", "free", "1"),
        write("HINCRBY", "seats:s1", "free", "-5"),
    ],
    "65 writes": [write("SADD", "seats:x", str(n)) for n in range(65)],
}
OTHER = SEATS | {"name": "other", "index": "seats:other-ttl", "key": "seats:other:{id}"}


@pytest.mark.parametrize("case", INVALID)
def test_it_is_set_aside_with_nothing_moved(client: redis.Redis, case: str) -> None:
    script = f"function decide() return 'expire' end\nfunction plan() return {lua(INVALID[case])} end"
    seats = Seats(client, scripted(script), OTHER)
    seats.show(text="x")
    seats.hold()
    client.set("seats:n", 5)
    client.set("seats:text", "x")
    seats.check_quarantined("INVALID_PLAN")
    assert seats.events() == []


@pytest.mark.parametrize(
    "plan",
    [
        *("{{'DEL', 'seats:x'}, nil, {'DEL', 'seats:y'}}", "{{'DEL', nil, 'seats:x'}}", "{{}}", "{a = 1}"),
        *("{[2] = {'DEL'}}", "{1}", "{{'SET', 'seats:x', 5}}", "{{'SET', 'seats:x', true}}", "{{'SET', {}, 'x'}}"),
        *("{[1.5] = {'DEL', 'seats:x'}}", "{{'SET', 'seats:x', ('v'):rep(65530)}}"),
    ],
)
def test_a_list_that_is_none_is_set_aside(client: redis.Redis, plan: str) -> None:
    planned(client, plan).check_quarantined("INVALID_PLAN")


def test_a_plan_may_have_as_many_writes_and_bytes_as_it_may(client: redis.Redis) -> None:
    """65,536 bytes: the names of the keys and the words after them."""
    for plan, most in (("{{'SET', 'seats:x', ('v'):rep(65529)}}", 2), ("{{'DEL', 'seats:y'}, {'DEL', 'seats:x'}}", 2)):
        assert planned(client, plan, max_writes=most).run().outcome == "expired"
    planned(client, "{{'DEL', 'seats:y'}, {'DEL', 'seats:x'}}", max_writes=1).check_quarantined("INVALID_PLAN")


@pytest.mark.parametrize(
    ("field", "amount", "least"),
    [("f" * 14, "1", ""), ("f", "1" * 15, ""), ("f", "1", "-" + "1" * 14), ("f", "1", "MIN alone")],
    ids=["fields", "amounts", "least sums", "MIN"],
)
def test_a_plan_of_sums_alone_may_not_have_more_bytes(client: redis.Redis, field: str, amount: str, least: str) -> None:
    """64 sums whose names, fields and numbers together come to 65,536 bytes, and to 64 more."""
    more = ["MIN", "0" if least == "MIN alone" else least] if least else []
    rest = [[f"{field}{number:02}", amount, *more] for number in range(64)]
    longest = "seats:".ljust(1024 - sum(map(len, rest[0])), "k")
    seats = planned(client, "json.decode(hash.plan)")
    for key, fits in ((longest, True), (longest + "k", False)):
        client.hset(key, mapping={words[0]: 0 for words in rest})
        seats.hold(plan=json.dumps([["HINCRBY", key, *words] for words in rest]))
        if fits:
            assert seats.run().outcome == "expired"
            client.delete("seats:hold:h1")
        else:
            seats.check_quarantined("INVALID_PLAN", why="65536 bytes")


def test_a_hash_takes_fields_and_values_in_pairs(client: redis.Redis) -> None:
    planned(client, "{{'HSET', 'seats:s1', 'a', '1', 'b'}}").check_quarantined("INVALID_PLAN", why="form of HSET")


def test_a_key_has_1024_bytes_at_most(client: redis.Redis) -> None:
    longest = "seats:".ljust(1024, "k")
    client.set(longest, "v")
    assert planned(client, lua([write("DEL", longest)])).run().outcome == "expired"
    assert not client.exists(longest)


def test_fields_of_one_hash_are_set_and_added_to(client: redis.Redis) -> None:
    plan = lua([write("HSET", "seats:s1", "a", "1"), write("HINCRBY", "seats:s1", "free", "2")])
    seats = planned(client, plan)
    assert seats.run().outcome == "expired"
    assert seats.snapshot()[b"seats:s1"] == {b"a": b"1", b"free": b"12", b"held": b"5"}


def test_nothing_is_set_in_a_hash_that_was_to_be_added_to_and_is_missing(client: redis.Redis) -> None:
    plan = lua([write("HSET", "seats:gone", "a", "1"), write("HINCRBY", "seats:gone", "free", "2")])
    seats = planned(client, plan)
    assert seats.run().outcome == "expired"
    assert not client.exists("seats:gone")
    assert json.loads(seats.events()[0][b"missing"]) == ["seats:gone"]


def test_a_metatable_shows_the_checks_nothing_else_than_the_writes(client: redis.Redis) -> None:
    lying = "{setmetatable({'SET', 'seats:x'}, {__index = function(_, n) return n == 3 and 'hidden' or nil end})}"
    planned(client, lying).check_quarantined("INVALID_PLAN")


# ---- exact sums


@pytest.mark.parametrize(
    ("before", "amount", "after"),
    [
        (INT64_MAX - 1, 1, INT64_MAX),
        (INT64_MIN + 1, -1, INT64_MIN),
        (INT64_MAX, -INT64_MAX, 0),
        (2**53, 1, 2**53 + 1),
        (-(2**53), -1, -(2**53) - 1),
        (999_999_999_999_999, 1, 10**15),
        (-5, 3, -2),
        (INT64_MIN, INT64_MAX, -1),
        (0, INT64_MIN, INT64_MIN),
    ],
)
def test_sums_are_exact(client: redis.Redis, before: int, amount: int, after: int) -> None:
    seats = planned(client, lua([write("HINCRBY", "seats:s1", "free", str(amount))]))
    seats.show(free=before)
    assert seats.run().outcome == "expired"
    assert seats.seats()[0] == after


@pytest.mark.parametrize(("before", "amount"), [(INT64_MAX, 1), (INT64_MIN, -1), (INT64_MIN, INT64_MIN)])
def test_sums_stay_in_int64(client: redis.Redis, before: int, amount: int) -> None:
    seats = planned(client, lua([write("HINCRBY", "seats:s1", "free", str(amount))]))
    seats.show(free=before)
    seats.check_quarantined("INVALID_PLAN", why="int64")


@pytest.mark.parametrize("least", [10**16, 10**16 - 1, 10**16 - 10**12, -(10**16), INT64_MIN, 0])
def test_a_sum_may_be_the_least_one_or_more(client: redis.Redis, least: int) -> None:
    seats = planned(client, lua([write("HINCRBY", "seats:s1", "free", "-5", "MIN", str(least))]))
    seats.show(free=10**16 + 5)
    assert seats.run().outcome == "expired"
    assert seats.seats()[0] == 10**16


@pytest.mark.parametrize("least", [10**16 + 1, 10**16 + 10**12, INT64_MAX])
def test_a_sum_may_not_be_below_the_least_one(client: redis.Redis, least: int) -> None:
    seats = planned(client, lua([write("HINCRBY", "seats:s1", "free", "-5", "MIN", str(least))]))
    seats.show(free=10**16 + 5)
    seats.check_quarantined("INVALID_PLAN", why="below MIN")


@pytest.mark.parametrize("count", [3, 4, 5])
def test_each_field_of_a_hash_gets_its_own_sum(client: redis.Redis, count: int) -> None:
    fields = "abcde"[:count]
    seats = planned(client, lua([write("HINCRBY", "seats:x", field, str(n)) for n, field in enumerate(fields)]))
    client.hset("seats:x", mapping={field: 100 * n for n, field in enumerate(fields)})
    assert seats.run().outcome == "expired"
    assert seats.snapshot()[b"seats:x"] == {field.encode(): b"%d" % (101 * n) for n, field in enumerate(fields)}


# ---- templates


@pytest.mark.parametrize("qty", ["-7", "007", "+5", "1e3", "1.0", " 5", "5 ", "0x10", str(2**63), "nan", "9" * 30])
def test_an_amount_that_is_none_is_set_aside(client: redis.Redis, qty: str) -> None:
    seats = Seats(client)
    seats.show()
    seats.hold(qty=qty)
    seats.check_quarantined("INVALID_PLAN", why="no amount")


def test_the_greatest_amount_is_one(client: redis.Redis) -> None:
    seats = Seats(client)
    seats.show(free=0, held=INT64_MAX)
    seats.hold(qty=str(INT64_MAX))
    assert seats.run().outcome == "expired"
    assert seats.seats() == (INT64_MAX, 0)


def test_nothing_is_an_amount(client: redis.Redis) -> None:
    seats = Seats(client)
    seats.show()
    seats.hold(qty="0")
    assert seats.run().outcome == "expired"
    assert seats.seats() == (10, 5)


def test_nothing_is_an_amount_beside_a_budget_that_is_missing(client: redis.Redis) -> None:
    seats = Seats(client)
    seats.hold(qty="0")
    assert seats.run().outcome == "expired"


def test_an_amount_is_none_where_only_its_negative_is_an_int64(client: redis.Redis) -> None:
    seats = Seats(client, SEATS | {"give_back": ["HINCRBY seats:{show} held -{qty}"]})
    seats.show(held=0)
    seats.hold(qty=str(2**63))
    seats.check_quarantined("INVALID_PLAN", why="no amount")


@pytest.mark.parametrize("show", ["ttl", "hold:h1", "hold:other", "x" * 1020])
def test_a_value_cannot_name_an_entry_or_the_index(client: redis.Redis, show: str) -> None:
    seats = Seats(client)
    seats.hold(b"other", free=100, held=100)
    client.delete(seats.kind.index)
    seats.hold(show=show, free=100, held=100)
    seats.check_quarantined("INVALID_PLAN")


@pytest.mark.parametrize("note", ["a b", "a\nb", "{x}", "]] .. x", "'; x", "\\", "%d", "MIN 0", "\x00", "é"])
def test_values_are_one_word_and_never_lua(client: redis.Redis, note: str) -> None:
    seats = Seats(client, SEATS | {"give_back": [["HSET", "log:{note}", "a b {note}", "{{{note}}}"]]})
    seats.hold(note=note)
    assert seats.run().outcome == "expired"
    assert client.hgetall(f"log:{note}") == {f"a b {note}".encode(): f"{{{note}}}".encode()}
    assert seats.events()[0][b"data.note"] == note.encode()


@pytest.mark.parametrize("text", ["a'b", "a\nb", "]]", "\\", "--[[", "é", "{{x}}", "$(x)"])
def test_settings_are_quoted(client: redis.Redis, text: str) -> None:
    seats = Seats(
        client, SEATS | {"give_back": [["HSET", f"log:{text}", text, text]], "ended": {"state": text, text: text}}
    )
    seats.hold()
    assert seats.run().outcome == "expired"
    plain = text.replace("{{", "{").replace("}}", "}").encode()
    assert client.hgetall(b"log:" + plain) == {plain: plain}
    assert client.hget("seats:hold:h1", text) == text.encode()


def test_two_templates_that_come_to_one_key_see_each_other(client: redis.Redis) -> None:
    kind = SEATS | {"give_back": ["HINCRBY seats:{show} held -{qty} MIN 0", "HINCRBY seats:{note} held -{qty} MIN 0"]}
    seats = Seats(client, kind)
    seats.show()
    seats.hold(note="s1")
    seats.check_quarantined("INVALID_PLAN", why="MIN")
    seats.show(held=6)
    seats.hold(note="s1")
    assert seats.run().outcome == "expired"
    assert seats.seats() == (10, 0)


@pytest.mark.parametrize(
    ("command", "type_", "after"),
    [
        ("HSET log:{show} qty {qty}", "hash", {b"qty": b"3"}),
        ("INCRBY log:{show} {qty} MIN 0", "string", b"4"),
        ("SET log:{show} {qty} PX {ms}", "string", b"3"),
        ("ZADD log:{show} -{qty} {id}", "zset", {ID: -3.0}),
        ("SADD log:{show} {id}", "set", {ID}),
        ("RPUSH log:{show} {id} {qty}", "list", [ID, b"3"]),
        ("DEL log:{show}", "string", None),
    ],
)
def test_each_template_does_what_it_says(client: redis.Redis, command: str, type_: str, after: Any) -> None:
    seats = Seats(client, SEATS | {"give_back": [command]})
    seats.hold(ms=100_000)
    if type_ == "string":
        client.set("log:s1", 1)
    assert seats.run().outcome == "expired"
    assert seats.snapshot().get(b"log:s1") == after


# ---- the prefix


def test_every_key_lies_under_the_prefix(client: redis.Redis) -> None:
    seats = Seats(client, prefix="{t1}:")
    seats.show()
    seats.hold()
    client.hset("seats:s1", mapping={"free": 1, "held": 1})
    assert seats.run().outcome == "expired"
    assert seats.seats() == (13, 2)
    assert client.hgetall("seats:s1") == {b"free": b"1", b"held": b"1"}
    assert {key for key in client.scan_iter() if not key.startswith(b"{t1}:")} == {b"seats:s1"}


def test_an_id_used_again_is_given_back_again(client: redis.Redis) -> None:
    seats = Seats(client)
    seats.show()
    for free in (13, 16):
        seats.show(held=5, free=free - 3)
        client.delete("seats:hold:h1")
        seats.hold()
        assert seats.run().outcome == "expired"
        assert seats.seats() == (free, 2)
