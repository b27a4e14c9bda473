"""All threads of a daemon are on one core where the settings say so, and on any core where they do not."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from sweeperd.store.embedded import Server
from tests.support.harness import Daemon, daemon, environment, eventually


def cores(running: Daemon) -> list[set[int]]:
    """The cores that each thread may use."""
    allowed = []
    for task in Path(f"/proc/{running.process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            allowed.append(os.sched_getaffinity(int(task.name)))
    return allowed


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to a core")
@pytest.mark.parametrize(
    ("one_core", "role", "bound"), [("on", "all", True), ("off", "all", False), ("auto", "sweep", False)]
)
def test_one_core(server: Server, tmp_path: Path, one_core: str, role: str, bound: bool) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use a single core only")
    endpoints: list[dict[str, Any]] = [{"name": "hook", "url": "http://127.0.0.1:9/"}]
    env = environment(server.url, endpoints=endpoints, role=role, webhooks__one_core=one_core)
    with daemon(env, tmp_path) as running:
        eventually(lambda: running.get("/readyz")[0] == 200)
        if bound:
            eventually(lambda: len(set.union(*cores(running))) == 1)
            assert len(cores(running)) > 10, "senders, readers, sweep and scheduler"
        else:
            assert all(allowed == os.sched_getaffinity(0) for allowed in cores(running))
