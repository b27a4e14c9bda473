"""The service around the daemon: what the service manager is told of its health."""

from pathlib import Path

import pytest

from sweeperd.config import Settings
from sweeperd.embedded import Server
from sweeperd.notify import Notifier
from sweeperd.service import Service
from tests.manager import manager


def test_the_watchdog_is_fed_only_while_all_is_well(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.model_validate({"redis": {"url": server.url}, "http": {"listen": ""}})
    with manager(tmp_path) as heard:
        # A limit that has always passed: every call that may feed does.
        notifier = Notifier({"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "1"})
        service = Service(settings, lambda: settings, lambda _: None, notifier)
        (duty, *_) = service._daemon._duties
        monkeypatch.setattr(type(service._daemon._delivery), "complete", True)
        service._look()
        assert (heard.said("WATCHDOG"), heard.said("STATUS")) == (["1"], ["Not ready: no sweep yet"])

        monkeypatch.setattr(duty, "_changed_at", duty._changed_at - 3600)
        service._look()
        service._look()
        assert heard.said("WATCHDOG") == ["1"]
        assert heard.said("STATUS")[-1] == "Not well: sweep is stuck"

        monkeypatch.undo()
        monkeypatch.setattr(type(service._daemon._delivery), "complete", True)
        service._daemon._not_ready = ""
        service._look()
        assert heard.said("WATCHDOG") == ["1", "1"]
        assert heard.said("STATUS")[-1] == "Sweeping every 5 s, delivering to 0 endpoints"
        notifier.close()
