"""
Measures delayed queues that a user would pick instead of sweeperd, on the same Redis: asynq (Go) and BullMQ (Node.js).

All three give the same holds back at the same deadlines. The queues run a small script of their user's for each task
(`benchmarks/peers/release.lua`), sweeperd runs `expire.lua`, which checks more. Each script writes an event with the
deadline and the time of the decision on Redis's clock: rates and lateness are read from these events. With webhooks, a
task of a queue sends the signed request itself if its script gave the hold back; sweeperd delivers the event. All
settings are the defaults, but each runs 16 tasks or requests at a time.

All webhooks go to the receiver in Go, which answers at once.
"""

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from statistics import quantiles
from typing import Any, Protocol, Self

import redis

from benchmarks.fill import fill
from benchmarks.lab import WARM_FIRST, Lab
from benchmarks.process import cpu_seconds, peak_mib
from benchmarks.row import Goal, NotMeasurable, Row, Sample
from sweeperd.store import streams
from sweeperd.store.embedded import Server
from sweeperd.store.keys import Keys
from tests.support.harness import daemon, environment, eventually

PEERS = Path(__file__).parent.parent / "peers"
#: How many tasks or requests each system has at work at a time: the default of `webhooks.concurrency`.
CONCURRENCY = 16
#: Text of the key of the signatures, as an endpoint names it. The programs of the queues have the same key.
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
#: Between the making of tasks and the first deadline, seconds: one for this many tasks, and for the start of a worker.
TASKS_A_SECOND, START = 1000, 8.0
HOUR_MS = 3_600_000
#: The longest that one step may take, seconds.
LIMIT = 240.0
#: The same for what a worker leaves that was killed: asynq takes up such tasks once a minute.
TAKEN_UP = 200.0


class Worker(Protocol):
    """A process that expires and delivers."""

    process: Any

    def kill(self) -> None:
        """End it at once."""


@dataclass(frozen=True)
class System:
    """
    One way to do something at a deadline. `stream`: the events of the decisions. `fill`: server, count, the first
    deadline (ms), and over how many ms they spread. `work`: a worker on this server, which sends webhooks to the URL if
    there is one. `left`: how many tasks are not done with. `index`: the key that grows with what waits, if the rest of
    the memory belongs to the user.
    """

    name: str
    stream: bytes
    fill: Callable[[Server, int, int, int], None]
    work: Callable[[Server, str], contextlib.AbstractContextManager[Worker]]
    left: Callable[["redis.Redis"], int]
    index: bytes = b""


class Program:
    """A process of the queues' side that says `ready`. Raises RuntimeError if it ends before."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        #: What follows `ready`.
        self.told = self.process.stdout.readline().removeprefix("ready").strip()
        if self.process.poll() is not None:
            raise RuntimeError(f"{command} ended with {self.process.returncode}")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class GoReceiver(Program):
    """The receiver, in a process of its own."""

    @property
    def url(self) -> str:
        return f"{self.told}/hook"

    def tally(self) -> dict[str, Any]:
        """What came so far, as `tally` in receiver.go."""
        with urllib.request.urlopen(f"{self.told}/tally", timeout=10) as answer:
            tally: dict[str, Any] = json.load(answer)
        return tally

    def tell(self, order: str) -> None:
        """`begin`: count anew; `hold`: answer nobody until `release`."""
        request = urllib.request.Request(f"{self.told}/{order}", method="POST")
        urllib.request.urlopen(request, timeout=10).close()


@dataclass(frozen=True)
class Ran:
    """One run of one system."""

    #: By the clock of Redis, from the first decision to the last.
    decisions_per_second: float
    #: From deadline to decision, ms; negative: early.
    lateness: list[int]
    #: CPU time of Redis and of the worker from its start to the last event, seconds.
    redis_cpu: float
    worker_cpu: float
    peak_mib: float
    #: How many bytes the waiting tasks take in Redis.
    bytes_each: float
    #: What the receiver tells, if there is one.
    tally: dict[str, Any]


def run(lab: Lab, system: System, count: int, spread_ms: int = 0, receiver: GoReceiver | None = None) -> Ran:
    """
    Let a worker do this many tasks with deadlines over this many ms, on a fresh server. Raises RuntimeError if the
    machine is too slow to make the tasks and to start a worker before the first deadline.
    """
    for patience in (1, 2, 4):
        ahead = patience * (START + count / TASKS_A_SECOND)
        if ran := _run_once(lab, system, count, spread_ms, receiver, ahead):
            return ran
    raise RuntimeError(f"{system.name}: {ahead:.0f} s before the first deadline are too few here")


def _run_once(
    lab: Lab, system: System, count: int, spread_ms: int, receiver: GoReceiver | None, ahead: float
) -> Ran | None:
    """The first deadline is `ahead` seconds from now. None: too near."""
    with lab.server() as server, redis.Redis.from_url(server.url, protocol=2) as client:
        before, used = streams.last_id(client, system.stream), client.info("memory")["used_memory"]
        at = int(1000 * (time.time() + ahead))
        system.fill(server, count, at, spread_ms)
        if system.index:
            bytes_each = client.memory_usage(system.index, samples=0) / count
        else:
            bytes_each = (client.info("memory")["used_memory"] - used) / count
        if receiver:
            receiver.tell("begin")
        with system.work(server, receiver.url if receiver else "") as worker:
            redis_before, worker_before = cpu_seconds(server.pid), cpu_seconds(worker.process.pid)
            if time.time() * 1000 > at:
                return None
            tally: dict[str, Any] = eventually(lambda: _done(client, system, before, count, receiver), LIMIT)
            redis_cpu, worker_cpu = cpu_seconds(server.pid), cpu_seconds(worker.process.pid)
            peak = peak_mib(worker.process.pid)
        rows: Any = client.xrange(system.stream, streams.after(before))
        moments = [streams.milliseconds(entry) for entry, _ in rows]
        lateness = sorted(int(fields[b"expired_at"]) - int(fields[b"expires_at"]) for _, fields in rows)
    rate = count / max(0.001, (max(moments) - min(moments)) / 1000)
    return Ran(rate, lateness, redis_cpu - redis_before, worker_cpu - worker_before, peak, bytes_each, tally)


def _done(
    client: "redis.Redis", system: System, before: bytes, count: int, receiver: GoReceiver | None
) -> dict[str, Any] | None:
    """The tally when all is done; None before."""
    time.sleep(0.1)  # it is asked while it is measured
    if receiver:
        tally = receiver.tally()
        return tally if tally["events"] >= count else None
    decided = client.xlen(system.stream)
    return {"events": decided} if decided >= count and _decided(client, system, before) >= count else None


def _decided(client: "redis.Redis", system: System, before: bytes) -> int:
    rows: Any = client.xrange(system.stream, streams.after(before))
    return len(rows)


def lost(lab: Lab, system: System, count: int, program: str) -> tuple[int, int]:
    """
    Kill a worker while its requests wait for an answer, and let another worker go on. Returns how many events were
    decided and accepted by nobody when that one has nothing left to do, and how many requests were held.
    """
    with (
        lab.server() as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
        GoReceiver(program, "receive") as receiver,
    ):
        before = streams.last_id(client, system.stream)
        system.fill(server, count, int(1000 * (time.time() + START)), 0)
        receiver.tell("hold")
        with system.work(server, receiver.url) as worker:
            eventually(lambda: receiver.tally()["held"] >= CONCURRENCY // 2, LIMIT)
            held = int(receiver.tally()["held"])
            worker.kill()
        # Or it might answer requests of the dead, and count what nobody was told as accepted.
        eventually(lambda: not receiver.tally()["held"], LIMIT)
        receiver.tell("release")
        with system.work(server, receiver.url):
            deadline = time.monotonic() + TAKEN_UP
            while receiver.tally()["events"] < count and time.monotonic() < deadline:
                if _decided(client, system, before) >= count and not system.left(client):
                    break
                time.sleep(0.5)
        return _decided(client, system, before) - receiver.tally()["events"], held


def sweeperd(
    lab: Lab, name: str = "sweeperd", *, precision: str = "50ms", in_grace: int = 0, **endpoint: object
) -> System:
    """
    The daemon as it is installed; `endpoint`: settings of the endpoint, if there is one. `in_grace`: this many other
    entries are in grace all the time.
    """
    keys = Keys()

    def make(server: Server, count: int, at: int, spread_ms: int) -> None:
        if in_grace:
            fill(server.url, in_grace, grace_ms=HOUR_MS, first=10 * WARM_FIRST)
        fill(server.url, count, due_ms=int(time.time() * 1000) - at - spread_ms, spread_ms=spread_ms)

    def work(server: Server, url: str) -> contextlib.AbstractContextManager[Worker]:
        endpoints = [{"name": "hook", "url": url, "secrets": [SECRET], **endpoint}] if url else []
        settings = {"webhooks__concurrency": CONCURRENCY, "sweep__precision": precision}
        return daemon(environment(server.url, endpoints=endpoints, **settings), lab.directory)

    def left(client: "redis.Redis") -> int:
        groups: Any = client.xinfo_groups(keys.events)
        return int(sum(group["pending"] for group in groups) + client.zcard(keys.reservation_index))

    return System(name, keys.events, make, work, left, keys.reservation_index)


def asynq(program: str, name: str = "asynq", interval: str = "0s") -> System:
    """`interval`: between two looks at what is due; `0s`: asynq's default, 5 s."""
    keys = [f"asynq:{{default}}:{part}" for part in ("scheduled", "pending", "active", "retry")]
    script = str(PEERS / "release.lua")

    def make(server: Server, *numbers: int) -> None:
        _run(program, "fill", server.url, *map(str, numbers))

    def work(server: Server, url: str) -> Program:
        return Program(program, "work", server.url, script, str(CONCURRENCY), interval, *filter(None, [url]))

    return System(name, b"bench:events", make, work, lambda client: _entries(client, keys))


def bullmq(node: str) -> System:
    """BullMQ's worker on this Node.js."""
    keys = [f"bull:expire:{part}" for part in ("delayed", "wait", "active", "prioritized")]
    main, script = str(PEERS / "bullmq" / "main.js"), str(PEERS / "release.lua")

    def make(server: Server, *numbers: int) -> None:
        _run(node, main, "fill", server.url, *map(str, numbers))

    def work(server: Server, url: str) -> Program:
        return Program(node, main, "work", server.url, script, str(CONCURRENCY), *filter(None, [url]))

    return System("bullmq", b"bench:events", make, work, lambda client: _entries(client, keys))


def _entries(client: "redis.Redis", keys: list[str]) -> int:
    """How many entries there are in these lists and sorted sets together."""
    return sum(client.zcard(key) if client.type(key) == b"zset" else client.llen(key) for key in keys)


def programs(lab: Lab) -> tuple[str, str]:
    """
    The built program of asynq and the receiver, and Node.js with BullMQ at hand. Raises NotMeasurable if one of them
    cannot be had.
    """
    go, node, npm = which("go"), which("node"), which("npm")
    if not (go and node and npm):
        missing = [name for name, path in (("go", go), ("node", node), ("npm", npm)) if not path]
        raise NotMeasurable(f"it needs Go, Node.js and npm on the PATH; there is no {', no '.join(missing)}")
    built = str(lab.directory / "asynq")
    try:
        _run(go, "build", "-trimpath", "-buildvcs=false", "-o", built, ".", directory=PEERS / "asynq")
        if not (PEERS / "bullmq" / "node_modules").exists():
            install = ("ci", "--ignore-scripts", "--no-audit", "--no-fund")
            _run(npm, *install, directory=PEERS / "bullmq")
    except subprocess.CalledProcessError as error:
        raise NotMeasurable(f"a queue cannot be had: {error.stderr[-300:]}") from error
    return built, node


def _run(*command: str, directory: Path | None = None) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=LIMIT)


def measure(lab: Lab) -> Sample:
    """All of it, one system after the other."""
    program, node = programs(lab)
    ours, queues = sweeperd(lab), [asynq(program), bullmq(node)]
    figures: dict[str, float] = {}
    _due(lab, [ours, *queues], figures)
    _lateness(lab, [ours, *queues, asynq(program, "asynq_1s", "1s")], figures)
    with GoReceiver(program, "receive") as receiver:
        _webhooks(lab, [ours, sweeperd(lab, "sweeperd_batches", batch_size=100), *queues], receiver, figures)
        # 5 a second, so nothing else is due when one is.
        seconds = lab.size("lone_seconds", 20, 4)
        lone = run(lab, ours, 5 * seconds, 1000 * seconds, receiver)
        figures["sweeperd_arrival_p50_ms"], figures["sweeperd_arrival_p99_ms"] = lone.tally["p50"], lone.tally["p99"]
    killed = lab.size("killed_events", 100, 40)
    with ThreadPoolExecutor(3) as pool:  # nothing is timed
        ends = list(pool.map(lambda system: lost(lab, system, killed, program), [ours, *queues]))
    for system, (missing, held) in zip([ours, *queues], ends, strict=True):
        figures |= {f"{system.name}_lost": float(missing), f"{system.name}_requests_held": float(held)}
    return Sample(_ratios(figures), figures)


def _ratios(figures: dict[str, float]) -> dict[str, float]:
    best = max(figures["asynq_due_per_second"], figures["bullmq_due_per_second"])
    return {
        "due": figures["sweeperd_due_per_second"] / best,
        "to_asynq": figures["sweeperd_webhooks_per_second"] / figures["asynq_webhooks_per_second"],
        "to_bullmq": figures["sweeperd_webhooks_per_second"] / figures["bullmq_webhooks_per_second"],
    }


def _due(lab: Lab, systems: list[System], figures: dict[str, float]) -> None:
    """All are due at the same moment, and there are no webhooks."""
    count = lab.size("due", 10_000, 2_000)
    for system in systems:
        ran = run(lab, system, count)
        figures[f"{system.name}_due_per_second"] = ran.decisions_per_second
        figures[f"{system.name}_redis_us_each"] = ran.redis_cpu / count * 1e6
        figures[f"{system.name}_worker_us_each"] = ran.worker_cpu / count * 1e6
        figures[f"{system.name}_bytes_each"] = ran.bytes_each


def _lateness(lab: Lab, systems: list[System], figures: dict[str, float]) -> None:
    """100 a second, and there are no webhooks."""
    seconds = lab.size("lateness_seconds", 20, 4)
    for system in systems:
        ran = run(lab, system, 100 * seconds, 1000 * seconds)
        hundredths = quantiles(ran.lateness, n=100)
        figures[f"{system.name}_late_p50_ms"], figures[f"{system.name}_late_p99_ms"] = hundredths[49], hundredths[98]
        figures[f"{system.name}_earliest_ms"] = ran.lateness[0]
        figures[f"{system.name}_late_redis_us_each"] = ran.redis_cpu / len(ran.lateness) * 1e6
        figures[f"{system.name}_late_worker_us_each"] = ran.worker_cpu / len(ran.lateness) * 1e6


def _webhooks(lab: Lab, systems: list[System], receiver: GoReceiver, figures: dict[str, float]) -> None:
    """All are due at the same moment, with a webhook for each."""
    count = lab.size("webhooks", 5_000, 1_000)
    for system in systems:
        ran = run(lab, system, count, receiver=receiver)
        figures[f"{system.name}_webhooks_per_second"] = count / (ran.tally["last"] - ran.tally["first"])
        figures[f"{system.name}_webhook_us_each"] = ran.worker_cpu / count * 1e6
        figures[f"{system.name}_peak_mib"] = ran.peak_mib


ROW = Row(
    "queues",
    "delayed queues",
    "",
    {
        "due": Goal("at_least", 1, "10,000 due at once, decided a second", "the faster of asynq and BullMQ"),
        "to_asynq": Goal("at_least", 0.5, "single webhooks a second", "asynq with a request for each task"),
        "to_bullmq": Goal("at_least", 0.75, "single webhooks a second", "BullMQ with a request for each job"),
        "sweeperd_webhook_us_each": Goal("at_most", 420, "CPU of sweeperd for an expiry and its webhook, µs"),
        "sweeperd_arrival_p99_ms": Goal("at_most", 50, "p99 from expiry to arrival, 5 a second, ms"),
        "sweeperd_late_p50_ms": Goal("at_most", 30, "p50 from deadline to expiry, 100 a second, ms"),
        "sweeperd_late_p99_ms": Goal("at_most", 60, "p99 from deadline to expiry, 100 a second, ms"),
        "sweeperd_earliest_ms": Goal("at_least", 0, "the earliest from deadline to expiry, ms"),
        "sweeperd_lost": Goal("at_most", 0, "events lost by kill -9 between decision and answer"),
    },
    measure,
    on_request=True,
)
