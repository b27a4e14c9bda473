"""Ids of stream entries."""

import pytest

from sweeperd.store.streams import START, StreamId, after, milliseconds


@pytest.mark.parametrize(
    ("text", "parsed"),
    [(b"0-0", START), ("1795248005123-7", StreamId(1795248005123, 7)), (b"1795248005123", StreamId(1795248005123, 0))],
)
def test_an_id_is_read_and_written(text: bytes | str, parsed: StreamId) -> None:
    assert StreamId.parse(text) == parsed
    assert StreamId.parse(bytes(parsed)) == StreamId.parse(str(parsed)) == parsed
    assert milliseconds(text) == parsed.milliseconds


def test_ids_compare_as_numbers() -> None:
    assert StreamId.parse("9-9") < StreamId.parse("9-10") < StreamId.parse("10-0")


def test_times_before_the_epoch_are_the_epoch() -> None:
    assert StreamId.at(-5) == START
    assert bytes(StreamId.at(5)) == b"5-0"


def test_a_bound_leaves_its_entry_out() -> None:
    assert after(b"5-1") == b"(5-1"


@pytest.mark.parametrize("text", ["", "x", "1-x", "$"])
def test_other_text_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        StreamId.parse(text)
