"""What the scripts of `reconcile` answer, each edge of it, on a frozen clock."""

from typing import Any

import pytest

from sweeperd.store.scripts import Call, Script
from tests.lua.builders import DEADLINE, INT64_MAX, INT64_MIN, NOW, RID, SCOPES, World, frozen, json_bytes

#: Holdings that ended before this moment are left out.
SINCE = NOW - 1000
BEGAN = DEADLINE - 60_000
LOOK, BUDGETS, KIND = "ops/reconcile_look", "ops/reconcile_budgets", "ops/reconcile_entry"


def looked(world: World, since: int | str = SINCE) -> Any:
    """What reconcile_look.lua says of RID."""
    keys = world.keys
    call = Call([keys.reservation_index, keys.quarantine, keys.reservation(RID)], [0, since, RID])
    found, _ = frozen(NOW, LOOK).run(world.client, call)
    return found


def held(world: World) -> list[bytes]:
    """What it says that RID holds."""
    found = looked(world)
    return found[1] if found else []


@pytest.mark.parametrize("scopes", [SCOPES, [f"tenant:{number}" for number in range(256)]])
def test_an_active_reservation_holds_its_amount_in_each_scope(world: World, scopes: list[str]) -> None:
    world.reservation(budgeted_scopes=json_bytes(*scopes))
    assert looked(world) == [b"", [b"%d" % BEGAN, b"", b"100", b"TOKENS", *map(str.encode, scopes)]]
    assert looked(world, since="") == 0


@pytest.mark.parametrize("amount", ["0", "1", str(INT64_MAX - 1), str(INT64_MAX), "9" * 18])
def test_an_amount_is_a_whole_number_up_to_the_greatest(world: World, amount: str) -> None:
    world.reservation(estimate_amount=amount)
    assert held(world)[2] == amount.encode()


@pytest.mark.parametrize("amount", ["-1", "00", "x", "", "1.0", str(INT64_MAX + 1), "1" * 20, None])
def test_what_it_holds_is_unreadable_without_an_amount(world: World, amount: str | None) -> None:
    world.client.delete(world.keys.reservation(RID))
    world.reservation(estimate_amount=amount)
    assert held(world) == [b"unreadable", b"TOKENS", *map(str.encode, SCOPES)]
    world.reservation(state="LIMBO", indexed=False)
    world.client.hdel(world.keys.reservation(RID), "estimate_amount")
    assert looked(world) == 0, "and of one that is not ACTIVE nothing is said"


@pytest.mark.parametrize(
    "fields", [{"budgeted_scopes": json_bytes(*map(str, range(257)))}, {"budgeted_scopes": "5"}, {"estimate_unit": ""}]
)
def test_without_scopes_or_a_unit_nothing_of_it_is_readable(world: World, fields: dict[str, Any]) -> None:
    world.reservation(**fields)
    assert held(world) == [b"unreadable"]


def test_what_is_no_hash_is_unreadable(world: World) -> None:
    world.client.delete(world.keys.reservation(RID))
    world.client.set(world.keys.reservation(RID), "text")
    assert looked(world) == [b"", [b"unreadable"]]
    assert looked(world, since="") == 0


@pytest.mark.parametrize(
    ("state", "field"), [("COMMITTED", "committed_at"), ("RELEASED", "released_at"), ("EXPIRED", "expired_at")]
)
def test_an_ended_one_held_until_its_end(world: World, state: str, field: str) -> None:
    # An end after now: the clock was set back since.
    for ended, until in ((SINCE, b"%d" % SINCE), (NOW, b"%d" % NOW), (NOW + 1, b"?"), (SINCE - 1, None)):
        world.reservation(state=state, indexed=False, expired_event="1-0", **{field: ended})
        assert held(world)[1:2] == ([until] if until else [])


def test_how_long_ended_ones_stay_readable(world: World) -> None:
    keys, client = world.keys, world.client
    ids = [b"long", b"short", b"for ever", b"yet to end", b"unknown", RID]
    ends: list[int | str] = [SINCE - 5000, SINCE, SINCE, NOW + 1, "soon"]
    for entry, ended in zip(ids[:-1], ends, strict=True):
        world.reservation(entry, state="COMMITTED", indexed=False, committed_at=ended)
        client.pexpire(keys.reservation(entry), 60_000)
    client.pexpire(keys.reservation(b"long"), 200_000)
    client.persist(keys.reservation(b"for ever"))
    client.pexpire(keys.reservation(RID), 1000)

    def shortest(since: int | str, *ids: bytes) -> bytes:
        call = Call([keys.reservation_index, keys.quarantine, *map(keys.reservation, ids)], [0, since, *ids])
        found: bytes = frozen(NOW, LOOK).run(client, call)[-1]
        return found

    assert 41_000 < int(shortest(SINCE, *ids)) <= 61_000
    assert 186_000 < int(shortest(SINCE, b"long")) <= 206_000
    assert shortest(SINCE, *ids[2:]) == b""
    assert shortest("", *ids) == b""


@pytest.mark.parametrize(
    ("state", "expires_at", "until"),
    [
        # A commit is taken until the end of the grace, 5,000 ms.
        ("COMMITTED", SINCE - 5001, None),
        ("COMMITTED", SINCE - 5000, b"?"),
        ("RELEASED", SINCE - 5001, None),
        ("EXPIRED", SINCE - 5001, b"?"),
        ("LIMBO", SINCE - 5001, b"?"),
    ],
)
def test_without_a_time_of_its_end_it_may_hold(world: World, state: str, expires_at: int, until: bytes | None) -> None:
    world.reservation(state=state, indexed=False, expires_at=expires_at, expired_event="1-0")
    assert held(world)[1:2] == ([until] if until else [])


@pytest.mark.parametrize(
    ("created_at", "ended", "began"),
    [
        (NOW, None, b"%d" % NOW),
        (NOW + 1, None, b""),
        (None, None, b""),
        (SINCE, SINCE, b"%d" % SINCE),
        (SINCE + 1, SINCE, b""),
    ],
)
def test_a_time_after_now_or_after_its_own_end_is_none(
    world: World, created_at: int | None, ended: int | None, began: bytes
) -> None:
    world.client.delete(world.keys.reservation(RID))
    more = {} if ended is None else {"state": "COMMITTED", "committed_at": ended, "indexed": False}
    world.reservation(created_at=created_at, **more)  # type: ignore[arg-type]
    assert held(world)[0] == began


@pytest.mark.parametrize(
    ("fields", "score", "mark"),
    [
        ({}, DEADLINE, b""),
        ({}, DEADLINE + 1, b"wrong_score"),
        ({}, None, b"lost"),
        ({"dismissed_at": "1"}, None, b"dismissed"),
        ({"quarantined_at": "1"}, None, b"foreign_quarantine"),
        # Due anyway, so the sweep will decide it.
        ({"expires_at": "x"}, NOW, b""),
        ({"expires_at": "x"}, NOW + 1, b"wrong_score"),
        ({"state": "EXPIRED", "expired_at": NOW, "expired_event": "1-0"}, None, b""),
        ({"state": "EXPIRED", "expired_at": NOW}, None, b"foreign_expiry"),
    ],
)
def test_the_index_is_right_or_not(world: World, fields: dict[str, Any], score: int | None, mark: bytes) -> None:
    world.reservation(indexed=False, **fields)
    world.client.zrem(world.keys.reservation_index, RID)
    if score is not None:
        world.index(score=score)
    found = looked(world)
    assert found[0] == mark
    assert looked(world, since="") == ([mark, []] if mark else 0)


def test_each_reservation_has_its_own_answer(world: World) -> None:
    keys = world.keys
    world.reservation(b"done", state="COMMITTED", committed_at=SINCE - 1, indexed=False)
    world.index(b"gone")
    ids = [b"done", b"gone", RID, b"nobody"]
    call = Call([keys.reservation_index, keys.quarantine, *map(keys.reservation, ids)], [0, SINCE, *ids])
    done, gone, active, nobody, _ = frozen(NOW, LOOK).run(world.client, call)
    assert (done, gone, active[0], nobody) == (0, [b"orphan", []], b"", 0)


def test_what_each_budget_has_reserved(world: World) -> None:
    budgets: dict[str, dict[str, Any] | str | None] = {
        "open": {"reserved": 5, "status": "ACTIVE"},
        "below": {"reserved": -7},
        "nobody": None,
        "closed": {"reserved": 5, "status": "CLOSED"},
        "odd": {"reserved": "5.0"},
        "empty": {"remaining": 5},
        "text": "text",
        "last": {"reserved": INT64_MAX},
    }
    for name, fields in budgets.items():
        if isinstance(fields, dict):
            world.client.hset(world.budget_key(name), mapping=fields)
        elif fields:
            world.client.set(world.budget_key(name), fields)
    at, *reserved = frozen(NOW, BUDGETS).run(world.client, Call([world.budget_key(name) for name in budgets], []))
    assert int(at) == NOW
    assert reserved == [b"5", b"-7", b"", b"-", b"?", b"?", b"?", b"%d" % INT64_MAX]


@pytest.mark.parametrize(
    ("deadline", "score", "fault"),
    [
        # A score may be later than the deadline, or than now where that is later, by 100 ms.
        (NOW - 5000, NOW + 100, None),
        (NOW - 5000, NOW + 101, "wrong_score"),
        (NOW + 5000, NOW + 5100, None),
        (NOW + 5000, NOW + 5101, "wrong_score"),
        (NOW + 5000, NOW, None),
        (NOW + 5000, None, "lost"),
        (None, NOW + 10**9, None),
    ],
)
@pytest.mark.parametrize("seen", ["nothing", "the same", "another"])
def test_a_kinds_index_is_right_or_not(
    world: World, deadline: int | None, score: int | None, fault: str | None, seen: str
) -> None:
    number = score if score is not None else deadline
    mend = {"nothing": "", "the same": f"{fault}:{number}", "another": f"{fault}:{(number or 0) - 1}"}[seen]
    client = world.client
    client.hset("seat:1", mapping={"state": "HELD"} if deadline is None else {"until": deadline})
    if score is not None:
        client.zadd("seats", {"1": score})
    before = world.snapshot()
    reply = frozen(NOW, KIND).run(client, Call([b"seats", b"seats:aside", b"seat:1"], ["1", mend, "until", 100, 0]))
    if fault is None:
        assert reply == []
        assert world.snapshot() == before
        return
    assert reply == [fault.encode(), b"%d" % (deadline or 0), b"" if score is None else b"%d" % score]
    assert client.zscore("seats", "1") == (deadline if seen == "the same" else score)
    call = Call([b"seats", b"seats:aside", b"seat:1"], ["1", mend, "until", 100, 0, "skipped"])
    assert frozen(NOW, KIND).run(client, call) == [], "it has ended"


@pytest.mark.parametrize(
    ("note", "fault"),
    [
        # The sweep set the score, 101 ms after now, and noted the deadline.
        (f"{NOW - 5000} {NOW + 101}", [b"wrong_score", b"%d" % (NOW - 5000), b"%d" % (NOW + 101)]),
        # The service has set the score since, or there is no note: the score is the deadline.
        (f"{NOW - 5000} {NOW + 100}", []),
        (None, []),
    ],
)
def test_a_score_is_the_deadline_unless_the_sweep_has_set_it(
    world: World, note: str | None, fault: list[bytes]
) -> None:
    world.client.hset("seat:1", "state", "HELD")
    world.client.zadd("seats", {"1": NOW + 101})
    if note is not None:
        world.client.hset("notes", "1", note)
    call = Call([b"seats", b"seats:aside", b"seat:1", b"notes"], ["1", "", "score", 100, 0, "in_grace"])
    assert frozen(NOW, KIND).run(world.client, call) == fault


@pytest.mark.parametrize(("later", "fault"), [(100, None), (101, b"wrong_score")])
def test_a_deadline_in_seconds(world: World, later: int, fault: bytes | None) -> None:
    deadline, score = (f"{(NOW + ms) / 1000:.3f}" for ms in (5000, 5000 + later))
    world.client.hset("seat:1", "until", deadline)
    world.client.zadd("seats", {"1": score})
    call = Call([b"seats", b"seats:aside", b"seat:1"], ["1", "", "until", 100, 0, "not_due", "", 1000])
    found = frozen(NOW, KIND).run(world.client, call)
    assert found[:2] == ([fault, deadline.encode()] if fault else [])


@pytest.mark.parametrize(
    ("budget", "sign", "amount", "outcome"),
    [
        ({"reserved": 5, "remaining": 7}, "+", 5, b"repaired"),
        ({"reserved": 5, "remaining": 7}, "-", 5, b"repaired"),
        ({"reserved": 5, "remaining": -7}, "-", 5, b"repaired"),
        ({"reserved": 5, "remaining": 7}, "+", 6, b"OUT_OF_BOUNDS"),
        ({"reserved": 5, "remaining": INT64_MAX - 5}, "+", 5, b"repaired"),
        ({"reserved": 5, "remaining": INT64_MAX - 4}, "+", 5, b"OUT_OF_BOUNDS"),
        ({"reserved": INT64_MAX - 4, "remaining": 7}, "-", 5, b"OUT_OF_BOUNDS"),
        ({"reserved": 0, "remaining": INT64_MIN + 5}, "-", 5, b"repaired"),
        ({"reserved": 0, "remaining": INT64_MIN + 4}, "-", 5, b"OUT_OF_BOUNDS"),
        ({"reserved": 5, "remaining": 7, "status": "CLOSED"}, "+", 5, b"CLOSED"),
        ({"reserved": 5, "remaining": 7, "status": "FROZEN"}, "+", 5, b"repaired"),
        ({"reserved": 5}, "+", 5, b"INVALID_BUDGET"),
        ({"remaining": 5}, "+", 5, b"INVALID_BUDGET"),
        ({"allocated": 5}, "+", 5, b"INVALID_BUDGET"),
        ({"reserved": -1, "remaining": 7}, "-", 5, b"INVALID_BUDGET"),
        ({"reserved": 5, "remaining": "7.0"}, "+", 5, b"INVALID_BUDGET"),
        (None, "+", 5, b"NO_BUDGET"),
        ("text", "+", 5, b"INVALID_BUDGET"),
    ],
)
def test_a_budget_is_repaired_or_stays_as_it_is(
    world: World, budget: dict[str, Any] | str | None, sign: str, amount: int, outcome: bytes
) -> None:
    client, key = world.client, world.budget_key("team")
    if isinstance(budget, dict):
        client.hset(key, mapping=budget)
    elif budget:
        client.set(key, budget)
    before = world.snapshot()
    lease = world.keys.lease("repair-budget")
    client.set(lease, "mine")
    call = Call([key, lease, world.keys.events], [sign, amount, "mine", world.keys.budget_stem])
    assert Script("ops/repair_budget").run(client, call) == outcome
    # The same call again: the lease has ended with the repair.
    again = b"LEASE_LOST" if outcome == b"repaired" else outcome
    assert Script("ops/repair_budget").run(client, call) == again
    client.delete(lease)
    if isinstance(budget, dict) and outcome == b"repaired":
        moved = -amount if sign == "+" else amount
        before[key] |= {b"reserved": b"%d" % (budget["reserved"] + moved)}
        before[key] |= {b"remaining": b"%d" % (budget["remaining"] - moved)}
    assert world.snapshot() == before


@pytest.mark.parametrize("token", ["another's", None])
def test_without_the_lease_no_budget_is_repaired(world: World, token: str | None) -> None:
    client, key, lease = world.client, world.budget_key("team"), world.keys.lease("repair-budget")
    client.hset(key, mapping={"reserved": 5, "remaining": 7})
    if token:
        client.set(lease, token)
    before = world.snapshot()
    call = Call([key, lease, world.keys.events], ["+", 5, "mine", world.keys.budget_stem])
    assert Script("ops/repair_budget").run(client, call) == b"LEASE_LOST"
    assert world.snapshot() == before
