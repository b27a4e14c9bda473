"""Measures the time from the start of the process to its first expired entry."""

import subprocess
import time
from collections.abc import Mapping
from statistics import median

import redis

from benchmarks.fill import fill
from benchmarks.lab import WARM, Lab
from benchmarks.row import Goal, Row, Sample
from sweeperd.store.embedded import Server
from sweeperd.store.keys import Keys
from tests.support.harness import command, environment

#: The longest wait for the first event, ms.
LIMIT_MS = 30_000


def measure(lab: Lab) -> Sample:
    """
    The daemon, started several times; the first start, which reads the files from the disk, does not count. It has its
    bytecode, as everything has that pip has installed: where it runs from a working copy, the first start makes it.
    """
    starts = lab.size("starts", 5, 2)
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(lab.directory / "bytecode")}
    with lab.server() as server:
        env = environment(server.url) | bytecode
        swept = [_first_sweep(server, env, WARM + number) for number in range(starts + 1)][1:]
        version = [_version(env) for _ in range(starts + 1)][1:]
    return Sample({"start_seconds": median(swept)}, {"version_seconds": median(version)})


def _first_sweep(server: Server, env: Mapping[str, str], events: int) -> float:
    """Seconds from the start of a daemon to its first event, when there are this many already."""
    fill(server.url, 1, first=events)
    with redis.Redis.from_url(server.url, protocol=2, socket_timeout=LIMIT_MS / 1000 + 5) as client:
        last = client.xrevrange(Keys().events, count=1)[0][0]
        started = time.monotonic()
        with subprocess.Popen(command(), env=env, stderr=subprocess.DEVNULL) as process:
            try:
                # A read that waits is told at once; to ask again and again would take the daemon's time.
                told = client.xread({Keys().events: last}, block=LIMIT_MS)
                seconds = time.monotonic() - started
            finally:
                process.terminate()
    if not told:
        raise RuntimeError(f"nothing was expired within {LIMIT_MS} ms")
    return seconds


def _version(env: Mapping[str, str]) -> float:
    """Seconds of a `--version`."""
    started = time.monotonic()
    subprocess.run(command("--version"), env=env, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


ROW = Row(
    "start",
    "start of the process to its first expired entry, seconds",
    "",
    {"start_seconds": Goal("at_most", 1)},
    measure,
)
