"""How long a slice may be: shorter at once where Redis is slow or busy with others, longer again bit by bit."""

import random
from collections.abc import Sequence

import pytest

from sweeperd.sweep.batch_size import AdaptiveBatchSize

#: µs.
LIMIT = 1000


def lengths(slices: AdaptiveBatchSize, each: float, pause: int | None = None, rounds: int = 40) -> list[int]:
    """What it becomes where an entry takes `each` µs."""
    seen = []
    for _ in range(rounds):
        slices.took(int(slices), int(int(slices) * each), pause)
        seen.append(int(slices))
    return seen


def test_it_begins_with_the_longest() -> None:
    assert int(AdaptiveBatchSize(2, 50, LIMIT)) == 50


def test_it_stays_where_redis_is_fast_enough() -> None:
    assert set(lengths(AdaptiveBatchSize(2, 50, LIMIT), 20)) == {50}


def test_a_slow_server_gets_shorter_slices() -> None:
    seen = lengths(AdaptiveBatchSize(2, 50, LIMIT), 100)
    assert seen[0] == 25  # at most by half at a time
    assert seen[-1] == 10
    assert seen == sorted(seen, reverse=True)


def test_it_is_never_shorter_than_the_shortest() -> None:
    assert lengths(AdaptiveBatchSize(4, 50, LIMIT), 100_000)[-1] == 4


def test_one_that_is_shorter_than_the_shortest_stays() -> None:
    assert lengths(AdaptiveBatchSize(4, 1, LIMIT), 100_000)[-1] == 1


def test_it_grows_again_when_the_server_is_fast() -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    lengths(slices, 400)
    seen = lengths(slices, 10)
    assert seen[0] < 50
    assert seen == sorted(seen)
    assert seen[-1] == 50


def beside(slices: AdaptiveBatchSize, others: Sequence[int], rounds: int = 200) -> int:
    """What it becomes where Redis needs 40 to 80 µs for itself between two slices, and one of `others` for others."""
    chance = random.Random(1)
    for _ in range(rounds):
        slices.took(int(slices), int(slices) * 40, chance.randrange(40, 80) + chance.choice(others))
    return int(slices)


def test_what_redis_does_for_itself_is_not_the_work_of_others() -> None:
    assert beside(AdaptiveBatchSize(2, 50, LIMIT), [0]) >= 22
    assert beside(AdaptiveBatchSize(2, 50, LIMIT), [200], rounds=400) >= 20, "a Redis that is slow at it"


def test_the_busier_others_are_the_shorter() -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    assert beside(slices, [0]) >= 22
    assert 6 < beside(slices, [*[0] * 8, 300]) < 24
    assert beside(slices, [0, 0, 1000]) == 6, "a quarter"
    assert beside(slices, [500, 1000, 2000]) == 6, "however little time they leave"
    assert beside(slices, [0], rounds=400) >= 22


def test_it_keeps_its_distance_from_others_and_tries_again_after_a_while() -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    beside(slices, [0])
    assert not slices.keeps_distance
    beside(slices, [0, 0, 1000])
    assert slices.keeps_distance
    lengths(slices, 40, rounds=20)
    assert slices.keeps_distance, "nothing is known of them meanwhile"
    lengths(slices, 40, rounds=900)
    assert not slices.keeps_distance
    assert int(slices) > 12


def test_a_long_pause_now_and_then_is_the_machines() -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    beside(slices, [0])
    slices.took(25, 1000, 50_000)
    assert int(slices) >= 22
    assert beside(slices, [*[0] * 14, 20_000]) >= 22
    assert not slices.keeps_distance


def test_what_is_not_known_of_others_changes_nothing() -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    assert lengths(slices, 40)[-1] == lengths(slices, 40, pause=-5)[-1] == 25


@pytest.mark.parametrize("micros", [0, -1_000_000])
def test_a_clock_that_was_set_is_not_believed(micros: int) -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    slices.took(50, micros, None)
    assert int(slices) == 50


def test_a_short_slice_counts_by_the_entry() -> None:
    slices = AdaptiveBatchSize(2, 50, LIMIT)
    slices.took(3, 120, None)  # 40 µs each: 25 fit
    assert int(slices) == 25
