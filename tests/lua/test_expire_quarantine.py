"""Each reason for a quarantine over many malformed values, and what takes precedence over what."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.lua.builders import DEADLINE, FAR_FUTURE, INT64_MAX, NOW, RID, SCOPES, Value, World, json_bytes

#: No plain decimal whole number, in any field.
NO_NUMBER: list[Value] = [
    *("", " ", "not-a-time", "-1", "-0", "+1", "1e3", "1e12", "12.5", "12.", " 12", "12 ", "12\n", "\t12"),
    *("0x10", "0X1F", "007", "00", "01", "nan", "inf", "-inf", "1_000", "1,000", "true", "null", "[]"),
    *(b"12\x00", b"\x00", b"\xff", "٣", "１２"),  # noqa: RUF001
]
TOO_MUCH = ["18446744073709551616", "9" * 20, "9" * 400, "1" + "0" * 400]

BAD_TIMES = [*NO_NUMBER, "9007199254740993", "9007199254740994", "9223372036854775807", *TOO_MUCH]
BAD_AMOUNTS = [*NO_NUMBER, "1.5", "9223372036854775808", "9223372036854775809", "10000000000000000000", *TOO_MUCH]
BAD_INT64 = [
    *(value for value in NO_NUMBER if value != "-1"),  # a budget may be overdrawn
    *("--1", "-", "-01", "- 1", "1.5", "-1.5", "9223372036854775808", "-9223372036854775809", "-9" * 20, *TOO_MUCH),
]

WRITE_WRONG_TYPE: dict[str, Callable[[World, bytes], object]] = {
    "string": lambda world, key: world.client.set(key, "text"),
    "list": lambda world, key: world.client.rpush(key, "a", "b"),
    "set": lambda world, key: world.client.sadd(key, "a"),
    "zset": lambda world, key: world.client.zadd(key, {"a": 1}),
    "stream": lambda world, key: world.client.xadd(key, {"a": "b"}),
}


def drop(world: World, field: str) -> None:
    assert world.client.hdel(world.keys.reservation(RID), field) == 1


@pytest.mark.parametrize("kind", WRITE_WRONG_TYPE)
def test_wrong_type(world: World, kind: str) -> None:
    key = world.keys.reservation(RID)
    world.client.delete(key)
    WRITE_WRONG_TYPE[kind](world, key)
    world.check_quarantined(b"WRONG_TYPE")


@pytest.mark.parametrize(
    "state", [None, "", "active", "ACTIVE ", " ACTIVE", "ACTIVE\x00", "LIMBO", "EXPIRED\n", "0", b"\xff"]
)
def test_invalid_state(world: World, state: Value | None) -> None:
    if state is None:
        drop(world, "state")
    else:
        world.reservation(state=state)
    world.check_quarantined(b"INVALID_STATE")


def test_a_hash_with_nothing_that_is_expected_is_not_a_missing_one(world: World) -> None:
    world.client.delete(world.keys.reservation(RID))
    world.client.hset(world.keys.reservation(RID), "metadata_json", "{}")
    world.check_quarantined(b"INVALID_STATE")


@pytest.mark.parametrize("value", [None, *BAD_TIMES])
def test_invalid_expires_at(world: World, value: Value | None) -> None:
    if value is None:
        drop(world, "expires_at")
    else:
        world.reservation(expires_at=value)
    world.check_quarantined(b"INVALID_EXPIRY")


@pytest.mark.parametrize("value", BAD_TIMES)
def test_invalid_grace_ms(world: World, value: Value) -> None:
    world.reservation(grace_ms=value)
    world.check_quarantined(b"INVALID_EXPIRY")


@pytest.mark.parametrize("value", [None, *BAD_AMOUNTS])
def test_invalid_estimate_amount(world: World, value: Value | None) -> None:
    if value is None:
        drop(world, "estimate_amount")
    else:
        world.reservation(estimate_amount=value)
    world.check_quarantined(b"INVALID_ESTIMATE")


@pytest.mark.parametrize("unit", [None, ""])
def test_invalid_estimate_unit(world: World, unit: str | None) -> None:
    world.budget(SCOPES[0], "")
    if unit is None:
        drop(world, "estimate_unit")
    else:
        world.reservation(estimate_unit=unit)
    world.check_quarantined(b"INVALID_ESTIMATE")


def test_missing_scopes(world: World) -> None:
    drop(world, "budgeted_scopes")
    drop(world, "affected_scopes")
    world.check_quarantined(b"MISSING_SCOPES")


MALFORMED: list[Value] = [
    *("", " ", "[]", "[ ]", "{}", "not-json", "null", "true", "123", '"tenant:acme"', "tenant:acme", "['a']"),
    *('{"1":"tenant:acme"}', '{"a":["tenant:acme"]}', "[123]", "[1.5]", "[NaN]", "[true]", "[null]", "[[]]"),
    *('["tenant:acme",null]', '[null,"tenant:acme"]', '["tenant:acme",123]', '["tenant:acme",false]'),
    *('[""]', '["tenant:acme",""]', '[["tenant:acme"]]', '["tenant:acme",["a"]]', '[{"a":1}]', "[" * 2000),
    *('["tenant:acme"] trailing', '["tenant:acme"],', '["tenant:acme"]["a"]', '["tenant:acme"', '["tenant:acme'),
    *('["tenant:acme",]', '[,"tenant:acme"]', '["tenant:acme" "a"]', '"tenant:acme"]', '["\\x"]', '["\\ud800"]'),
    *(b"\xff", b"[\xff]", b"\x00", b'\xef\xbb\xbf["tenant:acme"]', b'["tenant:acme"]\x00["a"]'),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("budgeted_scopes", value) for value in MALFORMED),
        *(("affected_scopes", value) for value in ("", "[]", "{}", "[123]", '[""]', b"\xff")),
    ],
)
def test_malformed_scopes(world: World, field: str, value: Value) -> None:
    if field == "affected_scopes":
        drop(world, "budgeted_scopes")  # else it counts alone, however malformed the other is
    fields: dict[str, Any] = {"budgeted_scopes": None, field: value}
    world.reservation(**fields)
    world.check_quarantined(b"MALFORMED_SCOPES")


@pytest.mark.parametrize("kind", WRITE_WRONG_TYPE)
@pytest.mark.parametrize("scope", SCOPES)
def test_budget_of_a_wrong_type(world: World, kind: str, scope: str) -> None:
    world.client.delete(world.budget_key(scope))
    WRITE_WRONG_TYPE[kind](world, world.budget_key(scope))
    world.check_quarantined(b"INVALID_BUDGET")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("fields", [["reserved"], ["remaining"], ["reserved", "remaining"]], ids=" and ".join)
def test_budget_without_a_field(world: World, scope: str, fields: list[str]) -> None:
    assert world.client.hdel(world.budget_key(scope), *fields) == len(fields)
    world.check_quarantined(b"INVALID_BUDGET")


@pytest.mark.parametrize(
    ("field", "value"),
    [*(("reserved", value) for value in BAD_INT64), *(("remaining", value) for value in BAD_INT64[::6])],
)
def test_budget_that_is_no_int64(world: World, field: str, value: Value) -> None:
    world.client.hset(world.budget_key(SCOPES[1]), field, value)
    world.check_quarantined(b"INVALID_BUDGET")


@pytest.mark.parametrize(
    ("reserved", "amount"),
    [(99, 100), (0, 1), (-1, 0), (-5, 100), (2**53, 2**53 + 1), (INT64_MAX - 1, INT64_MAX), (-(2**63), INT64_MAX)],
)
def test_reserved_underflow(world: World, reserved: int, amount: int) -> None:
    world.reservation(estimate_amount=amount)
    world.budget(SCOPES[0], reserved=INT64_MAX, remaining=0)
    world.budget(SCOPES[1], reserved=reserved, remaining=0)
    world.check_quarantined(b"RESERVED_UNDERFLOW")


@pytest.mark.parametrize(
    ("remaining", "amount"),
    [(INT64_MAX, 1), (INT64_MAX - 99, 100), (1, INT64_MAX), (2**62, 2**62), (2**63 - 2**53, 2**53)],
)
def test_budget_overflow(world: World, remaining: int, amount: int) -> None:
    world.reservation(estimate_amount=amount)
    world.budget(SCOPES[0], reserved=INT64_MAX, remaining=0)
    world.budget(SCOPES[1], reserved=INT64_MAX, remaining=remaining)
    world.check_quarantined(b"BUDGET_OVERFLOW")


BREAK_A_BUDGET: dict[str, Callable[[World, bytes], object]] = {
    **WRITE_WRONG_TYPE,
    "no reserved": lambda world, key: world.client.hset(key, "remaining", "1"),
    "no remaining": lambda world, key: world.client.hset(key, "reserved", "100"),
    "no int64": lambda world, key: world.client.hset(key, mapping={"reserved": "100", "remaining": "1e3"}),
    "underflow": lambda world, key: world.client.hset(key, mapping={"reserved": "99", "remaining": "1"}),
    "overflow": lambda world, key: world.client.hset(key, mapping={"reserved": "100", "remaining": INT64_MAX}),
}


@pytest.mark.parametrize("damage", BREAK_A_BUDGET)
def test_a_broken_last_budget_mints_nothing_however_often_it_is_swept(world: World, damage: str) -> None:
    scopes = [f"scope:{number}" for number in range(5)]
    for scope in scopes[:-1]:
        world.budget(scope)
    BREAK_A_BUDGET[damage](world, world.budget_key(scopes[-1]))
    world.reservation(budgeted_scopes=json_bytes(*scopes))
    before = world.snapshot()
    replies = []
    for _ in range(5):
        world.index()
        replies.append(world.expire(at=NOW))
    assert [reply[0] for reply in replies] == [b"quarantined"] * 5
    assert all(reply == replies[0] for reply in replies)
    after = world.snapshot()
    for scope in scopes:
        assert after[world.budget_key(scope)] == before[world.budget_key(scope)]
    assert after[world.keys.reservation(RID)][b"state"] == b"ACTIVE"
    assert world.events() == []


def test_a_quarantined_reservation_that_was_repaired_expires(world: World) -> None:
    world.reservation(estimate_amount="broken")
    world.check_quarantined(b"INVALID_ESTIMATE")
    world.reservation()
    assert world.expire()[0] == b"expired"
    assert world.amounts(SCOPES[0]) == (b"900", b"5100")


ALL_DAMAGED: dict[str, Any] = {
    "expires_at": "nan",
    "grace_ms": "-1",
    "estimate_amount": "1e3",
    "estimate_unit": "",
    "budgeted_scopes": "{}",
    "affected_scopes": "[]",
}
LATER_DAMAGE: list[dict[str, Any]] = [
    {"estimate_amount": "1e3"},
    {"estimate_unit": ""},
    {"estimate_amount": "", "estimate_unit": "", "budgeted_scopes": "", "affected_scopes": ""},
    {"budgeted_scopes": "not-json"},
    {"budgeted_scopes": '["wrong-type"]'},
    {"estimate_amount": str(INT64_MAX)},  # underflow
    {"estimate_amount": "1", "budgeted_scopes": '["brimful"]'},  # overflow
]


@pytest.fixture
def damaged(world: World) -> World:
    world.client.set(world.budget_key("wrong-type"), "text")
    world.budget("brimful", remaining=INT64_MAX)
    return world


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        *(("COMMITTED", fields) for fields in (ALL_DAMAGED, *LATER_DAMAGE)),
        ("RELEASED", ALL_DAMAGED),
        ("EXPIRED", ALL_DAMAGED),
    ],
)
def test_a_final_state_wins_over_all_damage(damaged: World, state: str, fields: dict[str, Any]) -> None:
    damaged.reservation(**{**fields, "state": state})
    before = damaged.snapshot()
    assert damaged.expire() == [b"skipped", state.encode()]
    assert damaged.snapshot() == damaged.without_index_entry(before)


@pytest.mark.parametrize("state", ["COMMITTED", "RELEASED", "EXPIRED"])
def test_a_final_state_alone_is_enough(world: World, state: str) -> None:
    world.client.delete(world.keys.reservation(RID))
    world.client.hset(world.keys.reservation(RID), "state", state)
    assert world.expire() == [b"skipped", state.encode()]


def test_not_found_wins_over_damaged_budgets(world: World) -> None:
    world.client.delete(world.keys.reservation(RID))
    for scope in SCOPES:
        world.client.set(world.budget_key(scope), "text")
    assert world.expire() == [b"not_found"]


def test_invalid_state_wins_over_all_damage(damaged: World) -> None:
    damaged.reservation(**ALL_DAMAGED, state="LIMBO")
    damaged.check_quarantined(b"INVALID_STATE")


@pytest.mark.parametrize("expires_at", [DEADLINE, FAR_FUTURE])
@pytest.mark.parametrize("grace_ms", ["nan", ""])
def test_an_invalid_grace_wins_over_not_due(world: World, expires_at: int, grace_ms: str) -> None:
    world.reservation(expires_at=expires_at, grace_ms=grace_ms)
    world.check_quarantined(b"INVALID_EXPIRY")


def test_an_invalid_deadline_wins_over_in_grace(world: World) -> None:
    world.reservation(expires_at="-1", grace_ms=FAR_FUTURE)
    world.check_quarantined(b"INVALID_EXPIRY")


def test_an_invalid_expiry_wins_over_the_rest(damaged: World) -> None:
    damaged.reservation(**ALL_DAMAGED)
    damaged.check_quarantined(b"INVALID_EXPIRY")


@pytest.mark.parametrize("fields", LATER_DAMAGE)
@pytest.mark.parametrize(("at", "outcome"), [(DEADLINE, b"not_due"), (DEADLINE + 5000, b"in_grace")])
def test_not_due_and_in_grace_win_over_what_matters_later(
    damaged: World, fields: dict[str, Any], at: int, outcome: bytes
) -> None:
    # What is still alive may yet be repaired, or committed by a service that reads it otherwise.
    damaged.reservation(**{**fields, "expires_at": DEADLINE, "grace_ms": 5000})
    before = damaged.snapshot()
    assert damaged.expire(at=at)[0] == outcome
    assert damaged.snapshot() == before
    assert damaged.expire(at=DEADLINE + 5001)[0] == b"quarantined"
