"""Checks that a kind with a broken script stops until a restart and changes nothing, while other kinds go on."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused
from sweeperd.metrics import Metrics
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from tests.lua.kinds.world import SCRIPT, Seats, scripted, settings_of
from tests.support.harness import eventually
from tests.support.servers import Server

#: It compiles, and fails when it is loaded.
FAILING = f"local first = nil\nlocal second = first .. 'x'\n{SCRIPT}"
#: It never ends for one entry.
ENDLESS = SCRIPT.replace("function decide(hash, now)", "function decide(hash, now, id)\n while id == 'bad' do end")
PERMIT: dict[str, Any] = {
    "name": "permit",
    "index": "permits:ttl",
    "key": "permits:held:{id}",
    "deadline": "until",
    "active": {"state": "HELD"},
    "retention": "0s",
    "give_back": ["SADD permits:free {id}"],
}


def settings_for(server: Server, *kinds: dict[str, Any]) -> Settings:
    settings = settings_of(*kinds, reservations=False)
    return settings.model_copy(
        update={
            "redis": settings.redis.model_copy(update={"url": SecretStr(server.url)}),
            "sweep": settings.sweep.model_validate({"interval": "50ms"}),
            "http": settings.http.model_copy(update={"listen": ""}),
        }
    )


def failed_sweeps(metrics: Metrics) -> float:
    labels = {"kind": "seat-hold", "result": "error"}
    value = metrics.registry.get_sample_value("sweeperd_sweeps_total", {"shard": "default"} | labels)
    return value or 0


def test_a_file_that_fails_stops_its_kind_only(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    seats = Seats(client, scripted(FAILING))
    seats.show()
    seats.hold()
    client.hset("permits:held:p1", mapping={"state": "HELD", "until": 1_700_000_000_000})
    client.zadd("permits:ttl", {"p1": 1_700_000_000_000})
    daemon = Daemon(settings_for(server, scripted(FAILING), PERMIT))
    daemon.start()
    try:
        eventually(lambda: client.smembers("permits:free") == {b"p1"})
        eventually(lambda: "not swept until sweeperd is restarted" in str(daemon.readiness()))
        assert "script file fails" in str(daemon.readiness())
        assert not daemon.readiness()[0]
        eventually(lambda: failed_sweeps(daemon.metrics) >= 2)
        failed = failed_sweeps(daemon.metrics)
        eventually(lambda: failed_sweeps(daemon.metrics) >= failed + 2)
        tried = {"shard": "default", "kind": "seat-hold", "outcome": "error"}
        assert daemon.metrics.registry.get_sample_value("sweeperd_candidates_total", tried) == 1, "the script ran again"
    finally:
        assert daemon.stop()
    assert any(record.message == "kind refused, it is not swept" for record in caplog.records)
    assert seats.seats() == (10, 5)
    assert client.zrange("seats:ttl", 0, -1) == [b"h1"]
    restarted = Daemon(settings_for(server, scripted(SCRIPT)))
    restarted.start()
    try:
        eventually(lambda: seats.seats() == (13, 2))
    finally:
        assert restarted.stop()


@pytest.fixture
def impatient(client: redis.Redis) -> Iterator[redis.Redis]:
    """A server that lets a script be killed soon."""
    before = client.config_get("lua-time-limit")["lua-time-limit"]
    client.config_set("lua-time-limit", 50)
    yield client
    client.config_set("lua-time-limit", str(before))


def test_a_script_that_was_killed_is_not_run_again(impatient: redis.Redis, shard: Shard) -> None:
    client = impatient
    seats = Seats(client, scripted(ENDLESS))
    seats.show()
    seats.hold(b"bad")
    metrics = Metrics()
    sweep = KindSweep(ShardContext(seats.settings, shard, metrics, threading.Event(), 1), seats.kind)
    before = seats.snapshot()

    def killed() -> bool:
        try:
            client.script_kill()
        except redis.RedisError:
            return False
        return True

    killer = threading.Thread(target=lambda: eventually(killed), name="killer", daemon=True)
    killer.start()
    with pytest.raises(KindRefused, match="SCRIPT KILL"):
        sweep.tick()
    killer.join()
    assert {key: value for key, value in seats.snapshot().items() if key in before} == before
    with pytest.raises(KindRefused, match="seat-hold: not swept until sweeperd is restarted"):
        sweep.run()
    tried = {"shard": "default", "kind": "seat-hold", "outcome": "error"}
    assert metrics.registry.get_sample_value("sweeperd_candidates_total", tried) == 1
