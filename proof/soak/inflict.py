"""Carries out the faults of a schedule, each in its own thread, and checks that each had its effect."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import redis

from proof.soak.faults import Fault, FaultType
from proof.soak.replicas import CLOCK_EVERY, OBEY_LIMIT, Replica
from proof.soak.stage import ShardStage, Stage
from tests.support.harness import command, eventually

#: How far a clock must be off to count as skewed, hours.
SKEWED = 1.0
#: At this limit a server has no room for anything.
NO_ROOM = "1mb"
#: How long a fault may take beyond its own time, seconds.
JOIN_LIMIT = 300.0


@dataclass(frozen=True)
class Inflicted:
    """A fault that was carried out: when, in seconds since the load's start, and what it did."""

    fault: Fault
    began: float
    ended: float
    #: The effect of the fault, in words; empty if there was none.
    effect: str
    #: Why it could not be carried out, or had no effect.
    trouble: str = ""


class NoEffect(Exception):
    """A fault was carried out and nothing came of it."""


class Inflictor:
    """Begins each fault at its time, while the `with` block lasts; `inflicted` is complete after it."""

    def __init__(self, stage: Stage, faults: Sequence[Fault], began: float) -> None:
        self._stage = stage
        self._faults = faults
        self._began = began
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._schedule = threading.Thread(target=self._run, name="faults", daemon=True)
        #: Where the machine is busy a fault takes longer than planned; the next one on its target waits for its end.
        self._targets = {fault.target: threading.Lock() for fault in faults}
        self.inflicted: list[Inflicted] = []
        self._acts: dict[FaultType, Callable[[Fault], contextlib.AbstractContextManager[str]]] = {
            FaultType.KILL: self._kill,
            FaultType.PAUSE: self._pause,
            FaultType.SKEW: self._skew,
            FaultType.REDIS_KILL: self._kill_redis,
            FaultType.CUT: self._cut,
            FaultType.FLUSH: self._flush,
            FaultType.FULL: self._fill,
            FaultType.RELOAD: self._reload,
            FaultType.REPLACE: self._replace,
            FaultType.REST: self._rest,
        }

    def __enter__(self) -> "Inflictor":
        self._schedule.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._schedule.join()
        for thread in self._threads:
            thread.join(JOIN_LIMIT)

    def _run(self) -> None:
        for fault in self._faults:
            if self._stop.wait(max(0.0, self._began + fault.at - time.monotonic())):
                return
            thread = threading.Thread(target=self._inflict, args=(fault,), name=f"fault-{fault.type}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _inflict(self, fault: Fault) -> None:
        """The fault begins when its block is entered and ends when the block is left."""
        with self._targets[fault.target]:
            self.inflicted.append(self._carried_out(fault))

    def _carried_out(self, fault: Fault) -> Inflicted:
        began = time.monotonic() - self._began
        done = Inflicted(fault, began, began, "")
        try:
            with self._acts[fault.type](fault) as effect:
                done = replace(done, effect=effect)
                time.sleep(fault.lasts)
        except Exception as error:  # a fault that failed is a line of the report, and no reason to stop the soak
            done = replace(done, effect="", trouble=f"{type(error).__name__}: {error}")
        return replace(done, ended=time.monotonic() - self._began)

    def _replica(self, fault: Fault) -> Replica:
        return self._stage.replicas[fault.target]

    def _shard(self, fault: Fault) -> ShardStage:
        return self._stage.shards[fault.target]

    # ---- replicas

    @contextlib.contextmanager
    def _kill(self, fault: Fault) -> Iterator[str]:
        replica = self._replica(fault)
        code = replica.kill()
        try:
            yield f"ended with {code}"
        finally:
            replica.start()

    @contextlib.contextmanager
    def _pause(self, fault: Fault) -> Iterator[str]:
        replica = self._replica(fault)
        replica.pause()
        try:
            yield "stood still"
        finally:
            replica.resume()

    @contextlib.contextmanager
    def _skew(self, fault: Fault) -> Iterator[str]:
        """The log shows the clock: a reload writes a line, the first ones perhaps before the process has noticed."""
        replica = self._replica(fault)
        before, reload_at = replica.log_size, 0.0

        def seen() -> float:
            nonlocal reload_at
            if time.monotonic() >= reload_at:
                replica.reload()
                reload_at = time.monotonic() + CLOCK_EVERY
            return _skew(replica.reloads(before))

        replica.set_clock(fault.skew)
        try:
            hours = eventually(seen, OBEY_LIMIT)
            yield f"its log was {hours:+.0f} h off"
        finally:
            replica.set_clock("+0")

    # ---- shards

    @contextlib.contextmanager
    def _kill_redis(self, fault: Fault) -> Iterator[str]:
        """The same data must be there afterwards, under another run id."""
        shard = self._shard(fault)
        before, events = _run_id(shard.client), _events(shard)
        shard.server.kill()
        try:
            yield "killed"
        finally:
            shard.server.start(OBEY_LIMIT)
            if _run_id(shard.client) == before or _events(shard) < events:
                raise NoEffect("it is the same server, or events are gone")

    @contextlib.contextmanager
    def _cut(self, fault: Fault) -> Iterator[str]:
        cut = self._shard(fault).client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        if not cut:
            raise NoEffect("no connection was there")
        yield f"{cut} connections"

    @contextlib.contextmanager
    def _flush(self, fault: Fault) -> Iterator[str]:
        client = self._shard(fault).client
        before = _cached_scripts(client)
        client.script_flush()
        if not before:
            raise NoEffect("no script was there")
        yield f"{before} scripts"
        eventually(lambda: _cached_scripts(client) > 0, OBEY_LIMIT)

    @contextlib.contextmanager
    def _fill(self, fault: Fault) -> Iterator[str]:
        client = self._shard(fault).client
        # Half the time below sweep.memory_limit, so that expiries go on; else far above it, so that they wait.
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", NO_ROOM if fault.choice < 0.5 else used * 20 // 21)
        try:
            client.set("chaos:probe", "x")
        except redis.exceptions.OutOfMemoryError:
            yield f"a write was refused, {'above' if fault.choice < 0.5 else 'below'} the memory limit"
        else:
            raise NoEffect("there was still room")
        finally:
            client.config_set("maxmemory", 0)

    # ---- settings and endpoints

    @contextlib.contextmanager
    def _reload(self, fault: Fault) -> Iterator[str]:
        before = self._reloads()
        self._stage.write_settings(batch_size=100 + int(900 * fault.choice))
        self._stage.reload()
        eventually(lambda: any(count > before.get(life, count) for life, count in self._reloads().items()), OBEY_LIMIT)
        yield "new settings were taken"

    @contextlib.contextmanager
    def _replace(self, fault: Fault) -> Iterator[str]:
        receiver = self._stage.replace_receiver(fault.target)
        self._stage.reload()
        eventually(lambda: receiver.requests > 0, OBEY_LIMIT)
        yield "the new receiver got a request"

    @contextlib.contextmanager
    def _rest(self, fault: Fault) -> Iterator[str]:
        self._operate("pause", fault.target)
        try:
            eventually(lambda: self._is_paused(fault.target), OBEY_LIMIT)
            yield "a replica reported it as paused"
        finally:
            self._operate("resume", fault.target)

    def _operate(self, *arguments: str) -> None:
        """An operator repeats the command until every shard has obeyed."""
        line = command("endpoints", *arguments, "--yes")

        def done() -> bool:
            return subprocess.run(line, env=self._stage.env, capture_output=True, check=False).returncode == 0

        eventually(done, OBEY_LIMIT)

    def _is_paused(self, endpoint: str) -> bool:
        return any(self._metrics("sweeperd_endpoint_state", endpoint=endpoint, state="paused").values())

    def _reloads(self) -> dict[tuple[str, int], float]:
        return self._metrics("sweeperd_reloads_total", result="ok")

    def _metrics(self, name: str, **labels: str) -> dict[tuple[str, int], float]:
        """A replica that answers, and which of its lives it is in -> one sample."""
        values = {}
        for replica in self._stage.replicas.values():
            if replica.answers:
                with contextlib.suppress(OSError, AssertionError):
                    values[replica.name, replica.lives] = replica.metric(name, **labels)
        return values


def _skew(reloads: Sequence[datetime]) -> float:
    """How many hours a log is off, by the last of its lines that is; 0 if none is."""
    now = time.time()
    hours = [(at.timestamp() - now) / 3600 for at in reloads]
    return next((off for off in reversed(hours) if abs(off) >= SKEWED), 0.0)


def _run_id(client: redis.Redis) -> str:
    return str(client.info("server")["run_id"])


def _events(shard: ShardStage) -> int:
    return int(shard.client.xlen(shard.keys.events))


def _cached_scripts(client: redis.Redis) -> int:
    return int(client.info("memory")["number_of_cached_scripts"])
