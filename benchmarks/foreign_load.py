"""Keeps Redis busy for a share of its time, as other applications on the same server do."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

import redis

from tests.support.busy import BUSY

#: How long Redis is busy with one call, µs.
BUSY_MICROS = 500
_BUSY = f"{BUSY}\nbusy(ARGV[1])"


@contextlib.contextmanager
def foreign_load(url: str, share: float) -> Iterator[None]:
    """Redis is busy with it for this share of the time while the block lasts."""
    with subprocess.Popen([sys.executable, "-m", "benchmarks.foreign_load", url, str(share)]) as process:
        try:
            yield
        finally:
            process.kill()


def _live(url: str, share: float) -> None:
    client = redis.Redis.from_url(url)
    busy = client.register_script(_BUSY)
    period, due = BUSY_MICROS / 1e6 / share, time.monotonic()
    while True:
        busy(args=[BUSY_MICROS])
        # A call that was late is not made up for: the share would be larger then.
        due = max(due + period, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    _live(sys.argv[1], float(sys.argv[2]))
