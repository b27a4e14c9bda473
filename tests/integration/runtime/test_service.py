"""Tests what the service reports to the service manager."""

import gc
import threading
import weakref
from pathlib import Path

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.runtime.daemon import Daemon, ShardRunner
from sweeperd.runtime.schedule import FULL_TICK
from sweeperd.runtime.service import Service
from sweeperd.runtime.systemd import SystemdNotifier
from tests.support.harness import reserve
from tests.support.manager import manager
from tests.support.servers import Server


def runner(daemon: Daemon) -> ShardRunner:
    """The one of its one shard."""
    (sole,) = daemon._runners
    return sole


def test_the_watchdog_is_fed_only_while_all_is_well(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate({"redis": {"url": server.url}, "http": {"listen": ""}})
    with manager(tmp_path) as heard:
        # A limit that has always passed: every call that may feed does.
        notifier = SystemdNotifier({"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "1"})
        service = Service(settings, lambda: settings, lambda _: None, notifier)
        sole = runner(service._daemon)
        duty, *_ = sole.tasks
        monkeypatch.setattr(Dispatcher, "complete", True)
        service._check()
        assert (heard.said("WATCHDOG"), heard.said("STATUS")) == (["1"], ["Not ready: default: no sweep yet"])

        monkeypatch.setattr(duty, "_changed_at", duty._changed_at - 3600)
        service._check()
        service._check()
        assert heard.said("WATCHDOG") == ["1"]
        assert heard.said("STATUS")[-1] == "Not well: the maintenance of default is stuck"

        monkeypatch.undo()
        monkeypatch.setattr(Dispatcher, "complete", True)
        # A refresh of the status page that hangs is no reason for a restart.
        monkeypatch.setattr(sole.tasks[-1], "_changed_at", duty._changed_at - 3600)
        sole._tried, sole._troubles = {"reservations"}, {"reservations": ""}
        service._check()
        assert heard.said("WATCHDOG") == ["1", "1"]
        assert heard.said("STATUS")[-1] == "Sweeping every 5 s, delivering to 0 endpoints"
        notifier.close()


def test_the_group_of_a_new_endpoint_is_made_before_the_first_sweep(server: Server, client: redis.Redis) -> None:
    """Even where its reader has not begun: the events of that sweep are its own."""
    reserve(client, ["first"])
    endpoints = [{"name": "hook", "url": "http://127.0.0.1:1/"}]
    settings = {"redis": {"url": server.url}, "webhooks": {"endpoints": endpoints}}
    daemon = Daemon(Settings.model_validate(settings))
    runner(daemon)._sweep(runner(daemon)._sweeps[0], FULL_TICK)
    assert client.xlen("sweeperd:events") == 1
    assert client.xinfo_groups("sweeperd:events")[0]["last-delivered-id"] == b"0-0"
    runner(daemon)._shard.close()


def test_a_replaced_daemon_is_freed_once_it_has_ended(server: Server) -> None:
    settings = Settings.model_validate({"redis": {"url": server.url}, "http": {"listen": ""}})
    service = Service(settings, lambda: settings, lambda _: None, SystemdNotifier({}))
    gc.disable()
    try:
        before = Daemon(settings)
        runner(before)._shard.close()
        vars(before)["itself"] = before  # the parts of a daemon that has worked refer to each other
        left = weakref.ref(before)
        service._last_work = threading.Thread(target=lambda: None)
        del before
        assert left() is not None
        service._clear_up()
        assert left() is None
    finally:
        gc.enable()
        runner(service._daemon)._shard.close()
