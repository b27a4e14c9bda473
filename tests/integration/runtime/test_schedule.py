"""Tests which processes poll for deadlines between two ticks."""

import threading
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.once import run_once
from sweeperd.runtime.process import Role
from tests.support.harness import eventually, reserve
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server

CYCLES_LEASE = "cycles:maintenance:lease:reservation_expiry"


def settings_of(server: Server, **sweep: str) -> Settings:
    sweep = {"interval": "10m"} | sweep
    return Settings.model_validate({"redis": {"url": server.url}, "http": {"listen": ""}, "sweep": sweep})


def schedules() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("schedule")]


@pytest.mark.parametrize(
    ("role", "sweep", "expected"),
    [
        (Role.DELIVER, {}, []),
        (Role.ALL, {"precision": "0s"}, ["schedule-default"]),
    ],
)
def test_who_looks(role: Role, sweep: dict[str, str], expected: list[str], server: Server) -> None:
    daemon = Daemon(settings_of(server, **sweep), role=role)
    daemon.start()
    try:
        assert schedules() == expected
        eventually(lambda: daemon.health()[0] and daemon.readiness()[0])
    finally:
        assert daemon.stop()
    assert schedules() == []


def test_without_the_lease_of_cycles_nobody_looks(server: Server, client: redis.Redis) -> None:
    client.set(CYCLES_LEASE, "runtime-1", px=60_000)
    settings = settings_of(server)
    cycles = settings.cycles.model_copy(update={"enabled": True})
    daemon = Daemon(settings.model_copy(update={"cycles": cycles}))
    labels: dict[str, Any] = {"shard": "default", "kind": "reservations"}

    def sweeps(result: str) -> float | None:
        return daemon.metrics.registry.get_sample_value("sweeperd_sweeps_total", labels | {"result": result})

    daemon.start()
    try:
        eventually(lambda: sweeps("standby") == 1)
        reserve(client, ["entry"], overdue_by=-100)
        threading.Event().wait(0.5)
        assert (sweeps("standby"), sweeps("ok"), client.zcard("reservation:ttl")) == (1, 0, 1)
    finally:
        assert daemon.stop()


def test_a_run_for_cron_does_not_look(server: Server, client: redis.Redis) -> None:
    seen: list[str] = []

    def answer(_request: Request, _attempt: int) -> Answer:
        """Answer when another entry has been due for a while."""
        reserve(client, ["second"], overdue_by=-100)
        threading.Event().wait(0.6)
        seen.extend(schedules())
        return Answer()

    reserve(client, ["first"])
    with Receiver(answer) as receiver:
        webhooks = {"endpoints": [{"name": "hook", "url": receiver.url, "secrets": ["s" * 24]}]}
        document = {"redis": {"url": server.url}, "sweep": {"interval": "10m"}, "webhooks": webhooks}
        run_once(Settings.model_validate(document), threading.Event())
    assert (receiver.distinct, seen, client.zrange("reservation:ttl", 0, -1)) == (1, [], [b"second"])
