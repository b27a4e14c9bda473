"""Exact arithmetic for all of int64: the script against Python's integers."""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import redis

from tests.lua.builders import DEADLINE, INT64_MAX, INT64_MIN, NOW, RID, SCOPES, World, json_bytes

#: Around where a double's digits end, the fast path may end, and int64 ends.
EDGES = [0, 1, 10**10 - 1, 10**10, 10**15 - 1, 10**15, 10**15 + 1, 2**53 - 1, 2**53, 2**53 + 1]
EDGES += [INT64_MAX - 1, INT64_MAX]
REMAINING_EDGES = [*EDGES, -1, -(10**10), -(10**10) - 1, -(10**15), -(2**53) - 1, INT64_MIN + 1, INT64_MIN]


def random_int(rng: random.Random, low: int, high: int) -> int:
    """Of any length between the bounds: a uniform one would nearly always have 19 digits."""
    sign = -1 if low < 0 and rng.random() < 0.5 else 1
    return min(max(sign * rng.getrandbits(rng.randint(1, 63)), low), high)


def expected(amount: int, reserved: int, remaining: int) -> tuple[set[bytes], int, int]:
    """The outcomes or reasons that the contract allows, and what the budget holds afterwards."""
    allowed = set()
    if reserved < amount:
        allowed.add(b"RESERVED_UNDERFLOW")
    if remaining + amount > INT64_MAX:
        allowed.add(b"BUDGET_OVERFLOW")
    if allowed:
        return allowed, reserved, remaining
    return {b"expired"}, reserved - amount, remaining + amount


def mismatches(client: "redis.Redis", cases: Iterable[Sequence[int]]) -> list[object]:
    """Sweep a reservation of each amount on a budget of its own; what differs from Python's arithmetic."""
    world, cases = World(client), list(cases)
    pipeline = client.pipeline(transaction=False)
    for number, (amount, reserved, remaining) in enumerate(cases):
        fields: dict[Any, Any] = {
            "state": "ACTIVE",
            "expires_at": DEADLINE,
            "estimate_amount": amount,
            "estimate_unit": "U",
        }
        pipeline.hset(world.keys.reservation(b"%d" % number), mapping={**fields, "budgeted_scopes": f'["{number}"]'})
        pipeline.hset(world.budget_key(str(number), "U"), mapping={"reserved": reserved, "remaining": remaining})
    pipeline.execute()
    replies = world.script.run_many(client, [world.call(b"%d" % number) for number in range(len(cases))])
    for number in range(len(cases)):
        pipeline.hmget(world.budget_key(str(number), "U"), "reserved", "remaining")
    found: list[object] = []
    for case, reply, budget in zip(cases, replies, pipeline.execute(), strict=True):
        allowed, *amounts = expected(*case)
        told = reply[1] if reply[0] == b"quarantined" else reply[0]
        if told not in allowed or budget != [b"%d" % value for value in amounts]:
            found.append((case, reply, budget))
    return found


def test_every_combination_of_the_edges(client: redis.Redis) -> None:
    assert mismatches(client, itertools.product(EDGES, EDGES, REMAINING_EDGES)) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_random_amounts(client: redis.Redis, seed: int) -> None:
    rng = random.Random(seed)
    bounds = [(0, INT64_MAX), (0, INT64_MAX), (INT64_MIN, INT64_MAX)]
    assert mismatches(client, ([random_int(rng, *pair) for pair in bounds] for _ in range(3000))) == []


@pytest.mark.parametrize("amount", EDGES)
def test_the_event_has_the_exact_amount(world: World, amount: int) -> None:
    world.budget("a", reserved=amount, remaining=0)
    world.reservation(estimate_amount=amount, budgeted_scopes='["a"]')
    assert world.expire()[0] == b"expired"
    assert world.amounts("a") == (b"0", b"%d" % amount)
    ((_, event),) = world.events()
    assert event[b"amount"] == b"%d" % amount


@pytest.mark.parametrize("amount", [0, 1, 123_456_789_012_345, 10**15, 2**53 + 1, 2**62 + 1])
def test_many_random_budgets_in_one_step(client: redis.Redis, amount: int) -> None:
    # Budgets of each size under one amount: the short way and the exact one meet in a single call.
    world, rng = World(client), random.Random(amount)
    budgets = {}
    with world.batch() as batch:
        for number in range(256):
            reserved = random_int(rng, amount, INT64_MAX)
            remaining = rng.choice([0, -1, -amount, random_int(rng, INT64_MIN, INT64_MAX - amount)])
            budgets[f"s{number}"] = (reserved, remaining)
            batch.budget(f"s{number}", reserved=reserved, remaining=remaining)
    world.reservation(estimate_amount=amount, budgeted_scopes=json_bytes(*budgets))
    assert world.expire()[0] == b"expired"
    assert world.amounts_of(budgets) == {
        scope: (b"%d" % (reserved - amount), b"%d" % (remaining + amount))
        for scope, (reserved, remaining) in budgets.items()
    }


@pytest.mark.parametrize("amount", [0, 1, 100, 10**15 - 1, 10**15, 2**53 + 1, 2**61 + 1])
@pytest.mark.parametrize("mentions", [2, 3])
def test_a_scope_is_released_as_often_as_it_is_named(world: World, amount: int, mentions: int) -> None:
    # Enough for all mentions to the unit; another scope stands between them.
    world.budget("a", reserved=amount * mentions, remaining=-amount)
    world.budget("b", reserved=INT64_MAX, remaining=0)
    world.reservation(estimate_amount=amount, budgeted_scopes=json_bytes("a", "b", *["a"] * (mentions - 1)))
    assert world.expire()[0] == b"expired"
    assert world.amounts("a") == (b"0", b"%d" % (amount * (mentions - 1)))
    assert world.amounts("b") == (b"%d" % (INT64_MAX - amount), b"%d" % amount)


@pytest.mark.parametrize("amount", [1, 100, 10**15 - 1, 10**15, 2**53 + 1, 2**61 + 1])
@pytest.mark.parametrize("mentions", [2, 3])
@pytest.mark.parametrize("reason", [b"RESERVED_UNDERFLOW", b"BUDGET_OVERFLOW"])
def test_all_mentions_of_a_scope_count_together(world: World, amount: int, mentions: int, reason: bytes) -> None:
    # One unit short, or one too many, at the last mention only.
    if reason == b"RESERVED_UNDERFLOW":
        world.budget("a", reserved=amount * mentions - 1, remaining=0)
    else:
        world.budget("a", reserved=amount * mentions, remaining=INT64_MAX - amount * mentions + 1)
    world.budget("b", reserved=INT64_MAX, remaining=0)
    world.reservation(RID, estimate_amount=amount, budgeted_scopes=json_bytes("a", "b", *["a"] * (mentions - 1)))
    world.check_quarantined(reason)


def balances(world: World, *, at: int = NOW) -> Any:
    """The field `balances` of the one event of this expiry."""
    assert world.expire(at=at, extra=["1"])[0] == b"expired"
    ((_, fields),) = world.client.xrange(world.keys.events)
    assert list(fields)[-1] == b"balances"
    text = fields[b"balances"].decode("utf-8", "surrogateescape")
    return {scope.encode("utf-8", "surrogateescape"): amounts for scope, amounts in json.loads(text).items()}


def test_an_event_says_what_is_left(world: World) -> None:
    """As `two_phase_expired` of TigerBeetle: both balances, as the script left them."""
    assert balances(world) == {scope.encode(): {"remaining": 5100, "reserved": 900} for scope in SCOPES}
    for scope in SCOPES:
        assert world.amounts(scope) == (b"900", b"5100")


def test_without_the_wish_an_event_has_no_balances(world: World) -> None:
    world.expire()
    ((_, fields),) = world.client.xrange(world.keys.events)
    assert b"balances" not in fields


@pytest.mark.parametrize("remaining", [2**53 + 1, -(2**53) - 1, 2**63 - 101, -(2**63), 0, -100])
def test_balances_are_exact(world: World, remaining: int) -> None:
    world.budget(SCOPES[0], reserved=2**63 - 1, remaining=remaining)
    found = balances(world)
    assert found[SCOPES[0].encode()] == {"remaining": remaining + 100, "reserved": 2**63 - 101}


def test_scopes_without_a_balance(world: World) -> None:
    """A missing budget and a closed one: nothing was given back there."""
    closed, odd = "tenant:shut", b'tenant:"\xff\n\xc3\xa9/\x01'
    key = world.budget(closed, reserved=0)
    world.client.hset(key, "status", "CLOSED")
    world.budget(odd)
    names = ['"' + text + '"' for text in (SCOPES[0], "gone", closed, SCOPES[0])]
    scopes = "[" + ",".join(names) + ","
    world.reservation(budgeted_scopes=scopes.encode() + b'"tenant:\\"\xff\\n\xc3\xa9/\\u0001"]')
    assert balances(world) == {
        SCOPES[0].encode(): {"remaining": 5200, "reserved": 800},
        odd: {"remaining": 5100, "reserved": 900},
    }


def test_no_budget_at_all(world: World) -> None:
    for scope in SCOPES:
        world.client.delete(world.budget_key(scope))
    assert balances(world) == {}
