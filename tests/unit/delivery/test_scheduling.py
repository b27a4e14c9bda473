"""A thread that takes no core from a running one."""

import os
import threading

import pytest

from sweeperd.delivery.senders import never_preempt

needs_policies = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has one rule for all threads")


def policies() -> list[int]:
    """The rule for a new thread, before and after."""
    found: list[int] = []

    def run() -> None:
        found.append(os.sched_getscheduler(0))
        never_preempt()
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


@needs_policies
def test_only_the_current_thread_changes() -> None:
    before = os.sched_getscheduler(0)
    assert policies() == [before, os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == before


@needs_policies
def test_a_system_that_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    assert policies() == [os.sched_getscheduler(0)] * 2


def test_a_system_without_such_a_rule_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.SCHED_BATCH", raising=False)
    never_preempt()
