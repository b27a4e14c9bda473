"""What each operation of the ledger does, to the unit."""

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict
from datetime import timedelta
from typing import Any

import pytest

from sweeperd.ledger import (
    Balance,
    Committed,
    Debited,
    Extended,
    InvalidReservation,
    Ledger,
    OveragePolicy,
    Released,
    Reservation,
    ReservationNotFound,
    Reserved,
    ReservedUnderflow,
)
from tests.lua.builders import NOW, RETENTION, SCOPES
from tests.lua.ledger_book import BOTTOM, DAY_MS, GRACE, GRACE_MS, MINUTE, MINUTE_MS, TOP, Book, a_book, ms
from tests.support.servers import Server

IF_AVAILABLE, OVERDRAFT = OveragePolicy.ALLOW_IF_AVAILABLE, OveragePolicy.ALLOW_WITH_OVERDRAFT


def balance(scope: str, remaining: int, reserved: int = 0, spent: int = 0, **other: Any) -> Balance:
    fields: dict[str, Any] = {
        "allocated": 1000,
        "debt": 0,
        "overdraft_limit": 0,
        "is_over_limit": False,
        "status": "ACTIVE",
    } | other
    return Balance(scope, "TOKENS", remaining=remaining, reserved=reserved, spent=spent, **fields)


def both(remaining: int, reserved: int = 0, spent: int = 0, **other: Any) -> tuple[Balance, ...]:
    return tuple(balance(scope, remaining, reserved, spent, **other) for scope in SCOPES)


@pytest.mark.every_redis
def test_a_budget_opens_whole(book: Book) -> None:
    opened = book.ledger.open_budget("s", "USD", 5, 7)
    assert opened == book.ledger.budget("s", "USD")
    assert opened == Balance("s", "USD", 5, 5, 0, 0, 0, 7, is_over_limit=False, status="ACTIVE")
    assert book.client.hgetall(book.keys.budget(b"s", b"USD")) == {
        b"scope": b"s",
        b"unit": b"USD",
        b"allocated": b"5",
        b"remaining": b"5",
        b"reserved": b"0",
        b"spent": b"0",
        b"debt": b"0",
        b"overdraft_limit": b"7",
        b"is_over_limit": b"false",
        b"status": b"ACTIVE",
    }


@pytest.mark.every_redis
def test_reserve(book: Book) -> None:
    done = book.reserve(
        100,
        [*SCOPES, "tenant:acme/no:budget"],
        idempotency_key="k",
        overage_policy=IF_AVAILABLE,
        max_extensions=3,
        subject={"tenant": "acme"},
        action={"kind": "llm"},
        metadata={"b": 1, "a": "é"},
    )
    deadline = NOW + MINUTE_MS
    assert done == Reserved(
        done.reservation_id, 100, NOW, deadline, both(900, 100), ("tenant:acme/no:budget",), MINUTE_MS
    )
    assert done.remaining_ttl_ms == MINUTE_MS
    assert tuple(map(book.balance, SCOPES)) == done.balances
    row = book.row(done.reservation_id.encode())
    assert json.loads(row.pop(b"affected_scopes")) == [*SCOPES, "tenant:acme/no:budget"]
    assert json.loads(row.pop(b"budgeted_scopes")) == [*SCOPES]
    assert row == {
        b"reservation_id": done.reservation_id.encode(),
        b"tenant": b"acme",
        b"state": b"ACTIVE",
        b"estimate_amount": b"100",
        b"estimate_unit": b"TOKENS",
        b"scope_path": b"tenant:acme/no:budget",
        b"created_at": b"%d" % NOW,
        b"expires_at": b"%d" % deadline,
        b"grace_ms": b"5000",
        b"extension_count": b"0",
        b"max_extensions": b"3",
        b"overage_policy": b"ALLOW_IF_AVAILABLE",
        b"idempotency_key": b"k",
        b"subject_json": b'{"tenant":"acme"}',
        b"action_json": b'{"kind":"llm"}',
        b"metadata_json": b'{"a":"\\u00e9","b":1}',
    }
    assert book.deadline(done.reservation_id.encode()) == deadline
    assert book.client.ttl(book.keys.reservation(done.reservation_id.encode())) == -1


def test_what_was_not_given_leaves_no_field(book: Book) -> None:
    row = book.row(book.reserve(grace=None).reservation_id.encode())
    assert not {b"grace_ms", b"subject_json", b"action_json", b"metadata_json"} & set(row)


def test_each_reservation_has_an_id_of_its_own(book: Book) -> None:
    assert len({book.reserve(1).reservation_id.encode() for _ in range(20)}) == 20
    assert book.amounts() == (980, 20, 0, 0)


def test_the_whole_budget_can_be_reserved(book: Book) -> None:
    assert book.reserve(1000).balances == both(0, 1000)


def test_nothing_can_be_reserved(book: Book) -> None:
    rid = book.reserve(0).reservation_id.encode()
    assert book.commit(rid, 0).balances == both(1000)


@pytest.mark.every_redis
@pytest.mark.parametrize(("used", "left"), [(0, 1000), (1, 999), (99, 901), (100, 900)])
def test_commit_within_the_estimate(book: Book, used: int, left: int) -> None:
    rid = book.reserve(100).reservation_id.encode()
    book.freeze(NOW + 10)
    assert book.commit(rid, used, idempotency_key="c") == Committed(
        rid.decode(), used, 0, NOW + 10, both(left, 0, used), ()
    )
    row = book.row(rid)
    payload_hash = row.pop(b"committed_payload_hash")
    assert len(payload_hash) == 64
    ended = {
        b"state": b"COMMITTED",
        b"charged_amount": b"%d" % used,
        b"debt_incurred": b"0",
        b"committed_at": b"%d" % (NOW + 10),
        b"committed_idempotency_key": b"c",
    }
    assert ended.items() <= row.items()
    assert row[b"estimate_amount"] == b"100"
    check_ended(book, rid)


def check_ended(book: Book, rid: bytes) -> None:
    """It is out of the index, and lasts for the audit."""
    assert book.deadline(rid) is None
    assert RETENTION - 10_000 < book.client.pttl(book.keys.reservation(rid)) <= RETENTION
    assert book.world.expire(rid, at=NOW + 10 * DAY_MS)[0] == b"skipped"


@pytest.mark.parametrize("policy", [IF_AVAILABLE, OVERDRAFT])
@pytest.mark.parametrize("extra", [1, 899, 900])
def test_commit_above_the_estimate_where_it_is_there(book: Book, policy: OveragePolicy, extra: int) -> None:
    rid = book.reserve(100, overage_policy=policy).reservation_id.encode()
    done = book.commit(rid, 100 + extra)
    assert (done.charged, done.debt_incurred) == (100 + extra, 0)
    assert done.balances == both(900 - extra, 0, 100 + extra)
    check_ended(book, rid)


def test_commit_charges_what_every_scope_has(book: Book) -> None:
    book.event(600, [BOTTOM])
    rid = book.reserve(100, overage_policy=IF_AVAILABLE).reservation_id.encode()
    done = book.commit(rid, 500)  # 400 more, where TOP has 900 and BOTTOM has 300
    assert (done.charged, done.debt_incurred) == (400, 0)
    assert done.balances == (balance(TOP, 600, 0, 400), balance(BOTTOM, 0, 0, 1000, is_over_limit=True))
    assert book.balance(BOTTOM) == done.balances[1]
    assert book.row(rid)[b"charged_amount"] == b"400"
    assert book.client.hget(book.world.budget_key(TOP), "is_over_limit") == b"false"
    assert book.client.hget(book.world.budget_key(BOTTOM), "is_over_limit") == b"true"


def test_commit_charges_the_estimate_at_least(book: Book) -> None:
    # A remaining below 0 stays as it is: there is nothing that could be charged.
    rid = book.reserve(1000, overage_policy=IF_AVAILABLE).reservation_id.encode()
    book.client.hset(book.world.budget_key(TOP), mapping={"remaining": -5, "debt": 5})
    done = book.commit(rid, 1001)
    assert done.charged == 1000
    assert [(b.remaining, b.spent, b.is_over_limit) for b in done.balances] == [(-5, 1000, True), (0, 1000, True)]


@pytest.mark.every_redis
def test_commit_into_debt(book: Book) -> None:
    book.open("deep", overdraft_limit=1000)
    book.event(600, ["deep"])
    rid = book.reserve(100, [TOP, "deep"], overage_policy=OVERDRAFT).reservation_id.encode()
    done = book.commit(rid, 500)
    assert (done.charged, done.debt_incurred) == (500, 100)
    deep = balance("deep", -100, 0, 1000, debt=100, overdraft_limit=1000)
    assert done.balances == (balance(TOP, 500, 0, 500), deep)
    assert book.row(rid)[b"debt_incurred"] == b"100"


@pytest.mark.parametrize("scopes", [["less", "more"], ["more", "less"], ["less", "more", "less"]])
def test_the_greatest_debt_is_told(book: Book, scopes: list[str]) -> None:
    book.open("less", allocated=150, overdraft_limit=1000)
    book.open("more", allocated=10, overdraft_limit=1000)
    done = book.event(100, scopes, overage_policy=OVERDRAFT)
    assert done.debt_incurred == 90


def test_debt_goes_up_to_the_overdraft_limit(book: Book) -> None:
    book.open("deep", allocated=10, overdraft_limit=5)
    assert book.event(12, ["deep"], overage_policy=OVERDRAFT).debt_incurred == 2
    assert book.event(3, ["deep"], overage_policy=OVERDRAFT).debt_incurred == 3
    assert book.amounts("deep") == (-5, 0, 10, 5)


def test_debt_where_remaining_is_below_zero(book: Book) -> None:
    book.open("deep", allocated=10, overdraft_limit=9, remaining=-4, spent=10, debt=4)
    assert book.event(5, ["deep"], overage_policy=OVERDRAFT).debt_incurred == 5
    assert book.amounts("deep") == (-9, 0, 10, 9)


@pytest.mark.parametrize(("scopes", "charged"), [([TOP, "deep"], 300), (["deep", TOP, TOP], 150)])
def test_without_an_overdraft_limit_the_charge_is_cut(book: Book, scopes: list[str], charged: int) -> None:
    book.open("deep", allocated=100, overdraft_limit=1000)
    book.event(700, [TOP])
    done = book.event(500, scopes, overage_policy=OVERDRAFT)
    assert (done.charged, done.debt_incurred) == (charged, charged - 100)
    assert book.balance(TOP).is_over_limit
    assert not book.balance("deep").is_over_limit
    assert book.amounts("deep") == (100 - charged, 0, 100, charged - 100)


def test_the_debt_of_a_commit_is_that_of_all_budgets(book: Book) -> None:
    book.open("less", allocated=150, overdraft_limit=1000)
    book.open("more", allocated=110, overdraft_limit=1000)
    rid = book.reserve(100, ["less", "more"], overage_policy=OVERDRAFT).reservation_id.encode()
    assert book.commit(rid, 200).debt_incurred == 50 + 90
    assert book.row(rid)[b"debt_incurred"] == b"140"


def test_within_its_overdraft_limit_a_budget_in_debt_can_reserve(book: Book) -> None:
    book.open("deep", allocated=10, overdraft_limit=50)
    book.event(30, ["deep"], overage_policy=OVERDRAFT)
    book.client.hset(book.world.budget_key("deep"), mapping={"allocated": 110, "remaining": 80})  # credited
    assert book.reserve(80, ["deep"]).balances[0].remaining == 0


@pytest.mark.parametrize("status", ["ACTIVE", "SUSPENDED"])
def test_a_tenant_that_is_not_closed_is_served(book: Book, status: str) -> None:
    book.client.set(book.keys.tenant(b"acme"), json.dumps({"tenant_id": "acme", "status": status}))
    book.commit(book.reserve(10).reservation_id.encode(), 5, unit="TOKENS")
    book.event(1)
    book.client.delete(book.keys.tenant(b"acme"))


def test_what_was_done_before_its_tenant_was_closed_is_answered_again(book: Book) -> None:
    done = book.reserve(10, idempotency_key="k")
    book.client.set(book.keys.tenant(b"acme"), '{"status": "CLOSED"}')
    with book.unchanged():
        assert book.reserve(10, idempotency_key="k") == done
    book.client.delete(book.keys.tenant(b"acme"))


@pytest.mark.every_redis
def test_release(book: Book) -> None:
    rid = book.reserve(100).reservation_id.encode()
    book.freeze(NOW + 10)
    assert book.release(rid, idempotency_key="r") == Released(rid.decode(), 100, NOW + 10, both(1000), ())
    row = book.row(rid)
    assert (row[b"state"], row[b"released_at"]) == (b"RELEASED", b"%d" % (NOW + 10))
    assert row[b"released_idempotency_key"] == b"r"
    assert b"charged_amount" not in row
    check_ended(book, rid)


@pytest.mark.every_redis
def test_extend(book: Book) -> None:
    rid = book.reserve(100, max_extensions=2).reservation_id.encode()
    deadline = NOW + MINUTE_MS
    for count, by in [(1, 1), (2, 90_000)]:
        deadline += by
        done = book.extend(rid, ms(by))
        assert done == Extended(rid.decode(), deadline, count, both(900, 100), (), deadline - NOW)
        assert done.remaining_ttl_ms == deadline - NOW
        row = book.row(rid)
        assert (row[b"expires_at"], row[b"extension_count"]) == (b"%d" % deadline, b"%d" % count)
        assert book.deadline(rid) == deadline
    assert book.expire(rid, NOW + MINUTE_MS + 90_000) == [b"not_due"]
    assert book.expire(rid, deadline + GRACE_MS + 1)[0] == b"expired"


def test_extend_mends_the_index(book: Book) -> None:
    rid = book.reserve().reservation_id.encode()
    book.client.zrem(book.keys.reservation_index, rid)
    book.extend(rid)
    assert book.deadline(rid) == NOW + 2 * MINUTE_MS


@pytest.mark.every_redis
def test_event(book: Book) -> None:
    done = book.event(100, [*SCOPES, "no:budget"])
    assert done == Debited(100, 0, NOW, both(900, 0, 100), ("no:budget",))
    assert book.client.keys(book.keys.prefix + b"reservation:*") == []


def test_event_charges_what_every_scope_has(book: Book) -> None:
    book.event(700, [TOP])
    done = book.event(500, overage_policy=IF_AVAILABLE)
    assert done.charged == 300
    assert done.balances == (balance(TOP, 0, 0, 1000, is_over_limit=True), balance(BOTTOM, 700, 0, 300))
    assert book.event(1, overage_policy=IF_AVAILABLE).charged == 0  # more of it, and nothing is there


def test_what_is_reserved_can_be_committed_whatever_the_status(book: Book) -> None:
    ends: list[tuple[str, Callable[[bytes], Committed | Released]]]
    ends = [("FROZEN", book.commit), ("CLOSED", book.release)]
    for status, end in ends:
        rid = book.reserve(100).reservation_id.encode()
        book.client.hset(book.world.budget_key(TOP), "status", status)
        assert end(rid).balances[0].status == status
        book.client.hset(book.world.budget_key(TOP), "status", "ACTIVE")


@pytest.mark.parametrize("left", [0, 99, 199])
@pytest.mark.parametrize("used", [None, 0, 30, 100, 150])
def test_a_closing_that_gave_the_hold_back_refuses_no_end(book: Book, used: int | None, left: int) -> None:
    """The books end as if the budget had been closed after the end, whatever else it still holds."""
    rid = book.reserve(100, [TOP, BOTTOM, TOP], overage_policy=IF_AVAILABLE).reservation_id.encode()
    closed = {"status": "CLOSED", "remaining": 1000 - left, "reserved": left}
    book.client.hset(book.world.budget_key(TOP), mapping=closed)
    done = book.release(rid) if used is None else book.commit(rid, used)
    used = used or 0
    assert [each.scope for each in done.balances] == [TOP, BOTTOM]
    assert book.amounts(TOP) == (1000 - left - 2 * used, left, 2 * used, 0)
    assert book.amounts(BOTTOM) == (1000 - used, 0, used, 0)
    book.check_invariants()


def test_a_budget_that_holds_too_little_and_is_not_closed_refuses(book: Book) -> None:
    rid = book.reserve(100, [TOP, BOTTOM, TOP]).reservation_id.encode()
    book.client.hset(book.world.budget_key(TOP), mapping={"remaining": 801, "reserved": 199})
    with book.unchanged(), pytest.raises(ReservedUnderflow):
        book.commit(rid, 30)


@pytest.mark.parametrize(("operation", "amounts"), [("commit", (970, 0, 30)), ("release", (1000, 0, 0))])
def test_a_budget_that_is_gone_is_not_invented(book: Book, operation: str, amounts: tuple[int, ...]) -> None:
    rid = book.reserve(100).reservation_id.encode()
    book.client.delete(book.world.budget_key(TOP))
    assert book.extend(rid).missing == (TOP,)
    done = book.commit(rid, 30) if operation == "commit" else book.release(rid)
    assert done.missing == (TOP,)
    assert done.balances == (balance(BOTTOM, *amounts),)
    assert not book.client.exists(book.world.budget_key(TOP))


def test_a_reservation_all_of_whose_budgets_are_gone_can_end(book: Book) -> None:
    rids = [book.reserve(100).reservation_id.encode() for _ in range(2)]
    book.client.delete(*map(book.world.budget_key, SCOPES))
    assert book.release(rids[0]).balances == ()
    assert book.commit(rids[1], 30).missing == SCOPES


def test_a_scope_that_is_named_twice_is_charged_twice(book: Book) -> None:
    twice = [TOP, BOTTOM, TOP]
    done = book.reserve(100, twice, overage_policy=IF_AVAILABLE)
    assert done.balances == (balance(TOP, 800, 200), balance(BOTTOM, 900, 100))
    assert json.loads(book.row(done.reservation_id.encode())[b"budgeted_scopes"]) == twice
    assert book.expire(done.reservation_id.encode(), NOW + DAY_MS)[0] == b"expired"
    assert book.amounts() == (1000, 0, 0, 0)
    assert book.commit(book.reserve(100, twice).reservation_id.encode(), 30).balances == (
        balance(TOP, 940, 0, 60),
        balance(BOTTOM, 970, 0, 30),
    )
    assert book.event(471, twice, overage_policy=IF_AVAILABLE).balances == (
        balance(TOP, 0, 0, 1000, is_over_limit=True),
        balance(BOTTOM, 500, 0, 500),
    )


def test_shares_of_a_scope_that_is_named_often(book: Book) -> None:
    # 2^63-1 in 7 shares; what does not go up stays.
    book.open("big", allocated=2**63 - 1)
    share, rest = divmod(2**63 - 1, 7)
    done = book.event(2**63 - 1, ["big"] * 7, overage_policy=IF_AVAILABLE)
    assert (done.charged, done.balances[0].remaining) == (share, rest)


def test_without_budgeted_scopes_the_affected_ones_count(book: Book) -> None:
    for end in (book.commit, book.release, book.extend):
        rid = book.reserve(100, [*SCOPES, "no:budget"]).reservation_id.encode()
        book.client.hdel(book.keys.reservation(rid), "budgeted_scopes")
        done = end(rid)
        assert [balance.scope for balance in done.balances] == [*SCOPES]
        assert done.missing == ("no:budget",)


def test_the_default_grace_is_the_ledger_s(book: Book) -> None:
    rid = book.reserve(grace=None).reservation_id.encode()
    book.ledger = Ledger(book.shard, default_grace=GRACE, audit_retention=timedelta(hours=1))
    book.freeze(NOW + MINUTE_MS + GRACE_MS)
    book.commit(rid)
    assert 0 < book.client.pttl(book.keys.reservation(rid)) <= 3_600_000


@pytest.mark.every_redis
def test_on_the_clock_of_the_server(server: Server) -> None:
    with a_book(server) as book:
        book.open(*SCOPES)
        earliest = book.world.now()
        done = book.reserve()
        assert earliest <= done.created_at <= book.world.now()
        assert done.expires_at == done.created_at + MINUTE_MS
        assert book.extend(done.reservation_id.encode(), MINUTE).expires_at == done.created_at + 2 * MINUTE_MS
        assert earliest <= book.commit(done.reservation_id.encode()).committed_at <= book.world.now()
        assert earliest <= book.release(book.reserve().reservation_id.encode()).released_at <= book.world.now()
        assert earliest <= book.event().debited_at <= book.world.now()


@pytest.mark.every_redis
def test_a_reservation_is_read_as_it_stands(book: Book) -> None:
    subject, action, metadata = {"tenant": "acme"}, {"kind": "llm", "name": "gpt"}, {"a": "é"}
    held = book.reserve(
        100, [*SCOPES, "no:budget"], subject=subject, action=action, metadata=metadata, overage_policy=IF_AVAILABLE
    )
    found = book.ledger.get(held.reservation_id)
    assert found == Reservation(
        held.reservation_id,
        "acme",
        "ACTIVE",
        100,
        "TOKENS",
        SCOPES,
        NOW,
        held.expires_at,
        GRACE_MS,
        0,
        "ALLOW_IF_AVAILABLE",
        None,
        subject,
        action,
        metadata,
    )
    with pytest.raises(FrozenInstanceError):
        found.state = "EXPIRED"  # type: ignore[misc]
    json.dumps(asdict(found))
    book.extend(held.reservation_id)
    book.commit(held.reservation_id, 30)
    ended = book.ledger.get(held.reservation_id)
    assert (ended.state, ended.charged, ended.extension_count) == ("COMMITTED", 30, 1)
    bare = book.ledger.get(book.reserve(1, grace=None).reservation_id)
    assert (bare.grace_ms, bare.subject, bare.action, bare.metadata) == (None, None, None, None)


def test_a_reservation_that_cannot_be_read(book: Book) -> None:
    with pytest.raises(ReservationNotFound):
        book.ledger.get("nobody")
    rid = book.reserve(1).reservation_id
    key = book.keys.reservation(rid.encode())
    for field, value in {"estimate_amount": "x", "created_at": "", "subject_json": "{", "budgeted_scopes": "1"}.items():
        before = book.client.hget(key, field)
        book.client.hset(key, field, value)
        with pytest.raises(InvalidReservation) as refused:
            book.ledger.get(rid)
        assert refused.value.detail.decode() == field
        if before:
            book.client.hset(key, field, before)
        else:
            book.client.hdel(key, field)
    book.client.set(book.keys.reservation(b"text"), "")
    with pytest.raises(InvalidReservation, match="WRONG_TYPE"):
        book.ledger.get("text")
    book.client.delete(book.keys.reservation(b"text"))
