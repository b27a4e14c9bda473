"""All kinds of the settings are swept, each under its own names, by the daemon and by `--once`."""

import threading
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.once import run_once
from sweeperd.store.embedded import Server
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Outcome
from sweeperd.sweep.last_sweep import read_last_sweep
from tests.lua.builders import World, seed
from tests.lua.kinds.world import SEATS, Seats
from tests.support.harness import eventually

LOCK: dict[str, Any] = {
    "name": "lock",
    "index": "locks:ttl",
    "key": "locks:{id}",
    "deadline": "until",
    "active": {"state": "HELD"},
    "retention": "0s",
    "give_back": ["SADD free-locks {id}"],
}


def settings_for(server: Server, **more: Any) -> Settings:
    return Settings.model_validate(
        {"redis": {"url": server.url}, "kinds": [SEATS, LOCK], "sweep": {"interval": "50ms"}, "http": {"listen": ""}}
        | more
    )


def arrange(client: redis.Redis) -> Seats:
    seed(World(client))
    seats = Seats(client)
    seats.show()
    seats.hold()
    seats.hold(b"broken", qty="nan")
    client.hset("locks:l1", mapping={"state": "HELD", "until": 1_700_000_000_000})
    client.zadd("locks:ttl", {"l1": 1_700_000_000_000})
    return seats


def check(client: redis.Redis, seats: Seats) -> None:
    assert seats.seats() == (13, 2)
    assert client.smembers("free-locks") == {b"l1"}
    assert client.hget("reservation:res_r1", "state") == b"EXPIRED"
    assert client.zrange("sweeperd:quarantine:seat-hold", 0, -1) == [b"broken"]
    types = sorted(fields.get(b"type", b"") for fields in seats.events())
    assert types[-2:] == [b"lock.expired", b"seat-hold.expired"]


def test_once_sweeps_every_kind(server: Server, client: redis.Redis) -> None:
    seats, settings = arrange(client), settings_for(server)
    report = run_once(settings, threading.Event())
    check(client, seats)
    assert report.counts[Outcome.EXPIRED] >= 3
    assert report.counts[Outcome.QUARANTINED] == 1
    assert report.complete
    shard = Shard(settings.redis)
    for kind, expired in (("seat-hold", 1), ("lock", 1)):
        last = read_last_sweep(shard, kind)
        assert last is not None
        assert last.expired == expired
    shard.close()
    assert list(client.scan_iter("sweeperd:lease:*")) == []


def test_the_daemon_sweeps_every_kind(server: Server, client: redis.Redis) -> None:
    seats, daemon = arrange(client), Daemon(settings_for(server))
    daemon.start()
    try:
        eventually(lambda: daemon.readiness()[0])
        eventually(lambda: client.zcard("locks:ttl") + client.zcard("seats:ttl") + client.zcard("reservation:ttl") == 0)
        check(client, seats)
    finally:
        assert daemon.stop()


def test_each_kind_has_a_lease_of_its_own(server: Server, client: redis.Redis) -> None:
    seats, daemon = arrange(client), Daemon(settings_for(server))
    client.set("sweeperd:lease:sweep", "another", px=60_000)
    client.set("sweeperd:lease:sweep:lock", "another", px=60_000)
    daemon.start()
    try:
        eventually(lambda: seats.seats() == (13, 2))
        eventually(lambda: daemon.readiness()[0])
        assert client.zcard("locks:ttl") == 1
        assert client.hget("reservation:res_r1", "state") == b"ACTIVE"
    finally:
        assert daemon.stop()


def test_a_kind_that_is_not_in_the_settings_is_never_touched(server: Server, client: redis.Redis) -> None:
    arrange(client)
    run_once(settings_for(server, kinds=[LOCK]), threading.Event())
    assert client.zrange("seats:ttl", 0, -1) == [b"broken", b"h1"]
    assert client.hget("seats:hold:h1", "state") == b"HELD"


def test_reservations_can_be_turned_off(server: Server, client: redis.Redis) -> None:
    seats = arrange(client)
    run_once(settings_for(server, reservations={"enabled": False}), threading.Event())
    assert seats.seats() == (13, 2)
    assert client.hget("reservation:res_r1", "state") == b"ACTIVE"
    assert not client.exists("sweeperd:ticks")
