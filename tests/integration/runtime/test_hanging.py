"""Checks that a hanging daemon is replaced and reports itself unhealthy."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.context import ShardContext
from sweeperd.metrics import Metrics
from sweeperd.progress import Progress
from sweeperd.runtime import service
from sweeperd.runtime.cycles_lease import CyclesLease
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.service import Service
from sweeperd.runtime.sweeps import kind_sweeps
from sweeperd.runtime.systemd import SystemdNotifier
from sweeperd.store import Shard
from sweeperd.sweep.telemetry import SweepTelemetry
from tests.support.harness import daemon, environment, eventually, reserve
from tests.support.servers import Server


class Hang:
    """Decisions are logged by a sweep that hangs there, from the first on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        decided = SweepTelemetry.decided

        def hang(telemetry: SweepTelemetry, *arguments: Any) -> None:
            self.began.set()
            self.ended.wait(60)
            decided(telemetry, *arguments)

        monkeypatch.setattr(SweepTelemetry, "decided", hang)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    made = Hang(monkeypatch)
    yield made
    made.ended.set()


def settings(server: Server, **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "redis": {"url": server.url, "socket_timeout": "1s", "connect_timeout": "1s"},
            "sweep": {"interval": "500ms", "lease_ttl": "2s", "batch_size": 10},
            "http": {"listen": ""},
            **more,
        }
    )


def test_a_leader_that_hangs_is_replaced(server: Server, client: redis.Redis, tmp_path: Path, hang: Hang) -> None:
    ours = Daemon(settings(server))
    ours.start()
    try:
        reserve(client, [str(number) for number in range(100)])
        assert hang.began.wait(20)
        left = client.zcard("reservation:ttl")
        assert left > 0
        env = environment(server.url, sweep__interval="500ms", sweep__lease_ttl="2s")
        with daemon(env, tmp_path) as other:
            eventually(lambda: not client.zcard("reservation:ttl"))
            eventually(lambda: other.metric("sweeperd_expired_total") == left)
        eventually(lambda: not ours.health()[0])
        assert ours.health()[1] == "the sweep of reservations on default is stuck"
        hang.ended.set()
        eventually(lambda: ours.health()[0])
    finally:
        hang.ended.set()
        assert ours.stop()


def test_a_sweep_hangs_once_another_process_has_replaced_it(shard: Shard) -> None:
    """With the default settings after 22.5 s, and not while it may wait for Redis, for up to 20 s."""
    sweep, now = kind_sweeps(ShardContext(Settings(), shard, Metrics(), threading.Event(), 1))[0], [0.0]
    sweep.progress = Progress(lambda: now[0])
    sweep.progress.step()
    now[0] = 21.0
    assert not sweep.hangs
    now[0] = 23.0
    assert sweep.hangs


def test_a_sweep_that_hangs_gives_the_lease_of_cycles_up(
    server: Server, client: redis.Redis, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []
    hold = CyclesLease.hold

    def holding(lease: CyclesLease) -> None:
        held.append(time.monotonic())
        hold(lease)

    monkeypatch.setattr(CyclesLease, "hold", holding)
    ours = Daemon(settings(server, cycles={"enabled": True}))
    ours.start()
    try:
        reserve(client, ["one"])
        assert hang.began.wait(20)
        eventually(lambda: not ours.health()[0])
        time.sleep(0.1)
        seen = len(held)
        time.sleep(1.2)  # more than two ticks
        assert len(held) == seen
        hang.ended.set()
        eventually(lambda: len(held) > seen)
    finally:
        hang.ended.set()
        assert ours.stop()


def test_a_main_thread_that_hangs_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LONGEST_SILENCE", 0.2)
    running = Service(settings(server), lambda: settings(server), lambda _: None, SystemdNotifier({}))
    monkeypatch.setattr(running._daemon, "health", lambda: (True, "ok"))
    assert running.health() == (True, "ok")
    running._check()
    assert running.health() == (True, "ok")
    eventually(lambda: running.health() == (False, "the main thread is stuck"))
    running._check()
    assert running.health() == (True, "ok")
