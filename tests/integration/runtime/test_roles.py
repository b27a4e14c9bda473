"""Runs a daemon that only sweeps, and one that only delivers."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.ops.processes import ProcessDocument, read_processes
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.process import Role
from sweeperd.store import Shard
from tests.support.harness import eventually, reserve, server_time
from tests.support.receiver import Receiver
from tests.support.servers import Server


@contextmanager
def running(server: Server, role: Role, url: str) -> Iterator[Daemon]:
    settings = Settings.model_validate(
        {
            "redis": {"url": server.url},
            "sweep": {"interval": "100ms"},
            "webhooks": {"endpoints": [{"name": "hook", "url": url}], "redelivery_initial": "1s"},
        }
    )
    daemon = Daemon(settings, role=role)
    daemon.start()
    try:
        eventually(lambda: daemon.readiness()[0])
        yield daemon
        assert daemon.health() == (True, "ok")
    finally:
        assert daemon.stop(time.monotonic() + 20)


def value(daemon: Daemon, name: str, **labels: str) -> float:
    found = daemon.metrics.registry.get_sample_value(name, labels)
    return -1 if found is None else found


def test_one_sweeps_and_the_other_delivers(server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver:
        with running(server, Role.SWEEP, receiver.url) as sweeping:
            reserve(client, ["one", "two"])
            eventually(lambda: client.xlen("sweeperd:events") == 2)
            labels = {"shard": "default", "kind": "reservations", "outcome": "expired"}
            # The script has written before its reply is counted.
            eventually(lambda: value(sweeping, "sweeperd_candidates_total", **labels) == 2)
            # Its groups were made before the sweep, so nothing is lost to the one that delivers later.
            assert client.xinfo_groups("sweeperd:events")[0]["lag"] if client.info()["redis_version"] >= "7" else True
        assert not receiver.requests
        with running(server, Role.DELIVER, receiver.url) as delivering:
            reserve(client, ["three"])
            receiver.wait_for(lambda requests: len(requests) == 2)
            eventually(lambda: value(delivering, "sweeperd_webhook_pending_events", endpoint="hook") == 0)
            assert value(delivering, "sweeperd_redis_up", shard="default") == 1
            assert value(delivering, "sweeperd_sweeps_total", shard="default", kind="reservations", result="ok") == -1
            assert client.hget("reservation:res_three", "state") == b"ACTIVE"


def test_a_delivering_daemon_is_not_ready_while_redis_is_away(own_server: Server) -> None:
    with Receiver() as receiver, running(own_server, Role.DELIVER, receiver.url) as daemon:
        own_server.kill()
        eventually(lambda: not daemon.readiness()[0])
        eventually(lambda: value(daemon, "sweeperd_redis_up", shard="default") == 0)
        own_server.start()
        eventually(lambda: daemon.readiness()[0])


def named(daemon: Daemon) -> tuple[str, dict[str, list[str]]]:
    """The text of `/readyz`, and the details of each answer on the page."""
    answers: list[dict[str, Any]] = daemon.report()["answers"]
    return daemon.readiness()[1], {each["question"]: each["details"] for each in answers}


@pytest.mark.parametrize(
    ("role", "duty", "question"),
    [
        (Role.SWEEP, "no process delivers", "Does everyone get their events?"),
        (Role.DELIVER, "no process sweeps", "Are we keeping up?"),
    ],
)
def test_what_no_process_does_is_named(role: Role, duty: str, question: str, server: Server) -> None:
    with Receiver() as receiver, running(server, role, receiver.url) as daemon:
        eventually(lambda: named(daemon)[0] == f"ok\ndefault: {duty}")
        assert daemon.readiness()[0], "it can do its own work"
        eventually(lambda: duty in named(daemon)[1][question])
        other = Role.DELIVER if role is Role.SWEEP else Role.SWEEP
        with running(server, other, receiver.url) as second:
            eventually(lambda: named(second)[0] == "ok")
            eventually(lambda: all(duty not in details for details in named(daemon)[1].values()))


@pytest.mark.parametrize(("role", "right"), [(Role.ALL, "xack"), (Role.DELIVER, "xreadgroup")])
def test_deliveries_that_redis_refuses_are_told(own_server: Server, role: Role, right: str) -> None:
    with (
        Receiver() as receiver,
        redis.Redis.from_url(own_server.url) as client,
        running(own_server, role, receiver.url) as daemon,
    ):
        client.acl_setuser("default", enabled=True, nopass=True, commands=[f"-{right}"])
        client.xadd("sweeperd:events", {"id": "one", "tenant": "acme"})
        eventually(lambda: re.search(f"hook: .*'{right}'", named(daemon)[0]))
        assert daemon.readiness()[0] == role.sweeps, "a sweep goes on"
        if right == "xack":
            eventually(lambda: "default: maintenance fails: " in named(daemon)[0])
        eventually(lambda: value(daemon, "sweeperd_endpoint_state", endpoint="hook", state="stalled") == 1)
        told = "hook cannot deliver on 1 of 1"
        eventually(lambda: any(told in each for each in named(daemon)[1]["Does everyone get their events?"]))
        client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"])
        eventually(lambda: not client.xpending("sweeperd:events", "hook")["pending"])
        receiver.wait_for(lambda requests: len(requests) == 1)


@pytest.mark.parametrize("key", ["circuits", "events", "groups"])
def test_a_key_of_another_type_is_told_without_a_traceback_for_each_try(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    with Receiver() as receiver, running(server, Role.DELIVER, receiver.url) as daemon:
        client.delete(f"sweeperd:{key}")
        client.set(f"sweeperd:{key}", "text")
        eventually(lambda: not daemon.readiness()[0])
        assert "WRONGTYPE" in daemon.readiness()[1]
        if key != "groups":  # deliveries go on without the notes
            eventually(lambda: value(daemon, "sweeperd_endpoint_state", endpoint="hook", state="stalled") == 1)
        assert value(daemon, "sweeperd_redis_up", shard="default") == 1
        client.delete(f"sweeperd:{key}")
        eventually(lambda: daemon.readiness()[0])
        client.xadd("sweeperd:events", {"id": "one", "tenant": "acme"})
        receiver.wait_for(lambda requests: len(requests) == 1)
    assert [record.message for record in caplog.records if record.exc_info] == []


def test_a_silent_process_is_exported_until_it_comes_back(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeperd.ops.processes.ANNOUNCE_EVERY", 0.1)
    note = {"process": "host-2", "at": server_time(client) - 60_000, "sweeps": True, "delivers": False}
    client.hset("sweeperd:processes", "host-2-0123abcd", json.dumps(note))
    # The daemon replaces the one that was heard of last.
    gone = note | {"process": "host-3", "at": server_time(client) - 50_000}
    client.hset("sweeperd:processes", "host-3-0123abcd", json.dumps(gone))
    with Receiver() as receiver, running(server, Role.ALL, receiver.url) as daemon:

        def silent() -> float:
            return value(daemon, "sweeperd_process_silent_seconds", shard="default", process="host-2")

        eventually(lambda: 60 <= silent() < 100)
        (ours,) = [each.process for each in announced(server) if not each.silent]
        assert value(daemon, "sweeperd_process_silent_seconds", shard="default", process=ours) == -1
        eventually(lambda: any("host-2" in detail for detail in named(daemon)[1]["Are we keeping up?"]))
        assert daemon.readiness() == (True, "ok"), "the others do its work"
        note["at"] = server_time(client)
        client.hset("sweeperd:processes", "host-2-0123abcd", json.dumps(note))
        eventually(lambda: silent() == -1)


def test_a_process_tells_what_it_sweeps(server: Server) -> None:
    with Receiver() as receiver, running(server, Role.ALL, receiver.url):
        (told,) = eventually(lambda: announced(server))
        assert (told.role, told.kinds) == ("all", ["reservations"])
    assert announced(server) == ()


def announced(server: Server) -> tuple[ProcessDocument, ...]:
    """All daemons that are known."""
    shard = Shard(Settings.model_validate({"redis": {"url": server.url}}).redis)
    try:
        return read_processes(shard, shard.read_clock()).known or ()
    finally:
        shard.close()
