"""On which core the process runs, and when."""

from types import SimpleNamespace
from typing import Any

import pytest

from sweeperd.config import Settings
from sweeperd.runtime.one_core import FIRST_AFTER, OneCore, choose, is_wanted
from sweeperd.runtime.role import Role

SINGLE, BATCH = {"name": "a", "url": "http://a/"}, {"name": "b", "url": "http://b/", "batch_size": 100}


@pytest.mark.parametrize(
    ("one_core", "endpoints", "role", "wanted"),
    [
        ("auto", [SINGLE], Role.ALL, True),
        ("auto", [BATCH, SINGLE], Role.DELIVER, True),
        ("auto", [SINGLE], Role.SWEEP, False),
        ("auto", [BATCH], Role.ALL, True),
        ("auto", [], Role.ALL, False),
        ("on", [BATCH], Role.SWEEP, True),
        ("off", [SINGLE], Role.ALL, False),
    ],
)
def test_when(one_core: str, endpoints: list[dict[str, Any]], role: Role, wanted: bool) -> None:
    settings = Settings.model_validate({"webhooks": {"one_core": one_core, "endpoints": endpoints}})
    assert is_wanted(settings, role) == wanted


def test_the_core_is_chosen_by_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call begins to measure: how busy the cores were since the boot says nothing about now."""
    busy, now = {0: 500.0, 1: 9_000.0}, [1_000.0]
    bound: list[set[int]] = []
    monkeypatch.setattr("sweeperd.runtime.one_core._busy_times", lambda: dict(busy))
    monkeypatch.setattr(
        "sweeperd.runtime.one_core.time", SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: 0.0)
    )
    one = OneCore()
    monkeypatch.setattr(one, "_allowed", {0, 1})
    monkeypatch.setattr(one, "_bind", bound.append)
    one.keep(wanted=True, always=False)
    assert not bound
    now[0] += FIRST_AFTER
    busy[0] += 0.9 * FIRST_AFTER
    one.keep(wanted=True, always=False)
    assert bound == [{1}]


@pytest.mark.parametrize(
    ("current", "used", "chosen"),
    [
        (None, {0: 0.5, 1: 0.2, 2: 0.2}, 1),
        (0, {0: 0.4, 1: 0.2}, 0),
        (0, {0: 0.6, 1: 0.2}, 1),
        (3, {0: 0.6, 1: 0.7}, 0),
        (1, {0: -0.1, 1: 0.1}, 1),
        (0, {0: 0.9, 1: 0.7}, None),
        (None, {0: 0.9, 1: 0.7}, None),
    ],
)
def test_the_least_busy_core_if_worth_a_move(current: int | None, used: dict[int, float], chosen: int | None) -> None:
    assert choose(current, used) == chosen
    assert choose(current, used, always=True) == chosen or chosen is None
    assert choose(current, used, always=True) is not None
