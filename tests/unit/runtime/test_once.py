"""Tests the exit code and the progress of `--once` over several shards."""

from collections import Counter

import pytest

from sweeperd.delivery.dispatcher import DeliveryReport
from sweeperd.runtime.once import OnceReport, OnceStage, _Progress
from sweeperd.sweep import Outcome

SWEEPING, DELIVERING = OnceStage.SWEEPING, OnceStage.DELIVERING


@pytest.mark.parametrize(
    ("counts", "complete", "undelivered", "failures", "code"),
    [
        ({}, True, 0, (), 0),
        ({Outcome.EXPIRED: 5, Outcome.QUARANTINED: 1}, True, 0, (), 0),
        ({Outcome.EXPIRED: 5}, True, 2, (), 3),
        ({Outcome.ERROR: 1}, True, 2, (), 1),
        ({}, False, 0, (), 1),
        ({Outcome.EXPIRED: 5}, True, 2, ("shard eu: redis is not available",), 1),
    ],
)
def test_exit_code(
    counts: dict[Outcome, int], complete: bool, undelivered: int, failures: tuple[str, ...], code: int
) -> None:
    report = OnceReport(Counter(counts), complete, DeliveryReport(0, undelivered, 0), 1.0, failures)
    assert report.exit_code == code


def test_progress_is_summed_and_the_second_stage_waits_for_the_first() -> None:
    told: list[tuple[OnceStage, int, int]] = []
    progress = _Progress(lambda *step: told.append(step), ["eu", "us", "down"])

    progress("eu", SWEEPING, 50, 100)
    progress("us", SWEEPING, 10, 300)
    assert told == [(SWEEPING, 50, 100), (SWEEPING, 60, 400)]
    progress("eu", DELIVERING, 1, 100)
    progress.left("down")
    progress("us", SWEEPING, 300, 300)
    assert told[2:] == [(SWEEPING, 350, 400)]
    progress("us", DELIVERING, 0, 300)
    progress("eu", DELIVERING, 100, 100)
    assert told[3:] == [(DELIVERING, 1, 400), (DELIVERING, 100, 400)]
