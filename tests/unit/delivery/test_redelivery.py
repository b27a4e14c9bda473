"""When an event is sent again after deliveries in vain, and from which age on it is too old."""

from datetime import timedelta

import pytest

from sweeperd.config import WebhooksSettings
from sweeperd.delivery.circuit import Redelivery, growing_wait


@pytest.mark.parametrize(("times", "seconds"), [(-1, 0), (0, 0), (1, 2), (2, 4), (3, 8), (4, 10), (5000, 10)])
def test_a_wait_doubles_up_to_the_longest(times: int, seconds: float) -> None:
    assert growing_wait(2.0, 10.0, times) == seconds


def test_the_waits_and_the_greatest_age_of_the_settings() -> None:
    settings = WebhooksSettings.model_validate(
        {"redelivery_initial": "2s", "redelivery_max": "1m", "max_age": timedelta(hours=1)}
    )
    redelivery = Redelivery.of(settings)
    assert [redelivery.wait_ms(deliveries) for deliveries in (0, 1, 2, 100)] == [0, 2000, 4000, 60_000]
    assert redelivery.oldest_ms(10_000_000) == 0, "not before it is known when the group began"
    redelivery.counts_from_ms = 0
    assert redelivery.oldest_ms(10_000_000) == 10_000_000 - 3_600_000


@pytest.mark.parametrize(("counts_from_ms", "oldest_ms"), [(0, 400), (399, 400), (400, 0), (401, 0)])
def test_no_event_is_too_old_until_the_group_itself_is_older(counts_from_ms: int, oldest_ms: int) -> None:
    assert Redelivery(1, 1, max_age_ms=600, counts_from_ms=counts_from_ms).oldest_ms(1000) == oldest_ms
