"""What several unit tests start from."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sweeperd.config import RedisSettings, Settings, load
from sweeperd.store import Shard
from sweeperd.store.scripts import Script
from tests.support.plain_writes import GuardedScript
from tests.support.servers import Server

Load = Callable[..., Settings]


@pytest.fixture
def shard(server: Server) -> Iterator[Shard]:
    """The empty test server as a shard whose clock has been read."""
    with a_shard(server) as ready:
        yield ready


@pytest.fixture
def own_shard(own_server: Server) -> Iterator[Shard]:
    """A server of the test's own as a shard, to fill it."""
    with a_shard(own_server) as ready:
        yield ready


@contextlib.contextmanager
def a_shard(server: Server) -> Iterator[Shard]:
    shard = Shard(RedisSettings.model_validate({"url": server.url}))
    shard.read_clock()
    try:
        yield shard
    finally:
        shard.close()


@contextlib.contextmanager
def full(shard: Shard) -> Iterator[None]:
    """While the block lasts, Redis refuses what needs memory."""
    shard.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        shard.client.config_set("maxmemory", 0)


@pytest.fixture
def config(tmp_path: Path) -> Load:
    """Load this TOML under this environment, and nothing of the machine's."""

    def from_text(toml: str, environment: Mapping[str, str] | None = None) -> Settings:
        path = tmp_path / "config.toml"
        path.write_text(toml, encoding="utf-8")
        return load(path, environment or {})

    return from_text


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment that sweeperd or requests go by."""
    for name in list(os.environ):
        if name.startswith("SWEEPERD_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def log_restored() -> Iterator[None]:
    """What the test does to the process's log is undone after it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _plain_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every script of the package that this process runs is ended where it breaks the rule of plain writes."""
    monkeypatch.setattr(Script, "source", GuardedScript.source, raising=False)
    monkeypatch.setattr(Script, "sha", GuardedScript.sha, raising=False)
    monkeypatch.setattr(Script, "forget", GuardedScript.forget)
