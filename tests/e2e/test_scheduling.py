"""The threads of an endpoint in batches take no core from a running thread; all other threads do, as usual."""

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sweeperd.store.embedded import Server
from tests.support.harness import Daemon, daemon, environment, eventually

#: Of each endpoint: its senders, its reader and its acknowledger.
SENDERS = 3
THREADS = SENDERS + 2


def policies(running: Daemon) -> Counter[int]:
    """How many threads are scheduled by each rule."""
    found: Counter[int] = Counter()
    for task in Path(f"/proc/{running.process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            found[os.sched_getscheduler(int(task.name))] += 1
    return found


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has one rule for all threads")
@pytest.mark.parametrize(("sizes", "in_batches"), [([1, 1], 0), ([1, 100], 1), ([2, 100], 2)])
def test_threads_of_batches(server: Server, tmp_path: Path, sizes: list[int], in_batches: int) -> None:
    endpoints: list[dict[str, Any]] = [
        {"name": f"hook-{number}", "url": "http://127.0.0.1:9/", "batch_size": size}
        for number, size in enumerate(sizes)
    ]
    env = environment(server.url, endpoints=endpoints, webhooks__concurrency=SENDERS * len(sizes))
    with daemon(env, tmp_path) as running:
        eventually(lambda: running.get("/readyz")[0] == 200)
        eventually(lambda: policies(running)[os.SCHED_BATCH] == THREADS * in_batches)
        usual = policies(running)[os.SCHED_OTHER]
        assert usual > THREADS * (len(sizes) - in_batches), "those of the other endpoint, the sweep and the scheduler"
