"""A pytest plugin that writes to a file how long each test took, and which ones ran on an older Redis."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from proof.mutants.servers import on_servers

#: The environment's variable that names the file: `{"seconds": {test: seconds}, "older": [test]}`.
FILE = "SWEEPERD_TEST_RECORD"

_seconds: defaultdict[str, float] = defaultdict(float)
_older: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if report.when == "setup" and ("older", True) in report.user_properties:
        _older.append(report.nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in on_servers("older", items):
        item.user_properties.append(("older", True))  # a worker of pytest-xdist reports them to the process above it


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        record = {"seconds": _seconds, "older": _older}
        Path(os.environ[FILE]).write_text(json.dumps(record), encoding="utf-8")
