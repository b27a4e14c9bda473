"""The judge of histories: right ones pass, and each kind of wrong one is seen."""

import dataclasses
import math
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger
from sweeperd.store import Shard
from tests.soak.history import Amounts, Call, Recorder, now, outcome
from tests.soak.load import Load
from tests.soak.order import faults
from tests.soak.plan import BUDGETS, LEAN, TENANTS, UNIT
from tests.support.builders import reservations_kind
from tests.support.servers import Server

A, B = b"tenant:a", b"tenant:b"
OPENED = {A: 100}


def reserve(rid: bytes, at: float, until: float, amount: int, after: Amounts, **more: Any) -> Call:
    """A reserve with a deadline at 1000 and a grace of 10."""
    fields: dict[str, Any] = {"scopes": (A,), "grace": 10, "expires_at": 1000, "balances": {A: after}} | more
    return Call("reserve", rid, at, until, f"a reserve {rid!r}", amount=amount, **fields)


def commit(rid: bytes, at: float, until: float, amount: int, after: Amounts | None, **more: Any) -> Call:
    fields: dict[str, Any] = {"key": f"a commit {rid!r}", "balances": after and {A: after}} | more
    return Call("commit", rid, at, until, amount=amount, **fields)


def expiry(rid: bytes, at: int, amount: int) -> Call:
    return Call("expire", rid, at - 2, at + 2, ended_at=at, scopes=(A,), amount=amount)


def read(at: float, after: Amounts) -> Call:
    return Call("read", b"", at, at + 1, balances={A: after})


def refused(rid: bytes, operation: str, at: float, until: float, refusal: str, amount: int = 0) -> Call:
    by = A if refusal == "InsufficientBudget" else b""
    key = f"a {operation} late {rid!r}"
    return Call(operation, rid, at, until, key, amount=amount, refusal=refusal, refused_by=by)


def lost(call: Call) -> Call:
    """The same call without its answer."""
    rid = b"" if call.operation == "reserve" else call.reservation
    return dataclasses.replace(call, reservation=rid, returned=math.inf, balances=None)


HELD = reserve(b"r", 0, 1, 30, (70, 30, 0, 0))
USED = commit(b"r", 2, 3, 20, (80, 0, 20, 0))

RIGHT = {
    "one after the other": [HELD, USED, read(9, (80, 0, 20, 0))],
    "at once, in the other order": [
        reserve(b"r", 0, 9, 30, (60, 40, 0, 0)),
        reserve(b"s", 1, 2, 10, (90, 10, 0, 0)),
    ],
    "an expiry after the grace": [HELD, expiry(b"r", 1011, 30), read(1020, (100, 0, 0, 0))],
    "refused for want of budget while it was held": [
        HELD,
        refused(b"", "reserve", 1.5, 4, "InsufficientBudget", 80),
        USED,
    ],
    "too late, and swept": [HELD, expiry(b"r", 1011, 30), refused(b"r", "commit", 1015, 1016, "ReservationExpired")],
    "too late, and not swept yet": [HELD, refused(b"r", "commit", 1011, 1012, "ReservationExpired")],
    "a lost commit that happened": [HELD, lost(USED), read(9, (80, 0, 20, 0))],
    "a lost commit that did not happen": [HELD, lost(USED), read(9, (70, 30, 0, 0))],
    "a lost reserve that happened": [lost(HELD), expiry(b"r", 1011, 30), read(1020, (100, 0, 0, 0))],
    "a lost reserve that happened late": [lost(HELD), read(5, (100, 0, 0, 0)), read(9, (70, 30, 0, 0))],
    "lost, and asked again": [HELD, lost(USED), dataclasses.replace(USED, invoked=5, returned=6)],
    "answered twice": [HELD, USED, dataclasses.replace(USED, invoked=50, returned=60)],
    "refused by a full server, and asked again": [
        HELD,
        refused(b"r", "commit", 1, 2, "RedisFull"),
        USED,
    ],
    "extended in time": [
        HELD,
        Call("extend", b"r", 5, 6, "e", by=50, expires_at=1050, extensions=1, balances={A: (70, 30, 0, 0)}),
        expiry(b"r", 1061, 30),
    ],
}
WRONG = {
    "a write that is lost": [HELD, reserve(b"s", 2, 3, 10, (90, 10, 0, 0))],
    "an answer from the future": [reserve(b"r", 0, 1, 30, (60, 40, 0, 0)), reserve(b"s", 2, 3, 10, (90, 10, 0, 0))],
    "two endings": [HELD, USED, Call("release", b"r", 5, 6, "x", balances={A: (110, 0, 20, 0)})],
    "committed and swept": [HELD, USED, expiry(b"r", 1011, 30)],
    "swept twice": [HELD, expiry(b"r", 1011, 30), expiry(b"r", 1020, 30)],
    "swept in grace": [HELD, expiry(b"r", 1010, 30)],
    "given back twice": [HELD, expiry(b"r", 1011, 30), read(1020, (130, 0, 0, 0))],
    "not given back": [HELD, expiry(b"r", 1011, 30), read(1020, (70, 30, 0, 0))],
    "accepted after the grace": [HELD, commit(b"r", 1013, 1014, 20, (80, 0, 20, 0))],
    "held without budget": [reserve(b"r", 0, 1, 101, (-1, 101, 0, 0))],
    "refused though there was enough": [HELD, refused(b"", "reserve", 2, 4, "InsufficientBudget", 70)],
    "too late before the end": [HELD, refused(b"r", "commit", 500, 501, "ReservationExpired")],
    "ended for no reason": [HELD, refused(b"r", "commit", 500, 501, "ReservationFinalized")],
    "a lost commit that happened twice": [HELD, lost(USED), read(9, (90, -30, 40, 0))],
    "a lost commit that was undone": [HELD, lost(USED), read(9, (80, 0, 20, 0)), read(11, (70, 30, 0, 0))],
    "a lost reserve of another amount": [lost(HELD), read(9, (69, 31, 0, 0))],
    "another answer to the same request": [
        HELD,
        USED,
        dataclasses.replace(USED, returned=60, balances={A: (1, 0, 0, 0)}),
    ],
    "refused after it was accepted": [
        HELD,
        USED,
        dataclasses.replace(refused(b"r", "commit", 50, 60, "ReservationFinalized"), key=USED.key),
    ],
    "refused by a full server though it had been accepted": [
        HELD,
        USED,
        dataclasses.replace(refused(b"r", "commit", 50, 60, "RedisFull"), key=USED.key),
    ],
    "an extension that forgets one before": [
        HELD,
        Call("extend", b"r", 5, 6, "e", by=50, expires_at=1050, extensions=1),
        Call("extend", b"r", 7, 8, "f", by=50, expires_at=1050, extensions=1),
    ],
    "an end that nobody caused": [HELD, Call("end", b"r", 20, 21, state=b"RELEASED")],
}


@pytest.mark.parametrize("calls", RIGHT.values(), ids=RIGHT)
def test_an_order_is_found(calls: list[Call]) -> None:
    assert faults(calls, OPENED) == []


@pytest.mark.parametrize("calls", WRONG.values(), ids=WRONG)
def test_no_order_is_found(calls: list[Call]) -> None:
    assert faults(calls, OPENED)


def test_many_calls_at_once_without_an_answer() -> None:
    """Twelve lost reserves: the reading after them says how much of them happened, not which."""
    calls = [lost(reserve(b"%d" % number, 0, 1, 2**number, (0, 0, 0, 0))) for number in range(12)]
    total = 0b101101101101
    opened = {A: 2**13}
    assert faults([*calls, read(9, (2**13 - total, total, 0, 0))], opened) == []
    assert faults([*calls, read(9, (2**13 - total - 1, total, 0, 0))], opened)


OPERATIONS = ("reserve", "commit", "release", "extend")


@pytest.fixture(scope="module")
def recorded(session_server: Server) -> Iterator[list[Call]]:
    """Three seconds of a real load, with sweeps."""
    with redis.Redis.from_url(session_server.url, protocol=2) as client:
        client.flushall()
        shard = Shard(RedisSettings.model_validate({"url": session_server.url}))
        ledger = Ledger(shard)
        for scope, allocated in BUDGETS.items():
            ledger.open_budget(scope, UNIT, allocated)
        judged = (*TENANTS, LEAN)
        with Load(ledger, 150, 4, judged=judged) as load:
            for _ in range(30):
                time.sleep(0.1)
                sweep(client, shard)
        budgets = [ledger.budget(scope, UNIT) for scope in BUDGETS]
        yield load.history + outcome(client, shard.keys, budgets, judged)
        shard.close()


def sweep(client: redis.Redis, shard: Shard) -> None:
    """Expire what is overdue."""
    kind = reservations_kind(shard.keys)
    due: Any = client.zrangebyscore(shard.keys.reservation_index, 0, now())
    kind.script.run_many(client, [kind.call(entry, "f" * 32) for entry in due])


BOOKS = {scope.encode(): allocated for scope, allocated in BUDGETS.items()}


def test_a_recorded_history_is_explained(recorded: list[Call]) -> None:
    assert faults(recorded, BOOKS) == []
    operations = {call.operation for call in recorded}
    assert operations == {"reserve", "commit", "release", "extend", "expire", "read", "end"}
    assert any(call.refusal == "InsufficientBudget" for call in recorded)


@pytest.mark.parametrize("seed", range(20))
def test_one_wrong_number_in_a_recorded_history_is_seen(recorded: list[Call], seed: int) -> None:
    chance = random.Random(seed)
    calls = list(recorded)
    at = chance.choice([number for number, call in enumerate(calls) if call.balances and call.operation != "read"])
    balances = dict(calls[at].balances or {})
    scope = chance.choice(list(balances))
    remaining, *rest = balances[scope]
    balances[scope] = (remaining + chance.choice((-1, 1)), rest[0], rest[1], rest[2])
    calls[at] = dataclasses.replace(calls[at], balances=balances)
    assert faults(calls, BOOKS)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_answers_that_are_lost_are_no_fault(recorded: list[Call], share: float) -> None:
    chance = random.Random(1)
    calls = [
        lost(call) if call.operation in OPERATIONS and not call.refusal and chance.random() < share else call
        for call in recorded
    ]
    assert any(call.is_lost for call in calls)
    assert faults(calls, BOOKS) == []


def test_the_recorder_passes_answers_and_refusals_on(server: Server) -> None:
    with Ledger.from_url(server.url) as ledger:
        ledger.open_budget("tenant:a", UNIT, 100)
        recorder = Recorder(ledger, {"a"})
        times: dict[str, Any] = {"ttl": timedelta(seconds=9), "grace": timedelta(0)}
        held = recorder.reserve("a", ["tenant:a"], UNIT, 60, idempotency_key="1", **times)
        with pytest.raises(Exception, match="does not suffice"):
            recorder.reserve("a", ["tenant:a"], UNIT, 60, idempotency_key="2", **times)
        recorder.release("a", held.reservation_id.encode(), idempotency_key="1")
        recorder.reserve("b", ["tenant:a"], UNIT, 1, idempotency_key="1", **times)
    assert [(call.operation, call.refusal) for call in recorder.calls] == [
        ("reserve", ""),
        ("reserve", "InsufficientBudget"),
        ("release", ""),
    ]
    assert recorder.calls[0].balances == {A: (40, 60, 0, 0)}
