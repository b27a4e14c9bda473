"""What a monitor compares, and when a limit is passed."""

from typing import Any

import pytest

from sweeperd.ops.limits import Limit
from sweeperd.ops.processes import Processes
from sweeperd.ops.status import Due
from sweeperd.store.memory import MemoryUse
from tests.support.builders import endpoint_status, kind_status, last_sweep, processes, shard_status

NOW = 1_795_000_000_000
LATE = {"due": Due(7, 2, 5, True, 90.0, 61.0)}
WAITS = endpoint_status("hook", pending=5000, oldest_pending_seconds=301.0)


@pytest.mark.parametrize(
    ("limit", "above", "below"),
    [
        ("overdue > 60s", LATE, {"due": Due(7, 2, 5, True, 90.0, 60.0)}),
        ("overdue>4", LATE, {"due": Due(7, 3, 4)}),
        ("overdue > 60s", {"kinds": (kind_status("lock", due=Due(1, 0, 1, True, 99.0, 99.0)),)}, {}),
        ("unswept > 1m", {"tick": last_sweep(NOW - 61_000)}, {"tick": last_sweep(NOW - 60_000)}),
        ("unswept > 1m", {"tick": None}, {}),
        ("quarantined > 0", {"quarantined": 1}, {}),
        ("undelivered > 5m", {"endpoints": (WAITS,)}, {"endpoints": (endpoint_status("hook", pending=0),)}),
        ("undelivered > 4999", {"endpoints": (WAITS,)}, {"endpoints": (endpoint_status("hook", pending=4999),)}),
        ("undelivered > 5m", {"endpoints": (endpoint_status("hook", pending=None),)}, {}),
        ("undelivered > 0", {"endpoints": (endpoint_status("hook", pending=None),)}, {}),
        (
            "undelivered > 5m",
            {"endpoints": (WAITS.model_copy(update={"state": "paused"}),)},
            {"endpoints": (WAITS.model_copy(update={"state": "group"}),)},
        ),
        ("dead-letters > 10", {"dead_letters": 11}, {"dead_letters": 10}),
        ("memory > 90%", {"memory": MemoryUse(91, 100)}, {"memory": MemoryUse(90, 100)}),
        ("memory > 90%", {"memory": None}, {"memory": MemoryUse(91, None)}),
        ("silent > 0", {"processes": Processes(None)}, {}),
    ],
)
def test_a_limit(limit: str, above: dict[str, Any], below: dict[str, Any]) -> None:
    well: dict[str, Any] = {
        "now_ms": NOW,
        "tick": last_sweep(NOW - 1000),
        "memory": MemoryUse(1, 100),
        "processes": Processes(()),
    }
    parsed = Limit.parse(limit)
    (line,) = parsed.passed(shard_status(**well | above))
    assert line.startswith(f"shard eu: {parsed.word}")
    assert line.endswith(limit)
    assert list(parsed.passed(shard_status(**well | below))) == []


def test_a_silent_process_counts() -> None:
    (known,) = processes(sweeps=True).known or ()
    silent = Processes((known, known.model_copy(update={"silent": True})))
    (line,) = Limit.parse("silent > 0").passed(shard_status(processes=silent))
    assert "silent is 1" in line


@pytest.mark.parametrize(
    "text",
    [
        "",
        "overdue",
        "overdue > ",
        "overdue < 60s",
        "overdue > 60x",
        "late > 60s",
        "memory > 5",
        "memory > 5s",
        "quarantined > 5m",
        "silent > 1%",
        "overdue > -1",
        "overdue > 60s or memory > 5%",
    ],
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|compared"):
        Limit.parse(text)
