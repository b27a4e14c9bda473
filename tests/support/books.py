"""
What must hold for ledger and sweeper together after any operations: checked on everything that is in a Redis.

`read` takes a picture of a server without writers; each check takes one property and raises Broken.
"""

import enum
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import redis

from sweeperd.outbox.event import ONLY_FOR
from sweeperd.store import Keys
from tests.support.streams import entries

Row = Mapping[bytes, bytes]

THRESHOLD_CROSSED = b"budget.threshold_crossed"
#: State -> the field that says when it was reached.
ENDINGS = {b"COMMITTED": b"committed_at", b"RELEASED": b"released_at", b"EXPIRED": b"expired_at"}


class Property(enum.StrEnum):
    """What must hold."""

    NOT_NEGATIVE = "reserved is never below 0, remaining by no more than the debt"
    BALANCED = "remaining = allocated - spent - reserved - debt"
    HELD = "reserved is what ACTIVE reservations hold"
    EXPLAINED = "no key that nothing explains"
    ONE_TO_ONE = "idempotency keys and what was done match one to one"
    ONE_ENDING = "no reservation has two endings"
    INDEXED = "every ACTIVE hash is in the index, every index entry has its hash"
    TOLD_ONCE = "exactly one event for each EXPIRED, none for others"
    ANNOUNCED = "each crossing of a threshold is announced once, with what the budget then has"
    ENDED = "after TTL, grace and a sweep nothing is ACTIVE"


class Broken(AssertionError):
    """A property does not hold."""

    def __init__(self, broken: Property, detail: object) -> None:
        super().__init__(f"{broken.value}: {detail}")
        self.property = broken


@dataclass(frozen=True)
class Books:
    """Everything in a Redis, sorted by what it is."""

    keys: Keys
    budgets: Mapping[bytes, Row]
    #: By bare id.
    reservations: Mapping[bytes, Row]
    #: By key: the answer that it keeps.
    records: Mapping[bytes, Mapping[str, Any]]
    #: Bare id -> score.
    index: Mapping[bytes, float]
    #: The events, in order.
    events: tuple[Row, ...]
    #: Keys that are none of these and none of sweeperd's own.
    strangers: frozenset[bytes]

    @property
    def told(self) -> tuple[bytes, ...]:
        """The reservation of each expiry's event, in order."""
        return tuple(
            fields[b"id"]
            for fields in self.events
            if ONLY_FOR not in fields and fields.get(b"type") != THRESHOLD_CROSSED
        )

    @property
    def announced(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Operation and crossings of each event about thresholds, in order."""
        for fields in self.events:
            if fields.get(b"type") == THRESHOLD_CROSSED and ONLY_FOR not in fields:
                data = json.loads(fields[b"data"])
                yield data["operation"], data["crossings"]

    @property
    def replayed(self) -> tuple[Row, ...]:
        """The events that an operator had delivered again, as they were the first time."""
        return tuple(
            {name: value for name, value in fields.items() if name != ONLY_FOR}
            for fields in self.events
            if ONLY_FOR in fields
        )

    def of(self, operation: str) -> dict[bytes, Mapping[str, Any]]:
        """The records of one operation of the ledger."""
        stem = self.keys.prefix + f"idem:{operation}:".encode()
        return {key: answer for key, answer in self.records.items() if key.startswith(stem)}


def read(client: redis.Redis, prefix: str = "") -> Books:
    """Read all of it."""
    keys = Keys(prefix)
    own = {keys.reservation_index, keys.events, keys.dead_letters, keys.quarantine, keys.endpoints, keys.lease("sweep")}
    own |= {keys.circuits, keys.ticks, keys.groups, keys.pace, keys.filters}
    own |= {keys.reconcile, keys.lease("reconcile")}
    own |= {keys.actions, keys.action_counts, keys.processes}
    stem = keys.reservation(b"")
    attempts = keys.attempts("")
    strangers = {key for key in client.scan_iter(count=1000) if not key.startswith(attempts)} - own

    def take(prefix: bytes, command: str) -> dict[bytes, Any]:
        """All keys that begin like this, with what the command gives."""
        mine = [key for key in strangers if key.startswith(prefix)]
        strangers.difference_update(mine)
        pipeline = client.pipeline(transaction=False)
        for key in mine:
            pipeline.execute_command(command, key)
        return dict(zip(mine, pipeline.execute(), strict=True))

    budgets = take(keys.budget_stem, "HGETALL")
    reservations = take(stem, "HGETALL")
    records = take(keys.prefix + b"idem:", "GET")
    return Books(
        keys,
        budgets,
        {key.removeprefix(stem): row for key, row in reservations.items()},
        {key: json.loads(record.partition(b"\n")[2]) for key, record in records.items()},
        dict(cast(Any, client).zrange(keys.reservation_index, 0, -1, withscores=True)),
        tuple(fields for _, fields in entries(client, keys.events)),
        frozenset(strangers),
    )


def _number(row: Row, name: bytes) -> int:
    return int(row.get(name, 0))


def _not_negative(books: Books) -> object:
    return [
        (key, row)
        for key, row in books.budgets.items()
        if min(_number(row, b"reserved"), _number(row, b"remaining") + _number(row, b"debt")) < 0
    ]


def _balanced(books: Books) -> object:
    return [
        (key, row)
        for key, row in books.budgets.items()
        if _number(row, b"remaining")
        != _number(row, b"allocated") - _number(row, b"spent") - _number(row, b"reserved") - _number(row, b"debt")
    ]


def _held(books: Books) -> object:
    held: Counter[bytes] = Counter()
    for row in books.reservations.values():
        if row[b"state"] == b"ACTIVE":
            for scope in json.loads(row[b"budgeted_scopes"]):
                held[books.keys.budget(scope.encode(), row[b"estimate_unit"])] += int(row[b"estimate_amount"])
    return [
        (key, int(row.get(b"reserved", 0)), held[key])
        for key, row in books.budgets.items()
        if int(row.get(b"reserved", 0)) != held[key]
    ]


def _explained(books: Books) -> object:
    # A reservation that is no whole one came about by a write under a wrong name, or after the end of its time.
    headless = {key for key, row in books.reservations.items() if row.get(b"reservation_id") != key}
    # A budget that was never opened has no allocation.
    invented = {key for key, row in books.budgets.items() if b"allocated" not in row}
    return books.strangers | headless | invented


def _one_to_one(books: Books) -> object:
    reserved = {answer["reservation_id"].encode(): key for key, answer in books.of("reserve").items()}
    asked = {
        entry: books.keys.idempotency(row[b"tenant"], "reserve", row[b"idempotency_key"])
        for entry, row in books.reservations.items()
    }
    if len(books.of("reserve")) != len(reserved) or reserved != asked:
        return "reserve", reserved, asked
    for operation, state, field in (
        ("commit", b"COMMITTED", b"committed_idempotency_key"),
        ("release", b"RELEASED", b"released_idempotency_key"),
    ):
        ended = Counter(
            books.keys.idempotency(row[b"tenant"], operation, row[field])
            for row in books.reservations.values()
            if row[b"state"] == state and b"settled_at" not in row
        )
        if ended != Counter(books.of(operation).keys()):
            return operation, ended, books.of(operation)
    settled = Counter(
        books.keys.idempotency(row[b"tenant"], "event", row[b"settled_idempotency_key"])
        for row in books.reservations.values()
        if b"settled_at" in row
    )
    settlements = [key for key, answer in books.of("event").items() if "late" in answer]
    if settled != Counter(settlements):
        return "settle", settled, settlements
    extensions = sum(int(row[b"extension_count"]) for row in books.reservations.values())
    if extensions != len(books.of("extend")):
        return "extend", extensions, books.of("extend")
    return None


def _one_ending(books: Books) -> object:
    ended = []
    for entry, row in books.reservations.items():
        endings = [state for state, field in ENDINGS.items() if field in row]
        expected = [row[b"state"]] if row[b"state"] in ENDINGS else []
        if endings != expected:
            ended.append((entry, row[b"state"], endings))
    return ended


def _indexed(books: Books) -> object:
    deadlines = {
        entry: float(row[b"expires_at"]) for entry, row in books.reservations.items() if row[b"state"] == b"ACTIVE"
    }
    return None if deadlines == dict(books.index) else (deadlines, books.index)


def _told_once(books: Books) -> object:
    expired = Counter(entry for entry, row in books.reservations.items() if row[b"state"] == b"EXPIRED")
    if Counter(books.told) != expired:
        return Counter(books.told), expired
    # What is delivered again was delivered before, byte for byte.
    return [row for row in books.replayed if row not in books.events]


def _announced(books: Books) -> object:
    """From the opening of a budget on, each threshold was crossed up and down in turn, and is now where it was last."""
    reached: dict[tuple[bytes, Fraction], bool] = {}
    for crossing in itertools.chain.from_iterable(crossings for _, crossings in books.announced):
        key = books.keys.budget(crossing["scope"].encode(), crossing["unit"].encode())
        threshold, allocated = Fraction(str(crossing["threshold"])), crossing["allocated"]
        rising = crossing["direction"] == "rising"
        used = Fraction(allocated - crossing["remaining"], allocated)
        if (used >= threshold) is not rising or reached.get((key, threshold), False) is rising:
            return crossing
        reached[key, threshold] = rising
    for key, row in books.budgets.items():
        for text in row.get(b"thresholds", b"").split(b",") if row.get(b"thresholds") else ():
            threshold, allocated = Fraction(int(text), 100), _number(row, b"allocated")
            now = allocated - _number(row, b"remaining") >= threshold * allocated
            if reached.pop((key, threshold), False) is not now:
                return key, threshold, row
    return reached


def _ended(books: Books) -> object:
    return [entry for entry, row in books.reservations.items() if row[b"state"] == b"ACTIVE"]


_CHECKS: Mapping[Property, Callable[[Books], object]] = {
    Property.NOT_NEGATIVE: _not_negative,
    Property.BALANCED: _balanced,
    Property.HELD: _held,
    Property.EXPLAINED: _explained,
    Property.ONE_TO_ONE: _one_to_one,
    Property.ONE_ENDING: _one_ending,
    Property.INDEXED: _indexed,
    Property.TOLD_ONCE: _told_once,
    Property.ANNOUNCED: _announced,
    Property.ENDED: _ended,
}
#: What holds at any time at which no client is writing.
ALWAYS = frozenset(Property) - {Property.ENDED}


def check(books: Books, properties: Iterable[Property] = ALWAYS) -> None:
    """Raises Broken for the first of these properties that does not hold."""
    for wanted in Property:
        if wanted in properties and (found := _CHECKS[wanted](books)):
            raise Broken(wanted, found)
