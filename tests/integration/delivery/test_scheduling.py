"""The threads of a delivery in batches take no core from a running thread; those of single events may."""

import os
import threading
from typing import Any

import pytest

from sweeperd.store import Shard
from tests.support.deliveries import Deliver
from tests.support.harness import eventually

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has one rule for all threads")


def policies(group: str) -> dict[str, int]:
    """The rule of each thread of a delivery, by its name without that of the shard and the group."""
    return {
        thread.name.replace(group, ""): os.sched_getscheduler(thread.native_id)
        for thread in threading.enumerate()
        if group in thread.name and thread.native_id is not None
    }


@pytest.mark.parametrize(("endpoint", "batch"), [({}, False), ({"batch_size": 2}, True)])
def test_the_threads_of_batches(shard: Shard, deliver: Deliver, endpoint: dict[str, Any], batch: bool) -> None:
    rule = os.SCHED_BATCH if batch else os.sched_getscheduler(0)
    with deliver("http://127.0.0.1:9/", 2, endpoint):
        wanted = dict.fromkeys(["acknowledge-", "deliver-", "send--1", "send--2"], rule)
        eventually(lambda: policies(f"{shard.name}-hook") == wanted)  # a thread chooses after it has started
    assert os.sched_getscheduler(0) != os.SCHED_BATCH, "the thread that starts them stays as it was"


def test_a_system_that_refuses_changes_nothing(shard: Shard, deliver: Deliver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    with deliver("http://127.0.0.1:9/", 2, {"batch_size": 2}):
        rule = os.sched_getscheduler(0)
        wanted = dict.fromkeys(["acknowledge-", "deliver-", "send--1", "send--2"], rule)
        eventually(lambda: policies(f"{shard.name}-hook") == wanted)
