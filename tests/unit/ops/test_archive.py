"""The chain of an archive: what is whole, which line is the first broken one, and that no change goes unnoticed."""

import hashlib
import json
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from sweeperd.ops.expired import PREVIOUS, START, ArchiveVerdict, Chain, canonical, verify

DOCUMENTS: list[dict[str, Any]] = [
    {
        "event_id": f"evt_{number}",
        "data": {"reservation_id": f"größe-{number}\u2028", "estimated_amount": 2**63 - number},
    }
    for number in range(5)
]


def archive(documents: list[dict[str, Any]], head: str = START) -> tuple[list[bytes], str]:
    """The lines with their ends, and the head."""
    chain = Chain(head)
    return [chain.link(document).encode() + b"\n" for document in documents], chain.head


LINES, HEAD = archive(DOCUMENTS)


def broken(lines: list[bytes], **known: str) -> tuple[int | None, str]:
    verdict = verify(lines, **known)
    return verdict.broken_line, verdict.problem


def test_a_whole_archive() -> None:
    assert verify(LINES) == verify(LINES, head=HEAD) == ArchiveVerdict(5, HEAD)
    assert verify([]) == ArchiveVerdict(0, START)
    assert json.loads(LINES[0])[PREVIOUS] == START


def test_the_format_is_what_the_document_says() -> None:
    """An independent computation of the first two lines."""
    first, second = archive([{"b": 1, "a": "é"}, {"c": None}])[0]
    assert first == b'{"a":"\\u00e9","b":1,"previous_sha256":"' + b"0" * 64 + b'"}\n'
    digest = hashlib.sha256(first.rstrip(b"\n")).hexdigest()
    assert second == f'{{"c":null,"previous_sha256":"{digest}"}}\n'.encode()


def test_white_space_and_the_order_of_keys_do_not_matter() -> None:
    lines = [
        json.dumps(dict(reversed(json.loads(line).items())), indent=1).replace("\n", " ").encode() for line in LINES
    ]
    assert verify(lines, head=HEAD) == ArchiveVerdict(5, HEAD)


def test_the_first_broken_line_is_named() -> None:
    changed = LINES[2].replace(b"evt_2", b"evt_9")
    assert broken([*LINES[:2], changed, *LINES[3:]])[0] == 4, "the line after it does not fit any more"
    assert broken([*LINES[:2], *LINES[3:]])[0] == 3, "a line is missing"
    assert broken([LINES[0], LINES[2], LINES[1], *LINES[3:]])[0] == 2, "two lines are exchanged"
    assert broken([*LINES[:2], LINES[1], *LINES[2:]])[0] == 3, "a line is there twice"
    assert broken([*LINES[:2], b"\n", *LINES[2:]]) == (3, "it is not JSON")
    assert broken([*LINES[:2], b"[]\n"]) == (3, "it is no JSON object")
    assert broken([b'{"event_id":"evt_0"}\n']) == (1, "it has no previous_sha256")
    assert broken([b'{"a":NaN}\n']) == (1, "it holds NaN, which is not JSON")
    assert broken([b'{"a":' + b"[" * 100_000 + b"\n"]) == (1, "it is not JSON")


def test_a_key_twice_hides_nothing() -> None:
    line = LINES[1].replace(b'"event_id":', b'"event_id":"evt_8","event_id":')
    assert broken([LINES[0], line, *LINES[2:]]) == (2, "it has a key twice")


def test_an_end_that_is_cut_off_needs_the_head() -> None:
    assert verify(LINES[:3]).broken_line is None
    line, problem = broken(LINES[:3], head=HEAD)
    assert line == 4
    assert problem.startswith("the end is missing, or the last line was changed")
    changed = LINES[4].replace(b"evt_4", b"evt_9")
    assert broken([*LINES[:4], changed]) == (None, "")
    assert broken([*LINES[:4], changed], head=HEAD)[0] == 6


def test_an_archive_continues_another() -> None:
    more, head = archive([{"event_id": "evt_5"}], HEAD)
    assert verify(LINES + more, head=head) == ArchiveVerdict(6, head)
    assert verify(more, chain_from=HEAD, head=head) == ArchiveVerdict(1, head)
    line, problem = broken(more)
    assert (line, problem.endswith("name that with --chain-from")) == (1, True)
    fresh, _ = archive([{"event_id": "evt_5"}])
    assert broken(LINES + fresh) == (6, "another archive begins here, and does not continue this one")


@given(st.data())
def test_no_change_of_lines_goes_unnoticed(data: st.DataObject) -> None:
    """Lines are removed, doubled, moved or taken from another archive; the first that differs is the broken one."""
    other, _ = archive([{"event_id": "evt_x", "number": number} for number in range(5)])
    lines = data.draw(st.lists(st.sampled_from(LINES + other), max_size=7))
    assume(lines != LINES)
    verdict = verify(lines, head=HEAD)
    same = next((n for n, (one, two) in enumerate(zip(lines, LINES, strict=False)) if one != two), min(len(lines), 5))
    if lines[:1] == other[:1]:
        assert verdict.broken_line is not None, "another archive from its beginning: broken at its end at the latest"
    else:
        assert verdict.broken_line == same + 1


@example(place=0, byte=0x20)
@given(place=st.integers(0, sum(map(len, LINES)) - 1), byte=st.integers(0, 255))
def test_no_changed_byte_goes_unnoticed(place: int, byte: int) -> None:
    """A byte that changes no value is no change: white space, or another escape of the same character."""
    text = bytearray(b"".join(LINES))
    assume(text[place] != byte)
    text[place] = byte
    lines = bytes(text).splitlines(keepends=True)
    verdict = verify(lines, head=HEAD)
    if verdict.broken_line is None:
        assert [canonical(json.loads(line)) for line in lines] == [canonical(json.loads(line)) for line in LINES]
