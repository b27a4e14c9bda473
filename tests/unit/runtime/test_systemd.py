"""Sends the notify protocol over real sockets."""

import logging
import os
import time
from pathlib import Path

import pytest

from sweeperd.runtime.systemd import SystemdNotifier
from tests.support.manager import manager


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_what_is_said(abstract: bool, tmp_path: Path) -> None:
    with manager(tmp_path, abstract=abstract) as heard:
        notifier = SystemdNotifier({"NOTIFY_SOCKET": heard.address})
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        notifier.ready("Sweeping\nalways")
        notifier.status("Sweeping\nalways")
        notifier.status("Not ready")
        notifier.reloading()
        notifier.ready("Sweeping")
        notifier.alive()
        notifier.stopping()
        notifier.close()
        notifier.ready("after the end")
        messages = heard.listen()
        when = int(messages[2].pop("MONOTONIC_USEC"))
        assert before <= when <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        assert messages == [
            {"READY": "1", "STATUS": "Sweeping always"},
            {"STATUS": "Not ready"},
            {"RELOADING": "1", "STATUS": "Reloading"},
            {"READY": "1", "STATUS": "Sweeping"},
            {"STOPPING": "1", "STATUS": "Stopping"},
        ]


@pytest.mark.parametrize("address", [None, "", "vsock:2:1", "relative", "/"])
def test_without_a_socket_nothing_happens(address: str | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        notifier = SystemdNotifier({"WATCHDOG_USEC": "1000"} | ({} if address is None else {"NOTIFY_SOCKET": address}))
        assert notifier.watchdog_limit is None
        notifier.ready("ready")
        notifier.alive()
    assert bool(caplog.records) == bool(address)


def test_the_watchdog_is_fed_well_within_its_limit_and_not_more(tmp_path: Path) -> None:
    with manager(tmp_path) as heard:
        notifier = SystemdNotifier(
            {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "400000", "WATCHDOG_PID": str(os.getpid())}
        )
        assert notifier.watchdog_limit == 0.4
        started = time.monotonic()
        times: list[float] = []
        while len(times) < 3:
            notifier.alive()
            while len(heard.said("WATCHDOG")) > len(times):
                times.append(time.monotonic())
            assert time.monotonic() < started + 30
        assert times[2] - started > 0.18, "a quarter of the limit between two"


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
    ids=str,
)
def test_no_watchdog(environment: dict[str, str], tmp_path: Path) -> None:
    with manager(tmp_path) as heard:
        notifier = SystemdNotifier({"NOTIFY_SOCKET": heard.address} | environment)
        notifier.alive()
        assert (notifier.watchdog_limit, heard.listen()) == (None, [])


def test_a_manager_that_is_gone_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with caplog.at_level(logging.WARNING):
        notifier.ready("one")
        notifier.status("two")
    assert len(caplog.records) == 1
