"""One soak from start to end: the processes, the load, the wait for rest, the verdicts, the files."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import redis

from proof.soak import census, verdicts
from proof.soak.order import faults
from proof.soak.receiver import CountingReceiver
from proof.soak.samples import Sample, Windows, latency_steps, read_metrics
from proof.soak.verdicts import Verdict
from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger
from sweeperd.store import Keys, Shard
from tests.support.harness import Daemon, daemon, environment, eventually, server_time
from tests.support.servers import Binary, Server
from tests.support.traffic.history import outcome
from tests.support.traffic.load import Load
from tests.support.traffic.plan import BUDGETS, LEAN, TENANTS, UNIT

#: Load threads, each with calls of its own in flight.
THREADS = 4
INTERVAL = "500ms"
ENDPOINT = "soak"
#: Seconds from sample to sample, and from one reading of the index to the next.
SAMPLE_EVERY, LOOK_EVERY = 1.0, 5.0
#: How long each thing may take to come to rest after the load, seconds.
REST_LIMIT = 60.0
#: Operations up to which the history of every tenant is judged; a longer run is judged by the tenants in JUDGED.
ALL_JUDGED = 60_000
JUDGED = (TENANTS[0], LEAN)
#: How many steps a plot shows at most; a step is one second at least.
STEPS = 180

#: Gets each sample and how many seconds the load lasts.
Watch = Callable[[Sample, float], None]


@dataclass(frozen=True)
class Soak:
    """What a soak came to."""

    verdicts: tuple[Verdict, ...]
    #: Things worth knowing that no verdict is about, by name.
    facts: dict[str, str]
    plot: Path
    record: Path

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


@dataclass(frozen=True)
class _Scene:
    """All that runs while the load lasts."""

    client: redis.Redis
    keys: Keys
    running: Daemon
    receiver: CountingReceiver
    load: Load

    def sample(self) -> Sample:
        """Raises OSError if the daemon does not answer, redis.RedisError if Redis does not."""
        operations, calls = self.load.progress
        metrics = read_metrics(self.running)
        return Sample(
            time.monotonic() - self.load.began,
            operations,
            calls,
            metrics.expired,
            self.receiver.requests,
            metrics.due_entries,
            metrics.oldest_due_seconds,
            metrics.resident_bytes,
            self.client.info("memory")["used_memory"],
        )


def soak(
    binary: Binary, minutes: float, rate: float, out: Path, watch: Watch = lambda *_: None, *, noise: float = 0.0
) -> Soak:
    """
    Run the load for so many minutes at `rate` operations a second, on a Redis of this binary, and judge what is there
    after it. An average latency below `noise` seconds is not held against it. Writes soak.png, soak.json and the
    daemon's log into `out`, a directory that exists.

    Raises RuntimeError or AssertionError if a process does not start, OSError or redis.RedisError if one ends
    before its time.
    """
    duration = 60 * minutes
    samples: list[Sample] = []
    looks: list[census.IndexLook] = []
    with Server(binary) as server, CountingReceiver() as receiver:
        shard = Shard(RedisSettings.model_validate({"url": server.url}))
        ledger = Ledger(shard)
        for scope, allocated in BUDGETS.items():
            ledger.open_budget(scope, UNIT, allocated)
        env = environment(server.url, sweep__interval=INTERVAL, endpoints=[{"name": ENDPOINT, "url": receiver.url}])
        with redis.Redis.from_url(server.url, protocol=2) as client, daemon(env, out) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            judged = JUDGED if 60 * minutes * rate > ALL_JUDGED else (*TENANTS, LEAN)
            load = Load(ledger, rate, THREADS, judged=judged)
            scene = _Scene(client, shard.keys, running, receiver, load)
            with load:
                _observe(scene, duration, samples, looks, watch)
            stopped = time.monotonic() - load.began
            tally, calls = load.tally, load.calls
            unmet = _rest(scene, tally.last_end, lambda: samples.append(scene.sample()))
            at_end = census.take(client, shard.keys, ledger)
            expired = read_metrics(running).expired
            history = load.history + outcome(client, shard.keys, at_end.budgets, judged)
        shard.close()
        requests, distinct = receiver.requests, receiver.distinct

    windows = Windows(duration)
    found = (
        verdicts.memory([(sample.at, sample.daemon_bytes) for sample in samples], windows),
        verdicts.latency(calls, windows, noise),
        verdicts.keys(tally.accepted, sum(at_end.reservations.values()), at_end.idempotency_keys),
        verdicts.index(looks, at_end.index),
        verdicts.events(
            {
                "stream": at_end.events,
                "EXPIRED hashes": at_end.reservations.get("EXPIRED", 0),
                "daemon's counter": expired,
                "receiver": distinct,
                "left by the load": tally.abandoned,
            }
        ),
        verdicts.books(at_end.budgets, tally.spent),
        verdicts.answers(tally),
        verdicts.order(len(history), faults(history, {scope.encode(): amount for scope, amount in BUDGETS.items()})),
        verdicts.settled(unmet),
    )
    facts = {
        "ran on": str(binary),
        "load": f"{tally.started} operations started in {stopped:.0f} s, {tally.started / stopped:.1f} a second",
        "ended as": f"{tally.committed} committed, {tally.released} released, {tally.abandoned} abandoned or too late; "
        f"{tally.refused} refused for want of budget",
        "calls": f"{len(calls)}; {tally.extended} extended, {tally.late} came too late, {tally.repeated} sent twice",
        "webhooks": f"{requests} requests for {distinct} events",
        "Redis": f"{samples[-1].redis_bytes / verdicts.MIB:.0f} MiB at the end",
    }
    step = max(1.0, math.ceil(duration / STEPS))
    latencies = latency_steps(calls, step)
    record = out / "soak.json"
    record.write_text(
        json.dumps(
            {
                "minutes": minutes,
                "rate": rate,
                "facts": facts,
                "verdicts": [asdict(verdict) for verdict in found],
                "samples": [asdict(sample) for sample in samples],
                "latency": [asdict(one) for one in latencies],
                "looks": [asdict(look) for look in looks],
            },
            indent=1,
        )
    )
    plot = out / "soak.png"
    title = f"Soak: {minutes:g} min at {rate:g} operations a second, {binary}"
    from proof.soak.plot import draw  # noqa: PLC0415 - matplotlib is slow to import, for tests too

    draw(samples, latencies, step, stopped, title, plot)
    return Soak(found, facts, plot, record)


def _observe(
    scene: _Scene, duration: float, samples: list[Sample], looks: list[census.IndexLook], watch: Watch
) -> None:
    """Sample until the load has lasted for `duration` seconds."""
    next_sample, next_look = SAMPLE_EVERY, LOOK_EVERY
    while min(next_sample, next_look) < duration:
        sleep_until(scene.load.began + min(next_sample, next_look))
        if next_look <= next_sample:
            looks.append(census.look(scene.client, scene.keys, scene.load.recent()))
            next_look += LOOK_EVERY
        else:
            samples.append(scene.sample())
            watch(samples[-1], duration)
            next_sample += SAMPLE_EVERY
    sleep_until(scene.load.began + duration)


def _rest(scene: _Scene, last_end: int, sample: Callable[[], None]) -> Sequence[str]:
    """
    Wait until all reservations have ended and all events are delivered. `last_end` is the end of the last grace, ms on
    Redis's clock. Returns what did not come to rest within REST_LIMIT each.
    """
    client, keys, receiver = scene.client, scene.keys, scene.receiver
    conditions: dict[str, Callable[[], bool]] = {
        "a deadline has not passed": lambda: server_time(client) > last_end,
        "the index is not empty": lambda: client.zcard(keys.reservation_index) == 0,
        "the daemon has not counted all expiries": lambda: (
            read_metrics(scene.running).expired >= client.xlen(keys.events)
        ),
        "the receiver has not got all events": lambda: receiver.distinct >= client.xlen(keys.events),
        "an event is not acknowledged": lambda: client.xpending(keys.events, ENDPOINT)["pending"] == 0,
    }
    unmet = []
    next_sample = time.monotonic()
    for trouble, is_over in conditions.items():
        limit = time.monotonic() + REST_LIMIT
        while not is_over():
            if time.monotonic() > limit:
                unmet.append(f"{trouble} within {REST_LIMIT:.0f} s")
                break
            if time.monotonic() >= next_sample:
                sample()
                next_sample += SAMPLE_EVERY
            time.sleep(0.1)
    sample()
    return unmet


def sleep_until(moment: float) -> None:
    """`moment` is on the monotonic clock; returns at once if it has passed."""
    time.sleep(max(0.0, moment - time.monotonic()))
