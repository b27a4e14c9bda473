"""What the log keeps of one request, as it is read again."""

from dataclasses import replace

import pytest

from sweeperd.delivery.http import Result
from sweeperd.outbox.attempts import Attempt

FAILURE = Attempt(
    1763712065000, "evt_1", b"r\xff1", b"5-0", b"9-3", 7, 2, 3, Result.FAILED, "HTTP 500", 120, "bu\xfcsy", "host-1"
)


def stored(attempt: Attempt) -> dict[bytes, bytes]:
    """Its fields as Redis returns them."""
    return {
        name.encode(): value if isinstance(value, bytes) else str(value).encode()
        for name, value in attempt.fields().items()
    }


def test_it_is_read_as_it_was_written() -> None:
    assert Attempt.parse(stored(FAILURE)) == FAILURE


def test_what_is_missing_is_empty() -> None:
    assert Attempt.parse({}) == Attempt(0, "", b"", b"", b"", 0, 0, 0, "", "", 0, "", "")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"9" * 19, 10**19 - 1),
        (b"1" + b"0" * 19, 0),  # no number that is written has so many digits
        (b"-5", 0),
        (b"1.5", 0),
        ("\u00b2".encode(), 0),  # a digit, and no number
    ],
)
def test_a_number_that_cannot_be_one_counts_as_none(text: bytes, number: int) -> None:
    assert Attempt.parse({b"at_ms": text}).at_ms == number


@pytest.mark.parametrize("answer", ["7", "\u00b2", "\u2460"])
def test_the_answer_of_an_endpoint_may_be_a_digit(answer: str) -> None:
    attempt = replace(FAILURE, answer=answer)
    assert Attempt.parse(stored(attempt)) == attempt


@pytest.mark.parametrize(
    ("entry", "included"),
    [(b"4-9", False), (b"5-0", True), (b"10-0", False), (b"9-3", True), (b"9-4", False), (b"7-1", True), (b"x", False)],
)
def test_which_events_were_in_the_request(entry: bytes, included: bool) -> None:
    assert FAILURE.includes(entry) is included
