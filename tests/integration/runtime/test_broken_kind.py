"""Checks that a kind with a broken script stops until a restart and changes nothing, while other kinds go on."""

import threading
from collections.abc import Iterator

import pytest
import redis

from sweeperd.context import ShardContext
from sweeperd.errors import KindRefused
from sweeperd.metrics import Metrics
from sweeperd.runtime.sweeps import KindSweep
from sweeperd.store import Shard
from tests.lua.kinds.world import SCRIPT, Seats, scripted
from tests.support.harness import eventually

#: It never ends for one entry.
ENDLESS = SCRIPT.replace("function decide(hash, now)", "function decide(hash, now, id)\n while id == 'bad' do end")


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
