"""Each verdict holds for a good run, and notices each way of not being one."""

import math
from collections import Counter
from dataclasses import astuple, replace

import pytest

from sweeperd.ledger import Balance
from tests.soak import verdicts
from tests.soak.census import IndexLook
from tests.soak.load import Tally
from tests.soak.samples import LatencyStep, LedgerCall, Sample, Windows, latency_steps, rates, thinned

MIB = 1024 * 1024
#: Ten minutes: warm-up is the first, "start" the second; the last tenth is the last minute.
WINDOWS = Windows(600.0)
NOTHING = Sample(
    at=0.0,
    operations=0,
    calls=0,
    expired=0,
    received=0,
    due_entries=0,
    oldest_due_seconds=0.0,
    daemon_bytes=50.0 * MIB,
    redis_bytes=0,
)


def samples(warm_up: float, start: float, middle: float, end: float) -> list[Sample]:
    """A sample a second; MiB in the windows."""
    return [
        replace(
            NOTHING,
            at=float(at),
            daemon_bytes=MIB * (warm_up if at < 60 else start if at < 120 else middle if at < 540 else end),
        )
        for at in range(600)
    ]


def calls(warm_up: float, start: float, middle: float, end: float) -> list[LedgerCall]:
    """Ten calls a second; ms in the windows."""
    return [
        LedgerCall(at / 10, (warm_up if at < 600 else start if at < 1200 else middle if at < 5400 else end) / 1000)
        for at in range(6000)
    ]


def balance(**changes: int) -> Balance:
    amounts = {
        "allocated": 100,
        "remaining": 60,
        "reserved": 0,
        "spent": 30,
        "debt": 10,
        "overdraft_limit": 20,
    } | changes
    return Balance("tenant:acme", "TOKENS", **amounts, is_over_limit=False, status="ACTIVE")


@pytest.mark.parametrize(
    ("duration", "first", "last", "last_tenth"),
    [
        (1800.0, (60.0, 120.0), (1740.0, 1800.0), (1620.0, 1800.0)),
        (60.0, (10.0, 20.0), (50.0, 60.0), (54.0, 60.0)),
    ],
)
def test_windows(
    duration: float, first: tuple[float, float], last: tuple[float, float], last_tenth: tuple[float, float]
) -> None:
    windows = Windows(duration)
    assert (windows.first, windows.last, windows.last_tenth) == (first, last, last_tenth)


@pytest.mark.parametrize(
    ("memory", "holds"),
    [
        (samples(40, 50, 90, 62), True),
        (samples(40, 50, 50, 63), False),
        (samples(60, 50, 50, 63), False),  # the warm-up does not count
        (samples(40, 50, 50, 50)[:540], False),  # there are no samples from the end
        (samples(math.nan, math.nan, math.nan, math.nan), False),
        ([], False),
    ],
)
def test_memory(memory: list[Sample], holds: bool) -> None:
    points = [(sample.at, sample.daemon_bytes) for sample in memory]
    assert verdicts.memory(points, WINDOWS).holds is holds


@pytest.mark.parametrize(
    ("latencies", "noise", "holds"),
    [
        (calls(9, 1, 9, 2.9), 0.0, True),
        (calls(1, 1, 1, 3.1), 0.0, False),
        (calls(9, 1, 1, 3.1), 0.0, False),  # the warm-up does not count
        (calls(1, 1, 1, 3.1), 0.0032, True),
        (calls(1, 1, 1, 3.3), 0.0032, False),
        (calls(1, 1, 1, 1)[:5400], 0.0, False),  # it stood still in the end
        ([], 0.01, False),
    ],
)
def test_latency(latencies: list[LedgerCall], noise: float, holds: bool) -> None:
    assert verdicts.latency(latencies, WINDOWS, noise).holds is holds


def test_latency_is_judged_by_the_average() -> None:
    """One call in ten that takes long leaves the median as it is."""
    slow_at_times = [
        call if number < 5400 or number % 10 else LedgerCall(call.at, 0.1)
        for number, call in enumerate(calls(1, 1, 1, 1))
    ]
    assert not verdicts.latency(slow_at_times, WINDOWS).holds


@pytest.mark.parametrize(
    ("counts", "holds"),
    [
        ((100, 110, 210), True),
        ((100, 111, 210), False),
        ((100, 110, 211), False),
        ((100, 99, 210), False),
        ((100, 110, 99), False),
        ((0, 0, 0), False),
    ],
)
def test_keys(counts: tuple[int, int, int], holds: bool) -> None:
    assert verdicts.keys(*counts).holds is holds


@pytest.mark.parametrize(
    ("during", "at_end", "holds"),
    [
        ([IndexLook(5, 0, 0), IndexLook(0, 0, 0)], IndexLook(0, 0, 0), True),
        ([IndexLook(5, 1, 0)], IndexLook(0, 0, 0), False),
        ([IndexLook(5, 0, 1)], IndexLook(0, 0, 0), False),
        ([IndexLook(5, 0, 0)], IndexLook(0, 0, 1), False),
        ([IndexLook(5, 0, 0)], IndexLook(1, 1, 0), False),
        ([IndexLook(5, 0, 0)], IndexLook(1, 0, 0), False),  # it has its hash, but was not swept
        ([IndexLook(0, 0, 0)], IndexLook(0, 0, 0), False),  # nothing was seen
        ([], IndexLook(0, 0, 0), False),
    ],
)
def test_index(during: list[IndexLook], at_end: IndexLook, holds: bool) -> None:
    assert verdicts.index(during, at_end).holds is holds


GOOD_COUNTS = {"stream": 7, "hashes": 7, "counter": 7, "receiver": 7}


@pytest.mark.parametrize("name", GOOD_COUNTS)
def test_events(name: str) -> None:
    assert verdicts.events(GOOD_COUNTS).holds
    assert not verdicts.events(GOOD_COUNTS | {name: 6}).holds
    assert not verdicts.events(GOOD_COUNTS | {name: 8}).holds


def test_no_events_at_all_is_not_good() -> None:
    assert not verdicts.events(dict.fromkeys(GOOD_COUNTS, 0)).holds


@pytest.mark.parametrize(
    ("budget", "holds"),
    [
        (balance(), True),
        (balance(remaining=61), False),
        (balance(allocated=99), False),
        (balance(debt=9), False),
        (balance(reserved=5, remaining=55), False),  # it adds up, but is held
        (balance(spent=31, remaining=59), False),  # it adds up, but one more was charged than any answer says
    ],
)
def test_books(budget: Balance, holds: bool) -> None:
    assert verdicts.books([budget], {"tenant:acme": 40}).holds is holds


def test_books_without_a_budget_are_not_good() -> None:
    assert not verdicts.books([], {}).holds


@pytest.mark.parametrize(
    ("tally", "holds"),
    [
        (Tally(repeated=3), True),
        (Tally(repeated=3, errors=1, error_texts=["ConnectionError: gone"]), False),
        (Tally(repeated=3, differing=1), False),
        (Tally(), False),  # nothing was sent twice, so nothing is known of that
    ],
)
def test_answers(tally: Tally, holds: bool) -> None:
    assert verdicts.answers(tally).holds is holds


def test_settled() -> None:
    assert verdicts.settled([]).holds
    assert not verdicts.settled(["the index is not empty"]).holds


def test_a_tally_of_threads_is_their_sum() -> None:
    one = Tally(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ["a"], Counter(x=1), last_end=50)
    two = Tally(10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, ["b"], Counter(x=2, y=3), last_end=40)
    total = Tally(11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, 132, ["a", "b"], Counter(x=3, y=3), last_end=50)
    assert Tally.of([one, two]) == total


def rounded(step: LatencyStep) -> LatencyStep:
    return LatencyStep(*(round(value, 6) for value in astuple(step)))


def test_latency_steps() -> None:
    """Of a hundred calls of 1 to 100 ms, the 99th percentile is the 99th."""
    made = [LedgerCall(2 + number / 100, (number + 1) / 1000) for number in range(100)] + [LedgerCall(8.0, 0.25)]
    first, second = latency_steps(made, 2.0)
    assert rounded(first) == LatencyStep(3.0, 100, mean_ms=50.5, median_ms=50.5, p99_ms=99.0, max_ms=100.0)
    assert second == LatencyStep(9.0, 1, 250.0, 250.0, 250.0, 250.0)


def test_rates() -> None:
    taken = [replace(NOTHING, at=at, operations=count) for at, count in ((0.5, 0), (1.5, 80), (2.5, 300), (4.5, 500))]
    assert rates(thinned(taken, 2.0), "operations") == [(1.5, 150.0), (3.5, 100.0)]
