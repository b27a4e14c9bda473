"""The edges of deadline and grace, and that no other clock than Redis's has a say."""

from typing import Any

import pytest

from tests.lua.builders import DEADLINE, FAR_FUTURE, NOW, RID, Value, World, seed


@pytest.mark.parametrize(
    ("grace_ms", "default_grace", "at", "reply"),
    [
        # A grace of its own.
        (5000, 0, DEADLINE - 1, [b"not_due"]),
        (5000, 0, DEADLINE, [b"not_due"]),
        (5000, 0, DEADLINE + 1, [b"in_grace", DEADLINE + 5000]),
        (5000, 0, DEADLINE + 4999, [b"in_grace", DEADLINE + 5000]),
        (5000, 0, DEADLINE + 5000, [b"in_grace", DEADLINE + 5000]),
        (5000, 0, DEADLINE + 5001, [b"expired", b"acme", 1, b"[]", b"[]"]),
        # The default, if it has none.
        (None, 5000, DEADLINE, [b"not_due"]),
        (None, 5000, DEADLINE + 5000, [b"in_grace", DEADLINE + 5000]),
        (None, 5000, DEADLINE + 5001, [b"expired", b"acme", 1, b"[]", b"[]"]),
        (None, 0, DEADLINE, [b"not_due"]),
        (None, 0, DEADLINE + 1, [b"expired", b"acme", 1, b"[]", b"[]"]),
        # Its own wins, be it shorter or longer.
        (0, 5000, DEADLINE, [b"not_due"]),
        (0, 5000, DEADLINE + 1, [b"expired", b"acme", 1, b"[]", b"[]"]),
        (7000, 5000, DEADLINE + 7000, [b"in_grace", DEADLINE + 7000]),
        (7000, 5000, DEADLINE + 7001, [b"expired", b"acme", 1, b"[]", b"[]"]),
    ],
)
def test_edges(world: World, grace_ms: int | None, default_grace: int, at: int, reply: list[Any]) -> None:
    world.client.delete(world.keys.reservation(RID))
    world.reservation(grace_ms=grace_ms)
    before = world.snapshot()
    assert world.expire(at=at, grace=default_grace) == reply
    if reply[0] == b"expired":
        assert world.client.hget(world.keys.reservation(RID), "expired_at") == b"%d" % at
    else:
        assert world.snapshot() == before  # the index holds the right deadline already


@pytest.mark.parametrize(
    ("expires_at", "grace_ms", "outcome"),
    [
        (0, 0, b"expired"),
        (0, NOW - 1, b"expired"),
        (0, NOW, b"in_grace"),
        (2**53 - 1, 0, b"not_due"),
        (2**53, 2**53, b"not_due"),
        (1, 2**53, b"in_grace"),
    ],
)
def test_all_that_a_double_holds_is_valid(world: World, expires_at: int, grace_ms: int, outcome: bytes) -> None:
    world.reservation(expires_at=expires_at, grace_ms=grace_ms)
    assert world.expire(at=NOW)[0] == outcome
    if outcome == b"not_due":
        assert world.client.zscore(world.keys.reservation_index, RID) == expires_at


def test_untouched_script_on_the_real_clock(world: World) -> None:
    # Margins of a minute: the clock may move as it likes between these calls.
    now, minute = world.now(), 60_000
    for expires_at, grace_ms, outcome in [
        (now + minute, 0, b"not_due"),
        (now - minute, 2 * minute, b"in_grace"),
        (now - 2 * minute, minute, b"expired"),
    ]:
        world.reservation(expires_at=expires_at, grace_ms=grace_ms)
        assert world.expire()[0] == outcome


def test_the_index_score_decides_nothing(world: World) -> None:
    world.index(score=FAR_FUTURE)
    assert world.expire()[0] == b"expired"


@pytest.mark.parametrize(
    "extra",
    [[0], [1], [FAR_FUTURE], [b"not-a-time"], [FAR_FUTURE, b"", b"\xff", -1], list(range(100))],
    ids=["zero", "past", "future", "text", "several", "many"],
)
@pytest.mark.parametrize(
    ("expires_at", "grace_ms", "outcome"),
    [(FAR_FUTURE - 1, 0, b"not_due"), (DEADLINE, FAR_FUTURE, b"in_grace"), (DEADLINE, 0, b"expired")],
)
def test_extra_arguments_change_nothing(
    world: World, extra: list[Value], expires_at: int, grace_ms: int, outcome: bytes
) -> None:
    results = []
    for given in ([], [b"0", b"0", *extra]):  # two flags come first: balances, and Redis is full
        world.client.flushdb()
        seed(world).reservation(expires_at=expires_at, grace_ms=grace_ms)
        reply = world.expire(at=NOW, extra=given)
        assert reply[0] == outcome
        results.append((reply, world.without_stream_ids(world.snapshot())))
    assert results[0] == results[1]


@pytest.mark.parametrize("client_time", [0, FAR_FUTURE])
def test_a_client_s_time_is_not_believed_on_the_real_clock(world: World, client_time: int) -> None:
    earliest = world.now()
    assert world.expire(extra=[client_time])[0] == b"expired"
    assert earliest <= int(world.client.hget(world.keys.reservation(RID), "expired_at")) <= world.now()
