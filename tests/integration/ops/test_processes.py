"""Which daemons run, and what none of them does."""

import json
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.ops.processes import ProcessAnnouncer, Processes, read_processes
from sweeperd.store import Shard
from tests.support.fixtures import full
from tests.support.harness import server_time
from tests.support.servers import Server

KEY = "sweeperd:processes"


def announced(shard: Shard, *, sweeps: bool, delivers: bool) -> ProcessAnnouncer:
    announcer = ProcessAnnouncer(shard, sweeps=sweeps, delivers=delivers)
    announcer.update()
    return announcer


def missing(shard: Shard) -> tuple[str, ...]:
    return read_processes(shard, shard.read_clock()).missing


def test_without_a_daemon_both_are_missing(shard: Shard) -> None:
    assert missing(shard) == ("sweeps", "delivers")


def test_what_no_daemon_does(shard: Shard) -> None:
    sweeping = announced(shard, sweeps=True, delivers=False)
    assert missing(shard) == sweeping.missing == ("delivers",)
    delivering = announced(shard, sweeps=False, delivers=True)
    assert missing(shard) == delivering.missing == ()
    sweeping.leave()
    assert missing(shard) == ("sweeps",)
    announced(shard, sweeps=True, delivers=True)
    assert missing(shard) == ()


def test_a_daemon_that_takes_over_after_a_reload_stays(shard: Shard) -> None:
    before = announced(shard, sweeps=True, delivers=True)
    announced(shard, sweeps=True, delivers=True)
    before.leave()
    assert missing(shard) == ()


def test_a_daemon_announces_itself_every_few_seconds(shard: Shard, client: redis.Redis) -> None:
    announcer = announced(shard, sweeps=True, delivers=True)
    client.delete(KEY)
    announcer.update()
    assert not client.exists(KEY), "not so soon again"
    announcer._next = 0.0
    announcer.update()
    assert missing(shard) == ()


def test_a_daemon_that_died_counts_for_nothing(shard: Shard, client: redis.Redis) -> None:
    announced(shard, sweeps=True, delivers=True)
    now = server_time(client)
    assert read_processes(shard, now + 30_000).missing == (), "two announcements may be late"
    assert read_processes(shard, now + 36_000).missing == ("sweeps", "delivers")
    assert read_processes(shard, now - 36_000).missing == ("sweeps", "delivers"), "the clock was set back"
    client.hset(KEY, "odd", "{")
    assert client.hlen(KEY) == 2
    notes: Any = client.hgetall(KEY)
    for name, note in notes.items():
        if name != b"odd":
            client.hset(KEY, name, json.dumps(json.loads(note) | {"at": now - 3_600_001}))
    announced(shard, sweeps=True, delivers=True)
    assert client.hlen(KEY) == 1, "only the new one"


def test_a_user_without_the_right_is_told_nothing_wrong(server: Server, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "few", "reset", "on", ">only-for-tests", "~reservation:*", "+@all")
    url = server.url.replace("redis://", "redis://few:only-for-tests@")
    shard = Shard(Settings.model_validate({"redis": {"url": url}}).redis)
    try:
        announcer = announced(shard, sweeps=True, delivers=False)
        assert read_processes(shard, shard.read_clock()) == Processes(None)
        assert announcer.missing == ()
    finally:
        shard.close()
        client.acl_deluser("few")


@pytest.mark.every_redis
def test_a_full_redis_takes_it(own_shard: Shard) -> None:
    with full(own_shard):
        announced(own_shard, sweeps=True, delivers=True)
        assert missing(own_shard) == ()
