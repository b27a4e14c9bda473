"""The rate of deliveries of one process, from samples with times."""

from sweeperd.outbox import DeliveryRate
from sweeperd.outbox.delivery_rate import COUNTED, SHORTEST, WINDOW


def after(*samples: tuple[float, int]) -> tuple[float, float]:
    """Rate and window after these samples."""
    rate = DeliveryRate()
    for now, delivered in samples:
        rate.add(now, delivered)
    return rate.per_second, rate.window_seconds


def test_one_sample_says_nothing() -> None:
    assert after((100.0, 50)) == (0.0, 0.0)
    assert after((100.0, 0), (100.0 + SHORTEST / 2, 50)) == (0.0, 0.0)


def test_the_shortest_window_is_enough() -> None:
    assert after((100.0, 0), (100.0 + SHORTEST, 50)) == (50 / SHORTEST, SHORTEST)


def test_the_first_minute_is_over_the_time_since_the_start() -> None:
    assert after((100.0, 0), (105.0, 0), (110.0, 50)) == (5.0, 10.0)


def test_later_it_is_over_the_last_minute() -> None:
    samples = [(5.0 * number, 3 * number) for number in range(100)]
    assert after(*samples) == (0.6, WINDOW)


def test_it_is_zero_a_minute_after_the_last_delivery() -> None:
    samples = [(5.0 * number, min(1000, 100 * number)) for number in range(30)]
    assert after(*samples) == (0.0, WINDOW)


def test_where_much_is_delivered_it_is_about_the_last_events() -> None:
    """A drain that has just begun is not averaged with the quiet minute before it."""
    quiet = [(float(number), 0) for number in range(60)]
    drain = [(60.0 + number, COUNTED * number) for number in range(1, 4)]
    assert after(*quiet, *drain) == (float(COUNTED), 1.0)


def test_few_samples_are_kept() -> None:
    rate = DeliveryRate()
    for number in range(10_000):
        rate.add(number / 10, number)
    assert len(rate._samples) <= 10 * WINDOW + 2
