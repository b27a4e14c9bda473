"""What is certain about a budget at one moment, what is possible, and what is neither."""

from collections.abc import Sequence

import pytest

from sweeperd.ops.reconcile.bloom import BloomFilter
from sweeperd.ops.reconcile.budgets import BudgetDrift, Difference
from sweeperd.store import Keys

KEY = b"budget:team:TOKENS"
T = 1000


def difference(reserved: int, holding: Sequence[bytes | str], *, times: int = 1) -> tuple[int, int] | None:
    """The bounds of the difference where so much was reserved at T and one reservation is found like this."""
    holdings = BudgetDrift(Keys(), 10)
    holdings.reserved(T, [(KEY, str(reserved).encode())])
    for _ in range(times):
        holdings.held(b"id", [part.encode() if isinstance(part, str) else part for part in holding])
    found = holdings.differences()[KEY]
    return (found.least, found.most) if found else None


@pytest.mark.parametrize(
    ("began", "ended", "bounds"),
    [
        ("999", "", (0, 0)),
        ("1", "1001", (0, 0)),
        ("1001", "", (5, 5)),
        ("1001", "1002", (5, 5)),
        ("1", "999", (5, 5)),
        # In the very millisecond: before or after cannot be known.
        ("1000", "", (0, 5)),
        ("1", "1000", (0, 5)),
        ("1000", "1000", (0, 5)),
        # It does not say.
        ("", "", (0, 5)),
        ("", "1001", (0, 5)),
        ("", "999", (5, 5)),
        ("1", "?", (0, 5)),
        ("1001", "?", (5, 5)),
    ],
)
def test_when_it_held(began: str, ended: str, bounds: tuple[int, int]) -> None:
    assert difference(5, [began, ended, "5", "TOKENS", "team"]) == bounds


def test_what_scan_returns_twice_may_be_one() -> None:
    assert difference(5, ["1", "", "5", "TOKENS", "team"], times=2) == (-5, 0)


def test_a_scope_that_is_named_twice_counts_twice_and_others_do_not() -> None:
    assert difference(10, ["1", "", "5", "TOKENS", "team", "team", "other"]) == (0, 0)
    assert difference(5, ["1", "", "5", "USD", "team"]) == (5, 5)


def test_beyond_what_a_double_holds() -> None:
    huge = 2**63 - 1
    assert difference(huge, ["1", "", str(huge - 1), "TOKENS", "team"]) == (1, 1)


def test_every_moment_has_to_fit() -> None:
    holdings = BudgetDrift(Keys(), 10)
    for at, reserved in ((1000, b"5"), (1002, b"5")):
        holdings.reserved(at, [(KEY, reserved)])
    holdings.held(b"id", [b"1000", b"", b"5", b"TOKENS", b"team"])
    assert holdings.differences() == {KEY: Difference(0, 0, 5, 5, 1002)}
    # Reserved went up without a reservation: no difference is so at both moments.
    holdings.reserved(1004, [(KEY, b"6")])
    holdings.reserved(1005, [(KEY, b"99")])
    assert holdings.differences() == {KEY: None}


def test_a_budget_that_is_gone_or_unreadable_is_not_judged() -> None:
    holdings = BudgetDrift(Keys(), 10)
    holdings.reserved(1000, [(KEY, b"5"), (b"budget:gone:TOKENS", b"5")])
    holdings.reserved(1002, [(KEY, b"?"), (b"budget:gone:TOKENS", b"")])
    assert holdings.differences() == {KEY: None}
    holdings.held(b"id", [b"unreadable"])
    assert holdings.unreadable.ids == [b"id"]


def test_two_walks_have_to_meet() -> None:
    first = Difference(3, 5, 10, 5, 1)
    assert first.is_drift
    assert first.meets(Difference(4, 9, 12, 3, 2)) == Difference(3, 9, 12, 3, 2)
    later = Difference(6, 9, 12, 3, 2)
    assert first.meets(later) is later.meets(first) is None
    assert not Difference(-1, 0, 1, 1, 1).is_drift


def test_each_of_two_walks_has_to_exclude_0_by_itself() -> None:
    unsure, drift, none = Difference(0, 100, 100, 0, 1), Difference(100, 100, 100, 0, 2), Difference(0, 0, 100, 100, 3)
    assert unsure.meets(drift) is None
    assert drift.meets(unsure) is None
    assert unsure.meets(none) == Difference(0, 100, 100, 100, 3)


def test_a_vague_walk_confirms_no_exact_amount() -> None:
    """A drift of 5 beside a reservation of 100, whose beginning was in the future for the first walk only."""
    met = Difference(5, 105, 105, 0, 1).meets(Difference(105, 105, 105, 0, 2))
    assert met == Difference(5, 105, 105, 0, 2)
    assert not met.is_exact


def test_the_filter_forgets_nobody_and_takes_few_for_another() -> None:
    seen = BloomFilter(20_000)
    first = [seen.add(b"%d" % number) for number in range(20_000)]
    assert sum(first) < 200
    assert all(seen.add(b"%d" % number) for number in range(20_000))
