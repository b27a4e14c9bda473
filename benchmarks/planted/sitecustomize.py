"""Slows every tick down, which the gate must refuse. Python imports this file if its folder is on PYTHONPATH."""

import functools
import time

from sweeperd.sweep.kind import SweepReport
from sweeperd.sweep.sweeper import Sweeper

#: By which part a tick does less in the same time.
SLOWER = 0.3

_tick = Sweeper.tick


@functools.wraps(_tick)
def _slow_tick(*args: object, **kwargs: object) -> SweepReport:
    started = time.monotonic()
    report = _tick(*args, **kwargs)  # type: ignore[arg-type]
    time.sleep((time.monotonic() - started) * SLOWER / (1 - SLOWER))
    return report


Sweeper.tick = _slow_tick  # type: ignore[method-assign]
