"""Runs processes that compete for CPU time and never speak to Redis: what a busy machine alone makes a client wait."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

#: How long one computes and how long it rests, in turn, seconds: as Redis and a sweeper do when they take turns.
BUSY, REST = 0.0005, 0.0005


@contextlib.contextmanager
def strangers(number: int) -> Iterator[None]:
    """This many of them while the block lasts."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-m", "benchmarks.strangers"]))
            stack.callback(process.kill)
        yield


def _live() -> None:
    while True:
        until = time.perf_counter() + BUSY
        while time.perf_counter() < until:
            pass
        time.sleep(REST)


if __name__ == "__main__":
    _live()
