"""Each outcome of expire.lua: the reply, what it changes, and that it changes nothing else."""

from typing import Any

import pytest

from tests.lua.builders import (
    DEADLINE,
    FAR_FUTURE,
    NOW,
    RETENTION,
    RID,
    SCOPES,
    TRACE,
    VOLATILE,
    World,
    json_bytes,
    scopes_of,
)

FINAL_STATES = ["COMMITTED", "RELEASED", "EXPIRED"]


@pytest.mark.every_redis
def test_not_found_removes_the_index_entry_alone(world: World) -> None:
    world.client.delete(world.keys.reservation(RID))
    before = world.snapshot()
    assert world.expire() == [b"not_found"]
    assert world.snapshot() == world.without_index_entry(before)


def test_not_found_does_not_read_the_hash_under_the_bare_id(world: World) -> None:
    world.client.rename(world.keys.reservation(RID), b"reservation:" + RID)
    before = world.snapshot()
    assert world.expire() == [b"not_found"]
    assert world.snapshot() == world.without_index_entry(before)


@pytest.mark.every_redis
@pytest.mark.parametrize("state", FINAL_STATES)
def test_skipped_removes_the_index_entry_alone(world: World, state: str) -> None:
    world.reservation(state=state)
    before = world.snapshot()
    assert world.expire() == [b"skipped", state.encode()]
    assert world.snapshot() == world.without_index_entry(before)


@pytest.mark.parametrize("state", [None, *FINAL_STATES])
def test_what_is_gone_or_final_and_not_in_the_index_changes_nothing(world: World, state: str | None) -> None:
    world.reservation(state=state)
    if state is None:
        world.client.delete(world.keys.reservation(RID))
    world.client.zrem(world.keys.reservation_index, RID)
    before = world.snapshot()
    assert world.expire()[0] == (b"skipped" if state else b"not_found")
    assert world.snapshot() == before


@pytest.mark.every_redis
def test_not_due_moves_the_index_entry_to_the_hash_s_deadline(world: World) -> None:
    world.reservation(expires_at=FAR_FUTURE)
    before = world.snapshot()
    assert before[world.keys.reservation_index][RID] == DEADLINE
    assert world.expire() == [b"not_due"]
    before[world.keys.reservation_index][RID] = FAR_FUTURE
    assert world.snapshot() == before


def test_in_grace_changes_nothing(world: World) -> None:
    world.reservation(grace_ms=FAR_FUTURE)
    before = world.snapshot()
    assert world.expire()[0] == b"in_grace"
    assert world.snapshot() == before


@pytest.mark.every_redis
def test_quarantined_on_the_real_clock(world: World) -> None:
    # The frozen clock shows which time is written; this shows that it is Redis's.
    world.reservation(state="LIMBO")
    earliest = world.now()
    assert world.expire() == [b"quarantined", b"INVALID_STATE", b"acme"]
    latest = world.now()
    score = world.client.zscore(world.keys.quarantine, RID)
    assert earliest <= score <= latest
    assert int(world.client.hget(world.keys.reservation(RID), "quarantined_at")) == score


@pytest.mark.every_redis
def test_expired_changes_the_hash_its_budgets_the_index_and_the_stream_alone(world: World) -> None:
    before = world.snapshot()
    reply = world.expire(at=NOW)
    assert reply == [b"expired", b"acme", NOW - DEADLINE - 5000, b"[]", b"[]"]
    after = world.without_index_entry(before)
    for scope in SCOPES:
        after[world.budget_key(scope)] |= {b"reserved": b"900", b"remaining": b"5100"}
    key = world.keys.reservation(RID)
    ((stream_id, _),) = after[world.keys.events] = world.events()
    after[key] |= {b"state": b"EXPIRED", b"expired_at": b"%d" % NOW, b"expired_event": stream_id}
    after[VOLATILE] = {key}
    assert world.snapshot() == after
    assert len(world.events()) == 1


@pytest.mark.every_redis
def test_expired_on_the_real_clock(world: World) -> None:
    earliest = world.now()
    outcome, _, lag, _, _ = world.expire()
    latest = world.now()
    assert outcome == b"expired"
    expired_at = int(world.client.hget(world.keys.reservation(RID), "expired_at"))
    assert earliest <= expired_at <= latest
    assert lag == expired_at - DEADLINE - 5000
    ((stream_id, event),) = world.events()
    assert int(event[b"expired_at"]) == expired_at
    # Redis takes the id from its clock as of the same call.
    assert earliest - 1 <= int(stream_id.partition(b"-")[0]) <= latest


def test_event_fields(world: World) -> None:
    world.expire(at=NOW, grace=77)
    ((_, event),) = world.events()
    assert event == {
        b"id": RID,
        b"tenant": b"acme",
        b"scope": SCOPES[-1].encode(),
        b"unit": b"TOKENS",
        b"amount": b"100",
        b"created_at": b"%d" % (DEADLINE - 60_000),
        b"expires_at": b"%d" % DEADLINE,
        b"expired_at": b"%d" % NOW,
        b"grace_ms": b"5000",
        b"extensions": b"2",
        b"missing": b"[]",
        b"closed": b"[]",
        b"trace_id": TRACE,
    }


def test_event_of_a_reservation_with_the_required_fields_only(world: World) -> None:
    world.client.delete(world.keys.reservation(RID))
    optional = ("tenant", "scope_path", "created_at", "grace_ms", "extension_count", "reservation_id", "metadata_json")
    absent: dict[str, Any] = dict.fromkeys(optional)
    world.reservation(**absent)
    assert world.expire(grace=77)[:2] == [b"expired", b""]
    ((_, event),) = world.events()
    assert [event[name] for name in (b"id", b"tenant", b"scope", b"created_at", b"extensions")] == [RID, *[b""] * 4]
    assert event[b"grace_ms"] == b"77"


def test_a_second_call_changes_nothing(world: World) -> None:
    world.expire()
    after_first = world.snapshot()
    for indexed in (False, True):
        if indexed:
            world.index()
        assert world.expire() == [b"skipped", b"EXPIRED"]
        assert world.snapshot() == after_first


@pytest.mark.every_redis
@pytest.mark.parametrize("retention", [60_000, RETENTION, 10 * 365 * 86_400_000])
@pytest.mark.parametrize("had_a_ttl", [False, True])
def test_the_expired_hash_gets_the_audit_retention(world: World, retention: int, had_a_ttl: bool) -> None:
    key = world.keys.reservation(RID)
    if had_a_ttl:
        world.client.pexpire(key, 3_600_000)
    earliest = world.now()
    world.expire(retention=retention)
    left = world.client.pttl(key)
    elapsed_at_most = world.now() - earliest + 2  # each of the two readings drops part of a millisecond
    assert retention - elapsed_at_most <= left <= retention


@pytest.mark.parametrize(
    ("fields", "released"),
    [
        ({"budgeted_scopes": json_bytes("b"), "affected_scopes": json_bytes("a")}, {"b"}),
        ({"budgeted_scopes": json_bytes("b"), "affected_scopes": "not-json"}, {"b"}),
        ({"budgeted_scopes": json_bytes("b"), "affected_scopes": None}, {"b"}),
        ({"budgeted_scopes": None, "affected_scopes": json_bytes("a", "b")}, {"a", "b"}),
    ],
)
def test_affected_scopes_count_where_budgeted_scopes_is_missing(
    bystanders: World, fields: dict[str, Any], released: set[str]
) -> None:
    world = bystanders
    for scope in ("a", "b"):
        world.budget(scope)
    world.reservation(**fields)
    assert world.expire()[0] == b"expired"
    for scope in ("a", "b"):
        assert world.amounts(scope) == ((b"900", b"5100") if scope in released else (b"1000", b"5000"))


@pytest.mark.parametrize(
    ("gone", "named"),
    [([SCOPES[0]], SCOPES[:1]), ([SCOPES[1]], SCOPES[1:]), (SCOPES, SCOPES)],
    ids=["first", "last", "both"],
)
def test_a_deleted_budget_is_named_and_not_invented(world: World, gone: list[str], named: tuple[str, ...]) -> None:
    world.budget("third")
    world.reservation(budgeted_scopes=json_bytes(SCOPES[0], "third", SCOPES[1]))
    world.client.delete(*map(world.budget_key, gone))
    outcome, _, _, missing, _ = world.expire()
    assert outcome == b"expired"
    assert scopes_of(missing) == [scope.encode() for scope in named]
    ((_, event),) = world.events()
    assert event[b"missing"] == missing
    for scope in (*SCOPES, "third"):
        assert world.client.exists(world.budget_key(scope)) == (scope not in gone)
        assert world.amounts(scope) == ((None, None) if scope in gone else (b"900", b"5100"))
    assert world.client.hget(world.keys.reservation(RID), "state") == b"EXPIRED"


def test_a_missing_scope_named_twice_is_listed_once(world: World) -> None:
    world.reservation(budgeted_scopes=json_bytes("gone", SCOPES[0], "gone"))
    assert scopes_of(world.expire()[3]) == [b"gone"]


@pytest.mark.parametrize("reserved", [0, 1, 99])
def test_a_closed_budget_is_left_alone_and_named(world: World, reserved: int) -> None:
    world.budget(SCOPES[0], reserved=reserved)
    world.client.hset(world.budget_key(SCOPES[0]), "status", "CLOSED")
    before = world.client.hgetall(world.budget_key(SCOPES[0]))
    outcome, _, _, missing, closed = world.expire()
    assert (outcome, missing, scopes_of(closed)) == (b"expired", b"[]", [SCOPES[0].encode()])
    ((_, event),) = world.events()
    assert event[b"closed"] == closed
    assert world.client.hgetall(world.budget_key(SCOPES[0])) == before
    assert world.amounts(SCOPES[1]) == (b"900", b"5100")
    assert world.client.hget(world.keys.reservation(RID), "state") == b"EXPIRED"
    assert world.client.zscore(world.keys.quarantine, RID) is None


def test_a_closed_budget_that_still_holds_the_amount_is_released(world: World) -> None:
    world.client.hset(world.budget_key(SCOPES[0]), "status", "CLOSED")
    assert world.expire()[4] == b"[]"
    assert world.amounts(SCOPES[0]) == (b"900", b"5100")


@pytest.mark.parametrize("amount", [60, 2**60])
def test_a_closed_budget_named_twice_is_released_for_both_mentions_or_for_none(world: World, amount: int) -> None:
    """It has enough reserved for the first mention and too little for both."""
    world.budget(SCOPES[0], reserved=amount + 10, remaining=0)
    world.budget(SCOPES[1], reserved=amount, remaining=0)
    world.client.hset(world.budget_key(SCOPES[0]), "status", "CLOSED")
    world.reservation(estimate_amount=amount, budgeted_scopes=json_bytes(SCOPES[0], SCOPES[1], SCOPES[0]))
    assert scopes_of(world.expire()[4]) == [SCOPES[0].encode()]
    assert world.amounts(SCOPES[0]) == (b"%d" % (amount + 10), b"0")
    assert world.amounts(SCOPES[1]) == (b"0", b"%d" % amount)


def test_the_budget_of_another_unit_is_left_alone(world: World) -> None:
    # The bystanders hold a budget of the first scope in USD.
    world.reservation(estimate_unit="USD")
    assert scopes_of(world.expire()[3]) == [SCOPES[1].encode()]
    assert world.amounts(SCOPES[0], "USD") == (b"900", b"5100")
    assert world.amounts(SCOPES[0]) == (b"1000", b"5000")


@pytest.mark.every_redis
def test_a_flushed_script_cache_is_refilled(world: World) -> None:
    world.client.script_flush()
    assert world.expire()[0] == b"expired"
    assert world.amounts(SCOPES[0]) == (b"900", b"5100")
