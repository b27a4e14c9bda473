"""Checks that each class of error has the same effect in the daemon and in `--once`."""

import logging
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.config import Settings
from sweeperd.metrics import Metrics
from sweeperd.runtime.daemon import Daemon
from sweeperd.runtime.once import run_once
from sweeperd.store.embedded import Server
from sweeperd.sweep.sweeper import Sweeper
from tests.support.harness import eventually

NOBODY = "redis://127.0.0.1:1"
BAD: dict[str, Any] = {"name": "bad", "index": "bad:ttl", "key": "bad:{id}", "deadline": "until", "retention": "0s"}
WELL: dict[str, Any] = BAD | {"name": "well", "index": "well:ttl", "key": "well:{id}", "active": {"state": "HELD"}}


@dataclass
class Sort:
    """One sort of error, and all that it means."""

    name: str
    line: str
    cause: str
    level: int = logging.ERROR
    traceback: bool = False
    #: What stands before the cause: for `/readyz`, and on the standard error of `--once`.
    ready: str = "the sweep fails: "
    once: str = "bad: the sweep failed: "
    redis_up: float = 1.0


SORTS = [
    Sort(
        "redis",
        "sweep failed, the next tick tries again",
        r"redis://127\.0\.0\.1:1.*: .*refused",
        ready="",
        once="redis is not available: ",
        redis_up=0.0,
    ),
    Sort(
        "refused",
        "kind refused, it is not swept",
        "bad: the script does not compile, line ",
        logging.WARNING,
        ready="",
        once="",
    ),
    Sort("command", "sweep failed", ".*WRONGTYPE"),
    Sort("bug", "sweep failed", "LookupError", traceback=True),
]


@pytest.fixture(params=SORTS, ids=lambda sort: sort.name)
def sort(request: pytest.FixtureRequest) -> Sort:
    found: Sort = request.param
    return found


@pytest.fixture
def settings(
    sort: Sort, server: Server, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Two kinds, of which `bad` cannot be swept for this sort of error."""
    bad = BAD | {"active": {"state": "HELD"}}
    match sort.name:
        case "refused":
            (tmp_path / "bad.lua").write_text("function decide(")
            bad = BAD | {"script": f"file:{tmp_path / 'bad.lua'}", "writes": ["bad:*"]}
        case "command":
            client.set("bad:ttl", "text")
        case "bug":
            tick = Sweeper.tick

            def fail(self: Sweeper, *arguments: Any) -> Any:
                if self._kind.name == "bad":
                    raise LookupError("a bug")
                return tick(self, *arguments)

            monkeypatch.setattr(Sweeper, "tick", fail)
    return Settings.model_validate(
        {
            "redis": {"url": NOBODY if sort.name == "redis" else server.url},
            "reservations": {"enabled": False},
            "kinds": [bad, WELL],
            "sweep": {"interval": "50ms"},
            "http": {"listen": ""},
        }
    )


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, {"shard": "default"} | labels) or 0.0


def test_the_daemon_names_the_error_and_tries_again(
    sort: Sort, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(settings)
    daemon.start()
    try:
        eventually(lambda: value(daemon.metrics, "sweeperd_sweeps_total", kind="bad", result="error") >= 3)
        well = "error" if sort.name == "redis" else "ok"
        eventually(lambda: value(daemon.metrics, "sweeperd_sweeps_total", kind="well", result=well) >= 2)
        assert value(daemon.metrics, "sweeperd_redis_up") == sort.redis_up
        assert value(daemon.metrics, "sweeperd_sweeps_total", kind="bad", result="ok") == 0
        ready, trouble = daemon.readiness()
    finally:
        assert daemon.stop()
    assert (ready, bool(re.search(f"default: {sort.ready}{sort.cause}", trouble))) == (False, True), trouble
    records = [record for record in caplog.records if record.message == sort.line and vars(record)["kind"] == "bad"]
    # A tick that fails like the one before is counted, and not logged again.
    (record,) = records
    assert (record.levelno, bool(record.exc_info)) == (sort.level, sort.traceback)
    assert re.match(sort.cause, vars(record)["error"])
    assert not [record for record in caplog.records if record.message == "sweep goes on"]


def test_no_other_work_hides_a_failing_sweep(server: Server, client: redis.Redis) -> None:
    """Of a kind that has the name of another task."""
    client.set("bad:ttl", "text")
    daemon = Daemon(
        Settings.model_validate(
            {
                "redis": {"url": server.url},
                "reservations": {"enabled": False},
                "kinds": [BAD | {"name": "maintenance"}],
                "sweep": {"interval": "50ms"},
                "http": {"listen": ""},
            }
        )
    )
    seen = set[bool]()

    def failed_often() -> bool:
        failures = value(daemon.metrics, "sweeperd_sweeps_total", kind="maintenance", result="error")
        if failures:
            seen.add(daemon.readiness()[0])
        return failures >= 20

    daemon.start()
    try:
        eventually(failed_often)
    finally:
        daemon.stop()
    assert seen == {False}


def test_a_sweep_that_goes_on_says_so_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client.set("reservation:ttl", "text")
    settings = {"redis": {"url": server.url}, "sweep": {"interval": "50ms"}, "http": {"listen": ""}}
    daemon = Daemon(Settings.model_validate(settings))
    daemon.start()
    try:
        eventually(lambda: value(daemon.metrics, "sweeperd_sweeps_total", result="error", kind="reservations") >= 3)
        client.delete("reservation:ttl")
        eventually(lambda: value(daemon.metrics, "sweeperd_sweeps_total", result="ok", kind="reservations") >= 3)
    finally:
        assert daemon.stop()
    (failed,) = (record for record in caplog.records if record.message == "sweep failed")
    (over,) = (record for record in caplog.records if record.message == "sweep goes on")
    assert (failed.levelno, over.levelno) == (logging.ERROR, logging.INFO)
    assert vars(over)["failures"] >= 3


def test_once_names_the_error_and_exits_with_1(
    sort: Sort, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    report = run_once(settings, threading.Event(), metrics=metrics)
    assert report.exit_code == 1
    (failure,) = report.failures
    assert re.match(sort.once + sort.cause, failure)
    assert value(metrics, "sweeperd_sweeps_total", kind="bad", result="error") == 1
    assert value(metrics, "sweeperd_sweeps_total", kind="well", result="ok") == (sort.name != "redis")
    assert value(metrics, "sweeperd_redis_up") == sort.redis_up
    records = [record for record in caplog.records if record.message == "the run failed"]
    if sort.name in ("redis", "refused"):
        assert records == []
    else:
        (record,) = records
        assert (record.levelno, bool(record.exc_info)) == (sort.level, sort.traceback)
        assert vars(record)["error"] == failure
