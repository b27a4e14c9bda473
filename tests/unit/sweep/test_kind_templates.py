"""Tests which templates of `give_back` have a quick plan."""

from collections.abc import Sequence

import pytest

from sweeperd.config.templates import parse_command
from sweeperd.sweep.kind_script import has_quick_plan

SMALL = 10**15 - 1


def keys(count: int) -> list[str]:
    return [f"HINCRBY seats:{number} free 1" for number in range(count)]


@pytest.mark.parametrize(
    ("templates", "quick"),
    [
        (["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"], True),
        (keys(8), True),
        (keys(9), False),
        ([], False),
        (["HINCRBY seats:{show} free {qty}", "DEL seats:log"], False),
        (["HINCRBY seats:{show} {row} {qty}"], False),
        (["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} free 1"], False),
        ([f"HINCRBY seats:{{show}} free {SMALL}"], True),
        ([f"HINCRBY seats:{{show}} free {SMALL + 1}"], False),
        ([f"HINCRBY seats:{{show}} free -{SMALL}"], True),
        ([f"HINCRBY seats:{{show}} free -{SMALL + 1}"], False),
        ([f"HINCRBY seats:{{show}} free 1 MIN {SMALL}"], True),
        ([f"HINCRBY seats:{{show}} free 1 MIN {SMALL + 1}"], False),
    ],
)
def test_plain_sums_get_the_quick_form(templates: Sequence[str], quick: bool) -> None:
    assert has_quick_plan([parse_command(template) for template in templates]) is quick
