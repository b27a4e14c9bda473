"""A backlog does not fill the sweeper's memory."""

import os
import subprocess

import redis

from tests.support.harness import command, environment, reserve
from tests.support.servers import Server


def test_memory_does_not_grow_with_the_backlog(server: Server, client: redis.Redis) -> None:
    small, large = (peak_memory(server, client, entries) for entries in (1500, 30_000))
    assert large < 1.2 * small


def peak_memory(server: Server, client: redis.Redis, entries: int) -> int:
    """Of one `--once` that drains so many entries, in the kernel's account of the process."""
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
