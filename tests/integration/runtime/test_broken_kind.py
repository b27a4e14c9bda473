"""Checks that a kind with a broken script stops and changes nothing, whoever has run it, until it is corrected."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis

from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused
from sweeperd.metrics import Metrics
from sweeperd.ops.reconcile.subjects import subject_of
from sweeperd.ops.status import read_status
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.sweeps import KindSweep, kind_sweeps
from sweeperd.store import Shard
from sweeperd.sweep.proof import prove
from tests.lua.kinds.world import SCRIPT, Seats, scripted
from tests.support.harness import eventually
from tests.support.servers import Server

#: It never ends for one entry.
ENDLESS = SCRIPT.replace("function decide(hash, now)", "function decide(hash, now, id)\n while id == 'bad' do end")


@pytest.fixture
def impatient(client: redis.Redis) -> Iterator[redis.Redis]:
    """A server that lets a script be killed soon, but no quick one that a busy machine holds up."""
    before = client.config_get("lua-time-limit")["lua-time-limit"]
    client.config_set("lua-time-limit", 500)
    yield client
    client.config_set("lua-time-limit", str(before))


@dataclass
class Kills:
    """The scripts that were killed: each that runs for too long is."""

    count: int = 0
    rounds: int = 0

    def so_far(self) -> int:
        """How many, with one that ends at this moment."""
        before = self.rounds
        eventually(lambda: self.rounds > before + 1)
        return self.count


@pytest.fixture
def kills(impatient: redis.Redis) -> Iterator[Kills]:
    ended, kills = threading.Event(), Kills()

    def kill() -> None:
        with impatient.client() as client:
            while not ended.wait(0.02):
                with contextlib.suppress(redis.RedisError):  # none runs for too long
                    client.script_kill()
                    kills.count += 1
                kills.rounds += 1

    killer = threading.Thread(target=kill, name="killer")
    killer.start()
    yield kills
    ended.set()
    killer.join()


@pytest.fixture
def seats(impatient: redis.Redis) -> Seats:
    """One overdue hold, for which the script never ends."""
    seats = Seats(impatient, scripted(ENDLESS))
    seats.show()
    seats.hold(b"bad")
    return seats


def sweep_of(seats: Seats, shard: Shard, metrics: Metrics) -> KindSweep:
    """On a client of its own, as in the daemon."""
    return kind_sweeps(ShardContext(seats.settings, shard.twin(), metrics, threading.Event(), 1))[-1]


@pytest.mark.parametrize("proven", [False, True])
def test_a_script_that_was_killed_is_not_run_again(seats: Seats, shard: Shard, kills: Kills, proven: bool) -> None:
    """Whether the sample of an unproven kind meets it first, or the sweep."""
    metrics = Metrics()
    sweep = sweep_of(seats, shard, metrics)
    if proven:
        prove(shard, sweep.kind)
    before = seats.snapshot()
    with pytest.raises(KindRefused, match="SCRIPT KILL"):
        sweep.tick()
    assert {key: value for key, value in seats.snapshot().items() if key in before} == before
    refused = "seat-hold: not swept until its script is corrected or sweeperd restarts"
    with pytest.raises(KindRefused, match=refused):
        sweep.run()
    about, value = {"shard": "default", "kind": "seat-hold"}, metrics.registry.get_sample_value
    assert value("sweeperd_candidates_total", about | {"outcome": "error"}) == 1
    assert value("sweeperd_sweeps_total", about | {"result": "error"}) == 1
    assert value("sweeperd_sweeps_total", about | {"result": "ok"}) == 0
    status = read_status(seats.settings, shard)
    assert (status.error, [kind.due for kind in status.kinds if kind.kind == "seat-hold"]) == ("", [1])
    with (
        pytest.raises(KindRefused, match="seat-hold: not walked"),
        subject_of(shard, seats.settings, "seat-hold") as walk,
    ):
        list(walk.rows([b"bad"]))
    assert kills.so_far() == 1


def test_a_script_that_was_killed_for_the_status_is_not_swept(seats: Seats, shard: Shard, kills: Kills) -> None:
    for number in range(20):
        seats.hold(b"bad" if number == 0 else b"later%d" % number)
    assert read_status(seats.settings, shard).error == ""
    with pytest.raises(KindRefused, match="not swept until"):
        sweep_of(seats, shard, Metrics()).run()
    assert kills.so_far() == 1


def test_settings_that_keep_the_script_do_not_run_it_again(seats: Seats, server: Server, kills: Kills) -> None:
    def daemon(script: str, before: Daemon | None = None) -> Daemon:
        settings = Seats(seats.client, scripted(script)).settings
        redis_settings = settings.redis.model_copy(update={"url": server.url})
        daemon = Daemon(settings.model_copy(update={"redis": redis_settings}))
        if before:
            daemon.adopt(before)
        daemon.start()
        if before:
            before.stop()
        return daemon

    current = daemon(ENDLESS)
    try:
        eventually(lambda: "seat-hold: not swept until" in current.readiness()[1])
        assert current.retire(30)
        killed = kills.so_far()
        assert killed in (1, 2), "the status may have asked before the first kill"
        current = daemon(ENDLESS, current)
        eventually(lambda: "seat-hold: not swept until" in current.readiness()[1])
        assert current.retire(30)
        assert seats.client.zcard("seats:ttl") == 1
        current = daemon(SCRIPT, current)
        eventually(lambda: not seats.client.zcard("seats:ttl"))
    finally:
        current.stop()
    assert kills.so_far() == killed
