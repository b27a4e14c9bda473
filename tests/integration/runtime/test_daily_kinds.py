"""Tests the daemon's walks over configured kinds: findings, leases and resumption."""

import json
import logging
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import Timing
from sweeperd.metrics import Metrics
from sweeperd.ops.reconcile.faults import WalkStage
from sweeperd.store import Shard
from tests.lua.kinds.world import SCRIPT, Seats, scripted
from tests.support.builders import UNSETTLED, make_reconciler
from tests.support.fixtures import a_shard
from tests.support.harness import eventually
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

FUTURE = 4_000_000_000_000
RECORD = "sweeperd:reconcile"
SUMS = (
    'give_back = ["HINCRBY seats:{show} held -{qty}"]\nsums = [{ key = "seats:{show}", field = "held", of = "qty" }]\n'
)
LOCK = """
[[kinds]]
name = "lock"
index = "locks:ttl"
key = "locks:{id}"
deadline = "expires_at"
active = { state = "HELD" }
ended = { state = "EXPIRED" }
"""
KINDS = tomllib.loads(SEAT_HOLD + SUMS + LOCK)["kinds"]
NOTHING = dict.fromkeys(("lost", "orphan", "wrong_score", "short_ttl", "sum_drift"), 0)


class Replica:
    """One daemon's reconciler, which has checked once whether a walk is due."""

    def __init__(
        self,
        shard: Shard,
        stop: threading.Event | None = None,
        rate: int = 1_000_000,
        timing: Timing = UNSETTLED,
        **more: Any,
    ) -> None:
        settings = Settings.model_validate({"reconcile": {"interval": "1d", "rate": rate}, "kinds": KINDS, **more})
        self.metrics, self.stop = Metrics(), stop or threading.Event()
        self.reconciler = make_reconciler(settings, shard, self.metrics, self.stop, timing)
        self.walk()

    def walk(self) -> None:
        self.reconciler.run_if_due()

    def runs(self, kind: str, result: str = "ok") -> float | None:
        labels = {"shard": "default", "kind": kind, "result": result}
        return self.metrics.registry.get_sample_value("sweeperd_reconcile_runs_total", labels)

    def findings(self, kind: str) -> dict[str, float]:
        samples = (sample for family in self.metrics.registry.collect() for sample in family.samples)
        return {
            each.labels["finding"]: each.value
            for each in samples
            if each.name == "sweeperd_reconcile_findings" and each.labels["kind"] == kind
        }


Make = Callable[..., Replica]


@pytest.fixture
def replica(server: Server) -> Iterator[Make]:
    with ExitStack() as shards:
        yield lambda **more: Replica(shards.enter_context(a_shard(server)), **more)


def plant(client: redis.Redis) -> None:
    """Two holds that the index lost, an entry without a hash, a counter that is too high; and a lock that is lost."""
    for entry in ("right", "lost-1", "lost-2"):
        hold_seats(client, entry, 1, FUTURE)
    client.hset("seats:hamlet", mapping={"free": 5, "held": 4})
    client.zrem("seats:ttl", "lost-1", "lost-2")
    client.zadd("seats:ttl", {"orphan": FUTURE})
    client.hset("locks:a", mapping={"state": "HELD", "expires_at": FUTURE})


def test_it_finds_counts_and_logs_what_is_wrong_with_each_kind(
    replica: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    plant(client)
    before = {key: client.dump(key) for key in client.scan_iter()}
    one = replica()
    assert [one.runs(kind) for kind in ("reservations", "seat-hold", "lock")] == [0, 0, 0]
    assert one.findings("seat-hold") == {}, "there was no walk yet"
    with caplog.at_level(logging.INFO, "sweeperd"):
        one.walk()
    assert [one.runs(kind) for kind in ("reservations", "seat-hold", "lock")] == [1, 1, 1]
    assert one.findings("seat-hold") == NOTHING | {"lost": 2, "orphan": 1, "sum_drift": 1}
    assert one.findings("lock") == NOTHING | {"lost": 1}
    assert set(one.findings("reservations").values()) == {0}
    for kind in ("seat-hold", "lock"):
        labels = {"shard": "default", "kind": kind}
        assert one.metrics.registry.get_sample_value("sweeperd_reconcile_last_timestamp_seconds", labels)
    found = [vars(record) for record in caplog.records if record.message == "reconcile found a fault"]
    assert sorted((each["kind"], each["fault"]) for each in found) == [
        ("lock", "lost"),
        ("seat-hold", "lost"),
        ("seat-hold", "lost"),
        ("seat-hold", "orphan"),
        ("seat-hold", "sum_drift"),
    ]
    ended = {vars(record)["kind"]: vars(record) for record in caplog.records if record.message == "reconciled"}
    assert (ended["seat-hold"]["hashes"], ended["seat-hold"]["findings"]) == (3, 4)
    assert {key: client.dump(key) for key in client.scan_iter() if key != RECORD.encode()} == before, "it mends nothing"
    assert not client.exists("sweeperd:lease:reconcile")


def test_once_in_each_interval_for_all_replicas(replica: Make, client: redis.Redis) -> None:
    plant(client)
    one = replica()
    one.walk()
    one.walk()
    assert one.runs("lock") == 1
    other = replica()
    assert other.findings("lock") == NOTHING | {"lost": 1}, "known from the first check on"
    other.walk()
    assert other.runs("lock") == 0
    # A kind that is new in the settings has no walk yet; the others rest.
    client.hdel(RECORD, "last:lock")
    other.walk()
    assert [other.runs(kind) for kind in ("reservations", "seat-hold", "lock")] == [0, 0, 1]


def test_without_reservations_the_kinds_are_walked(replica: Make, client: redis.Redis) -> None:
    plant(client)
    one = replica(reservations={"enabled": False})
    one.walk()
    assert (one.runs("reservations"), one.runs("seat-hold"), one.runs("lock")) == (None, 1, 1)
    assert set(client.hkeys(RECORD)) == {b"last:seat-hold", b"report:seat-hold", b"last:lock", b"report:lock"}


def test_a_walk_that_fails_keeps_no_other_from_being_made(
    replica: Make, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    plant(client)
    client.delete("seats:ttl")
    client.set("seats:ttl", "no index")
    one = replica()
    one.walk()
    assert (one.runs("seat-hold"), one.runs("seat-hold", "error"), one.runs("lock")) == (0, 1, 1)
    (failed,) = [record for record in caplog.records if record.message == "reconcile failed"]
    assert vars(failed)["kind"] == "seat-hold"
    one.walk()
    assert one.runs("seat-hold", "error") == 1, "not at once again"


def test_another_replica_goes_on_where_a_stopped_one_was(replica: Make, client: redis.Redis) -> None:
    timing = replace(UNSETTLED, keep_walk_every=0.0)  # each page is a place to go on at
    total = 600
    with client.pipeline(transaction=False) as pipeline:
        for number in range(total):
            pipeline.hset(f"locks:{number}", mapping={"state": "HELD", "expires_at": FUTURE})
        pipeline.execute()
    # A page of 200 keys takes half a second.
    stop = threading.Event()
    one = replica(stop=stop, timing=timing, reconcile={"interval": "1h", "rate": 400}, reservations={"enabled": False})
    client.hset(RECORD, "last:seat-hold", json.dumps({"finished_at": int(client.time()[0]) * 1000, "found": {}}))
    walking = threading.Thread(target=one.walk)
    walking.start()
    eventually(lambda: client.hexists(RECORD, "cursor:lock"))
    stop.set()
    walking.join(5)
    assert not walking.is_alive()
    assert (one.runs("lock"), one.runs("lock", "error")) == (0, 0)
    cursor = json.loads(client.hget(RECORD, "cursor:lock") or b"{}")
    assert cursor["stage"] == WalkStage.HASHES
    assert 0 < cursor["hashes"] < total
    other = replica()
    other.walk()
    assert other.findings("lock") == NOTHING | {"lost": total}
    report = json.loads(client.hget(RECORD, "report:lock") or b"{}")
    assert (report["resumed"], report["hashes"]) == (True, total)
    assert not client.hexists(RECORD, "cursor:lock")


@pytest.mark.parametrize("same_server", [True, False])
def test_a_cursor_holds_for_one_run_of_one_server(replica: Make, client: redis.Redis, same_server: bool) -> None:
    plant(client)
    run_id = client.info("server")["run_id"] if same_server else "another"
    cursor = {"run_id": run_id, "started_at": 1, "seconds": 1, "stage": WalkStage.COUNTERS, "position": 0}
    counts = {"hashes": 7, "entries": 7, "found": {"lost": 5}, "findings": [["lost", b"a".hex(), "", "1"]]}
    client.hset(RECORD, "cursor:seat-hold", json.dumps(cursor | counts))
    one = replica()
    one.walk()
    report = json.loads(client.hget(RECORD, "report:seat-hold") or b"{}")
    if same_server:  # hashes and index were walked, and the sums are left
        assert one.findings("seat-hold") == NOTHING | {"lost": 5, "sum_drift": 1}
        assert (report["resumed"], report["hashes"], report["findings"][0]["id"]) == (True, 7, "a")
        assert (report["counters"], report["findings"][1]["key"]) == (1, "seats:hamlet")
    else:
        assert one.findings("seat-hold") == NOTHING | {"lost": 2, "orphan": 1, "sum_drift": 1}
        assert (report["resumed"], report["hashes"]) == (False, 3)


def test_a_kind_whose_script_is_broken_is_walked_once(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    """A file that fails would say of no hash that it is active, and so hide what the index lost."""
    seats = Seats(shard.client, scripted(f"local first = nil .. 'x'\n{SCRIPT}"))
    seats.hold()
    shard.client.delete("seats:ttl")
    metrics = Metrics()
    reconciler = make_reconciler(seats.settings, shard, metrics)
    for _ in range(3):
        reconciler.run_if_due()
    labels = {"shard": "default", "kind": "seat-hold", "result": "error"}
    assert metrics.registry.get_sample_value("sweeperd_reconcile_runs_total", labels) == 1
    (refused,) = [vars(each) for each in caplog.records if each.message.startswith("kind refused")]
    assert (refused["kind"], "script file fails" in refused["error"]) == ("seat-hold", True)
