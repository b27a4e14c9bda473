"""Tests which core the process chooses, and when."""

import contextlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from sweeperd.runtime.cpu_affinity import CHOOSE_EVERY, FIRST_AFTER, CpuAffinity, choose


class Machine:
    """Two cores, and the process on them. Times in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, binds: bool = True) -> None:
        self.busy, self._now, self._own = {0: 500.0, 1: 9_000.0}, 1_000.0, 70.0
        self.bound: list[set[int]] = []
        clocks = SimpleNamespace(monotonic=lambda: self._now, process_time=lambda: self._own)
        monkeypatch.setattr("sweeperd.runtime.cpu_affinity.busy_times", lambda: dict(self.busy))
        monkeypatch.setattr("sweeperd.runtime.cpu_affinity.time", clocks)
        self._one = CpuAffinity()
        monkeypatch.setattr(self._one, "_allowed", {0, 1})
        if binds:
            monkeypatch.setattr(self._one, "_bind", self.bound.append)
        self._one.keep(wanted=True)

    def go_on(self, seconds: float, *shares: float, own: float = 0.0, wanted: bool = True) -> None:
        """For so long each core is busy for its share, `own` of one core for this process."""
        self._now += seconds
        self._own += own * seconds
        self.busy = {core: busy + shares[core] * seconds for core, busy in self.busy.items()}
        self._one.keep(wanted=wanted)


def test_the_core_is_chosen_by_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call begins to measure: how busy the cores were since the boot says nothing about now."""
    machine = Machine(monkeypatch)
    assert not machine.bound
    machine.go_on(FIRST_AFTER, 0.9, 0.0)
    assert machine.bound == [{1}]


def test_what_the_process_itself_uses_keeps_it_from_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on two cores is busy on both; that is no reason to leave one of them to others."""
    machine = Machine(monkeypatch)
    machine.go_on(FIRST_AFTER, 0.8, 0.7, own=1.0)
    assert machine.bound == [{1}]
    machine.go_on(CHOOSE_EVERY, 0.5, 1.0, own=1.0)
    machine.go_on(CHOOSE_EVERY, 1.0, 1.0, own=0.3)
    assert machine.bound == [{1}, {0, 1}], "others are busy on both"
    machine.go_on(CHOOSE_EVERY, 1.0, 1.0, own=0.5)
    assert machine.bound == [{1}, {0, 1}]


def test_a_process_that_delivers_no_more_is_spread_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload has taken the last endpoint away."""
    machine = Machine(monkeypatch)
    machine.go_on(FIRST_AFTER, 0.9, 0.0)
    machine.go_on(CHOOSE_EVERY, 0.9, 0.0, wanted=False)
    assert machine.bound == [{1}, {0, 1}]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to a core")
def test_every_thread_is_bound_those_to_come_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    if not before >= {0, 1}:
        pytest.skip("this process may not use the first two cores")
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(2)]
    threads[0].start()
    machine = Machine(monkeypatch, binds=False)
    try:
        machine.go_on(FIRST_AFTER, 0.9, 0.0)
        threads[1].start()
        assert [os.sched_getaffinity(thread.native_id or 0) for thread in threads] == [{1}, {1}]
        assert os.sched_getaffinity(0) == {1}
    finally:
        machine.go_on(CHOOSE_EVERY, 0.9, 0.0, wanted=False)
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread of another test has just ended
                os.sched_setaffinity(int(task.name), before)
        ended.set()
        for thread in threads:
            thread.join()


def test_a_system_that_refuses_is_asked_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A filter of system calls answers EPERM. No log line may claim that the process is on one core then."""

    def refuse(_task: int, _cores: set[int]) -> None:
        asked.append(_cores)
        raise PermissionError(1, "Operation not permitted")

    caplog.set_level("DEBUG")
    asked: list[set[int]] = []
    monkeypatch.setattr("os.sched_setaffinity", refuse, raising=False)
    machine = Machine(monkeypatch, binds=False)
    machine.go_on(FIRST_AFTER, 0.9, 0.0)
    machine.go_on(CHOOSE_EVERY, 0.0, 0.9)
    assert asked == [{1}]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ValueError("not enough values to unpack")])
def test_a_process_that_cannot_measure_chooses_later(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The daemon calls this in its main loop, which must not end by it."""

    def refuse() -> None:
        raise error

    machine = Machine(monkeypatch)
    with monkeypatch.context() as full:
        full.setattr("sweeperd.runtime.cpu_affinity.busy_times", refuse)
        machine.go_on(FIRST_AFTER, 0.9, 0.0)
    machine.go_on(FIRST_AFTER, 0.9, 0.0)
    assert machine.bound == [{1}]


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
