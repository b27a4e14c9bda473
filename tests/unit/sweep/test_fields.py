"""Tests how a member is split into its parts."""

import pytest

from sweeperd.config.templates import parse_word
from sweeperd.sweep.fields import member_fields

MANY = b":" * 100_000


@pytest.mark.parametrize(
    ("template", "member", "values"),
    [
        ("{a}|{b}", b"seat|1|2", [b"seat", b"1|2"]),
        ("m{{:{a}:{b}:x", b"m{:1::x", [b"1", b""]),
        ("{a}:x", b"1:x:x\n:x", [b"1:x:x\n"]),
        ("{a}:{b}::", b"1::", []),
        ("ab{a}bc", b"abc", []),
        ("{a}:{b}:{c}:{d}:{e}:x", MANY, []),
        ("{a}:{b}:{c}:{d}:{e}:x", MANY + b"x", [b"", b"", b"", b"", MANY[5:]]),
    ],
)
def test_a_part_ends_at_the_first_text_after_it(template: str, member: bytes, values: list[bytes]) -> None:
    assert list(member_fields(parse_word(template), member).values()) == values
