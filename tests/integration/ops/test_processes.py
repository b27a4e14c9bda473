"""Which daemons run, and what none of them does."""

import json
from typing import Any

import pytest
import redis

from sweeperd import __version__
from sweeperd.config import Settings
from sweeperd.ops.processes import ProcessAnnouncer, ProcessDocument, Processes, read_processes
from sweeperd.store import Shard
from sweeperd.store.lease import process_name
from tests.support.fixtures import full
from tests.support.harness import server_time
from tests.support.servers import Server

KEY = "sweeperd:processes"


def announced(shard: Shard, *, sweeps: bool, delivers: bool) -> ProcessAnnouncer:
    announcer = ProcessAnnouncer(shard, sweeps=sweeps, delivers=delivers)
    announcer.update()
    return announcer


def known(shard: Shard, after_ms: int = 0) -> dict[str, ProcessDocument]:
    """By name, as they look after this time."""
    found = read_processes(shard, shard.read_clock() + after_ms).known
    assert found is not None
    return {each.process: each for each in found}


def missing(shard: Shard) -> tuple[str, ...]:
    return read_processes(shard, shard.read_clock()).missing


def test_without_a_daemon_both_are_missing(shard: Shard) -> None:
    assert missing(shard) == ("sweeps", "delivers")


def test_what_no_daemon_does(shard: Shard) -> None:
    sweeping = announced(shard, sweeps=True, delivers=False)
    assert missing(shard) == sweeping.seen.missing == ("delivers",)
    delivering = announced(shard, sweeps=False, delivers=True)
    assert missing(shard) == delivering.seen.missing == ()
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


def test_a_daemon_tells_what_it_is_and_since_when(shard: Shard, client: redis.Redis) -> None:
    first = ProcessAnnouncer(shard, sweeps=True, delivers=False, kinds=["reservations", "lock"])
    first.update()
    (told,) = known(shard).values()
    assert (told.process, told.role, told.version) == (process_name(), "sweep", __version__)
    assert (told.kinds, told.silent, told.since) == (["reservations", "lock"], False, told.heartbeat_at)
    assert told.heartbeat_age_seconds < 5
    after_reload = ProcessAnnouncer(shard, sweeps=True, delivers=True)
    after_reload.adopt(first)
    notes: Any = client.hgetall(KEY)
    after_reload.update()
    now = server_time(client)
    assert known(shard)[process_name()].since == told.since
    for field, note in notes.items():
        client.hset(KEY, field, json.dumps(json.loads(note) | {"at": now - 60_000}))
    found = read_processes(shard, now)
    assert [each.role for each in found.known or ()] == ["all"], "what a reload replaced does not count as silent"


@pytest.mark.every_redis
def test_events_in_hand_are_those_that_a_process_took_and_did_not_settle(shard: Shard, client: redis.Redis) -> None:
    announced(shard, sweeps=False, delivers=True)
    ids = [client.xadd("sweeperd:events", {"id": str(number)}) for number in range(5)]
    for group in ("billing", "audit", "idle"):
        client.xgroup_create("sweeperd:events", group, id="0")
    ours = f"{process_name()}-0123abcd"
    client.xreadgroup("billing", ours, {"sweeperd:events": ">"}, count=3)
    client.xreadgroup("billing", "(parked)", {"sweeperd:events": ">"}, count=1)
    client.xreadgroup("audit", ours, {"sweeperd:events": ">"}, count=2)
    client.xreadgroup("audit", "other-1-aaaaaa-0123abcd", {"sweeperd:events": ">"}, count=1)
    assert known(shard)[process_name()].in_hand == 5
    client.xack("sweeperd:events", "billing", *ids[:2])
    assert known(shard)[process_name()].in_hand == 3


def test_a_silent_daemon_is_named_until_its_note_is_removed(shard: Shard) -> None:
    announced(shard, sweeps=True, delivers=True)
    assert not known(shard, 30_000)[process_name()].silent
    late = known(shard, 40_000)[process_name()]
    assert (late.silent, 40 <= late.heartbeat_age_seconds < 50) == (True, True)
    assert [each.process for each in read_processes(shard, shard.read_clock() + 40_000).silent] == [process_name()]


def test_each_new_daemon_replaces_a_silent_one_with_its_duties(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)

    died = {"sweeps": True, "delivers": False, "at": now - 60_000, "since": now - 3_600_000}

    def silent(**new: dict[str, Any]) -> list[str]:
        notes = {"first": died | {"at": now - 90_000}, "second": died} | new
        client.delete(KEY)
        for name, note in notes.items():
            client.hset(KEY, name, json.dumps(note | {"process": name}))
        return [each.process for each in read_processes(shard, now).silent]

    living = {"sweeps": True, "delivers": True, "at": now, "since": now - 50_000}
    assert silent() == silent(old=living | {"since": now - 100_000}) == ["first", "second"]
    assert silent(other=living | {"sweeps": False}) == ["first", "second"]
    assert silent(new=living) == ["first"]
    assert silent(new=living | {"since": now - 70_000}) == ["second"], "it started before the second fell silent"
    assert silent(new=living, newer=living) == []
    assert silent(second=died | {"since": now - 85_000}, new=living) == [], (
        "the second replaced the first, and died too"
    )
    assert (
        silent(first=died | {"delivers": True, "at": now - 90_000}, any=living, new=living | {"delivers": False}) == []
    )


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
        assert announcer.seen.missing == ()
    finally:
        shard.close()
        client.acl_deluser("few")


@pytest.mark.every_redis
def test_a_full_redis_takes_it(own_shard: Shard) -> None:
    with full(own_shard):
        announced(own_shard, sweeps=True, delivers=True)
        assert missing(own_shard) == ()
