"""How long a slice may be: shorter at once where Redis is slow or busy with others, longer again bit by bit."""

import random

import pytest

from sweeperd.slices import SliceLength

#: µs.
LIMIT = 1000


def lengths(slices: SliceLength, each: float, others: float | None = None, rounds: int = 40) -> list[int]:
    """What it becomes where an entry takes `each` µs, and others take `others` times as long as a slice."""
    seen = []
    for _ in range(rounds):
        micros = int(int(slices) * each)
        slices.took(int(slices), micros, None if others is None else int(micros * others))
        seen.append(int(slices))
    return seen


def test_it_begins_with_the_longest() -> None:
    assert int(SliceLength(2, 50, LIMIT)) == 50


def test_it_stays_where_redis_is_fast_enough() -> None:
    assert set(lengths(SliceLength(2, 50, LIMIT), 20)) == {50}


def test_a_slow_server_gets_shorter_slices() -> None:
    seen = lengths(SliceLength(2, 50, LIMIT), 100)
    assert seen[0] == 25  # at most by half at a time
    assert seen[-1] == 10
    assert seen == sorted(seen, reverse=True)


def test_it_is_never_shorter_than_the_shortest() -> None:
    assert lengths(SliceLength(4, 50, LIMIT), 100_000)[-1] == 4


def test_one_that_is_shorter_than_the_shortest_stays() -> None:
    assert lengths(SliceLength(4, 1, LIMIT), 100_000)[-1] == 1


def test_it_grows_again_when_the_server_is_fast() -> None:
    slices = SliceLength(2, 50, LIMIT)
    lengths(slices, 400)
    seen = lengths(slices, 10)
    assert seen[0] < 50
    assert seen == sorted(seen)
    assert seen[-1] == 50


def test_the_busier_others_are_the_shorter() -> None:
    slices = SliceLength(2, 50, LIMIT)
    assert lengths(slices, 40, others=0)[-1] == 25
    some = lengths(slices, 40, others=0.2, rounds=8)[-1]
    assert 6 < some < 25
    assert lengths(slices, 40, others=1, rounds=100)[-1] == 6, "a quarter"
    assert lengths(slices, 40, others=0, rounds=200)[-1] >= 24


def test_what_redis_does_for_itself_is_not_the_work_of_others() -> None:
    chance = random.Random(1)
    slices = SliceLength(2, 50, LIMIT)
    for _ in range(300):
        slices.took(int(slices), int(slices) * 40, chance.randrange(40, 80))
    assert int(slices) >= 22
    for _ in range(300):
        slices.took(int(slices), int(slices) * 40, chance.choice([40, 60, 80, 300]))
    assert int(slices) <= 12, "every fourth time somebody was served"


def test_it_keeps_its_distance_from_others_and_tries_again_after_a_while() -> None:
    slices = SliceLength(2, 50, LIMIT)
    lengths(slices, 40, others=0)
    assert not slices.keeps_distance
    lengths(slices, 40, others=1)
    assert slices.keeps_distance
    lengths(slices, 40, rounds=20)
    assert slices.keeps_distance, "nothing is known of them meanwhile"
    lengths(slices, 40, rounds=900)
    assert not slices.keeps_distance
    assert int(slices) > 12


def test_one_long_pause_is_no_reason() -> None:
    slices = SliceLength(2, 50, LIMIT)
    lengths(slices, 40, others=0)
    slices.took(25, 1000, 50_000)
    assert int(slices) >= 15


def test_what_is_not_known_of_others_changes_nothing() -> None:
    slices = SliceLength(2, 50, LIMIT)
    assert lengths(slices, 40)[-1] == lengths(slices, 40, others=-1)[-1] == 25


@pytest.mark.parametrize("micros", [0, -1_000_000])
def test_a_clock_that_was_set_is_not_believed(micros: int) -> None:
    slices = SliceLength(2, 50, LIMIT)
    slices.took(50, micros, None)
    assert int(slices) == 50


def test_a_short_slice_counts_by_the_entry() -> None:
    slices = SliceLength(2, 50, LIMIT)
    slices.took(3, 120, None)  # 40 µs each: 25 fit
    assert int(slices) == 25
