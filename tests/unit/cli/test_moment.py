"""Times as an operator types them."""

import click
import pytest

from sweeperd.cli.moment import Moment, moment

NOON = 1_795_262_400_000  # 2026-11-21T12:00:00Z


def parsed(text: str) -> Moment:
    command = click.Command("expired", params=[click.Option(["--since"])])
    found = moment(click.Context(command), command.params[0], text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-11-21T12:00:00Z", NOON),
        ("2026-11-21t12:00:00z", NOON),
        ("2026-11-21 12:00:00Z", NOON),
        ("2026-11-21T13:30:00+01:30", NOON),
        ("2026-11-21T04:00:00-08:00", NOON),
        ("2026-11-21T12:00:00", NOON),
        ("2026-11-21T12:00", NOON),
        ("2026-11-21", NOON - 12 * 3_600_000),
        ("2026-11-21T12:00:00.5Z", NOON + 500),
        ("2026-11-21T12:00:00.123Z", NOON + 123),
        # What is at or after this is at or after the next whole millisecond.
        ("2026-11-21T12:00:00.123001Z", NOON + 124),
        ("1960-01-01T00:00:00Z", 0),
    ],
)
def test_a_time(text: str, at_ms: int) -> None:
    assert parsed(text)(5) == at_ms


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("15m", 900_000), ("250ms", 250), ("2h", 7_200_000), ("30d", 30 * 86_400_000), ("1h30m", 5_400_000)],
)
def test_so_long_ago(text: str, ago_ms: int) -> None:
    assert parsed(text)(NOON) == NOON - ago_ms


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("12:00", NOON),
        ("12:00:00", NOON),
        ("11:59:30", NOON - 30_000),
        ("12:01", NOON + 60_000 - 86_400_000),
        ("00:00", NOON - 12 * 3_600_000),
    ],
)
def test_a_time_of_day_is_the_latest_one(text: str, at_ms: int) -> None:
    assert parsed(text)(NOON) == at_ms


def test_before_the_epoch_there_is_nothing() -> None:
    assert parsed("999999999d")(NOON) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noon",
        "24:00",
        "1:30",
        "1h30",
        "-5m",
        "5",
        "m",
        "2026-13-01T00:00:00Z",
        "2026-11-21T24:30:00Z",
        "2026-11-21T12:00:60Z",
        "2026-11-21T12:00:00+25:00",
        "2026-11-21T12",
        "2026-W47-6",
        "20261121T120000Z",
        "2026-11-21T12:00:00Z ",
        "\u0662026-11-21",
        "1795262400000",
        "x" * 10_000,
    ],
)
def test_what_is_neither(text: str) -> None:
    with pytest.raises(click.BadParameter, match="neither a time such as") as refused:
        parsed(text)
    assert len(str(refused.value)) < 300
