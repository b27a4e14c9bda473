"""Kills daemons with `kill -9` while they drain reservations and four configured kinds: every balance stays exact."""

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.books import Property, check, read
from tests.support.harness import BATCHES_IN_HAND, Daemon, budget, environment, eventually, reserve
from tests.support.kind_load import KindLoad, settings_of_all
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Binary, Server
from tests.support.streams import entries
from tests.topology.load import Load, delivered
from tests.topology.servers import cluster

#: How often daemons are killed, and how many holds of each kind fall due at once before. For a longer run: 100, 1000.
KILLS = int(os.environ.get("SWEEPERD_TEST_KIND_KILLS", "3"))
BURST = int(os.environ.get("SWEEPERD_TEST_KIND_BURST", "200"))
REPLICAS = 2
STEMS = ("seats:", "locks:", "permits:", "sessions:", "users:", "sweeperd:ticks:", "sweeperd:lease:", "sweeperd:proofs")


class Webhooks:
    """A behaviour that accepts everything: how often each event came, by type."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def __call__(self, request: Request, _: int) -> Answer:
        body: Any = request.event
        for event in body:
            self.counts.setdefault(event["category"], Counter())[event["event_id"]] += 1
        return Answer()


class Replicas:
    """Daemons on one shard, killed and replaced."""

    def __init__(self, env: dict[str, str], directory: Path, client: redis.Redis, prefix: str) -> None:
        self._env, self._directory, self._prefix = env, directory, prefix
        self._client: Any = client
        self._names = iter(range(10**6))
        self.running: list[Daemon] = []

    def fill(self) -> None:
        def start(_: int) -> Daemon:
            return Daemon(self._env, self._directory / f"{next(self._names)}.log", limit=60)

        with ThreadPoolExecutor(REPLICAS) as starting:
            self.running.extend(starting.map(start, range(REPLICAS - len(self.running))))

    def kill_those_at_work(self) -> int:
        """Kill the daemons that hold the lease of a sweep; any one if none does. Returns how many."""
        leases = self._client.scan_iter(f"{self._prefix}sweeperd:lease:sweep*")
        holders = b" ".join(self._client.get(lease) or b"" for lease in leases)
        victims = [each for each in self.running if b"-%d-" % each.process.pid in holders] or self.running[:1]
        for victim in victims:
            victim.process.kill()
        for victim in victims:
            victim.process.wait()
            self.running.remove(victim)
        return len(victims)

    def terminate(self) -> None:
        """End all of them as a service manager does."""
        for each in self.running:
            each.process.terminate()
        assert [each.process.wait(30) for each in self.running] == [0] * len(self.running)
        self.running.clear()

    def metric(self, name: str, **labels: str) -> int:
        return round(sum(each.metric(name, **labels) for each in self.running))

    def close(self) -> None:
        for each in self.running:
            each.kill()


@contextlib.contextmanager
def one_redis(server: Server) -> Iterator[tuple[str, redis.Redis]]:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        yield server.url, client


@contextlib.contextmanager
def one_slot(binary: Binary, prefix: str) -> Iterator[tuple[str, redis.Redis]]:
    with cluster(binary) as running, running.client(running.owner(prefix)) as client:
        yield running.url, client


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_on_one_redis(server: Server, tmp_path: Path) -> None:
    with one_redis(server) as (url, client):
        killed_again_and_again(url, client, "", tmp_path)


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_in_a_cluster(topology_binary: Binary, tmp_path: Path) -> None:
    prefix = "{tenant-a}:"
    with one_slot(topology_binary, prefix) as (url, client):
        killed_again_and_again(url, client, prefix, tmp_path)


def killed_again_and_again(url: str, client: redis.Redis, prefix: str, directory: Path) -> None:
    """Bursts of holds of each kind fall due while others go on; daemons die in the middle of each burst."""
    chance, hooks = random.Random(KILLS), Webhooks()
    load, ledger = KindLoad(client, prefix), Load(url, prefix)
    with Receiver(hooks) as receiver, contextlib.ExitStack() as stack:
        endpoint = {"name": "hook", "url": receiver.url, "batch_size": 50}
        quick = {"sweep__interval": "100ms", "sweep__lease_ttl": "1s", "sweep__pipeline_depth": 4}
        env = environment(url, keys__prefix=prefix, endpoints=[endpoint], webhooks__redelivery_initial="100ms", **quick)
        env["SWEEPERD_CONFIG"] = str(settings_of_all(directory))
        daemons = Replicas(env, directory, client, prefix)
        stack.callback(daemons.close)
        daemons.fill()
        stack.callback(load.stop)
        load.start()
        stack.enter_context(ledger.running())

        killed = interrupted = 0
        for number in range(KILLS):
            target = burst(load, client, prefix, f"burst-{number}-") * chance.uniform(0.1, 0.6)
            before = client.xlen(f"{prefix}sweeperd:events")
            eventually(lambda goal=before + target: client.xlen(f"{prefix}sweeperd:events") >= goal, limit=60)
            killed += daemons.kill_those_at_work()
            interrupted += due(load, client, prefix) > 0
            daemons.fill()
        load.stop()
        ledger.stop()
        print(f"{killed} daemons killed in {KILLS} bursts, {interrupted} of them not swept to their end then")
        assert interrupted > 0
        drained(load, client, prefix)

        counted(load, client, prefix, daemons)
        eventually(lambda: delivered(client, prefix), limit=60)
        assert [each.get("/readyz")[0] for each in daemons.running] == [200] * REPLICAS
        daemons.terminate()
    events = [fields for _, fields in entries(client, f"{prefix}sweeperd:events")]
    load.check(events)
    check_reservations(client, prefix)
    check_webhooks(hooks, events, killed)


def burst(load: KindLoad, client: redis.Redis, prefix: str, name: str) -> int:
    """Holds of each kind and reservations with one deadline. Returns how many these are."""
    moment = time.time() + 0.5 + BURST / 500
    load.burst(BURST, moment)
    left_ms = int((moment - time.time()) * 1000)
    reserve(client, [f"{name}{number}" for number in range(BURST)], overdue_by=-left_ms, prefix=prefix)
    return (len(load.writers) + 1) * BURST


def due(load: KindLoad, client: redis.Redis, prefix: str) -> int:
    """How many entries of all kinds are due."""
    seconds, micros = client.time()
    now = seconds * 1000 + micros // 1000
    indexes = [f"{prefix}reservation:ttl", *(writer.key(writer.index) for writer in load.writers)]
    return sum(client.zcount(index, "-inf", now - 1) for index in indexes)


def drained(load: KindLoad, client: redis.Redis, prefix: str) -> None:
    """Wait until every index is empty."""
    indexes = [f"{prefix}reservation:ttl", *(writer.key(writer.index) for writer in load.writers)]
    eventually(lambda: sum(map(client.zcard, indexes)) == 0, limit=60)


def counted(load: KindLoad, client: redis.Redis, prefix: str, daemons: Replicas) -> None:
    """One more burst for daemons that have just started, and do not die: their counters are what has ended."""

    def expired(kind: str) -> int:
        return daemons.metric("sweeperd_candidates_total", kind=kind, outcome="expired")

    daemons.terminate()
    daemons.fill()
    before = load.totals()
    burst(load, client, prefix, "counted-")
    drained(load, client, prefix)
    ended = {kind: total - before[kind] for kind, total in load.totals().items()} | {"reservations": BURST}
    assert min(ended.values()) > 0
    for kind, count in ended.items():
        eventually(lambda kind=kind, count=count: expired(kind) == count)
        assert daemons.metric("sweeperd_candidates_total", kind=kind, outcome="error") == 0
        assert daemons.metric("sweeperd_candidates_total", kind=kind, outcome="quarantined") == 0
        assert daemons.metric("sweeperd_missing_budgets_total", kind=kind) == 0


def check_reservations(client: redis.Redis, prefix: str) -> None:
    books = read(client, prefix)
    ours = tuple(fields for fields in books.events if fields.get(b"kind", b"reservations") == b"reservations")
    rest = {key for key in books.strangers if not key.decode().removeprefix(prefix).startswith(STEMS)}
    check(replace(books, events=ours, strangers=frozenset(rest)), set(Property))
    assert budget(client, prefix=prefix) == (0, 5 * BURST * (KILLS + 1))


def check_webhooks(hooks: Webhooks, events: list[dict[bytes, bytes]], killed: int) -> None:
    """Each event came under an id of its own; only what was in hand at a kill came twice."""
    ends = Counter(fields.get(b"kind", b"reservations").decode() for fields in events)
    told = {"reservations" if category == "reservation" else category: c for category, c in hooks.counts.items()}
    assert {kind: len(counts) for kind, counts in told.items()} == ends
    twice = sum(counts.total() for counts in told.values()) - len(events)
    print(f"{len(events)} events, {twice} of them came again")
    assert twice <= killed * BATCHES_IN_HAND
