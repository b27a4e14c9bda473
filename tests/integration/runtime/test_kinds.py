"""Sweeps all kinds of the settings under their own names, with the daemon and with `--once`."""

import re
import threading
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.once import run_once
from sweeperd.store import Shard
from sweeperd.sweep import Outcome, kinds_of
from sweeperd.sweep.last_sweep import read_last_sweep
from tests.lua.builders import World, seed
from tests.lua.kinds.world import SEATS, Seats
from tests.support.harness import eventually
from tests.support.receiver import Receiver
from tests.support.servers import Server

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
        last = read_last_sweep(shard, kinds_of(settings, shard)[kind])
        assert last is not None
        assert last.expired == expired
    shard.close()
    assert list(client.scan_iter("sweeperd:lease:*")) == []


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


def outcome(metrics: Metrics, kind: str, result: str) -> float:
    labels = {"shard": "default", "kind": kind, "result": result}
    return metrics.registry.get_sample_value("sweeperd_sweeps_total", labels) or 0


def test_once_does_all_the_rest_if_one_kind_cannot_be_swept(server: Server, client: redis.Redis) -> None:
    seats = arrange(client)
    client.set("bad:ttl", "text")
    bad = LOCK | {"name": "bad", "index": "bad:ttl", "key": "bad:{id}"}
    with Receiver() as receiver:
        settings = settings_for(
            server,
            kinds=[bad, SEATS, LOCK],
            webhooks={"endpoints": [{"name": "hook", "url": receiver.url, "start": "beginning"}]},
        )
        metrics = Metrics()
        report = run_once(settings, threading.Event(), metrics=metrics)
        check(client, seats)
        events = client.xlen("sweeperd:events")
        assert events == len(receiver.requests) == report.delivery.delivered >= 3
    assert (report.exit_code, report.any_done, report.delivery.undelivered) == (1, True, 0)
    (failure,) = report.failures
    assert re.match(r"bad: the sweep failed: .*WRONGTYPE", failure)
    assert [outcome(metrics, kind, "ok") for kind in ("reservations", "seat-hold", "lock", "bad")] == [1, 1, 1, 0]
    assert [outcome(metrics, kind, "error") for kind in ("reservations", "seat-hold", "lock", "bad")] == [0, 0, 0, 1]
    labels = {"endpoint": "hook", "result": "delivered"}
    assert metrics.registry.get_sample_value("sweeperd_webhook_attempts_total", labels) == events
    assert list(client.scan_iter("sweeperd:lease:*")) == []
