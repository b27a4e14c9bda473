"""Bytes as numbers; bytes and moments as text."""

import pytest

from sweeperd.text import counted, decode, decode_list, per_second, rfc3339, span, strings, whole


def test_counted() -> None:
    assert [counted(number, "event") for number in (0, 1, 2)] == ["0 events", "1 event", "2 events"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(b"", ""), (b"plain", "plain"), ("größe".encode(), "größe"), (b"a\xffb", "a\\xffb"), (b"\xe2\x82", "\\xe2\\x82")],
)
def test_shown(value: bytes, text: str) -> None:
    assert decode(value) == text


@pytest.mark.parametrize(
    ("value", "number"),
    [(b"0", 0), (b"12", 12), (b"9" * 19, 10**19 - 1), (b"9" * 20, None), (b"9" * 5000, None)]
    + [(text, None) for text in (b"", b"-1", b"+1", b" 1", b"1.5", b"x", "²".encode())],
)
def test_whole_numbers(value: bytes, number: int | None) -> None:
    assert whole(value) == number


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (1_795_507_205_999, "2026-11-24T08:00:05.999Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_rfc3339(moment: int, text: str) -> None:
    assert rfc3339(moment) == text


@pytest.mark.parametrize("moment", [253_402_300_800_000, 2**53, 2**63 - 1])
def test_beyond_the_calendar(moment: int) -> None:
    with pytest.raises((OverflowError, ValueError)):
        rfc3339(moment)


def test_the_strings_of_a_json_array() -> None:
    value = b'["a", "gr\xc3\xb6\xc3\x9fe", "\xff"]'
    assert strings(value) == (b"a", "größe".encode(), b"\xff")
    assert decode_list(value) == ("a", "größe", "\\xff")


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'["a"', b'["\\ud800"]', b"null", b"[" * 5000])
def test_no_array_of_strings(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|array|surrogates|deeply"):
        strings(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (10, "10 s"),
        (59.9, "59 s"),
        (60, "1 m"),
        (3599, "59 m 59 s"),
        (3600, "1 h"),
        (86_399, "23 h 59 m"),
        (86_400, "1 d"),
        (10**9, "11574 d 1 h"),
    ],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0, "0.00"), (0.134, "0.13"), (9.5, "9.50"), (12.34, "12.3"), (123.4, "123"), (12_345.6, "12,346")],
)
def test_a_rate(rate: float, text: str) -> None:
    assert per_second(rate) == text
