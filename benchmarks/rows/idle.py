"""Measures what idle daemons cost: one, and three replicas."""

import contextlib
import time
from typing import Any

import redis

from benchmarks.lab import Lab
from benchmarks.process import cpu_seconds
from benchmarks.row import Goal, Row, Sample
from tests.support.harness import Daemon, daemon, environment

#: How long they settle after their start, seconds: after five each has heard which of them swept last.
SETTLE = 8.0


def measure(lab: Lab) -> Sample:
    """Daemons with the default settings and no endpoint on one shard, watched for a while."""
    seconds = lab.size("seconds", 30, 10)
    one_cpu, one = _watch(lab, 1, seconds)
    three_cpu, three = _watch(lab, 3, seconds)
    total = sum(one.values())
    return Sample(
        {"cpu_percent": one_cpu, "commands": total, "three": sum(three.values())},
        {"three_cpu_percent": three_cpu, **{f"{name}_per_second": rate for name, rate in sorted(one.items())}},
    )


def _watch(lab: Lab, count: int, seconds: float) -> tuple[float, dict[str, float]]:
    """% of a core of all of them together, and the commands a second by name, those of scripts among them."""
    with lab.server() as server, contextlib.ExitStack() as stack, redis.Redis.from_url(server.url) as client:
        running = [stack.enter_context(daemon(environment(server.url), lab.directory)) for _ in range(count)]
        time.sleep(SETTLE)
        before, used, began = _calls(client), _cpu(running), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        more = {name: (calls - before.get(name, 0)) / elapsed for name, calls in _calls(client).items()}
        percent = 100 * (_cpu(running) - used) / elapsed
    return percent, {name: rate for name, rate in more.items() if rate}


def _calls(client: redis.Redis) -> dict[str, int]:
    stats: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items() if name != "cmdstat_info"}


def _cpu(running: list[Daemon]) -> float:
    return sum(cpu_seconds(each.process.pid) for each in running)


ROW = Row(
    "idle",
    "an idle daemon, one shard, no endpoint",
    "",
    {
        "cpu_percent": Goal("at_most", 1, "% of a core"),
        "commands": Goal("at_most", 30, "Redis commands a second"),
        "three": Goal("at_most", 40, "Redis commands a second, three replicas"),
    },
    measure,
)
