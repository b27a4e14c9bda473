"""Checks that batches shrink at once when Redis is slow or busy, and grow back slowly."""

import random
from collections.abc import Sequence

import pytest

from sweeperd.sweep.batch_size import AdaptiveBatchSize

#: µs.
LIMIT = 1000


def lengths(size: AdaptiveBatchSize, each: float, pause: int | None = None, rounds: int = 40) -> list[int]:
    """What it becomes where an entry takes `each` µs."""
    seen = []
    for _ in range(rounds):
        size.record(int(size), int(int(size) * each), pause)
        seen.append(int(size))
    return seen


@pytest.mark.parametrize(
    ("smallest", "largest", "micros", "sizes"),
    [(2, 50, 20, {50}), (4, 50, 100_000, {4, 6, 12, 25}), (4, 1, 100_000, {1})],
    ids=["fast enough", "too slow for the smallest", "a largest below the smallest"],
)
def test_it_stays_between_the_smallest_and_the_largest(
    smallest: int, largest: int, micros: float, sizes: set[int]
) -> None:
    size = AdaptiveBatchSize(smallest, largest, LIMIT)
    assert int(size) == largest
    assert set(lengths(size, micros)) == sizes


def test_a_slow_server_gets_shorter_size() -> None:
    seen = lengths(AdaptiveBatchSize(2, 50, LIMIT), 100)
    assert seen[0] == 25  # at most by half at a time
    assert seen[-1] == 10
    assert seen == sorted(seen, reverse=True)


def test_it_grows_again_when_the_server_is_fast() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    lengths(size, 400)
    seen = lengths(size, 10)
    assert seen[0] < 50
    assert seen == sorted(seen)
    assert seen[-1] == 50


def beside(size: AdaptiveBatchSize, others: Sequence[int], rounds: int = 200) -> int:
    """What it becomes where Redis needs 40 to 80 µs for itself between two size, and one of `others` for others."""
    chance = random.Random(1)
    for _ in range(rounds):
        size.record(int(size), int(size) * 40, chance.randrange(40, 80) + chance.choice(others))
    return int(size)


def test_what_redis_does_for_itself_is_not_the_work_of_others() -> None:
    assert beside(AdaptiveBatchSize(2, 50, LIMIT), [0]) >= 22
    assert beside(AdaptiveBatchSize(2, 50, LIMIT), [200], rounds=400) >= 20, "a Redis that is slow at it"


def test_the_busier_others_are_the_shorter() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    assert beside(size, [0]) >= 22
    assert 6 < beside(size, [*[0] * 8, 300]) < 24
    assert beside(size, [0, 0, 1000]) == 6, "a quarter"
    assert beside(size, [500, 1000, 2000]) == 6, "however little time they leave"
    assert beside(size, [0], rounds=400) >= 22


def test_it_keeps_its_distance_from_others_and_tries_again_after_a_while() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    beside(size, [0])
    assert not size.sends_alone
    beside(size, [0, 0, 1000])
    assert size.sends_alone
    lengths(size, 40, rounds=20)
    assert size.sends_alone, "nothing is known of them meanwhile"
    lengths(size, 40, rounds=900)
    assert not size.sends_alone
    assert int(size) > 12


@pytest.mark.parametrize(("pause", "known"), [(9, False), (10, True)])
def test_from_ten_microseconds_on_a_pause_says_how_much_others_do(pause: int, known: bool) -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    beside(size, [0, 0, 1000])
    lengths(size, 40, pause, rounds=60)
    assert size.sends_alone is not known


def test_a_long_pause_now_and_then_is_the_machines() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    beside(size, [0])
    size.record(25, 1000, 50_000)
    assert int(size) >= 22
    assert beside(size, [*[0] * 14, 20_000]) >= 22
    assert not size.sends_alone


def test_what_is_not_known_of_others_changes_nothing() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    assert lengths(size, 40)[-1] == lengths(size, 40, pause=-5)[-1] == 25


@pytest.mark.parametrize(("entries", "micros"), [(50, 0), (50, -1_000_000), (0, 100)])
def test_a_clock_that_was_set_and_an_empty_batch_say_nothing(entries: int, micros: int) -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    size.record(entries, micros, None)
    assert int(size) == 50


def test_a_short_batch_counts_by_the_entry() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT)
    size.record(3, 120, None)  # 40 µs each: 25 fit
    assert int(size) == 25


def test_the_later_the_less_polite() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT, 10_000)
    beside(size, [0, 0, 1000])
    polite = int(size)
    seen = []
    for lag_ms in (0, 5000, 6000, 8000, 10_000, 60_000):
        size.late_by(lag_ms)
        seen.append(int(size))
    assert seen[:2] == [polite, polite]
    assert seen == sorted(seen)
    assert polite < seen[2] < seen[3] < 50
    assert seen[-2:] == [50, 50]
    assert not size.sends_alone
    size.late_by(0)
    assert int(size) == polite
    assert size.sends_alone


def test_from_three_quarters_of_the_lag_on_it_sends_ahead() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT, 10_000)
    beside(size, [0, 0, 1000])
    size.late_by(7499)
    assert size.sends_alone
    size.late_by(7500)
    assert not size.sends_alone


def test_in_a_hurry_it_is_larger_than_politeness_ever_allows() -> None:
    size = AdaptiveBatchSize(2, 25, LIMIT, 10_000, hurried=50)
    seen = []
    for lag_ms in (0, 5000, 7500, 10_000, 60_000, 0):
        size.late_by(lag_ms)
        seen.append(int(size))
    assert seen == [25, 25, 37, 50, 50, 25]


def test_a_slow_machine_does_not_lose_the_race_either() -> None:
    size = AdaptiveBatchSize(2, 50, LIMIT, 10_000)
    lengths(size, 100_000)
    assert int(size) == 2
    size.late_by(10_000)
    assert int(size) == 50
