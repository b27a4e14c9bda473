"""Tests when the daemon walks the reservations, on which replica, and what it reports."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.ops.reconcile.last_walk import KEPT, WalkStore
from sweeperd.runtime.daemon import ShardRunner
from sweeperd.runtime.reconciler import PeriodicReconciler
from sweeperd.store import Shard, open_shards
from tests.support.builders import make_reconciler
from tests.support.fixtures import a_shard, full
from tests.support.harness import SCOPES, eventually, reserve
from tests.support.servers import Server

Make = Callable[..., tuple[PeriodicReconciler, Metrics]]
RECORD = "sweeperd:reconcile"
LABELS = {"shard": "default", "kind": "reservations"}


@pytest.fixture
def replica(server: Server) -> Iterator[Make]:
    """Makes the patrol of one more replica, which has checked for a due walk once."""
    with ExitStack() as shards:

        def make(
            interval: str = "1d", *, at: Server = server, stop: threading.Event | None = None, rate: int = 1_000_000
        ) -> tuple[PeriodicReconciler, Metrics]:
            shard = shards.enter_context(a_shard(at))
            settings = Settings.model_validate({"reconcile": {"interval": interval, "rate": rate}})
            metrics = Metrics()
            patrol = make_reconciler(settings, shard, metrics, stop)
            patrol.run_if_due()
            return patrol, metrics

        yield make


def runs(metrics: Metrics, result: str = "ok") -> float | None:
    labels = {"shard": "default", "kind": "reservations", "result": result}
    return metrics.registry.get_sample_value("sweeperd_reconcile_runs_total", labels)


def findings(metrics: Metrics) -> dict[str, float]:
    """Finding -> how many; nothing before the first walk."""
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {s.labels["finding"]: s.value for s in samples if s.name == "sweeperd_reconcile_findings"}


def test_it_tells_what_it_finds_and_mends_nothing(
    replica: Make, shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    reserve(shard.client, [str(number) for number in range(30)], overdue_by=-50_000)
    shard.client.zremrangebyrank("reservation:ttl", 0, 24)
    shard.client.zadd("reservation:ttl", {"orphan": 1})
    shard.client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", 7)
    patrol, metrics = replica()
    assert (runs(metrics), findings(metrics)) == (0, {}), "the first look is none"
    with caplog.at_level(logging.INFO, "sweeperd"):
        patrol.run_if_due()
    assert (runs(metrics), runs(metrics, "error")) == (1, 0)
    none = {"wrong_score": 0, "short_ttl": 0, "foreign_quarantine": 0}
    assert findings(metrics) == {"lost": 25, "orphan": 1, "budget_drift": 1, **none}
    now = shard.read_clock() / 1000
    last = metrics.registry.get_sample_value("sweeperd_reconcile_last_timestamp_seconds", LABELS)
    assert last is not None
    assert now - 60 < last <= now
    told = [record for record in caplog.records if record.message == "reconcile found a fault"]
    assert len(told) == KEPT
    assert all(record.levelno == logging.WARNING for record in told)
    (summary,) = [record for record in caplog.records if record.message == "reconciled"]
    assert (summary.levelno, vars(summary)["findings"]) == (logging.WARNING, 27)
    assert shard.client.zcard("reservation:ttl") == 6
    assert set(shard.client.hkeys(RECORD)) == {b"last", b"report"}
    assert shard.client.ttl(RECORD) == -1
    assert not shard.client.exists("sweeperd:lease:reconcile")


def test_once_in_each_interval_whoever_is_asked_and_however_often_it_starts(replica: Make, shard: Shard) -> None:
    shard.client.zadd("reservation:ttl", {"orphan": 1})
    first, metrics = replica()
    first.run_if_due()
    first.run_if_due()
    assert runs(metrics) == 1
    restarted, its_metrics = replica()
    assert findings(its_metrics)["orphan"] == 1, "known from the first look on"
    restarted.run_if_due()
    assert runs(its_metrics) == 0
    # Half the interval later it is not time, after the whole of it it is.
    patrol, soon = replica("200ms")
    eventually(lambda: patrol.run_if_due() or runs(soon) == 2)


def test_a_time_in_the_future_is_not_believed(replica: Make, shard: Shard) -> None:
    patrol, metrics = replica()
    shard.client.hset(RECORD, "last", '{"finished_at": 9000000000000, "found": {"lost": 3}}')
    patrol.run_if_due()
    assert runs(metrics) == 1


@pytest.mark.parametrize("record", ["", "{", '{"finished_at": 1, "found": {"odd": 1}}', "\udcff"])
def test_a_record_that_cannot_be_read_is_none(replica: Make, shard: Shard, record: str) -> None:
    shard.client.hset(RECORD, "last", record.encode("utf-8", "surrogateescape"))
    patrol, metrics = replica()
    patrol.run_if_due()
    assert runs(metrics) == 1


def test_one_replica_at_a_time(replica: Make, shard: Shard) -> None:
    shard.client.set("sweeperd:lease:reconcile", "another's", px=60_000)
    patrol, metrics = replica()
    patrol.run_if_due()
    assert runs(metrics) == 0
    shard.client.delete("sweeperd:lease:reconcile")
    patrol.run_if_due()
    assert runs(metrics) == 1


def test_a_stop_ends_it_at_once_and_another_walks_in_its_place(replica: Make, shard: Shard) -> None:
    reserve(shard.client, [str(number) for number in range(200)], overdue_by=-50_000)
    stop = threading.Event()
    patrol, metrics = replica(stop=stop, rate=1)
    walking = threading.Thread(target=patrol.run_if_due)
    walking.start()
    eventually(lambda: shard.client.exists("sweeperd:lease:reconcile"))
    stop.set()
    walking.join(5)
    assert not walking.is_alive()
    assert not shard.client.exists("sweeperd:lease:reconcile", RECORD)
    assert (runs(metrics), runs(metrics, "error")) == (0, 0)
    other, its_metrics = replica()
    other.run_if_due()
    assert runs(its_metrics) == 1


def test_a_failure_is_counted_and_left_alone_for_a_while(
    replica: Make, shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    patrol, metrics = replica()
    shard.client.set("reservation:ttl", "no index")
    patrol.run_if_due()
    patrol.run_if_due()
    (failed,) = [record for record in caplog.records if record.message == "reconcile failed"]
    assert "WRONGTYPE" in vars(failed)["error"]
    assert failed.exc_info is None, "Redis has refused a command: the cause is in the key"
    assert (runs(metrics), runs(metrics, "error")) == (0, 1)
    patrol, metrics = replica("1s")
    shard.client.delete("reservation:ttl")
    eventually(lambda: patrol.run_if_due() or runs(metrics) == 1)


def test_a_server_that_goes_when_a_walk_begins(
    own_server: Server, replica: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = WalkStore.cursor

    def gone(store: WalkStore) -> object:
        own_server.kill()
        return cursor(store)

    patrol, metrics = replica(at=own_server)
    monkeypatch.setattr(WalkStore, "cursor", gone)
    patrol.run_if_due()
    assert runs(metrics, "error") == 1
    assert [record.message for record in caplog.records] == ["reconcile failed, it is tried again later"]
    assert caplog.records[0].exc_info is None, "no fault of sweeperd"


def test_a_full_redis_takes_no_note_and_the_process_knows(own_server: Server, replica: Make) -> None:
    patrol, metrics = replica(at=own_server)
    with a_shard(own_server) as shard, full(shard):
        patrol.run_if_due()
        patrol.run_if_due()
        assert runs(metrics) == 1
        assert not shard.client.exists(RECORD)


@pytest.mark.parametrize(("interval", "duties"), [("", 3), ("1d", 4)])
def test_it_can_be_turned_off(server: Server, interval: str, duties: int) -> None:
    settings = Settings.model_validate({"redis": {"url": server.url}, "reconcile": {"interval": interval}})
    metrics = Metrics()
    (shard,) = open_shards(settings)
    with closing(shard):
        runner = ShardRunner(ShardContext(settings, shard, metrics, threading.Event(), 1))
    assert len(runner.tasks) == duties
    assert runs(metrics) == (None if not interval else 0)
