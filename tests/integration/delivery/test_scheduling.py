"""The threads of a delivery in batches take no core from a running thread; those of single events may."""

import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.delivery import cpu_policy
from sweeperd.outbox import PARKED
from sweeperd.store import Shard
from tests.support.deliveries import Deliver, expire
from tests.support.harness import eventually

pytestmark = pytest.mark.skipif(
    not hasattr(os, "SCHED_BATCH") or os.sched_getscheduler(0) != os.SCHED_OTHER,
    reason="this system has one rule for all threads, or another one was chosen for the tests",
)


def policies(shard: str) -> dict[str, int]:
    """The rule of each thread that works on batches, by its work."""
    return {
        thread.name.partition("-")[0]: os.sched_getscheduler(thread.native_id)
        for thread in threading.enumerate()
        if thread.name.startswith(("read-", "settle-", "send-")) and shard in thread.name and thread.native_id
    }


@pytest.mark.parametrize(("endpoint", "batch"), [({}, False), ({"batch_size": 2}, True)])
def test_the_threads_of_batches(
    client: redis.Redis, shard: Shard, deliver: Deliver, endpoint: dict[str, Any], batch: bool
) -> None:
    rule = os.SCHED_BATCH if batch else os.sched_getscheduler(0)
    with deliver("http://127.0.0.1:9/", 2, endpoint) as delivery:
        expire(client, "one")
        eventually(lambda: [owner for owner, *_ in delivery.pending().values()] == [PARKED])
        wanted = dict.fromkeys(["read", "settle", "send"], rule)
        eventually(lambda: policies(shard.name) == wanted)  # a thread chooses after it has started
    assert os.sched_getscheduler(0) != os.SCHED_BATCH, "the thread that starts them stays as it was"


def test_a_thread_that_a_thread_of_batches_starts_has_the_rule_of_its_own_work() -> None:
    rules = list[int]()

    def of_single_events() -> None:
        cpu_policy.follow(batch=False)
        rules.append(os.sched_getscheduler(0))

    def of_batches() -> None:
        cpu_policy.follow(batch=True)
        rules.append(os.sched_getscheduler(0))
        run(of_single_events)

    def run(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    run(of_batches)
    assert rules == [os.SCHED_BATCH, os.sched_getscheduler(0)]


def test_a_system_that_refuses_changes_nothing(
    client: redis.Redis, shard: Shard, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    with deliver("http://127.0.0.1:9/", 2, {"batch_size": 2}):
        expire(client, "one")
        rule = os.sched_getscheduler(0)
        wanted = dict.fromkeys(["read", "settle", "send"], rule)
        eventually(lambda: policies(shard.name) == wanted)


def test_a_rule_that_an_operator_has_chosen_stays() -> None:
    rules = list[int]()

    def of_a_process() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        spec = importlib.util.find_spec(cpu_policy.__name__)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for batch in (True, False):
            module.follow(batch=batch)
            rules.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=of_a_process)
    thread.start()
    thread.join()
    assert rules == [os.SCHED_IDLE, os.SCHED_IDLE]
