"""
Settling, whatever has become of the hold: the core level of the recovery profile of cycles-protocol
(client-recovery/PROFILE.md, scenarios.yaml). CR-CORE-003 and -004 are about heartbeats and HTTP answers, of which a
ledger has none.
"""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sweeperd.ledger import (
    BudgetFrozen,
    EstimateExceeded,
    IdempotencyMismatch,
    InsufficientBudget,
    InvalidReservation,
    Ledger,
    MissingRight,
    NoBudget,
    OveragePolicy,
    OverdraftLimitExceeded,
    RedisFull,
    ReservationExpired,
    ReservationFinalized,
    ReservationNotFound,
    ReservedUnderflow,
    Settled,
    TenantClosed,
)
from sweeperd.outbox.event import EXPIRY_FIELDS
from tests.lua.builders import NOW, RETENTION, SCOPES
from tests.lua.ledger_book import BOTTOM, GRACE_MS, MINUTE_MS, TOP, Book, a_book, ms
from tests.support.servers import Server

IF_AVAILABLE, OVERDRAFT = OveragePolicy.ALLOW_IF_AVAILABLE, OveragePolicy.ALLOW_WITH_OVERDRAFT
IN_TIME, OVERDUE = NOW + MINUTE_MS + GRACE_MS, NOW + MINUTE_MS + GRACE_MS + 1


def settle(book: Book, rid: bytes, actual: int = 70, key: str = "s") -> Settled:
    return book.ledger.settle("acme", rid, actual, idempotency_key=key)


def events(book: Book) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in book.client.xrange(book.keys.events)]


def overdue(book: Book, **changes: Any) -> bytes:
    """A reservation of 100 whose grace is over."""
    rid = book.reserve(100, **changes).reservation_id.encode()
    book.freeze(OVERDUE)
    return rid


@pytest.mark.parametrize("at", [NOW, IN_TIME])
def test_in_time_it_is_a_commit(book: Book, at: int) -> None:
    """CR-CORE-001, -002: settlement in time."""
    rid, twin = (book.reserve(100).reservation_id.encode() for _ in range(2))
    book.freeze(at)
    done = settle(book, rid)
    assert (done.charged, done.debt_incurred, done.settled_at, done.late) == (70, 0, at, False)
    assert book.amounts() == (830, 100, 70, 0)
    book.commit(twin, 70, idempotency_key="s")
    row, committed = book.row(rid), book.row(twin)
    own = {field for field in row if field.startswith(b"settled_")}
    assert own == {
        b"settled_at",
        b"settled_amount",
        b"settled_debt",
        b"settled_idempotency_key",
        b"settled_payload_hash",
        b"settled_answer",
    }
    assert row.keys() - own == committed.keys()
    for field in committed.keys() - {b"reservation_id", b"idempotency_key", b"committed_payload_hash"}:
        assert row[field] == committed[field]
    assert book.deadline(rid) is None
    assert 0 < book.client.pttl(book.keys.reservation(rid)) <= RETENTION
    assert events(book) == []


def test_an_overdue_hold_is_expired_as_the_sweep_does_it(book: Book) -> None:
    """CR-CORE-002: the charge is made, and the hold ends with its event, before any sweep."""
    rid, twin = (book.reserve(100, [*SCOPES, "gone"]).reservation_id.encode() for _ in range(2))
    book.freeze(OVERDUE)
    done = settle(book, rid)
    assert (done.charged, done.settled_at, done.late) == (70, OVERDUE, True)
    assert book.amounts() == book.amounts(BOTTOM) == (830, 100, 70, 0)
    assert [balance.remaining for balance in done.balances] == [830, 830]
    assert book.expire(twin, OVERDUE)[0] == b"expired"
    row, swept = book.row(rid), book.row(twin)
    assert {field for field in row if not field.startswith(b"settled_")} == swept.keys()
    for field in (b"state", b"expired_at"):
        assert row[field] == swept[field]
    ours, theirs = events(book)
    assert list(ours) == list(theirs) == EXPIRY_FIELDS
    assert ours.pop(b"id") == rid
    assert theirs.pop(b"id") == twin
    assert len(ours.pop(b"trace_id")) == 32
    del theirs[b"trace_id"]
    assert list(ours.items()) == list(theirs.items())
    assert [entry for entry, _ in book.client.xrange(book.keys.events)] == [
        row[b"expired_event"],
        swept[b"expired_event"],
    ]
    assert book.deadline(rid) is None
    assert 0 < book.client.pttl(book.keys.reservation(rid)) <= RETENTION
    assert book.expire(rid, OVERDUE) == [b"skipped", b"EXPIRED"]


def test_what_the_sweep_has_expired_is_charged(book: Book) -> None:
    rid = overdue(book)
    assert book.expire(rid, OVERDUE)[0] == b"expired"
    book.client.pexpire(book.keys.reservation(rid), 50_000)
    before = book.row(rid)
    done = settle(book, rid)
    assert (done.charged, done.late) == (70, True)
    assert book.amounts() == (930, 0, 70, 0)
    row = book.row(rid)
    assert {field: row[field] for field in before} == before
    assert row[b"settled_amount"] == b"70"
    assert book.client.pttl(book.keys.reservation(rid)) <= 50_000
    assert len(events(book)) == 1


def missing_budgets(book: Book) -> None:
    book.client.delete(book.keys.budget(TOP.encode(), b"TOKENS"))


def test_a_scope_without_a_budget_is_named_in_the_event(book: Book) -> None:
    rid = overdue(book)
    missing_budgets(book)
    assert settle(book, rid).missing == (TOP,)
    (event,) = events(book)
    assert event[b"missing"] == b'["%b"]' % TOP.replace("/", "\\/").encode()
    assert book.amounts(BOTTOM) == (930, 0, 70, 0)


@pytest.mark.parametrize(
    ("scopes", "reserved", "closed"),
    [
        (SCOPES, 0, [TOP]),
        (SCOPES, 99, [TOP]),
        (SCOPES, 200, []),
        ([TOP, BOTTOM, TOP], 199, [TOP]),
        ([TOP, BOTTOM, TOP], 400, []),
        (["gone", *SCOPES], 0, [TOP]),
    ],
)
def test_a_closed_budget_is_named_as_the_sweep_names_it(
    book: Book, scopes: list[str], reserved: int, closed: list[str]
) -> None:
    rid, twin = (book.reserve(100, scopes).reservation_id.encode() for _ in range(2))
    book.client.hset(
        book.keys.budget(TOP.encode(), b"TOKENS"),
        mapping={"status": "CLOSED", "reserved": reserved, "remaining": 1000 - reserved},
    )
    book.freeze(OVERDUE)
    assert settle(book, rid, 0).late
    book.expire(twin, OVERDUE)
    ours, theirs = events(book)
    assert json.loads(ours[b"closed"]) == closed
    for field in EXPIRY_FIELDS:
        if field not in (b"id", b"trace_id"):
            assert ours[field] == theirs[field]
    left = reserved if closed else 0
    assert book.amounts() == (1000 - left, left, 0, 0)
    assert book.amounts(BOTTOM) == (1000, 0, 0, 0)


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize(
    ("policy", "charged", "debt", "after"),
    [(IF_AVAILABLE, 1000, 0, (0, 0, 1000, 0)), (OVERDRAFT, 1200, 200, (-200, 0, 1000, 200))],
)
def test_late_the_policy_of_the_reservation_decides(
    book: Book, swept: bool, policy: OveragePolicy, charged: int, debt: int, after: tuple[int, ...]
) -> None:
    if policy is OVERDRAFT:
        for scope in SCOPES:
            book.client.hset(book.keys.budget(scope.encode(), b"TOKENS"), "overdraft_limit", 300)
    rid = overdue(book, overage_policy=policy)
    if swept:
        book.expire(rid, OVERDUE)
    done = settle(book, rid, 1200)
    assert (done.charged, done.debt_incurred) == (charged, debt)
    assert book.amounts() == book.amounts(BOTTOM) == after
    assert [balance.is_over_limit for balance in done.balances] == [policy is IF_AVAILABLE] * 2


@pytest.mark.parametrize("when", ["in time", "overdue", "swept"])
@pytest.mark.parametrize("budget", [{"remaining": -50, "debt": 950}, {"status": "FROZEN"}])
def test_nothing_used_is_charged_to_no_budget(book: Book, when: str, budget: dict[str, Any]) -> None:
    """The release of a hold needs no funds, so late it is accepted as in time."""
    rid = book.reserve(100).reservation_id.encode()
    for scope in SCOPES:
        book.client.hset(book.keys.budget(scope.encode(), b"TOKENS"), mapping=budget)
    remaining = book.amounts()[0] + 100
    if when != "in time":
        book.freeze(OVERDUE)
    if when == "swept":
        book.expire(rid, OVERDUE)
    done = settle(book, rid, 0)
    assert (done.charged, done.debt_incurred, done.late) == (0, 0, when != "in time")
    for scope in SCOPES:
        assert book.amounts(scope)[:2] == (remaining, 0)
    assert len(events(book)) == (when != "in time")
    assert book.client.hget(book.keys.reservation(rid), "settled_amount") == b"0"


def test_nothing_used_and_no_budget_left(book: Book) -> None:
    rid = overdue(book)
    for scope in SCOPES:
        book.client.delete(book.keys.budget(scope.encode(), b"TOKENS"))
    assert settle(book, rid, 0).missing == SCOPES
    assert len(events(book)) == 1


# ---- once


@pytest.mark.parametrize("when", ["in time", "overdue", "swept"])
def test_a_lost_answer_is_repeated_under_the_same_key(book: Book, when: str) -> None:
    """CR-CORE-001: settlement occurs at most once, retries use the original key. -002 with a late one."""
    rid = book.reserve(100).reservation_id.encode()
    if when != "in time":
        book.freeze(OVERDUE)
    if when == "swept":
        book.expire(rid, OVERDUE)
    first = settle(book, rid)
    key = book.keys.idempotency(b"acme", "event", b"s")
    with book.unchanged():
        assert settle(book, rid) == first
    book.freeze(OVERDUE + 20 * 86_400_000)
    assert book.client.delete(key) == 1  # a day later
    with book.unchanged():
        assert settle(book, rid) == first
        with pytest.raises(IdempotencyMismatch):
            settle(book, rid, 71)
        with pytest.raises(ReservationFinalized, match="SETTLED"):
            settle(book, rid, key="another")
    book.client.delete(book.keys.reservation(rid))  # a month later
    with book.unchanged(), pytest.raises(ReservationNotFound):
        settle(book, rid)


def test_an_event_under_the_same_key_is_the_same_charge(book: Book) -> None:
    """CR-CORE-002: the fallback of a client that knows no settle."""
    rid, other = book.reserve(100).reservation_id.encode(), book.reserve(100).reservation_id.encode()
    book.freeze(OVERDUE)
    with pytest.raises(ReservationExpired):
        book.commit(rid, 70, idempotency_key="s")
    book.event(70, idempotency_key="s")
    with book.unchanged(), pytest.raises(IdempotencyMismatch):
        settle(book, rid)
    settle(book, other, key="t")
    with book.unchanged(), pytest.raises(IdempotencyMismatch):
        book.event(70, idempotency_key="t")
    assert book.expire(rid, OVERDUE)[0] == b"expired"


def test_an_event_of_the_service_under_the_same_key(book: Book) -> None:
    """Their SDK's fallback: `POST /v1/events` with the key of the commit."""
    rid = overdue(book)
    book.client.set("idem:acme:event:s", "evt_1")
    ours = book.ledger
    book.ledger = Ledger(book.shard, cycles=True)
    with book.unchanged(), pytest.raises(IdempotencyMismatch):
        settle(book, rid)
    book.ledger = ours
    settle(book, rid)


def test_what_was_ended_otherwise(book: Book) -> None:
    committed, released = (book.reserve(100).reservation_id.encode() for _ in range(2))
    book.commit(committed, 10)
    book.release(released)
    for rid, state in ((committed, "COMMITTED"), (released, "RELEASED")):
        with book.unchanged(), pytest.raises(ReservationFinalized, match=state):
            settle(book, rid)
    settled = book.reserve(100).reservation_id.encode()
    settle(book, settled)
    with book.unchanged(), pytest.raises(ReservationFinalized):
        book.commit(settled)
    with book.unchanged(), pytest.raises(ReservationNotFound):
        book.ledger.settle("other", settled, 1, idempotency_key="s")


def test_two_at_once_charge_once(server: Server) -> None:
    with a_book(server) as book, ThreadPoolExecutor(4) as threads:
        book.open(*SCOPES)
        for number in range(20):
            rid = book.reserve(10, ttl=ms(1), grace=ms(1)).reservation_id.encode()
            rivals = [threads.submit(settle, book, rid, 7, str(number)) for _ in range(3)]
            sweep = threads.submit(book.world.expire, rid, at=book.world.now())
            answers = [rival.result() for rival in rivals]
            sweep.result()
            assert [answers[0]] * 3 == answers
        assert book.amounts() == (1000 - 140, 0, 140, 0)


# ---- refusals


def test_a_missing_actual_settles_nothing(book: Book) -> None:
    """CR-BOUNDARY-001: no commit or event without a known actual."""
    rid = book.reserve(100).reservation_id.encode()
    with book.unchanged():
        with pytest.raises(TypeError):
            book.ledger.settle("acme", rid, None, idempotency_key="s")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            book.ledger.settle("acme", rid, idempotency_key="s")  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="actual"):
            settle(book, rid, -1)


@pytest.mark.parametrize(
    ("fields", "budget", "actual", "refusal"),
    [
        ({}, {"status": "FROZEN"}, 1, BudgetFrozen),
        ({}, {"reserved": 99, "remaining": 901}, 1, ReservedUnderflow),
        ({}, {}, 1001, InsufficientBudget),
        ({"overage_policy": OVERDRAFT}, {"overdraft_limit": 1}, 1002, OverdraftLimitExceeded),
        ({}, None, 1, NoBudget),
    ],
)
def test_late_nothing_or_all(book: Book, fields: Any, budget: Any, actual: int, refusal: type[Exception]) -> None:
    """Neither the expiry nor the charge: the sweep comes by as ever, and the settlement may succeed later."""
    rid = overdue(book, **fields)
    for scope in SCOPES:
        key = book.keys.budget(scope.encode(), b"TOKENS")
        if budget is None:
            book.client.rename(key, key + b"'")
        elif budget:
            book.client.hset(key, mapping=budget)
    with book.unchanged(), pytest.raises(refusal):
        settle(book, rid, actual)
    for scope in SCOPES:  # the books add up again
        key = book.keys.budget(scope.encode(), b"TOKENS")
        if budget is None:
            book.client.rename(key + b"'", key)
        elif "reserved" in budget:
            book.client.hset(key, mapping={"reserved": 100, "remaining": 900})


def test_in_time_more_than_the_estimate_is_refused_as_a_commit(book: Book) -> None:
    rid = book.reserve(100).reservation_id.encode()
    with book.unchanged(), pytest.raises(EstimateExceeded):
        settle(book, rid, 101)


def test_a_closed_tenant_and_a_broken_policy(book: Book) -> None:
    rid = overdue(book)
    book.client.set(book.keys.tenant(b"acme"), '{"status":"CLOSED"}')
    with book.unchanged(), pytest.raises(TenantClosed):
        settle(book, rid)
    book.client.delete(book.keys.tenant(b"acme"))
    book.client.hset(book.keys.reservation(rid), "overage_policy", "ANY")
    with book.unchanged(), pytest.raises(InvalidReservation, match="INVALID_POLICY"):
        settle(book, rid)


def test_a_stream_that_takes_no_event(book: Book) -> None:
    rid = overdue(book)
    book.client.xadd(book.keys.events, {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    with book.unchanged(), pytest.raises(Exception, match=r"last possible ID|equal or smaller"):
        settle(book, rid)


@pytest.mark.parametrize(
    ("when", "command"),
    [
        *itertools.product(["in time", "overdue"], ["hset", "zrem", "pexpire", "set"]),
        ("overdue", "zadd"),
        ("overdue", "xadd"),
        ("swept", "hset"),
        ("swept", "set"),
    ],
)
def test_without_a_right_nothing_is_written(book: Book, when: str, command: str) -> None:
    rid = book.reserve(100).reservation_id.encode()
    if when != "in time":
        book.freeze(OVERDUE)
    if when == "swept":
        book.expire(rid, OVERDUE)
    book.client.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        with book.unchanged(), pytest.raises(MissingRight):
            settle(book, rid)
    finally:
        book.client.execute_command("ACL", "SETUSER", "default", f"+{command}")
    assert settle(book, rid).charged == 70
    assert book.amounts() == (930, 0, 70, 0)


@pytest.mark.every_redis
def test_at_maxmemory(book: Book) -> None:
    """An overdue hold is settled, as the sweep would expire it; the others need memory, and nothing is written."""
    held, late = (book.reserve(100).reservation_id.encode() for _ in range(2))
    book.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(RedisFull):
            settle(book, held)
        book.freeze(OVERDUE)
        assert settle(book, late, key="t").late
    finally:
        book.client.config_set("maxmemory", 0)
    assert book.amounts() == (830, 100, 70, 0)
