"""Checks the number of threads against the limits in `deploy/` and the documents."""

import threading
from pathlib import Path

import annotated_types
import pytest

from sweeperd.config import Settings, WebhooksSettings
from sweeperd.runtime.daemon import Daemon
from sweeperd.web.bounded import THREADS
from tests.support.harness import eventually
from tests.support.servers import Server

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"


def at_most(concurrency: int, endpoints: int, shards: int = 1) -> int:
    """
    A thread for each request in flight, those of lanes below their part beside slow ones included; those that read,
    settle, watch and send next; and the tasks and the schedule of a shard.
    """
    return 2 * concurrency + shards * (endpoints + 10) + 1


@pytest.mark.parametrize(("endpoints", "shards"), [(12, 1), (5, 2)])
def test_the_threads_of_a_daemon(server: Server, endpoints: int, shards: int) -> None:
    settings = Settings.model_validate(
        {
            "shards": [{"name": f"s{n}", "url": server.url, "prefix": f"{n}:"} for n in range(shards)],
            "http": {"listen": ""},
            "sweep": {"interval": "100ms"},
            "webhooks": {
                "endpoints": [{"name": f"e{n}", "url": "http://127.0.0.1:1/"} for n in range(endpoints)],
                "concurrency": 20,
            },
        }
    )
    daemon, before = Daemon(settings), threading.active_count()
    daemon.start()
    try:
        most = 0

        def ready() -> bool:
            nonlocal most
            most = max(most, threading.active_count() - before)
            return daemon.readiness()[0] and daemon.health()[0]

        eventually(ready)
        assert shards * 3 < most <= shards * 11 + 2, "however many endpoints there are"
    finally:
        assert daemon.stop()


@pytest.mark.parametrize(("unit", "daemons"), [("sweeperd.service", 2), ("sweeperd-once.service", 1)])
def test_the_limit_of_a_unit_has_room_for_a_reload(unit: str, daemons: int) -> None:
    (limit,) = (
        int(line.removeprefix("TasksMax="))
        for line in (UNITS / unit).read_text().splitlines()
        if line.startswith("TasksMax=")
    )
    metadata = WebhooksSettings.model_fields["concurrency"].metadata
    (greatest,) = (each.le for each in metadata if isinstance(each, annotated_types.Le))
    assert isinstance(greatest, int)
    assert daemons * at_most(greatest, endpoints=greatest) + THREADS + 10 <= limit
