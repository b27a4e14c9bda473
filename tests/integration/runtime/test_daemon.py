"""Runs the daemon in this process on a real Redis."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.runtime.daemon import Daemon
from sweeperd.store import scripts
from sweeperd.store.scripts import INCLUDE, own_text, read_all, script_names
from sweeperd.sweep.index import IndexReader
from tests.support.harness import eventually, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

#: More than the connections that redis-py's pool has by default.
ENDPOINTS = 200


@pytest.mark.slow
def test_many_endpoints_on_one_shard_stop_neither_sweep_nor_delivery(server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver:
        settings = Settings.model_validate(
            {
                "redis": {"url": server.url},
                "sweep": {"interval": "1s"},
                "webhooks": {
                    "concurrency": ENDPOINTS,
                    "endpoints": [
                        {"name": f"hook-{number}", "url": f"{receiver.url}{number}"} for number in range(ENDPOINTS)
                    ],
                },
            }
        )
        daemon = Daemon(settings)
        daemon.start()
        try:
            # The groups are there before the first sweep, and so get all of it.
            eventually(lambda: client.exists("sweeperd:ticks"), 60)
            reserve(client, ["one", "two"])
            eventually(lambda: len(receiver.requests) == 2 * ENDPOINTS, 120)
            assert daemon.readiness() == (True, "ok")
            assert daemon.health() == (True, "ok")
        finally:
            assert daemon.stop(time.monotonic() + 60)


def test_a_daemon_keeps_its_scripts_while_another_version_is_installed(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*script_names(), *script_names(INCLUDE)]
    own_text.cache_clear()
    read_all.cache_clear()
    daemon = Daemon(Settings.model_validate({"redis": {"url": server.url}}))
    daemon.start()
    try:
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("a script was read after the start"))
        assert all(map(own_text, names))
        with monkeypatch.context() as gone:  # a reload in the midst of the installation
            gone.setattr(scripts, "script_names", lambda *_: pytest.fail("the scripts were looked for again"))
            read_all()
        reserve(client, ["one"])
        eventually(lambda: client.xlen("sweeperd:events"))
    finally:
        assert daemon.stop(time.monotonic() + 60)


def test_a_daemon_is_ready_as_soon_as_the_first_page_was_decided(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no roll-out waits for the end of a long first sweep."""
    read, go_on, pages = IndexReader.next, threading.Event(), []

    def held(self: IndexReader, room: int) -> Any:
        pages.append(room)
        assert len(pages) == 1 or go_on.wait(60)
        return read(self, room)

    monkeypatch.setattr(IndexReader, "next", held)
    reserve(client, [f"r{number}" for number in range(30)], overdue_by=60_000)
    daemon = Daemon(Settings.model_validate({"redis": {"url": server.url}, "sweep": {"batch_size": 10}}))
    daemon.start()
    try:
        eventually(lambda: len(pages) == 2)
        assert daemon.readiness() == (True, "ok")
        assert client.zcard("reservation:ttl") == 20, "the sweep has not ended"
        assert daemon.metrics.registry.get_sample_value("sweeperd_redis_up", {"shard": "default"}) == 1
        go_on.set()
        eventually(lambda: client.zcard("reservation:ttl") == 0)
        assert daemon.readiness() == (True, "ok")
    finally:
        go_on.set()
        assert daemon.stop()
