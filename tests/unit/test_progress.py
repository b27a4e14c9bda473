"""What a lease and a heartbeat vouch for."""

import threading
import time

from sweeperd import progress
from sweeperd.progress import Progress, working


def test_it_is_silent_since_its_last_step() -> None:
    now = 1000.0
    work = Progress(lambda: now)
    now += 100
    assert work.silent_for == 0, "it has not begun"
    work.step()
    now += 3
    assert (work.silent_for, work.moved_at) == (3, 1100)
    work.rest()
    now += 100
    assert work.silent_for == 0


def test_a_step_may_last_as_long_as_it_was_allowed() -> None:
    now = 1000.0
    work = Progress(lambda: now)
    work.step()
    work.allow(10)
    now += 9
    assert work.silent_for == 0
    now += 5
    assert (work.silent_for, work.moved_at) == (4, 1010)
    work.allow(10)
    work.step()
    now += 2
    assert work.silent_for == 2, "the end of a request ends its allowance"


def test_what_moves_a_thread_moves_its_own_work_only() -> None:
    ours, others = Progress(), Progress()
    others.step()
    before = others.moved_at
    with working(ours), working() as same:
        assert same is ours
        at = ours.moved_at
        time.sleep(0.01)
        progress.step()
        assert ours.moved_at > at
    assert others.moved_at == before
    time.sleep(0.01)
    assert ours.silent_for == 0, "it rests"
    progress.step()
    progress.allow(1)


def test_a_pause_beats() -> None:
    stop, work, silent = threading.Event(), Progress(), []
    with working(work):
        watch = threading.Timer(1.3, lambda: silent.append(work.silent_for))
        watch.start()
        began = time.monotonic()
        assert not progress.pause(stop, 1.5)
        assert time.monotonic() - began >= 1.5
        watch.join()
        assert silent[0] < 1.1
        stop.set()
        assert progress.pause(stop, 60)
