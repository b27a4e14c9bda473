"""How the connections of a process are shared out."""

import pytest

from sweeperd.delivery.dispatcher import shares


@pytest.mark.parametrize(
    ("total", "parts", "expected"),
    [(16, 1, [16]), (16, 3, [6, 5, 5]), (17, 3, [6, 6, 5]), (4, 4, [1, 1, 1, 1]), (2, 3, [1, 1, 0]), (5, 0, [])],
)
def test_shares_differ_by_one_at_most_and_come_to_the_whole(total: int, parts: int, expected: list[int]) -> None:
    assert shares(total, parts) == expected
