"""Tests that a full Redis gets no fuller: expiries above `sweep.memory_limit` wait, except for a batch a minute."""

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from sweeperd.store.memory import MemoryUse, ServerMemory, memory_use
from sweeperd.sweep import kinds_of, memory_brake
from sweeperd.sweep.backlog import read_index_backlog
from tests.lua.kinds.world import SCRIPT, SEATS, scripted, settings_of
from tests.support.fixtures import a_shard
from tests.support.harness import eventually, reserve, server_time
from tests.support.kind_settings import hold_seats
from tests.support.servers import Binary, Server

KINDS = {"reservations": None, "declared": SEATS, "script": scripted(SCRIPT)}
BATCH = 5


@pytest.fixture(scope="module")
def full_server(redis_binary: Binary) -> Iterator[Server]:
    with Server(redis_binary, ["--maxmemory-policy", "noeviction"]) as server:
        yield server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the brake, in seconds, for tests to move."""
    now = [1000.0]
    monkeypatch.setattr(memory_brake, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


class Full:
    """Entries of one kind on a server that uses a chosen share of its maxmemory."""

    def __init__(self, shard: Shard, kind: dict[str, Any] | None) -> None:
        self.shard, self.metrics, self._kind = shard, Metrics(), kind
        self.name = "reservations" if kind is None else "seat-hold"
        self.client: Any = shard.client
        self.index = "reservation:ttl" if kind is None else "seats:ttl"
        self.client.config_set("maxmemory", 0)
        self.client.flushall()
        # Beside it, what connections use and Redis frees later is little.
        self.client.setrange("ballast", 20_000_000, "x")
        self.client.hset("seats:hamlet", mapping={"free": 0, "held": 10_000})

    def overdue(self, count: int, stem: str = "due", overdue_by: int = 60_000, **fields: Any) -> list[str]:
        ids = [f"{stem}-{number:03}" for number in range(count)]
        if self._kind is None:
            reserve(self.client, ids, overdue_by=overdue_by, **fields)
        else:
            for number, entry in enumerate(ids):
                hold_seats(self.client, entry, 1, server_time(self.client) - overdue_by + number)
        return ids

    def orphans(self, count: int) -> None:
        at = server_time(self.client) - 30_000
        self.client.zadd(self.index, {f"gone-{number}": at for number in range(count)})

    def ended(self, count: int) -> None:
        for entry in self.overdue(count, "ended"):
            key = f"reservation:res_{entry}" if self._kind is None else f"seats:hold:{entry}"
            self.client.hset(key, "state", "EXPIRED")

    def sweep(self, **sweep: Any) -> KindSweep:
        settings = Settings.model_validate({"sweep": {"batch_size": BATCH} | sweep})
        if self._kind is not None:
            settings = settings.model_copy(update={"kinds": settings_of(self._kind).kinds})
        context = ShardContext(settings, self.shard, self.metrics, threading.Event(), 1)
        return KindSweep(context, kinds_of(settings, self.shard)[self.name])

    def use(self, percent: int) -> None:
        """Set a maxmemory of which this share is used, and forget the last reading."""
        used = memory_use(self.client.info("memory")).used
        self.client.config_set("maxmemory", used * 100 // percent)
        self.shard.memory = ServerMemory()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"shard": "default"} | labels)

    def of_kind(self, name: str, **labels: str) -> float | None:
        return self.value(name, kind=self.name, **labels)

    @property
    def left(self) -> int:
        return int(self.client.zcard(self.index))


@pytest.fixture(params=KINDS)
def full(full_server: Server, request: pytest.FixtureRequest, clock: list[float]) -> Iterator[Full]:
    with a_shard(full_server) as shard:
        yield Full(shard, KINDS[request.param])


@pytest.fixture
def reservations(full_server: Server, clock: list[float]) -> Iterator[Full]:
    with a_shard(full_server) as shard:
        yield Full(shard, None)


def counts(report: Any) -> dict[str, int]:
    return {outcome.value: count for outcome, count in report.counts.items() if count}


def test_above_the_limit_one_batch_a_minute_expires(full: Full, clock: list[float]) -> None:
    full.overdue(20)
    full.orphans(3)
    full.ended(2)
    full.use(130)
    sweep = full.sweep()
    report = sweep.tick()
    assert counts(report) == {"expired": BATCH, "deferred": 15, "not_found": 3, "skipped": 2}
    assert (report.complete, report.failure, full.left) == (True, "", 15)
    assert full.client.xlen("sweeperd:events") == BATCH
    used, limit = full.client.info("memory")["used_memory"], full.client.info("memory")["maxmemory"]
    assert used > limit * 1.1

    before = full.client.zrange(full.index, 0, -1, withscores=True)
    clock[0] += memory_brake.BATCH_EVERY - 1
    assert counts(sweep.tick()) == {"deferred": 15}
    assert full.client.zrange(full.index, 0, -1, withscores=True) == before
    clock[0] += 1
    assert counts(sweep.tick()) == {"expired": BATCH, "deferred": 10}
    assert full.of_kind("sweeperd_candidates_total", outcome="deferred") == 40
    assert full.of_kind("sweeperd_candidates_total", outcome="expired") == 10
    sweep.measure()
    assert full.of_kind("sweeperd_deferred_entries") == 10


def test_what_needs_no_memory_leaves_the_batch_to_others(full: Full) -> None:
    """More entries than a batch has, all before those that expire, are gone, ended or not due."""
    full.ended(2 * BATCH)
    full.overdue(2 * BATCH, overdue_by=10_000)
    full.orphans(2 * BATCH)
    full.use(130)
    assert counts(full.sweep().tick()) == {"expired": BATCH, "deferred": BATCH, "not_found": 10, "skipped": 10}


def test_entries_in_grace_do_not_use_up_the_batch(reservations: Full) -> None:
    reservations.overdue(3 * BATCH, "grace", overdue_by=-3_600_000, grace=7_200_000)
    reservations.overdue(2 * BATCH, overdue_by=10_000)
    reservations.use(130)
    assert counts(reservations.sweep().tick()) == {"in_grace": 3 * BATCH, "expired": BATCH, "deferred": BATCH}


def test_full_and_woken_ticks_share_the_batch(full: Full, clock: list[float]) -> None:
    sweep = full.sweep()
    seen = sweep.tick().seen_ms
    full.overdue(8, overdue_by=-20)
    latest = full.client.zrange(full.index, -1, -1, withscores=True)[0][1]
    # A woken tick goes by this clock, which is behind if the reply of the tick before was late.
    eventually(lambda: min(server_time(full.client), full.shard.clock.now_ms()) > latest + 1)
    full.use(130)
    woken = sweep._sweeper.tick(seen_ms=seen)
    assert counts(woken) == {"expired": BATCH, "deferred": 3}
    assert woken.seen_ms > seen
    assert counts(sweep.tick()) == {"deferred": 3}, "the batch is used up"
    assert counts(sweep._sweeper.tick(seen_ms=woken.seen_ms)) == {}, "a woken tick leaves them to full ones"


@pytest.mark.parametrize(("limit", "percent"), [("", 300), ("110%", 105), ("200%", 180)])
def test_up_to_the_limit_all_expire(reservations: Full, limit: str, percent: int) -> None:
    reservations.overdue(4 * BATCH)
    reservations.use(percent)
    assert counts(reservations.sweep(memory_limit=limit).tick()) == {"expired": 4 * BATCH}


def test_without_a_maxmemory_all_expire(reservations: Full) -> None:
    reservations.overdue(4 * BATCH)
    sweep = reservations.sweep(memory_limit="1%")
    assert counts(sweep.tick()) == {"expired": 4 * BATCH}
    sweep.measure()
    assert reservations.value("sweeperd_redis_memory_limit_bytes") is None
    assert (reservations.value("sweeperd_redis_memory_used_bytes") or 0) > 0


def test_the_gauges_follow_the_server(reservations: Full) -> None:
    reservations.use(130)
    sweep = reservations.sweep()
    sweep.measure()
    assert reservations.value("sweeperd_redis_memory_limit_bytes") == reservations.client.info("memory")["maxmemory"]
    reservations.client.config_set("maxmemory", 0)
    reservations.shard.memory = ServerMemory()
    sweep.measure()
    assert reservations.value("sweeperd_redis_memory_limit_bytes") is None


def test_memory_that_comes_back_ends_it_and_the_log_says_both_once(
    full: Full, caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    caplog.set_level(logging.INFO)
    full.overdue(20)
    full.use(130)
    sweep = full.sweep()
    for _ in range(3):
        sweep.tick()
    full.client.config_set("maxmemory", 0)
    full.shard.memory = ServerMemory()
    assert counts(sweep.tick()) == {"expired": 15}
    sweep.tick()
    said = [record for record in caplog.records if "deferred" in record.message]
    assert [record.levelno for record in said] == [logging.WARNING, logging.INFO]
    assert (said[0].count, "110 %" in said[0].because) == (15, True)  # type: ignore[attr-defined]
    assert [record.message for record in caplog.records].count("swept") == 2, "the ticks that only defer say nothing"
    sweep.measure()
    assert full.of_kind("sweeperd_deferred_entries") == 0


def test_other_processes_see_what_is_deferred(full: Full) -> None:
    full.overdue(8)
    full.use(130)
    sweep = full.sweep()
    sweep.tick()
    assert read_index_backlog(full.shard, sweep.kind, server_time(full.client)).deferred == 3


def test_an_entry_that_is_deferred_proves_its_kind(full_server: Server, clock: list[float]) -> None:
    with a_shard(full_server) as shard:
        seats = Full(shard, SEATS)
        seats.overdue(2 * BATCH)
        seats.use(130)
        sweep = seats.sweep()
        sweep.tick()
        assert sweep.proven


# The reading


def calls(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"])


def test_the_server_is_asked_once_a_second_at_most(reservations: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    memory = ServerMemory()
    monkeypatch.setattr("sweeperd.store.memory.time", SimpleNamespace(monotonic=lambda: now[0]))
    reservations.client.config_resetstat()
    first = memory.read(reservations.client)
    assert first is not None
    for now[0] in (0.2, 0.9):
        assert memory.read(reservations.client) is first
    now[0] = 1.0
    assert memory.read(reservations.client) is not first
    assert calls(reservations.client) == 2 + 0, "INFO itself is counted after its reply"


def test_off_asks_nothing(reservations: Full) -> None:
    reservations.overdue(BATCH)
    reservations.use(200)
    reservations.client.config_resetstat()
    reservations.sweep(memory_limit="").tick()
    assert calls(reservations.client) == 0


def test_a_user_without_info_is_not_limited(full_server: Server, clock: list[float]) -> None:
    with a_shard(full_server) as shard:
        world = Full(shard, None)
        world.overdue(2 * BATCH)
        world.use(130)
        shard.client.acl_setuser("blind", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
        blind = redis.Redis.from_url(full_server.url, username="blind", password="x", protocol=2)
        try:
            assert world.shard.memory.read(blind) is None
            world.shard.client = blind
            assert counts(world.sweep().tick()) == {"expired": 2 * BATCH}
        finally:
            world.client.acl_deluser("blind")
            blind.close()


@pytest.mark.parametrize(
    ("info", "use", "percent"),
    [
        ({"used_memory": 120, "mem_not_counted_for_evict": 20, "maxmemory": 50}, MemoryUse(100, 50), 200),
        ({"used_memory": 120, "maxmemory": 0}, MemoryUse(120), None),
        ({"used_memory": 120}, MemoryUse(120), None),
    ],
)
def test_buffers_of_replicas_do_not_count(info: dict[str, int], use: MemoryUse, percent: int | None) -> None:
    assert (memory_use(info), memory_use(info).percent) == (use, percent)


@pytest.mark.parametrize(("used", "exceeds"), [(1100, False), (1101, True)])
def test_the_limit_itself_is_not_above_it(used: int, exceeds: bool) -> None:
    assert MemoryUse(used, 1000).exceeds(110) is exceeds


def test_the_settings_take_a_percentage(config: Callable[..., Settings]) -> None:
    assert config("").sweep.memory_limit == 110
    assert config('[sweep]\nmemory_limit = "95%"').sweep.memory_limit == 95
    assert config('[sweep]\nmemory_limit = ""').sweep.memory_limit is None
