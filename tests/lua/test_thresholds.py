"""
The thresholds of a budget: each change that crosses some is announced with it, in one entry of the stream, exactly, or
the whole step is refused.
"""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis

from sweeperd import ledger
from sweeperd.config import EndpointSettings
from sweeperd.ledger import Balance, BudgetExists, InvalidBudget, OveragePolicy, RedisFull
from sweeperd.outbox.event import encode
from sweeperd.outbox.subscription import EventFilter
from sweeperd.store.scripts import Call, Script
from sweeperd.text import rfc3339
from tests.lua.builders import NOW, SCOPES
from tests.lua.ledger_book import BOTTOM, GRACE_MS, MINUTE, MINUTE_MS, TOP, Book, a_book
from tests.support.servers import Server

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "webhook.schema.json").read_text())
OVERDUE = NOW + MINUTE_MS + GRACE_MS + 1
MOST = 2**63 - 1
#: The greatest id of a stream, and the one before.
GREATEST, LAST_BUT_ONE = (f"18446744073709551615-1844674407370955161{last}" for last in (5, 4))
IF_AVAILABLE, OVERDRAFT = OveragePolicy.ALLOW_IF_AVAILABLE, OveragePolicy.ALLOW_WITH_OVERDRAFT


@pytest.fixture
def book(server: Server) -> Iterator[Book]:
    """Two budgets of 1000 with thresholds, at NOW."""
    with a_book(server) as ready:
        ready.freeze(NOW)
        watch(ready)
        yield ready


def watch(book: Book, *scopes: str | bytes, thresholds: tuple[int, ...] = (80, 95, 100), allocated: int = 1000) -> None:
    for scope in scopes or SCOPES:
        book.ledger.open_budget(scope, "TOKENS", allocated, thresholds=thresholds)


def announced(book: Book) -> list[dict[bytes, bytes]]:
    """The entries about thresholds."""
    entries = [fields for _, fields in book.client.xrange(book.keys.events)]
    return [fields for fields in entries if fields.get(b"type") == b"budget.threshold_crossed"]


def body(fields: dict[bytes, bytes]) -> dict[str, Any]:
    """The body of the webhook, which fits the schema."""
    found: dict[str, Any] = json.loads(encode("event", "default", b"origin", "", fields).body)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    return found


def told(book: Book) -> list[tuple[str, list[tuple[str, float, str]]]]:
    """Operation and crossings of each entry, which is then removed."""
    found = [body(fields)["data"] for fields in announced(book)]
    book.client.xtrim(book.keys.events, maxlen=0)
    names = ("scope", "threshold", "direction")
    return [(data["operation"], [tuple(one[name] for name in names) for one in data["crossings"]]) for data in found]


def both(*crossings: tuple[float, str]) -> list[tuple[str, float, str]]:
    return [(scope, *crossing) for scope in SCOPES for crossing in crossings]


def test_each_operation_tells(book: Book) -> None:
    held = book.reserve(800)
    assert told(book) == [("reserve", both((0.8, "rising")))]
    book.release(held.reservation_id)
    assert told(book) == [("release", both((0.8, "falling")))]
    held = book.reserve(1000)
    assert told(book) == [("reserve", both((0.8, "rising"), (0.95, "rising"), (1, "rising")))]
    book.extend(held.reservation_id)
    assert told(book) == []
    book.commit(held.reservation_id, 940)
    assert told(book) == [("commit", both((0.95, "falling"), (1, "falling")))]
    book.event(20, SCOPES[:1])
    assert told(book) == [("event", [(TOP, 0.95, "rising")])]
    held = book.reserve(40, [TOP])
    assert told(book) == [("reserve", [(TOP, 1, "rising")])]
    book.ledger.settle("acme", held.reservation_id, 20, idempotency_key="s")
    assert told(book) == [("settle", [(TOP, 1, "falling")])]
    book.event(0)
    assert told(book) == []


def test_what_an_endpoint_gets(book: Book) -> None:
    held = book.reserve(850, idempotency_key="a")
    (fields,) = announced(book)
    found = body(fields)
    assert found == {
        "event_id": found["event_id"],
        "event_type": "budget.threshold_crossed",
        "category": "budget",
        "timestamp": rfc3339(NOW),
        "tenant_id": "acme",
        "scope": BOTTOM,
        "actor": {"type": "system"},
        "source": "sweeperd",
        "data": {
            "operation": "reserve",
            "crossings": [
                {
                    "scope": scope,
                    "unit": "TOKENS",
                    "threshold": 0.8,
                    "direction": "rising",
                    "utilization": 0.85,
                    "allocated": 1000,
                    "remaining": 150,
                }
                for scope in SCOPES
            ],
        },
    }
    assert fields[b"id"].decode() == held.reservation_id

    def gets(**chosen: Any) -> bool:
        return EventFilter(EndpointSettings.model_validate({"name": "a", "url": "http://a", **chosen})).matches(fields)

    named = ["budget.threshold_crossed"]
    assert not gets()
    assert not gets(events=["budget", "reservation"])
    assert gets(events=named)
    assert gets(events=named, scopes=[TOP])
    assert gets(events=named, scopes=[BOTTOM], tenants=["acme"])
    assert not gets(events=named, scopes=["tenant:other*"])
    assert not gets(events=named, tenants=["other"])


def test_an_expiry_tells_in_its_own_entry(book: Book) -> None:
    held = book.reserve(950)
    told(book)
    (reply, _, _, missing, _) = book.expire(held.reservation_id.encode(), OVERDUE)
    assert (reply, missing) == (b"expired", b"[]")
    expiry, event = (fields for _, fields in book.client.xrange(book.keys.events))
    assert (expiry[b"id"], event[b"id"]) == (held.reservation_id.encode(),) * 2
    assert event[b"trace_id"] == expiry[b"trace_id"]
    assert told(book) == [("expire", both((0.8, "falling"), (0.95, "falling")))]


def test_an_expiry_of_a_scope_that_is_named_twice(book: Book) -> None:
    held = book.reserve(450, [TOP, TOP])
    assert told(book) == [("reserve", [(TOP, 0.8, "rising")])]
    book.expire(held.reservation_id.encode(), OVERDUE)
    assert told(book) == [("expire", [(TOP, 0.8, "falling")])]


def test_an_expiry_where_a_budget_is_closed(book: Book) -> None:
    held = book.reserve(950)
    book.client.hset(book.world.budget_key(TOP), mapping={"status": "CLOSED", "reserved": 0, "remaining": 1000})
    told(book)
    book.expire(held.reservation_id.encode(), OVERDUE)
    assert told(book) == [("expire", [(BOTTOM, 0.8, "falling"), (BOTTOM, 0.95, "falling")])]


def test_a_late_settlement_tells_the_net_change(book: Book) -> None:
    first, second = (book.reserve(480).reservation_id for _ in range(2))
    told(book)
    book.freeze(OVERDUE)
    book.ledger.settle("acme", first, 480, idempotency_key="a")
    assert told(book) == []
    book.ledger.settle("acme", second, 470, idempotency_key="b")
    assert told(book) == []
    third = book.reserve(10).reservation_id
    assert told(book) == []
    book.freeze(OVERDUE + MINUTE_MS + GRACE_MS + 1)
    book.expire(third.encode(), OVERDUE + MINUTE_MS + GRACE_MS + 1)
    book.ledger.settle("acme", third, 50, idempotency_key="c")
    assert told(book) == [("settle", both((1, "rising")))]
    assert book.amounts() == (0, 0, 1000, 0)


def test_a_late_settlement_has_both_entries(book: Book) -> None:
    held = book.reserve(960).reservation_id
    told(book)
    book.freeze(OVERDUE)
    book.ledger.settle("acme", held, 100, idempotency_key="a")
    expiry, event = (fields for _, fields in book.client.xrange(book.keys.events))
    assert (b"type" in expiry, event[b"trace_id"]) == (False, expiry[b"trace_id"])
    assert told(book) == [("settle", both((0.8, "falling"), (0.95, "falling")))]


def test_an_overdraft_rises_further(book: Book) -> None:
    book.ledger.open_budget("deep", "TOKENS", 100, 1000, thresholds=(100, 250, 1000))
    book.event(99, ["deep"])
    assert told(book) == []
    book.event(151, ["deep"], overage_policy=OVERDRAFT)
    assert told(book) == [("event", [("deep", 1, "rising"), ("deep", 2.5, "rising")])]
    book.event(1000, [TOP, "deep"], overage_policy=IF_AVAILABLE)
    assert told(book) == [], "nothing was charged"


def test_a_repeated_request_tells_nothing(book: Book) -> None:
    first = book.reserve(800, idempotency_key="a")
    assert book.reserve(800, idempotency_key="a") == first
    assert len(announced(book)) == 1
    with pytest.raises(ledger.InsufficientBudget):
        book.reserve(800)
    assert len(announced(book)) == 1


def test_equal_crossings_of_one_millisecond_are_different_events(book: Book) -> None:
    for _ in range(2):
        book.release(book.reserve(800).reservation_id)
    ids = {body(fields)["event_id"] for fields in announced(book)}
    assert len(ids) == len(announced(book)) == 4


def test_budgets_without_thresholds_tell_nothing(server: Server) -> None:
    with a_book(server) as book:
        book.open(*SCOPES)
        held = book.reserve(1000)
        book.commit(held.reservation_id, 1000)
        assert not book.client.exists(book.keys.events)


# Opening


def test_setting_the_thresholds_of_a_budget(book: Book) -> None:
    book.open("plain", allocated=500, overdraft_limit=7)
    book.event(400, ["plain"])
    before = book.client.hgetall(book.world.budget_key("plain"))
    seen = book.ledger.open_budget("plain", "TOKENS", 1, 2, thresholds=(90, 10, 90))
    assert seen == book.balance("plain") == Balance("plain", "TOKENS", 500, 100, 0, 400, 0, 7, False, "ACTIVE")
    key = book.world.budget_key("plain")
    assert book.client.hgetall(key) == before | {b"thresholds": b"10,90"}
    with pytest.raises(BudgetExists):
        book.open("plain")
    book.event(50, ["plain"])
    assert told(book) == [("event", [("plain", 0.9, "rising")])]
    book.ledger.open_budget("plain", "TOKENS", 1, thresholds=())
    book.event(50, ["plain"])
    assert told(book) == []
    made = book.ledger.open_budget("new", "TOKENS", 5, 6, thresholds=(1,))
    assert made == book.balance("new") == Balance("new", "TOKENS", 5, 5, 0, 0, 0, 6, False, "ACTIVE")


@pytest.mark.parametrize("thresholds", [(0,), (-1,), (1001,), range(1, 34)])
def test_thresholds_that_are_refused(book: Book, thresholds: Any) -> None:
    with book.unchanged(), pytest.raises(ValueError, match="thresholds"):
        book.ledger.open_budget("other", "TOKENS", 5, thresholds=thresholds)


def test_a_threshold_is_a_whole_number(book: Book) -> None:
    with book.unchanged(), pytest.raises(TypeError):
        book.ledger.open_budget("other", "TOKENS", 5, thresholds=(0.8,))  # type: ignore[arg-type]


def test_a_malformed_budget_gets_no_thresholds(book: Book) -> None:
    book.client.hset(book.world.budget_key(TOP), "spent", "much")
    with book.unchanged(), pytest.raises(InvalidBudget):
        book.ledger.open_budget(TOP, "TOKENS", 5, thresholds=(1,))
    book.client.hset(book.world.budget_key(TOP), "spent", 0)


# What other writers leave in the hash


@pytest.mark.parametrize("text", ["", "none", "0", "1001", "99999999999999999999999", "-", "1e9", "\xff"])
def test_thresholds_that_are_not_numbers_are_left_out(book: Book, text: str) -> None:
    for scope in SCOPES:
        book.client.hset(book.world.budget_key(scope), "thresholds", f"{text},80")
    held = book.reserve(800)
    (one,) = told(book)
    assert {crossing for crossing in one[1] if crossing[1] == 0.8} == set(both((0.8, "rising")))
    book.expire(held.reservation_id.encode(), OVERDUE)
    assert both((0.8, "falling"))[0] in told(book)[0][1]


@pytest.mark.parametrize("allocated", ["0", "", "-5", "many", None])
def test_a_budget_of_nothing_crosses_nothing(book: Book, allocated: str | None) -> None:
    held = book.reserve(800)
    told(book)
    for scope in SCOPES:
        key = book.world.budget_key(scope)
        book.client.hdel(key, "allocated")
        if allocated is not None:
            book.client.hset(key, "allocated", allocated)
    assert book.expire(held.reservation_id.encode(), OVERDUE)[0] == b"expired"
    assert told(book) == []
    for scope in SCOPES:
        book.client.hset(book.world.budget_key(scope), "allocated", 1000)


def test_bytes_that_are_not_text(book: Book) -> None:
    scope = b'tenant:\xff"\\\n\x00'
    watch(book, scope)
    book.ledger.reserve(b"t\xfe", [scope], "TOKENS", 800, ttl=MINUTE, idempotency_key="a")
    (fields,) = announced(book)
    found = body(fields)
    assert fields[b"scope"] == scope
    assert found["data"]["crossings"][0]["scope"] == 'tenant:\\xff"\\\n\x00'
    assert (found["scope"], found["tenant_id"]) == ('tenant:\\xff"\\\n\x00', "t\\xfe")
    only = EndpointSettings.model_validate({"name": "a", "url": "http://a", "events": [found["event_type"]]})
    assert EventFilter(only).matches(fields)


# Exactness

EDGES = [1, 2, 3, 99, 100, 101, 10**10 - 1, 10**10, 10**10 + 1, 2**53 + 1, MOST - 1, MOST]


@pytest.mark.parametrize("allocated", EDGES)
def test_a_threshold_is_crossed_at_the_very_unit(book: Book, allocated: int) -> None:
    """The last amount below, and the first at each threshold."""
    thresholds = (1, 33, 80, 95, 99, 100)
    firsts = sorted({-(-threshold * allocated // 100) for threshold in thresholds})
    levels = sorted({0, allocated} | {level for first in firsts for level in (first - 1, first)})
    watch(book, "s", thresholds=thresholds, allocated=allocated)
    for before, after in pairwise(levels):
        book.event(after - before, ["s"])
        crossed = [one for one in thresholds if before * 100 < one * allocated <= after * 100]
        assert told(book) == ([("event", [("s", one / 100, "rising") for one in crossed])] if crossed else [])


@pytest.mark.parametrize("allocated", EDGES)
def test_the_utilization_is_rounded_down(book: Book, allocated: int) -> None:
    below = Fraction(6678643691886543162, MOST)  # of MOST 0.7241, but less if divided as doubles
    for share in (Fraction(1, 3), below, Fraction(4, 5), Fraction(99999, 100000), Fraction(1)):
        used, scope = max(1, int(allocated * share)), f"s{share}"
        watch(book, scope, thresholds=(1,), allocated=allocated)
        book.event(used, [scope])
        (crossing,) = body(announced(book)[-1])["data"]["crossings"]
        assert (crossing["allocated"], crossing["remaining"]) == (allocated, allocated - used)
        assert Fraction(str(crossing["utilization"])) == Fraction(used * 10**4 // allocated, 10**4)


@pytest.mark.parametrize("used", [91, 10**9, MOST])
def test_a_utilization_beyond_all_thresholds(book: Book, used: int) -> None:
    book.ledger.open_budget("s", "TOKENS", 1, MOST, thresholds=(1000,))
    book.event(used, ["s"], overage_policy=OVERDRAFT)
    (crossing,) = body(announced(book)[0])["data"]["crossings"]
    assert crossing["remaining"] == 1 - used
    assert crossing["utilization"] == pytest.approx(used)


# All or nothing


def calls(book: Book) -> dict[str, Callable[[], Any]]:
    """An operation of each kind that crosses a threshold, and in which direction."""
    held = {name: book.reserve(170).reservation_id for name in ("commit", "release", "settle", "late", "expire")}
    return {
        "reserve": lambda: book.reserve(150),
        "event": lambda: book.event(150),
        "commit": lambda: book.commit(held["commit"], 1),
        "release": lambda: book.release(held["release"]),
        "settle": lambda: book.ledger.settle("acme", held["settle"], 1, idempotency_key="s"),
        "late": lambda: late(book, held["late"]),
        "expire": lambda: book.expire(held["expire"].encode(), OVERDUE),
        "repair": lambda: repair(book),
    }


def late(book: Book, rid: str) -> Any:
    book.freeze(OVERDUE)
    try:
        return book.ledger.settle("acme", rid, 1, idempotency_key="l")
    finally:
        book.freeze(NOW)


def repair(book: Book, sign: str = "+") -> Any:
    keys = [book.keys.budget(TOP.encode(), b"TOKENS"), book.keys.lease("repair-budget"), book.keys.events]
    return Script("ops/repair_budget").run(book.client, Call(keys, [sign, 100, "token", book.keys.budget_stem]))


OPERATIONS = ["reserve", "event", "commit", "release", "settle", "late", "expire", "repair"]


@pytest.mark.every_redis
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_full_redis_refuses_all_of_it_or_does_all_of_it(server_to_fill: Server, operation: str) -> None:
    with a_book(server_to_fill) as book:
        book.client.flushall()
        book.freeze(NOW)
        watch(book, thresholds=(80, 95))
        run = calls(book)[operation]
        book.client.set(book.keys.lease("repair-budget"), "token")
        told(book)
        book.client.config_set("maxmemory", 1)
        try:
            if operation in ("late", "expire", "repair"):  # their first write needs no memory
                run()
            else:
                with book.unchanged():
                    for _ in range(2):
                        with pytest.raises(RedisFull):
                            run()
        finally:
            book.client.config_set("maxmemory", 0)
        if operation not in ("late", "expire", "repair"):
            run()
        assert len(told(book)) == 1
        if operation == "repair":
            book.client.hincrby(book.world.budget_key(TOP), "reserved", 100)
            book.client.hincrby(book.world.budget_key(TOP), "remaining", -100)


@pytest.mark.every_redis
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("newest", [GREATEST, LAST_BUT_ONE])
def test_a_stream_without_room_for_all_entries(book: Book, operation: str, newest: str) -> None:
    book.client.delete(*map(book.world.budget_key, SCOPES))
    watch(book, thresholds=(80, 95))
    run = calls(book)[operation]
    book.client.set(book.keys.lease("repair-budget"), "token")
    told(book)
    book.client.xadd(book.keys.events, {"by": "hand"}, id=newest)
    if newest == LAST_BUT_ONE and operation not in ("late", "expire"):
        run()
        assert len(announced(book)) == 1
    else:
        with book.unchanged():
            for _ in range(2):
                with pytest.raises(redis.ResponseError, match=r"XADD|stream"):
                    run()
    if operation == "repair" and newest == LAST_BUT_ONE:
        repaired = {"reserved": book.balance().reserved + 100, "remaining": book.balance().remaining - 100}
        book.client.hset(book.world.budget_key(TOP), mapping=repaired)


@pytest.mark.every_redis
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stream_of_the_wrong_type(book: Book, operation: str) -> None:
    book.client.delete(*map(book.world.budget_key, SCOPES))
    watch(book, thresholds=(80, 95))
    run = calls(book)[operation]
    book.client.set(book.keys.lease("repair-budget"), "token")
    book.client.delete(book.keys.events)
    book.client.set(book.keys.events, "text")
    with book.unchanged(), pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run()


# The repair of a budget


def test_a_repair_tells(book: Book) -> None:
    book.reserve(820)
    told(book)
    book.client.set(book.keys.lease("repair-budget"), "token")
    assert repair(book) == b"repaired"
    (fields,) = announced(book)
    assert (fields[b"tenant"], fields[b"id"]) == (b"acme", f"{TOP}:TOKENS".encode())
    assert told(book) == [("repair", [(TOP, 0.8, "falling")])]
    book.client.hdel(book.world.budget_key(TOP), "scope", "unit")
    book.client.set(book.keys.lease("repair-budget"), "token")
    assert repair(book, "-") == b"repaired"
    assert told(book) == [("repair", [(TOP, 0.8, "rising")])]
