"""Tests where each tick begins, also after a grace has ended before that place."""

import math
import random

from sweeperd.sweep.index import ENDS, START, Cursor, GraceEnds, IndexEntry, Position


def at(score: int, passed: int = 0) -> Position:
    return Position(b"%d" % score, passed)


def test_a_tick_is_taken_up_where_it_stopped() -> None:
    cursor = Cursor()
    assert cursor.start(100) == START
    cursor.stop(at(5))
    assert cursor.start(101) == at(5)
    cursor.stop(at(5, 3))
    assert cursor.start(102) == at(5, 3)
    cursor.finish()
    assert cursor.start(103) == START


def test_an_ended_grace_starts_a_second_walk_and_both_take_turns() -> None:
    cursor = Cursor()
    cursor.start(100)
    cursor.pass_by(150)
    cursor.pass_by(200)
    cursor.stop(at(50))
    assert cursor.start(150) == at(50), "the last ms of grace counts"
    cursor.stop(at(60))
    assert cursor.start(151) == START
    cursor.pass_by(200)
    cursor.stop(at(20))
    assert cursor.start(152) == at(60)
    cursor.stop(at(70))
    assert cursor.start(153) == at(20)
    cursor.stop(at(80))
    assert cursor.start(154) == at(80), "the second walk has got past the first: it is the only one"
    cursor.stop(at(90))
    assert cursor.start(155) == at(90)
    cursor.stop(at(90))
    assert cursor.start(201) == START


def test_a_walk_that_has_ended_ends_the_second_one() -> None:
    cursor = Cursor()
    cursor.start(100)
    cursor.pass_by(110)
    cursor.stop(at(50))
    cursor.start(111)
    cursor.stop(at(20))
    assert cursor.start(112) == at(50)
    cursor.finish()
    assert [cursor.start(now) for now in (113, 114)] == [START, START]


def test_positions_are_ordered_by_score_as_a_number() -> None:
    assert at(9).precedes(at(10))
    assert START.precedes(at(-5))
    assert at(5, 2).precedes(at(5, 3))
    assert not at(5, 3).precedes(at(5, 3))


def test_no_entry_waits_long_however_short_the_ticks_are() -> None:
    """Entries leave grace all the time; each is decided within two rounds of the index after its grace has ended."""
    chance = random.Random(1)
    entries, step = 60, 7
    ends = {score: chance.randrange(1, 300) for score in range(entries)}
    cursor, left, worst = Cursor(), dict(ends), 0
    for now in range(1, 400):
        position = cursor.start(now)
        begin = 0 if position == START else int(position.score)
        for score in range(begin, min(begin + step, entries)):
            if score in left and left[score] < now:
                worst = max(worst, now - left.pop(score))
            elif score in left:
                cursor.pass_by(left[score])
        if begin + step >= entries:
            cursor.finish()
        else:
            cursor.stop(at(begin + step))
    assert left == {}
    assert worst < 4 * math.ceil(entries / step)


# ---- the ends of graces that are known


def entry(name: int | str, score: int = 1) -> IndexEntry:
    return IndexEntry(str(name).encode(), b"%d" % score)


def test_graces_that_ended_are_given_out_once_in_order() -> None:
    ends = GraceEnds()
    for name, end in (("c", 30), ("a", 10), ("b", 20), ("a", 10)):
        ends.add(entry(name), end)
    assert (ends.first, ends.take(9, 5)) == (10, [])
    assert ends.take(30, 2) == [entry("a"), entry("b")]
    assert (ends.first, ends.take(30, 5), ends.first) == (30, [entry("c")], math.inf)


def test_a_grace_that_becomes_longer_or_shorter_ends_then() -> None:
    ends = GraceEnds()
    for end, score in ((10, 1), (40, 2), (20, 3)):
        ends.add(entry("a", score), end)
    assert (ends.first, ends.take(19, 5)) == (20, [])
    assert ends.take(100, 5) == [entry("a", 3)]


def test_no_more_ends_of_graces_are_kept_than_may_be() -> None:
    ends = GraceEnds()
    for number in range(ENDS + 2):
        ends.add(entry(number), number)
    ends.add(entry(0, 7), 5)
    taken = ends.take(2 * ENDS, 2 * ENDS)
    assert len(taken) == ENDS
    assert entry(0, 7) in taken, "one that is known may change"
