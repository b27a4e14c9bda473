"""Tests how a JSON object is read, and how a member is split into its parts."""

import pytest

from sweeperd.config.templates import parse_word
from sweeperd.sweep.fields import json_fields, member_fields

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


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (b'{"show": "\xc3\xa4", "qty": 9007199254740993, "price": 1.50}', {
            "show": "\u00e4", "qty": "9007199254740993", "price": "1.50",
        }),
        (b'{"paid": true, "sent": false, "note": null}', {"paid": "true", "sent": "false"}),
        (b'{"a": {"b": {"c": "x"}, "d.e": "y"}, "f.g": "z"}', {"a.b.c": "x", 'a."d.e"': "y", '"f.g"': "z"}),
        (b'{"skus": ["a", {"b": "\xc3\xa4"}]}', {"skus": '["a", {"b": "\u00e4"}]'}),
        (b'["a"]', {}),
        (b"{", {}),
    ],
)  # fmt: skip
def test_the_values_of_a_json_object_are_texts(text: bytes, fields: dict[str, str]) -> None:
    assert json_fields(text) == {name.encode(): value.encode() for name, value in fields.items()}
