"""The same request again gets the same answer and changes nothing; another one under its key is an error."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sweeperd.ledger import (
    IdempotencyMismatch,
    InsufficientBudget,
    Ledger,
    LedgerError,
    OveragePolicy,
    ReservationFinalized,
)
from tests.lua.builders import NOW, SCOPES
from tests.lua.ledger_book import BOTTOM, DAY_MS, GRACE, GRACE_MS, MINUTE, MINUTE_MS, TOP, Book, a_book, ms
from tests.support.servers import Server

OPERATIONS = ("reserve", "event", "commit", "release", "extend")


def request(book: Book, operation: str, rid: bytes = b"") -> Callable[[], Any]:
    """A request that can be sent again: its idempotency key is `k`."""
    arguments: dict[str, list[Any]] = {
        "reserve": [100],
        "event": [100],
        "commit": [rid, 30],
        "release": [rid],
        "extend": [rid, MINUTE],
    }
    return lambda: getattr(book, operation)(*arguments[operation], idempotency_key="k")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_again(book: Book, operation: str) -> None:
    send = request(book, operation, book.reserve().reservation_id.encode())
    answer = send()
    for later in (0, 1, MINUTE_MS + GRACE_MS + 1, 100 * DAY_MS):
        book.freeze(NOW + later)
        with book.unchanged():
            assert send() == answer


@pytest.mark.parametrize("end", ["commit", "release", "expire", "gone"])
def test_again_after_the_reservation_has_ended(book: Book, end: str) -> None:
    reserve = request(book, "reserve")
    reserved = reserve()
    rid = reserved.reservation_id.encode()
    extend = request(book, "extend", rid)
    extended = extend()
    if end == "expire":
        assert book.expire(rid, NOW + DAY_MS)[0] == b"expired"
    elif end == "gone":
        book.release(rid)
        book.client.delete(book.keys.reservation(rid))
    else:
        getattr(book, end)(rid)
    with book.unchanged():
        assert reserve() == reserved
        assert extend() == extended


@pytest.mark.parametrize("operation", OPERATIONS)
def test_again_with_budgets_that_changed_or_are_gone(book: Book, operation: str) -> None:
    send = request(book, operation, book.reserve().reservation_id.encode())
    answer = send()
    book.client.hset(book.world.budget_key(TOP), mapping={"status": "FROZEN", "debt": 5, "remaining": -1000})
    book.client.delete(book.world.budget_key(BOTTOM))
    with book.unchanged():
        assert send() == answer
    book.client.delete(book.world.budget_key(TOP))


def test_the_answer_has_the_first_one_s_id(book: Book) -> None:
    first = book.reserve(idempotency_key="k").reservation_id.encode()
    assert book.reserve(idempotency_key="k").reservation_id.encode() == first
    assert book.client.keys(book.keys.reservation(b"*")) == [book.keys.reservation(first)]


DIFFERENT: dict[str, Callable[[Book, bytes, bytes], Any]] = {
    "reserve, amount": lambda book, *_: book.reserve(101, idempotency_key="k"),
    "reserve, scopes": lambda book, *_: book.reserve(100, [TOP], idempotency_key="k"),
    "reserve, order of scopes": lambda book, *_: book.reserve(100, [BOTTOM, TOP], idempotency_key="k"),
    "reserve, scopes run together": lambda book, *_: book.reserve(100, [TOP + BOTTOM], idempotency_key="k"),
    "reserve, ttl": lambda book, *_: book.reserve(100, ttl=2 * MINUTE, idempotency_key="k"),
    "reserve, grace": lambda book, *_: book.reserve(100, grace=2 * GRACE, idempotency_key="k"),
    "reserve, no grace": lambda book, *_: book.reserve(100, grace=None, idempotency_key="k"),
    "reserve, unit": lambda book, *_: book.ledger.reserve(
        "acme", SCOPES, "USD", 100, ttl=MINUTE, grace=GRACE, idempotency_key="k"
    ),
    "reserve, policy": lambda book, *_: book.reserve(
        100, overage_policy=OveragePolicy.ALLOW_IF_AVAILABLE, idempotency_key="k"
    ),
    "reserve, extensions": lambda book, *_: book.reserve(100, max_extensions=9, idempotency_key="k"),
    "reserve, subject": lambda book, *_: book.reserve(100, subject={}, idempotency_key="k"),
    "reserve, action": lambda book, *_: book.reserve(100, action={}, idempotency_key="k"),
    "reserve, metadata": lambda book, *_: book.reserve(100, metadata={}, idempotency_key="k"),
    "event, amount": lambda book, *_: book.event(101, idempotency_key="k"),
    "event, scopes": lambda book, *_: book.event(100, [TOP], idempotency_key="k"),
    "event, policy": lambda book, *_: book.event(
        100, overage_policy=OveragePolicy.ALLOW_WITH_OVERDRAFT, idempotency_key="k"
    ),
    "commit, amount": lambda book, rid, _: book.commit(rid, 31, idempotency_key="k"),
    "commit, reservation": lambda book, _, other: book.commit(other, 30, idempotency_key="k"),
    "release, reservation": lambda book, _, other: book.release(other, idempotency_key="k"),
    "extend, duration": lambda book, rid, _: book.extend(rid, 2 * MINUTE, idempotency_key="k"),
    "extend, reservation": lambda book, _, other: book.extend(other, MINUTE, idempotency_key="k"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_another_request_under_a_used_key(book: Book, case: str) -> None:
    rid, other = (book.reserve().reservation_id.encode() for _ in range(2))
    send = request(book, case.partition(",")[0], rid)
    answer = send()
    with book.unchanged():
        with pytest.raises(IdempotencyMismatch):
            DIFFERENT[case](book, rid, other)
        assert send() == answer


@pytest.mark.parametrize("record", [b"", b"text", b"{}", b"\n", b"a\n{}", b"0" * 64 + b"\n{}"])
def test_a_record_that_another_program_wrote(book: Book, record: bytes) -> None:
    book.client.set(book.keys.idempotency(b"acme", "reserve", b"k"), record)
    with book.unchanged(), pytest.raises(IdempotencyMismatch):
        book.reserve(idempotency_key="k")


def test_the_same_mapping_in_another_order_is_the_same_request(book: Book) -> None:
    first = book.reserve(idempotency_key="k", metadata={"a": 1, "b": 2})
    assert book.reserve(idempotency_key="k", metadata={"b": 2, "a": 1}) == first


def test_the_ledger_s_own_settings_are_no_part_of_the_request(book: Book) -> None:
    send = request(book, "reserve")
    answer = send()
    book.ledger = Ledger(book.shard, default_grace=MINUTE, audit_retention=60 * MINUTE)
    assert send() == answer


def test_a_key_belongs_to_one_operation(book: Book) -> None:
    reserved = book.reserve(idempotency_key="k")
    book.extend(reserved.reservation_id.encode(), idempotency_key="k")
    book.event(1, idempotency_key="k")
    book.commit(reserved.reservation_id.encode(), idempotency_key="k")
    book.release(book.reserve().reservation_id.encode(), idempotency_key="k")
    assert len(book.client.keys(b"idem:*:4:acme:k")) == 5


def test_a_key_belongs_to_one_tenant(book: Book) -> None:
    ours = book.reserve(idempotency_key="k")
    theirs = book.ledger.reserve("other", SCOPES, "TOKENS", 100, ttl=MINUTE, grace=GRACE, idempotency_key="k")
    assert ours.reservation_id.encode() != theirs.reservation_id.encode()


def test_no_tenant_can_use_up_a_key_of_another(book: Book) -> None:
    """Colons in names do not make two records into one."""
    balances = [
        book.ledger.event(tenant, SCOPES, "TOKENS", 1, idempotency_key=key).balances[0]
        for tenant, key in (("a", "b:c"), ("a:b", "c"), ("a", "1:b:c"), ("a:1:b", "c"))
    ]
    assert [balance.spent - balances[0].spent for balance in balances] == [0, 1, 2, 3]


def test_a_reservation_ends_under_one_key(book: Book) -> None:
    for operation in ("commit", "release"):
        rid = book.reserve().reservation_id.encode()
        request(book, operation, rid)()
        for other in (book.commit, book.release, book.extend):
            with book.unchanged(), pytest.raises(ReservationFinalized):
                other(rid)


def test_each_extension_has_a_key(book: Book) -> None:
    rid = book.reserve().reservation_id.encode()
    for key in ("a", "b", "a", "b", "b"):
        book.extend(rid, idempotency_key=key)
    assert book.deadline(rid) == NOW + 3 * MINUTE_MS


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_refusal_is_not_kept(book: Book, operation: str) -> None:
    rid = book.reserve().reservation_id.encode()
    send = request(book, operation, rid)
    key = book.world.budget_key(TOP)
    book.client.hset(key, "remaining", "broken")
    for _ in range(2):
        with book.unchanged(), pytest.raises(LedgerError):
            send()
    book.client.hset(key, "remaining", 900)
    answer = send()
    assert send() == answer


# How long it lasts


def near(ttl: int, expected: int) -> bool:
    return expected - 10_000 < ttl <= expected


@pytest.mark.parametrize("grace", [GRACE_MS, None, 3 * DAY_MS])
@pytest.mark.parametrize("ttl", [MINUTE_MS, DAY_MS, 40 * DAY_MS])
def test_a_record_lasts_a_day_or_as_long_as_the_reservation(book: Book, ttl: int, grace: int | None) -> None:
    book.ledger = Ledger(book.shard, default_grace=ms(2 * DAY_MS))
    book.freeze(NOW)
    lifetime = ttl + (2 * DAY_MS if grace is None else grace)
    expected = max(DAY_MS, lifetime)
    lasting: dict[str, Any] = {"ttl": ms(ttl), "grace": None if grace is None else ms(grace)}
    rids = [book.reserve(1, idempotency_key=key, **lasting).reservation_id.encode() for key in "abc"]
    assert near(book.record_ttl("reserve", b"a"), expected)
    book.freeze(NOW + ttl)  # at the last moment
    request(book, "extend", rids[0])()
    book.commit(rids[1], 1, idempotency_key="k")
    request(book, "release", rids[2])()
    assert near(book.record_ttl("extend", b"k"), max(DAY_MS, lifetime + MINUTE_MS))
    assert near(book.record_ttl("commit", b"k"), expected)
    assert near(book.record_ttl("release", b"k"), expected)
    book.event(1, idempotency_key="k")
    assert near(book.record_ttl("event", b"k"), DAY_MS)


def test_the_record_of_a_reserve_lasts_as_long_as_its_extensions(book: Book) -> None:
    rid = book.reserve(idempotency_key="k").reservation_id.encode()
    book.extend(rid, ms(DAY_MS // 2))
    assert near(book.record_ttl("reserve", b"k"), DAY_MS)
    book.extend(rid, ms(DAY_MS))
    assert near(book.record_ttl("reserve", b"k"), DAY_MS + DAY_MS // 2 + MINUTE_MS + GRACE_MS)
    with book.unchanged():
        assert book.reserve(idempotency_key="k").reservation_id.encode() == rid


@pytest.mark.parametrize("lost", ["the record", "the field"])
def test_an_extension_where_there_is_no_record_of_the_reserve(book: Book, lost: str) -> None:
    rid = book.reserve(idempotency_key="k").reservation_id.encode()
    if lost == "the record":
        book.client.delete(book.keys.idempotency(b"acme", "reserve", b"k"))
    else:
        book.client.hdel(book.keys.reservation(rid), "idempotency_key")
    book.extend(rid, ms(5 * DAY_MS))
    assert not book.client.exists(book.keys.idempotency(b"acme", "reserve", b"k")) or lost == "the field"


def test_after_its_record_is_gone_a_request_is_a_new_one(book: Book) -> None:
    sends = {}
    for operation in OPERATIONS:
        sends[operation] = request(
            book, operation, book.reserve(10, overage_policy="ALLOW_IF_AVAILABLE").reservation_id.encode()
        )
        sends[operation]()
        key = book.keys.idempotency(b"acme", operation, b"k")
        book.client.pexpireat(key, 1)  # what is past is gone at once
        assert not book.client.exists(key)
    for operation in ("commit", "release"):
        with book.unchanged(), pytest.raises(ReservationFinalized):
            sends[operation]()
    before = book.balance()
    sends["reserve"]()
    sends["event"]()
    sends["extend"]()
    after = book.balance()
    assert (after.reserved - before.reserved, after.spent - before.spent) == (100, 100)


# At once


def test_many_at_once_under_one_key(server: Server) -> None:
    with a_book(server) as book, ThreadPoolExecutor(8) as pool:
        book.open(*SCOPES)
        reserve = request(book, "reserve")
        (reserved,) = set(pool.map(lambda _: reserve(), range(40)))
        commit = request(book, "commit", reserved.reservation_id.encode())
        (committed,) = set(pool.map(lambda _: commit(), range(40)))
        assert committed.balances == (book.balance(TOP), book.balance(BOTTOM))
        assert book.amounts() == (970, 0, 30, 0)


def test_many_at_once_never_take_more_than_there_is(server: Server) -> None:
    with a_book(server) as book, ThreadPoolExecutor(8) as pool:
        book.open(TOP)
        book.open(BOTTOM, allocated=2000)

        def attempt(_: int) -> bool:
            try:
                book.reserve(90)
            except InsufficientBudget:
                return False
            return True

        assert sum(pool.map(attempt, range(60))) == 11
        assert book.amounts() == (10, 990, 0, 0)
        assert book.amounts(BOTTOM) == (1010, 990, 0, 0)


def test_what_is_left_of_a_reservation_is_counted_anew(book: Book) -> None:
    """`remaining_ttl_ms` of `ReservationCreateResponse` and `ReservationExtendResponse` in cycles-protocol-v0.yaml."""
    book.freeze(NOW)
    rid = book.reserve(idempotency_key="r").reservation_id.encode()

    def left(at: int) -> tuple[int, int]:
        """In the answers of the first reserve and of the first extend, repeated."""
        book.freeze(at)
        first = book.reserve(idempotency_key="r")
        assert first.reservation_id.encode() == rid
        return first.remaining_ttl_ms, book.extend(rid, MINUTE, idempotency_key="e").remaining_ttl_ms

    assert left(NOW + 1000) == (MINUTE_MS - 1000, 2 * MINUTE_MS - 1000)
    # Counted from the deadline in that answer, and not from the present deadline.
    assert book.extend(rid, MINUTE).remaining_ttl_ms == 3 * MINUTE_MS - 1000
    assert left(NOW + 2000) == (MINUTE_MS - 2000, 2 * MINUTE_MS - 2000)
    assert left(NOW + MINUTE_MS + 5) == (0, MINUTE_MS - 5)
    assert left(NOW + 4 * MINUTE_MS) == (0, 0)
    book.freeze(NOW)
    book.commit(rid)
    assert left(NOW + 1000) == (0, 0)
    book.client.delete(book.keys.reservation(rid))
    assert left(NOW + 1000) == (0, 0)
