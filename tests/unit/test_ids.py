"""The ids that people type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeperd.cli.output import printable
from sweeperd.text import candidates, decode


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("res 1:a", [b"res 1:a"]),
        ("зона", ["зона".encode()]),
        ("\udcff", [b"\xff"]),  # a byte of the command line that is not UTF-8
        (r"a\xffb", [rb"a\xffb", b"a\xffb", "aÿb".encode()]),
        (r"\x1b[31m", [rb"\x1b[31m", b"\x1b[31m"]),
        (r"line\nbreak", [rb"line\nbreak", b"line\nbreak"]),
        (r"\u202e", [rb"\u202e", "\u202e".encode()]),
        (r"\ud800", [rb"\ud800"]),
        (
            r"\xff\n\u202e",
            [
                rb"\xff\n\u202e",
                b"\xff\\n\\u202e",
                "\udcff\n\u202e".encode("utf-8", "surrogateescape"),
                "ÿ\n\u202e".encode(),
            ],
        ),
        (r"\x", [rb"\x"]),
        ("", [b""]),
    ],
)
def test_what_may_be_meant(text: str, meant: list[bytes]) -> None:
    assert candidates(text) == meant


@given(st.binary(max_size=50))
def test_any_id_is_found_as_logs_show_it(reservation: bytes) -> None:
    as_in_a_log = decode(reservation)
    if "\\" not in reservation.decode("latin-1"):
        assert reservation in candidates(as_in_a_log)


@given(st.text(st.characters(exclude_characters="\\", exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_found_as_tables_show_it(text: str) -> None:
    assert text.encode() in candidates(printable(text))
