"""
Compares what the ledger and the sweep announce about thresholds with an independent ledger: fractions instead of limbs,
and one budget after the other instead of scripts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeperd.ledger import INT64_MAX, LedgerError, OveragePolicy
from tests.lua.builders import NOW
from tests.lua.ledger_book import GRACE_MS, MINUTE_MS, Book, a_book
from tests.support.books import read
from tests.support.servers import Server

#: After a hold has ended, however often it was extended.
OVERDUE = NOW + 40 * MINUTE_MS + GRACE_MS + 1
#: Scope -> allocated and overdraft limit, in units of the scale that is drawn.
BUDGETS = {"t": (20, 0), "t/a": (13, 0), "t/b": (7, 9)}
PATHS = (("t",), ("t", "t/a"), ("t", "t/b"), ("t/b",), ("t/a", "t/a", "t"), ("t/b", "t/b", "none"))
OPERATIONS = ("reserve", "commit", "release", "settle", "late", "event", "expire", "extend")
SLOTS = 3


@dataclass(frozen=True)
class Step:
    operation: str
    slot: int
    #: In units, and a little more or less.
    units: int
    more: int
    path: Sequence[str]
    policy: OveragePolicy


@dataclass
class Budget:
    allocated: int
    limit: int
    thresholds: Sequence[int]
    remaining: int

    def reached(self) -> set[int]:
        if not self.allocated:
            return set()
        return {
            each for each in self.thresholds if Fraction(self.allocated - self.remaining, self.allocated) * 100 >= each
        }


@dataclass
class Hold:
    amount: int
    path: Sequence[str]
    policy: OveragePolicy
    active: bool = True


@dataclass
class Model:
    """The budgets as they should be, and what should have been announced."""

    budgets: dict[str, Budget]
    holds: list[Hold | None] = field(default_factory=lambda: [None] * SLOTS)
    announced: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)

    def _of(self, path: Sequence[str]) -> list[Budget]:
        """One for each mention."""
        return [self.budgets[scope] for scope in path if scope in self.budgets]

    def _give(self, path: Sequence[str], amount: int) -> None:
        for budget in self._of(path):
            budget.remaining += amount

    def _charge(self, path: Sequence[str], amount: int, policy: OveragePolicy) -> None:
        mentions = self._of(path)
        least = amount
        for budget in mentions:
            capped = policy is OveragePolicy.ALLOW_IF_AVAILABLE
            if capped or (policy is OveragePolicy.ALLOW_WITH_OVERDRAFT and not budget.limit):
                share = max(0, budget.remaining) // sum(each is budget for each in mentions)
                least = min(least, share)
        self._give(path, -least)

    def play(self, step: Step, amount: int) -> None:
        """What the step does if it is not refused."""
        before = {scope: budget.reached() for scope, budget in self.budgets.items()}
        hold, path = self.holds[step.slot], step.path
        match step.operation:
            case "reserve":
                self._give(path, -amount)
                self.holds[step.slot] = Hold(amount, path, step.policy)
            case "event":
                self._charge(path, amount, step.policy)
            case "extend":
                pass
            case operation:
                assert hold is not None
                path = hold.path
                if hold.active:
                    self._give(path, hold.amount)
                if operation in ("commit", "settle"):
                    self._give(path, -min(amount, hold.amount))
                    if amount > hold.amount:
                        self._charge(path, amount - hold.amount, hold.policy)
                elif operation == "late":
                    self._charge(path, amount, hold.policy)
                hold.active = False
                if operation != "expire":
                    self.holds[step.slot] = None
        crossings = [
            {
                "scope": scope,
                "unit": "TOKENS",
                "threshold": threshold / 100,
                "direction": "rising" if threshold in budget.reached() else "falling",
                "utilization": (budget.allocated - budget.remaining) * 10**4 // budget.allocated / 10**4,
                "allocated": budget.allocated,
                "remaining": budget.remaining,
            }
            for scope in dict.fromkeys(path)
            if (budget := self.budgets.get(scope))
            for threshold in budget.thresholds
            if threshold in before[scope] ^ budget.reached()
        ]
        if crossings:
            self.announced.append(("settle" if step.operation == "late" else step.operation, crossings))


steps = st.lists(
    st.builds(
        Step,
        operation=st.sampled_from([*OPERATIONS, "reserve", "reserve", "event"]),
        slot=st.integers(0, SLOTS - 1),
        units=st.integers(0, 9),
        more=st.sampled_from([0, 0, 1, -1]),
        path=st.sampled_from(PATHS),
        policy=st.sampled_from(OveragePolicy),
    ),
    min_size=3,
    max_size=30,
)
thresholds = st.sets(st.integers(1, 250), max_size=5).map(sorted)


@pytest.fixture
def book(server: Server) -> Iterator[Book]:
    with a_book(server) as ready:
        yield ready


def call(book: Book, step: Step, amount: int, rid: str) -> Any:
    book.freeze(OVERDUE if step.operation == "late" else NOW)
    match step.operation:
        case "reserve":
            return book.reserve(amount, step.path, overage_policy=step.policy)
        case "event":
            return book.event(amount, step.path, overage_policy=step.policy)
        case "commit":
            return book.commit(rid, amount)
        case "release":
            return book.release(rid)
        case "extend":
            return book.extend(rid)
        case "expire":
            return book.expire(rid.encode(), OVERDUE)
    return book.ledger.settle("acme", rid, amount, idempotency_key=book.fresh())


@given(
    traffic=steps,
    scale=st.sampled_from([1, 100, 10**9 + 7, 10**15 + 1, INT64_MAX // 64]),
    watched=st.fixed_dictionaries(dict.fromkeys(BUDGETS, thresholds)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_announced(book: Book, traffic: Sequence[Step], scale: int, watched: dict[str, Sequence[int]]) -> None:
    book.client.flushall()
    model = Model({})
    for scope, (allocated, limit) in BUDGETS.items():
        book.ledger.open_budget(scope, "TOKENS", allocated * scale, limit * scale, thresholds=watched[scope])
        model.budgets[scope] = Budget(allocated * scale, limit * scale, watched[scope], allocated * scale)
    rids = ["none"] * SLOTS
    for step in traffic:
        hold, amount = model.holds[step.slot], max(0, step.units * scale + step.more)
        if step.operation not in ("reserve", "event") and (
            hold is None or (not hold.active and step.operation != "late")
        ):
            continue
        try:
            answer = call(book, step, amount, rids[step.slot])
        except LedgerError:
            continue
        if step.operation == "reserve":
            rids[step.slot] = answer.reservation_id
        model.play(step, amount)
        assert {scope: book.balance(scope).remaining for scope in BUDGETS} == {
            scope: budget.remaining for scope, budget in model.budgets.items()
        }
    assert list(read(book.client).announced) == model.announced
