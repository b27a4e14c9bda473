"""The ledger beside a Cycles service: a reservation has what the service reads, and the service's lists have it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sweeperd.ledger import IdempotencyMismatch, InvalidReservation, Ledger, MissingRight, OpenedByCycles, cycles
from tests.lua.builders import NOW, SCOPES
from tests.lua.ledger_book import GRACE, GRACE_MS, Book, a_book, ms
from tests.support.servers import Server

ACTION = {"kind": "llm.completion", "name": "gpt"}
INDEX, METADATA = b"reservation:idx:acme:created_at_ms", b"reservation:idxmeta:acme:created_at_ms"
READY = {b"state": b"READY", b"expected_count": b"1", b"version": b"1"}


@pytest.fixture
def book(server: Server) -> Iterator[Book]:
    """Two budgets of 1000, at NOW, and a ledger beside a Cycles service."""
    with a_book(server) as ready:
        ready.open(*SCOPES)
        ready.ledger = Ledger(ready.shard, default_grace=GRACE, cycles=True)
        ready.freeze(NOW)
        yield ready


def reserve(book: Book, **changes: Any) -> bytes:
    return book.reserve(100, **({"action": ACTION} | changes)).reservation_id.encode()


def test_what_the_service_must_find(book: Book) -> None:
    """`ReservationHashMapper.buildDetail`: without one of these, the reservation is corrupted."""
    row = book.row(reserve(book, grace=None))
    assert json.loads(row[b"subject_json"]) == {"tenant": "acme", "workspace": "prod"}
    assert json.loads(row[b"action_json"]) == ACTION
    assert row[b"grace_ms"] == b"%d" % GRACE_MS
    assert {b"estimate_unit", b"estimate_amount", b"state", b"created_at", b"expires_at"} <= row.keys()
    assert book.row(reserve(book, grace=ms(0)))[b"grace_ms"] == b"0"
    assert book.row(reserve(book, grace=ms(7)))[b"grace_ms"] == b"7"


def test_a_subject_that_is_given(book: Book) -> None:
    subject = {"tenant": "acme", "agent": "a-1.b_2", "dimensions": {"team": "x"}}
    action = ACTION | {"tags": ["a", "b"]}
    row = book.row(reserve(book, subject=subject, action=action))
    assert json.loads(row[b"subject_json"]) == subject
    assert json.loads(row[b"action_json"]) == action


@pytest.mark.parametrize(
    ("scope", "given", "field"),
    [
        ("tenant:acme/team:x", None, "subject.team"),
        ("tenant:acme/workspace:", None, "subject.workspace"),
        ("tenant:acme/tenant:b", None, "subject"),
        ("acme", None, "subject.acme"),
        ("tenant:a cme", None, "subject.tenant"),
        (b"tenant:\xff", None, "subject.tenant"),
        ("s", {}, "subject"),
        ("s", {"dimensions": {"a": "b"}}, "subject"),
        ("s", {"tenant": "a", "team": "b"}, "subject.team"),
        ("s", {"tenant": "a", "dimensions": {"a": 1}}, "subject.dimensions"),
        ("s", {"tenant": "a", "dimensions": {str(n): "" for n in range(17)}}, "subject.dimensions"),
        ("s", {"tenant": "a" * 129}, "subject.tenant"),
    ],
)
def test_a_subject_that_the_service_cannot_read(book: Book, scope: str, given: Any, field: str) -> None:
    """`Subject` of the service: six levels, of some letters, and dimensions."""
    with book.unchanged(), pytest.raises(InvalidReservation) as refused:
        book.reserve(100, [scope], action=ACTION, subject=given)
    assert refused.value.detail.decode().partition(":")[0] == field


@pytest.mark.parametrize(
    ("action", "field"),
    [
        (None, "action.kind"),
        ({"kind": "llm"}, "action.name"),
        ({"name": "gpt"}, "action.kind"),
        ({"kind": " ", "name": "gpt"}, "action.kind"),
        ({"kind": "a" * 65, "name": "gpt"}, "action.kind"),
        ({"kind": "llm", "name": "a" * 257}, "action.name"),
        (ACTION | {"cost": 1}, "action.cost"),
        (ACTION | {"tags": ["a" * 65]}, "action.tags"),
        (ACTION | {"tags": "abc"}, "action.tags"),
        (ACTION | {"tags": ["a"] * 11}, "action.tags"),
    ],
)
def test_an_action_that_the_service_cannot_read(book: Book, action: Mapping[str, Any] | None, field: str) -> None:
    """`Action` of the service: `kind`, `name` and `tags`."""
    with book.unchanged(), pytest.raises(InvalidReservation) as refused:
        reserve(book, action=action)
    assert refused.value.detail.decode().partition(":")[0] == field


def test_the_units_of_the_service(book: Book) -> None:
    assert {b"USD_MICROCENTS", b"TOKENS", b"CREDITS", b"RISK_POINTS"} == cycles.UNITS
    with book.unchanged(), pytest.raises(InvalidReservation) as refused:
        book.ledger.reserve("acme", SCOPES, "USD", 1, ttl=ms(1), idempotency_key="k", action=ACTION)
    assert refused.value.detail == b"unit"


def test_budgets_are_opened_by_the_admin_service(book: Book) -> None:
    with book.unchanged(), pytest.raises(OpenedByCycles):
        book.ledger.open_budget("s", "TOKENS", 1)


def put(client: Any, key: bytes, value: Any) -> None:
    if isinstance(value, dict):
        client.hset(key, mapping=value)
    elif isinstance(value, bytes):
        client.set(key, value)


@pytest.mark.parametrize(
    ("metadata", "after"),
    [
        (None, None),
        (READY, READY | {b"expected_count": b"2"}),
        (READY | {b"expected_count": b"-1"}, READY | {b"expected_count": b"0"}),
        (READY | {b"expected_count": b"9007199254740993"}, READY | {b"expected_count": b"9007199254740994"}),
        ({b"state": b"READY"}, {b"state": b"READY", b"expected_count": b"1"}),
        ({b"state": b"BUILDING", b"expected_count": b"x"}, {b"state": b"BUILDING", b"expected_count": b"x"}),
        ({b"expected_count": b"1"}, {b"expected_count": b"1"}),
        # A count that HINCRBY refuses
        (READY | {b"expected_count": b"one"}, None),
        (READY | {b"expected_count": b"1.0"}, None),
        (READY | {b"expected_count": b""}, None),
        (READY | {b"expected_count": b"9223372036854775807"}, None),
        # and a key of another type.
        (b"text", None),
    ],
)
def test_the_index_by_time_of_creation(book: Book, metadata: Any, after: Any) -> None:
    """`reserve.lua` of the service, "Dual-write the optional per-tenant created_at index"."""
    book.client.zadd(INDEX, {"other": 1})
    put(book.client, METADATA, metadata)
    rid = reserve(book)
    assert book.client.zrange(INDEX, 0, -1, withscores=True) == [(b"other", 1), (rid, NOW)]
    assert (book.client.hgetall(METADATA) if book.client.exists(METADATA) else None) == after


@pytest.mark.parametrize("metadata", [None, READY, b"text"])
def test_an_index_of_another_type(book: Book, metadata: Any) -> None:
    """The reservation counts more than the index: without metadata the service reads all reservations."""
    book.client.set(INDEX, "text")
    put(book.client, METADATA, metadata)
    reserve(book)
    assert (book.client.get(INDEX), book.client.exists(METADATA)) == (b"text", 0)
    assert book.amounts() == (900, 100, 0, 0)


def test_an_id_that_stands_in_the_index(book: Book) -> None:
    """The count rises by what ZADD returns."""
    book.ledger = Ledger(book.shard, cycles=True, new_id=lambda: b"same")
    book.client.zadd(INDEX, {"same": 1})
    put(book.client, METADATA, READY)
    before = book.client.time()[0] * 1000
    reserve(book)
    assert book.client.zscore(INDEX, "same") >= before
    assert book.client.hgetall(METADATA) == READY


def test_a_replay_does_not_count_twice(book: Book) -> None:
    put(book.client, METADATA, READY)
    assert reserve(book, idempotency_key="k") == reserve(book, idempotency_key="k")
    assert (book.client.zcard(INDEX), book.client.hget(METADATA, "expected_count")) == (1, b"2")


def test_without_cycles_there_is_no_index(book: Book) -> None:
    book.ledger = Ledger(book.shard)
    rid = book.reserve(100, grace=None).reservation_id.encode()
    assert not book.client.exists(INDEX, METADATA)
    assert not book.row(rid).keys() & {b"subject_json", b"action_json", b"grace_ms"}


@pytest.mark.parametrize(("command", "count"), [("zadd", b"1"), ("hset", b"1"), ("pexpire", b"one")])
def test_without_a_right_nothing_is_written(book: Book, command: str, count: bytes) -> None:
    put(book.client, METADATA, READY | {b"expected_count": count})
    book.client.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        with book.unchanged(), pytest.raises(MissingRight):
            reserve(book)
    finally:
        book.client.execute_command("ACL", "SETUSER", "default", f"+{command}")
    reserve(book)
    assert book.client.zcard(INDEX) == 1


#: How the service names its records: reserve.lua, event.lua and extend.lua of the service; the pending marker of
#: `reserve` and of a dry run stands under the same names.
THEIRS = {
    "reserve": [b"idem:acme:reserve:k", b"idem:acme:dry_run:k"],
    "event": [b"idem:acme:event:k"],
    "extend": [b"idem:acme:extend:%b:k"],
}


def call(book: Book, operation: str, rid: bytes) -> Any:
    if operation == "reserve":
        return reserve(book, idempotency_key="k")
    if operation == "extend":
        return book.extend(rid, ms(1000), idempotency_key="k")
    return book.event(100, idempotency_key="k")


@pytest.mark.parametrize(("operation", "record"), [(name, key) for name, keys in THEIRS.items() for key in keys])
@pytest.mark.parametrize("value", [b"4f7c", b"__reserve_pending__:1:2", b'{"decision":"ALLOW"}'])
def test_a_key_that_the_service_knows(book: Book, operation: str, record: bytes, value: bytes) -> None:
    """What the service answered is unknown here: a second reservation must not be made."""
    rid = reserve(book)
    record = record.replace(b"%b", rid)
    book.client.set(record, value)
    with book.unchanged(), pytest.raises(IdempotencyMismatch):
        call(book, operation, rid)
    book.client.delete(record)
    call(book, operation, rid)


@pytest.mark.parametrize("operation", THEIRS)
def test_the_own_record_comes_first(book: Book, operation: str) -> None:
    rid = reserve(book)
    first = call(book, operation, rid)
    for record in THEIRS[operation]:
        book.client.set(record.replace(b"%b", rid), "4f7c")
    with book.unchanged():
        assert call(book, operation, rid) == first


@pytest.mark.parametrize("operation", THEIRS)
def test_without_cycles_their_records_are_nothing(book: Book, operation: str) -> None:
    rid = reserve(book)
    book.ledger = Ledger(book.shard)
    for record in THEIRS[operation]:
        book.client.set(record.replace(b"%b", rid), "4f7c")
    call(book, operation, rid)
