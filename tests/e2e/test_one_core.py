"""A daemon that delivers single events keeps all its threads on one core, and one that delivers batches does not."""

import os
from pathlib import Path
from typing import Any

import pytest

from sweeperd.store.embedded import Server
from tests.support.harness import Daemon, daemon, environment, eventually


def cores(running: Daemon) -> list[set[int]]:
    """The cores that each thread may use."""
    return [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{running.process.pid}/task").iterdir()]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to a core")
@pytest.mark.parametrize(
    ("one_core", "batch_size", "bound"), [("on", 1, True), ("off", 1, False), ("auto", 100, False)]
)
def test_one_core(server: Server, tmp_path: Path, one_core: str, batch_size: int, bound: bool) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use a single core only")
    endpoints: list[dict[str, Any]] = [{"name": "hook", "url": "http://127.0.0.1:9/", "batch_size": batch_size}]
    env = environment(server.url, endpoints=endpoints, webhooks__one_core=one_core)
    with daemon(env, tmp_path) as running:
        eventually(lambda: running.get("/readyz")[0] == 200)
        if bound:
            eventually(lambda: len(set.union(*cores(running))) == 1)
            assert len(cores(running)) > 10, "senders, readers, sweep and scheduler"
        else:
            assert all(allowed == os.sched_getaffinity(0) for allowed in cores(running))
