"""Which events a replay is about, and how many of them are left."""

import pytest

from sweeperd.config import EndpointSettings
from sweeperd.outbox import OutboxEntry
from sweeperd.outbox.event import EXPIRY_FIELDS
from sweeperd.outbox.replays import (
    BEHIND_MS,
    MARKS,
    ReplayCount,
    ReplayNote,
    ReplayProgress,
    ReplaySpan,
    ReplaySubscription,
    first_searched,
    replay_group,
)
from sweeperd.store.streams import StreamId

HOOK = EndpointSettings.model_validate({"name": "hook", "url": "http://hook.example.com/", "start": "beginning"})
#: A signed number of 64 bits, as Redis counts, has at most so many digits.
DIGITS_19 = b"1" + b"0" * 18


def counted(events: int, since_ms: int = 0, until_ms: int = 10**6) -> ReplayNote:
    """The note of a replay of so many events, with the ids 1-0, 2-0, ..."""
    count = ReplayCount()
    for number in range(1, events + 1):
        count.add(b"%d-0" % number)
    return count.note("hook", ReplaySpan(since_ms, until_ms))


@pytest.mark.parametrize("events", [1, 2, 2 * MARKS, 2 * MARKS + 1, 2 * MARKS + 2, 4 * MARKS + 1, 4 * MARKS + 4])
def test_nothing_is_left_once_the_last_event_is_taken(events: int) -> None:
    note = counted(events)
    assert (note.events, note.first, note.last) == (events, "1-0", f"{events}-0")
    assert note.left(note.start) == events
    for taken in range(1, events):
        assert events - taken <= note.left(StreamId(taken)) < events - taken + note.every
    assert note.left(StreamId(events)) == note.left(StreamId(events + 1)) == 0


@pytest.mark.parametrize(
    ("events", "every", "marks"),
    [(MARKS, 1, MARKS), (2 * MARKS, 1, 2 * MARKS), (2 * MARKS + 1, 2, MARKS + 1), (4 * MARKS, 2, 2 * MARKS)],
)
def test_a_note_holds_as_many_marks_as_it_may(events: int, every: int, marks: int) -> None:
    note = counted(events)
    assert (note.every, len(note.marks)) == (every, marks)
    assert note.marks == tuple(f"{number}-0" for number in range(1, events + 1, every))


def test_the_group_of_a_replay_is_that_of_no_endpoint() -> None:
    assert counted(1).group == replay_group("hook") == "_replay.hook"


def test_ids_are_searched_a_little_before_the_span() -> None:
    assert first_searched(BEHIND_MS + 5) == b"5"
    assert first_searched(5) == b"0"


@pytest.mark.parametrize(
    ("at", "matches"), [(b"99", False), (b"100", True), (b"199", True), (b"200", False), (b"", True), (b"1x", True)]
)
def test_an_event_is_of_the_span_by_its_own_time(at: bytes, matches: bool) -> None:
    """By that of its id where it has none."""
    assert ReplaySpan(100, 200).matches(b"150-0", {b"id": b"r", b"expired_at": at}) == matches


@pytest.mark.parametrize(("at", "matches"), [(DIGITS_19, True), (DIGITS_19 + b"0", False)])
def test_a_time_has_19_digits_at_most(at: bytes, matches: bool) -> None:
    assert ReplaySpan(10**17, 10**20).matches(b"150-0", {b"id": b"r", b"expired_at": at}) == matches


@pytest.mark.parametrize(("number", "taken"), [(1, True), (2, True), (3, False)])
def test_no_event_after_the_last_one_is_handed_out(number: int, taken: bool) -> None:
    """An event that was added after the count may be of the span as well."""
    subscription = ReplaySubscription(HOOK, counted(2))
    assert (subscription.group, subscription.start) == (replay_group("hook"), StreamId(1).before)
    assert not subscription.exhausted
    entry = OutboxEntry.of(b"%d-0" % number, 1, {b"id": b"r", b"tenant": b"acme"})
    assert subscription.wants(entry) == taken


@pytest.mark.parametrize("names", [[b"id"], EXPIRY_FIELDS])
def test_an_event_outside_the_span_is_not_handed_out(names: list[bytes]) -> None:
    """An endpoint without a filter gets each event of the script, as nearly all are, unseen; but not of a replay."""
    entry = OutboxEntry.of(b"2-0", 1, dict.fromkeys(names, b""))
    assert ReplaySubscription(HOOK, counted(3, since_ms=2, until_ms=3)).wants(entry)
    assert not ReplaySubscription(HOOK, counted(3, since_ms=3)).wants(entry)


@pytest.mark.parametrize(
    ("progress", "only_waits"),
    [
        (ReplayProgress(ended=True), False),
        (ReplayProgress(ended=False, left=3, waiting=3), True),
        (ReplayProgress(ended=False, left=4, waiting=3), False),
        (ReplayProgress(ended=False, left=0, waiting=0), True),
    ],
)
def test_a_replay_that_goes_on_only_waits_where_all_that_is_left_does(
    progress: ReplayProgress, only_waits: bool
) -> None:
    assert progress.only_waits is only_waits
