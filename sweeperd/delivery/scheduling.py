"""How the system shares the cores between the threads of a delivery and other processes."""

import contextlib
import os


def never_preempt() -> None:
    """
    From now on the current thread waits for a core when it wakes up, in place of taking one from a running thread
    (Linux: SCHED_BATCH). It gets as much time as before, in longer pieces.

    The threads of a delivery in batches wake up thousands of times a second. Beside a sweep on two cores each time
    would interrupt Redis or the sweep, which bring the next events. Where the system has no such rule, or does not let
    a process choose it, nothing changes.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
