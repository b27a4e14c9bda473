"""A backlog does not fill the sweeper's memory, and the limit of the manifests holds daemon and commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.support.harness import command, daemon, environment, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

MANIFEST = Path(__file__).parents[2] / "deploy/k8s/parts/deployment/deployment.yaml"
#: Of a command, KiB; what it shares with the daemon is left out. Without the SDK of OpenTelemetry 2,500 less.
OWN_MEMORY = 42_000
#: `sweeperd`, and at its end the kernel's account of its memory.
_ACCOUNTED = """
import atexit, sys
from pathlib import Path
atexit.register(lambda: print(Path("/proc/self/status").read_text(), file=sys.stderr))
from sweeperd.__main__ import run
run()
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_backlog(server: Server, client: redis.Redis) -> None:
    small, large = (peak_memory(server, client, entries) for entries in (1000, 10_000))
    assert large < 1.2 * small


def peak_memory(server: Server, client: redis.Redis, entries: int) -> int:
    """The peak memory of a `--once` that drains this many entries, as the kernel measures it."""
    client.flushall()
    reserve(client, [f"{number:036d}" for number in range(entries)])
    process = subprocess.Popen(
        command("--once", "--json", "--log-level", "warning"), env=environment(server.url), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert client.xlen("sweeperd:events") == entries
    return usage.ru_maxrss


def account(status: str, field: str) -> int:
    """A field of /proc/PID/status, KiB."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found, status
    return int(found[1])


@pytest.mark.release
def test_three_commands_at_once_fit_beside_a_busy_daemon(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """What processes share counts for each here, so a container with this limit holds more."""
    limit = re.search(r"limits:\s+cpu: \S+\s+memory: (\d+)Mi", MANIFEST.read_text(encoding="utf-8"))
    assert limit
    reserve(client, [f"{number:036d}" for number in range(20_000)])
    with Receiver() as receiver:
        env = environment(server.url, endpoints=[{"name": "a", "url": receiver.url}])
        with daemon(env, tmp_path) as running:
            lines = (["status", "--json"], ["endpoints", "list", "--json"], ["check"])
            commands = [
                subprocess.Popen(
                    [sys.executable, "-c", _ACCOUNTED, *line],
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for line in lines
            ]
            ended = [(*each.communicate(timeout=60), each.returncode) for each in commands]
            assert receiver.requests  # the daemon was busy
            busy = account(Path(f"/proc/{running.process.pid}/status").read_text(), "VmHWM")
    assert [code for _, _, code in ended] == [0, 0, 0], ended
    assert all(output for output, _, _ in ended)
    assert busy + sum(account(error, "VmHWM") for _, error, _ in ended) < int(limit[1]) * 1024
    assert max(account(error, "RssAnon") for _, error, _ in ended) < OWN_MEMORY
