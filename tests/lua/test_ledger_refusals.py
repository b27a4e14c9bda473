"""Every refusal of the ledger: its type, what it names, and that nothing has changed anywhere."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis

from sweeperd import ledger
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import LedgerError, OveragePolicy
from tests.lua.builders import INT64_MAX, NOW, SCOPES
from tests.lua.ledger_book import BOTTOM, DAY_MS, TOP, Book, a_book, ms
from tests.support.servers import Server

OPERATIONS = ("reserve", "event", "commit", "release", "extend")
REJECT, IF_AVAILABLE, OVERDRAFT = OveragePolicy


@pytest.fixture
def book(server: Server) -> Iterator[Book]:
    """Two budgets of 1000, at NOW."""
    book = Book(server)
    book.freeze(NOW)
    book.open(*SCOPES)
    yield book
    book.shard.close()


def refused(book: Book, refusal: type[LedgerError], operation: Callable[[], Any], detail: str | bytes = b"") -> None:
    with book.unchanged(), pytest.raises(LedgerError) as raised:
        operation()
    assert raised.type is refusal
    assert raised.value.detail == (detail.encode() if isinstance(detail, str) else detail)


def operations(book: Book) -> dict[str, Callable[[], Any]]:
    """Each operation on SCOPES, all of which would succeed now."""
    rid = book.reserve(10).reservation_id.encode()
    return {
        "reserve": book.reserve,
        "event": book.event,
        "commit": lambda: book.commit(rid, 1),
        "release": lambda: book.release(rid),
        "extend": lambda: book.extend(rid),
    }


# Budgets


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"status": "FROZEN"}, ledger.BudgetFrozen),
        ({"status": "CLOSED"}, ledger.BudgetClosed),
        ({"status": "LIMBO"}, ledger.InvalidBudget),
        ({"status": ""}, ledger.InvalidBudget),
        ({"debt": 1}, ledger.DebtOutstanding),
        ({"is_over_limit": "true"}, ledger.OverLimit),
        ({"is_over_limit": "1"}, ledger.OverLimit),
        ({"remaining": 99}, ledger.InsufficientBudget),
        ({"remaining": -1}, ledger.InsufficientBudget),
        ({"remaining": -INT64_MAX - 1}, ledger.InsufficientBudget),
        ({"reserved": INT64_MAX - 99}, ledger.AmountOverflow),
    ],
)
def test_reserve(book: Book, scope: str, fields: dict[str, Any], refusal: type[LedgerError]) -> None:
    book.client.hset(book.world.budget_key(scope), mapping=fields)
    refused(book, refusal, lambda: book.reserve(100), scope)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("fields", "policy", "amount", "refusal"),
    [
        ({"status": "FROZEN"}, IF_AVAILABLE, 0, ledger.BudgetFrozen),
        ({"status": "CLOSED"}, OVERDRAFT, 1, ledger.BudgetClosed),
        ({"status": "LIMBO"}, REJECT, 1, ledger.InvalidBudget),
        ({"remaining": 99}, REJECT, 100, ledger.InsufficientBudget),
        ({"remaining": 99, "overdraft_limit": 1, "debt": 1}, OVERDRAFT, 100, ledger.OverdraftLimitExceeded),
        ({"remaining": -1}, REJECT, 0, ledger.InsufficientBudget),
        ({"remaining": 99, "overdraft_limit": 5}, OVERDRAFT, 105, ledger.OverdraftLimitExceeded),
        ({"remaining": 0, "overdraft_limit": 5, "debt": 5}, OVERDRAFT, 1, ledger.OverdraftLimitExceeded),
        (
            {"remaining": 0, "overdraft_limit": INT64_MAX, "debt": INT64_MAX},
            OVERDRAFT,
            1,
            ledger.OverdraftLimitExceeded,
        ),
        ({"spent": INT64_MAX}, REJECT, 1, ledger.AmountOverflow),
        ({"spent": INT64_MAX - 99}, IF_AVAILABLE, 100, ledger.AmountOverflow),
    ],
)
def test_event(
    book: Book, scope: str, fields: dict[str, Any], policy: OveragePolicy, amount: int, refusal: type[LedgerError]
) -> None:
    book.client.hset(book.world.budget_key(scope), mapping=fields)
    refused(book, refusal, lambda: book.event(amount, overage_policy=policy), scope)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("fields", "policy", "amount", "refusal"),
    [
        ({"remaining": 49, "overdraft_limit": 1, "debt": 1}, OVERDRAFT, 150, ledger.OverdraftLimitExceeded),
        ({"reserved": 99}, REJECT, 0, ledger.ReservedUnderflow),
        ({"remaining": INT64_MAX - 99}, REJECT, 0, ledger.AmountOverflow),
        ({"spent": INT64_MAX - 99}, REJECT, 100, ledger.AmountOverflow),
        ({"spent": INT64_MAX - 100}, IF_AVAILABLE, 101, ledger.AmountOverflow),
    ],
)
def test_commit(
    book: Book, scope: str, fields: dict[str, Any], policy: OveragePolicy, amount: int, refusal: type[LedgerError]
) -> None:
    rid = book.reserve(100, overage_policy=policy).reservation_id.encode()
    book.client.hset(book.world.budget_key(scope), mapping=fields)
    refused(book, refusal, lambda: book.commit(rid, amount), scope)


def test_commit_above_the_estimate_under_reject(book: Book) -> None:
    rid = book.reserve(100).reservation_id.encode()
    refused(book, ledger.EstimateExceeded, lambda: book.commit(rid, 101))
    refused(book, ledger.EstimateExceeded, lambda: book.commit(rid, INT64_MAX))
    assert issubclass(ledger.EstimateExceeded, ledger.InsufficientBudget)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [({"reserved": 99}, ledger.ReservedUnderflow), ({"remaining": INT64_MAX - 99}, ledger.AmountOverflow)],
)
def test_release(book: Book, scope: str, fields: dict[str, Any], refusal: type[LedgerError]) -> None:
    rid = book.reserve(100).reservation_id.encode()
    book.client.hset(book.world.budget_key(scope), mapping=fields)
    refused(book, refusal, lambda: book.release(rid), scope)


def test_mentions_count_together(book: Book) -> None:
    # Enough for one mention, and one unit short for two of them.
    refused(book, ledger.InsufficientBudget, lambda: book.reserve(501, [TOP, BOTTOM, TOP]), TOP)
    refused(book, ledger.InsufficientBudget, lambda: book.event(501, [TOP, BOTTOM, TOP]), TOP)
    rid = book.reserve(100, [TOP, BOTTOM, TOP]).reservation_id.encode()
    book.client.hset(book.world.budget_key(TOP), "reserved", 199)
    refused(book, ledger.ReservedUnderflow, lambda: book.release(rid), TOP)
    refused(book, ledger.ReservedUnderflow, lambda: book.commit(rid, 0), TOP)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", ["string", "list"])
def test_a_budget_that_is_no_hash(book: Book, operation: str, kind: str) -> None:
    run = operations(book)[operation]
    key = book.world.budget_key(BOTTOM)
    book.client.delete(key)
    book.client.set(key, "text") if kind == "string" else book.client.rpush(key, "text")
    refused(book, ledger.InvalidBudget, run, BOTTOM)
    refused(book, ledger.InvalidBudget, lambda: book.balance(BOTTOM), BOTTOM)


NO_AMOUNTS = (None, "", "1.0", "1e3", "+1", " 1", "01", "-0", "nan", "0x1", "1\0", 2**63, "- 1")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_broken_amount_in_the_last_scope_moves_nothing(book: Book, operation: str) -> None:
    run = operations(book)[operation]
    key = book.world.budget_key(BOTTOM)
    whole = book.client.hgetall(key)
    cases = [("reserved", value) for value in NO_AMOUNTS]
    cases += [(field, "1.0") for field in ("allocated", "remaining", "spent", "debt", "overdraft_limit")]
    for field, value in cases:
        book.client.hset(key, mapping=whole)
        if value is None:
            book.client.hdel(key, field)
        else:
            book.client.hset(key, field, value)
        refused(book, ledger.InvalidBudget, run, BOTTOM)


@pytest.mark.parametrize("field", ["allocated", "reserved", "spent", "debt", "overdraft_limit"])
def test_only_remaining_may_be_negative(book: Book, field: str) -> None:
    book.client.hset(book.world.budget_key(TOP), field, -1)
    refused(book, ledger.InvalidBudget, book.balance, TOP)
    book.client.hset(book.world.budget_key(TOP), mapping={field: 0, "remaining": -1})
    assert book.balance().remaining == -1


def test_a_budget_in_another_unit(book: Book) -> None:
    with book.unchanged():
        for run in (book.ledger.event, partial(book.ledger.reserve, ttl=ms(1))):
            with pytest.raises(ledger.UnitMismatch) as raised:
                run("acme", ["a", BOTTOM], "CREDITS", 1, idempotency_key="k")
            assert raised.value.detail == BOTTOM.encode()
    rid = book.reserve(100).reservation_id.encode()
    refused(book, ledger.UnitMismatch, lambda: book.commit(rid, 1, unit="CREDITS"))
    assert issubclass(ledger.UnitMismatch, ledger.NoBudget)


RECORDS = {
    '{"status": "CLOSED"}': ledger.TenantClosed,
    '{"status": "closed"}': ledger.InvalidTenant,
    '{"status": null}': ledger.InvalidTenant,
    "{}": ledger.InvalidTenant,
    "5": ledger.InvalidTenant,
    '{"status": "ACTIVE"': ledger.InvalidTenant,
    "": ledger.InvalidTenant,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_record_of_the_tenant(book: Book, operation: str) -> None:
    run = operations(book)[operation]
    for record, refusal in RECORDS.items():
        book.client.set(book.keys.tenant(b"acme"), record)
        refused(book, refusal, run)
    book.client.delete(book.keys.tenant(b"acme"))
    book.client.hset(book.keys.tenant(b"acme"), "status", "ACTIVE")
    refused(book, ledger.InvalidTenant, run)


def test_no_scope_with_a_budget(book: Book) -> None:
    refused(book, ledger.NoBudget, lambda: book.reserve(1, ["a", "b"]), "b")
    refused(book, ledger.NoBudget, lambda: book.event(1, ["a", "b"]), "b")
    refused(book, ledger.NoBudget, lambda: book.balance("a"), "a")
    with book.unchanged(), pytest.raises(ledger.NoBudget):  # a budget in another unit is none
        book.ledger.event("acme", SCOPES, "USD", 1, idempotency_key="k")


def test_a_budget_is_opened_once(book: Book) -> None:
    refused(book, ledger.BudgetExists, lambda: book.open(TOP, allocated=5), TOP)
    book.client.set(book.world.budget_key("text"), "text")
    refused(book, ledger.BudgetExists, lambda: book.open("text"), "text")


# Reservations


ENDS = ("commit", "release", "extend")


def end(book: Book, operation: str, rid: bytes) -> Callable[[], Any]:
    return lambda: getattr(book, operation)(rid)


@pytest.mark.parametrize("operation", ENDS)
def test_no_such_reservation(book: Book, operation: str) -> None:
    refused(book, ledger.ReservationNotFound, end(book, operation, b"r"))
    book.world.index(b"r")  # an index entry is no reservation
    refused(book, ledger.ReservationNotFound, end(book, operation, b"r"))


@pytest.mark.parametrize("operation", ENDS)
def test_the_reservation_of_another_tenant(book: Book, operation: str) -> None:
    rid = book.reserve().reservation_id.encode()
    arguments: dict[str, list[Any]] = {"commit": [1], "extend": [ms(1)], "release": []}
    refused(
        book,
        ledger.ReservationNotFound,
        lambda: getattr(book.ledger, operation)("other", rid, *arguments[operation], idempotency_key="k"),
    )


@pytest.mark.parametrize("operation", ENDS)
@pytest.mark.parametrize(("ended", "state"), [("commit", "COMMITTED"), ("release", "RELEASED")])
def test_a_reservation_that_has_ended(book: Book, operation: str, ended: str, state: str) -> None:
    rid = book.reserve().reservation_id.encode()
    getattr(book, ended)(rid)
    refused(book, ledger.ReservationFinalized, end(book, operation, rid), state)


@pytest.mark.parametrize("operation", ENDS)
def test_a_reservation_that_was_swept(book: Book, operation: str) -> None:
    rid = book.reserve().reservation_id.encode()
    assert book.expire(rid, NOW + DAY_MS)[0] == b"expired"
    refused(book, ledger.ReservationExpired, end(book, operation, rid))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"state": "LIMBO"}, "INVALID_STATE"),
        ({"state": None}, "INVALID_STATE"),
        ({"expires_at": "1e15"}, "INVALID_EXPIRY"),
        ({"expires_at": None}, "INVALID_EXPIRY"),
        ({"expires_at": 2**53 + 1}, "INVALID_EXPIRY"),
        ({"grace_ms": "-1"}, "INVALID_EXPIRY"),
        ({"grace_ms": ""}, "INVALID_EXPIRY"),
        ({"estimate_amount": None}, "INVALID_ESTIMATE"),
        ({"estimate_amount": "-1"}, "INVALID_ESTIMATE"),
        ({"estimate_amount": 2**63}, "INVALID_ESTIMATE"),
        ({"estimate_unit": ""}, "INVALID_ESTIMATE"),
        ({"estimate_unit": None}, "INVALID_ESTIMATE"),
        ({"budgeted_scopes": None, "affected_scopes": None}, "MISSING_SCOPES"),
        ({"budgeted_scopes": ""}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": "[]"}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": '{"1": "a"}'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": '"a"'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": '["a", ""]'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": '["a", 1]'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": '["a", null]'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": '["a"'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": json.dumps(["a"] * 257)}, "TOO_MANY_SCOPES"),
        ({"budgeted_scopes": f'["{TOP}"]\0'}, "MALFORMED_SCOPES"),
        ({"budgeted_scopes": f'["{TOP}"\0, "{BOTTOM}"]'}, "MALFORMED_SCOPES"),
    ],
)
def test_a_broken_reservation(book: Book, fields: dict[str, Any], reason: str) -> None:
    rid = book.reserve().reservation_id.encode()
    for field, value in fields.items():
        if value is None:
            book.client.hdel(book.keys.reservation(rid), field)
        else:
            book.client.hset(book.keys.reservation(rid), field, value)
    for operation in ENDS:
        refused(book, ledger.InvalidReservation, end(book, operation, rid), reason)


@pytest.mark.parametrize("operation", ENDS)
def test_a_reservation_that_is_no_hash(book: Book, operation: str) -> None:
    book.client.set(book.keys.reservation(b"r"), "text")
    refused(book, ledger.InvalidReservation, end(book, operation, b"r"), "WRONG_TYPE")


@pytest.mark.parametrize("policy", ["", "ALLOW", None])
def test_an_unknown_policy_matters_above_the_estimate_only(book: Book, policy: str | None) -> None:
    rid = book.reserve(100).reservation_id.encode()
    book.client.hdel(book.keys.reservation(rid), "overage_policy")
    if policy is not None:
        book.client.hset(book.keys.reservation(rid), "overage_policy", policy)
    refused(book, ledger.InvalidReservation, lambda: book.commit(rid, 101), "INVALID_POLICY")
    book.commit(rid, 100)


def test_too_many_extensions(book: Book) -> None:
    rid = book.reserve(max_extensions=2).reservation_id.encode()
    book.extend(rid)
    book.extend(rid)
    refused(book, ledger.TooManyExtensions, lambda: book.extend(rid))
    rid = book.reserve(max_extensions=0).reservation_id.encode()
    refused(book, ledger.TooManyExtensions, lambda: book.extend(rid))


@pytest.mark.parametrize("fields", [{"max_extensions": ""}, {"max_extensions": "-1"}, {"extension_count": "x"}])
def test_extensions_that_cannot_be_counted(book: Book, fields: dict[str, str]) -> None:
    rid = book.reserve().reservation_id.encode()
    book.client.hset(book.keys.reservation(rid), mapping=fields)
    refused(book, ledger.InvalidReservation, lambda: book.extend(rid), "INVALID_EXTENSIONS")


def test_a_deadline_that_the_sweep_could_not_read(book: Book) -> None:
    left = 2**53 - NOW
    for ttl, grace in [(left + 1, 0), (1, left), (left // 2 + 1, left // 2 + 1), (10**15, 10**16)]:
        refused(book, ledger.DeadlineTooFar, partial(book.reserve, ttl=ms(ttl), grace=ms(grace)))
    refused(book, ledger.DeadlineTooFar, lambda: book.reserve(ttl=timedelta.max))
    rid = book.reserve(ttl=ms(left - 1), grace=ms(1)).reservation_id.encode()
    assert book.row(rid)[b"expires_at"] == b"%d" % (2**53 - 1)
    assert book.expire(rid, NOW) == [b"not_due"]
    refused(book, ledger.DeadlineTooFar, lambda: book.extend(rid, ms(1)))


def test_an_id_that_is_taken(book: Book) -> None:
    book.ledger = ledger.Ledger(book.shard, new_id=lambda: b"same")
    book.freeze(NOW)
    book.reserve()
    refused(book, ledger.ReservationExists, book.reserve)


# Keys of another type


@pytest.mark.parametrize(
    ("operation", "key"),
    [*((operation, "record") for operation in OPERATIONS), *((operation, "index") for operation in ("reserve", *ENDS))],
)
def test_a_key_of_the_wrong_type_fails_before_anything_is_written(book: Book, operation: str, key: str) -> None:
    run = operations(book)[operation]
    name = book.keys.idempotency(b"acme", operation, b"key-1")
    if key == "index":
        name = book.keys.reservation_index
        book.client.delete(name)
    book.client.hset(name, "a", "hash")
    with book.unchanged(), pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run()


# Arguments


@pytest.mark.parametrize(
    "call",
    [
        lambda book: book.reserve(-1),
        lambda book: book.reserve(2**63),
        lambda book: book.reserve(1, []),
        lambda book: book.reserve(1, [TOP, ""]),
        lambda book: book.reserve(ttl=timedelta(0)),
        lambda book: book.reserve(ttl=timedelta(microseconds=999)),
        lambda book: book.reserve(grace=timedelta(milliseconds=-1)),
        lambda book: book.reserve(max_extensions=-1),
        lambda book: book.reserve(max_extensions=2**53 + 1),
        lambda book: book.reserve(idempotency_key=""),
        lambda book: book.reserve(overage_policy="ALLOW"),
        lambda book: book.reserve(metadata={"a": float("nan")}),
        lambda book: book.event(-1),
        lambda book: book.event(overage_policy=""),
        lambda book: book.commit(b"r", -1),
        lambda book: book.commit(b"", 1),
        lambda book: book.extend(b"r", timedelta(0)),
        lambda book: book.extend(b"r", timedelta(seconds=-1)),
        lambda book: book.release(b"r", idempotency_key=b""),
        lambda book: book.ledger.open_budget("s", "", 1),
        lambda book: book.ledger.open_budget("s", "U", 1, -1),
        lambda book: ledger.Ledger(book.shard, audit_retention=timedelta(0)),
        lambda book: ledger.Ledger(book.shard, audit_retention=timedelta(hours=1) - timedelta(milliseconds=1)),
        lambda book: ledger.Ledger.from_url("redis://127.0.0.1:1", audit_retention=timedelta(minutes=59)),
        lambda book: ledger.Ledger(book.shard, default_grace=timedelta(seconds=-1)),
    ],
)
def test_arguments_that_are_none(book: Book, call: Callable[[Book], Any]) -> None:
    with book.unchanged(), pytest.raises(ValueError):  # noqa: PT011 - which argument it is, the message says
        call(book)


@pytest.mark.parametrize(
    "call",
    [
        lambda book: book.reserve(1.0),
        lambda book: book.reserve("1"),
        lambda book: book.reserve(1, TOP),
        lambda book: book.event(1, TOP.encode()),
        lambda book: book.reserve(metadata={"a": object()}),
    ],
)
def test_arguments_of_the_wrong_type(book: Book, call: Callable[[Book], Any]) -> None:
    with book.unchanged(), pytest.raises(TypeError):
        call(book)


def test_what_an_error_says() -> None:
    assert str(ledger.BudgetFrozen(b"tenant:\xff")) == "the budget is frozen: tenant:\\xff"
    assert str(ledger.RedisFull()) == "Redis is at maxmemory"
    refusals = [refusal for name, refusal in vars(ledger).items() if getattr(refusal, "code", "")]
    assert len({refusal.code for refusal in refusals}) == len(refusals) > 20


# Redis in trouble


@pytest.mark.every_redis
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("loaded", [True, False], ids=["script cached", "script not cached"])
def test_a_full_redis_refuses_all_of_it(server_to_fill: Server, operation: str, loaded: bool) -> None:
    with a_book(server_to_fill) as book:
        book.client.flushall()
        book.client.script_flush()
        book.open(*SCOPES)
        run = operations(book)
        if loaded:
            operations(book)[operation]()
        book.client.config_set("maxmemory", 1)
        try:
            refused(book, ledger.RedisFull, run[operation])
            refused(book, ledger.RedisFull, lambda: book.open("new"))
            assert book.balance().allocated == 1000
        finally:
            book.client.config_set("maxmemory", 0)
        run[operation]()


@pytest.mark.every_redis
@pytest.mark.parametrize("operation", ["commit", "release", "extend"])
def test_a_full_redis_refuses_all_of_it_where_no_budget_is_written(server_to_fill: Server, operation: str) -> None:
    with a_book(server_to_fill) as book:
        book.client.flushall()
        book.open(*SCOPES)
        run = operations(book)[operation]
        book.client.delete(*map(book.world.budget_key, SCOPES))
        book.client.config_set("maxmemory", 1)
        try:
            refused(book, ledger.RedisFull, run)
        finally:
            book.client.config_set("maxmemory", 0)
        run()


def test_a_replay_needs_no_memory(server_to_fill: Server) -> None:
    with a_book(server_to_fill) as book:
        book.client.flushall()
        book.open(*SCOPES)
        done = book.reserve(idempotency_key="k")
        book.client.config_set("maxmemory", 1)
        try:
            with book.unchanged():
                assert book.reserve(idempotency_key="k") == done
        finally:
            book.client.config_set("maxmemory", 0)


def test_a_redis_that_is_down(own_server: Server) -> None:
    book = Book(own_server)
    book.open(*SCOPES)
    own_server.kill()
    with pytest.raises(RedisUnavailable):
        book.reserve()
    book.shard.close()


def test_a_redis_that_takes_no_writes(own_server: Server) -> None:
    with a_book(own_server) as book:
        book.open(*SCOPES)
        run = operations(book)
        book.client.config_set("min-replicas-to-write", 1)
        for operation in OPERATIONS:
            with book.unchanged(), pytest.raises(RedisUnavailable, match="NOREPLICAS"):
                run[operation]()
        book.client.config_set("min-replicas-to-write", 0)
