"""Runs hostile plans and rows of a configured kind: no partial plan, and no write outside the declared keys."""

import json
from dataclasses import replace
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeperd.config.templates import FORMS
from sweeperd.store import Keys
from sweeperd.store.scripts import Script
from tests.lua.kinds.world import DEADLINE, ID, SEATS, Seats, scripted

PLAN = "function decide() return 'expire' end\nfunction plan(hash) return json.decode(hash.plan) end"

keys = st.sampled_from(
    """
    seats:s1 seats:n seats:set seats:list seats:z seats:new seats:ttl seats:hold:h1 seats:hold:h2 budget:x
    reservation:ttl sweeperd:events other
    """.split()  # noqa: SIM905
)
numbers = st.one_of(
    st.integers(-(2**63) - 2, 2**63 + 1).map(str),
    st.integers(-12, 12).map(str),
    st.sampled_from(["-0", "+1", "007", "1e3", "inf", "0x10", "1.5", "", "nan"]),
)
words = st.one_of(st.sampled_from(["free", "held", "text", "MIN", "PX", "0", "m"]), numbers, st.text(max_size=5))


def lasting(words: Any) -> list[str]:
    """Without a TTL that ends while the test looks at what the command has done."""
    timed = "PX" in words or words[:1] == ["PEXPIRE"]
    return [word + "00000" if timed and word.isdecimal() and 0 < int(word) < 60_000 else word for word in words]


#: Commands of the right form, and lists of any words.
command = st.one_of(
    st.tuples(st.just("HINCRBY"), keys, st.sampled_from(["free", "held", "text", "none"]), numbers),
    st.tuples(st.just("HINCRBY"), keys, st.sampled_from(["free", "held"]), numbers, st.just("MIN"), numbers),
    st.tuples(st.just("INCRBY"), keys, numbers),
    st.tuples(st.just("HSET"), keys, words, words),
    st.tuples(st.just("ZADD"), keys, numbers, words),
    st.tuples(st.just("SET"), keys, words, st.just("PX"), numbers),
    st.tuples(st.just("PEXPIRE"), keys, numbers),
    st.tuples(st.sampled_from(["SADD", "SREM", "LPUSH", "RPUSH", "ZREM", "HDEL"]), keys, words),
    st.tuples(st.just("DEL"), keys),
    st.lists(st.one_of(st.sampled_from(sorted(FORMS)), keys, words), max_size=6),
).map(lambda words: lasting(list(words)))
Value = str | None
SETTINGS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def arrange(client: redis.Redis, kind: dict[str, Any]) -> Seats:
    client.flushall()
    seats = Seats(client, kind)
    seats.show(text="x")
    client.set("seats:n", 5)
    client.sadd("seats:set", "a")
    client.rpush("seats:list", "a")
    client.zadd("seats:z", {"a": 1})
    client.set("other", "untouched")
    client.hset("budget:x", "reserved", 1)
    client.hset("seats:hold:h2", mapping={"state": "HELD", "free": 1})
    return seats


def check(seats: Seats) -> str:
    """One run is a quarantine with nothing moved, or an expiry that moved declared keys only. Returns the outcome."""
    before = seats.snapshot()
    decision = seats.run()
    after = seats.snapshot()
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} - {
        b"(keys with a TTL)"
    }
    own = {seats.kind.index, b"seats:hold:" + ID}
    if decision.outcome == "quarantined":
        assert changed <= own | {seats.kind.quarantine}, decision
    else:
        assert decision.outcome == "expired", decision
        assert len(seats.events()) == 1
        allowed = own | {Keys().events}
        moved = changed - allowed
        assert all(key.startswith(b"seats:") and key not in (b"seats:ttl", b"seats:hold:h2") for key in moved), moved
        seats.client.zadd(seats.kind.index, {ID: DEADLINE})
        again = seats.snapshot()
        assert seats.run().outcome == "skipped"
        rest = seats.snapshot()
        assert {key: value for key, value in again.items() if key != seats.kind.index} == rest
    return str(decision.outcome)


@given(plan=st.lists(command, max_size=5))
@SETTINGS
def test_a_hostile_plan_is_made_as_a_whole_or_not_at_all(client: redis.Redis, plan: list[Any]) -> None:
    seats = arrange(client, scripted(PLAN))
    seats.hold(plan=json.dumps(plan))
    check(seats)


hostile = st.one_of(
    st.none(), numbers, st.text(max_size=8), st.sampled_from(["ttl", "hold:h2", "s1", "3", "a b", "]]"])
)


@given(show=hostile, qty=hostile, note=hostile)
@SETTINGS
def test_a_hostile_row_keeps_the_books(
    client: redis.Redis, show: str | None, qty: str | None, note: str | None
) -> None:
    kind = SEATS | {"give_back": [*SEATS["give_back"], ["SADD", "seats:seen", "{note}"]]}
    seats = arrange(client, kind)
    seats.hold(show=show, qty=qty, note=note)
    free, held = seats.seats()
    check(seats)
    assert sum(seats.seats()) == free + held
    assert min(seats.seats()) >= 0


@given(show=hostile, qty=hostile, free=numbers, held=numbers)
@SETTINGS
def test_the_quick_check_decides_as_the_full_one(
    client: redis.Redis, show: str | None, qty: str | None, free: str, held: str
) -> None:
    found = []
    for quick in (True, False):
        seats = arrange(client, SEATS)
        if not quick:
            text = seats.kind.script.source.replace("checked = quick_plan()", "checked = nil")
            assert text != seats.kind.script.source
            seats.kind = replace(seats.kind, script=Script("full", text))
        seats.show(free=free, held=held)
        seats.hold(show=show, qty=qty)
        decision = seats.run(at=DEADLINE + 1)
        world = seats.snapshot()
        found.append((decision.outcome, decision.detail, world[b"seats:s1"], world.get(b"seats:hold:" + ID)))
    assert found[0] == found[1]
