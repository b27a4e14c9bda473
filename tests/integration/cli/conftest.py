"""What the tests of the operator's commands start from."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from sweeperd.cli import main
from sweeperd.config import SweepSettings, load
from sweeperd.outbox import Outbox
from sweeperd.runtime.once import run_once
from sweeperd.store import Keys, Shard
from sweeperd.sweep import Outcome
from tests.integration.conftest import Ran, Sweeperd
from tests.support.address import drop_address
from tests.support.builders import reservations_kind
from tests.support.harness import reserve
from tests.support.servers import Server
from tests.support.streams import entries

#: A name as a hostile tenant may choose it.
HOSTILE = [
    "a\x1b[2J\x1b]0;owned\x07b\r\n\t\x00c",
    "<script>alert(1)</script><b>&amp;",
    "x" * 10_000,
    "=cmd|' /C calc'!A0",
    "\u202egnp.exe",
    "[bold]not bold[/bold]",
]

Run = Callable[..., Result]


@pytest.fixture
def invoke(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare_environment: None, log_restored: None
) -> Run:
    """Run the command on the test's server; `endpoints` and `shards` are lists as in the settings, or `url`."""
    monkeypatch.chdir(tmp_path)

    def invoked(*arguments: str, url: str = server.url, **lists: list[dict[str, Any]]) -> Result:
        env = {} if "shards" in lists else {"SWEEPERD_REDIS__URL": url}
        for name, variable in (("endpoints", "SWEEPERD_WEBHOOKS__ENDPOINTS"), ("shards", "SWEEPERD_SHARDS")):
            if name in lists:
                env[variable] = json.dumps(lists[name])
        return drop_address(CliRunner().invoke(main, arguments, env=env))

    return invoked


class Configured:
    """Commands and runs under a configuration file, on the test's server."""

    def __init__(self, client: redis.Redis, run: Sweeperd, config: Path, url: str, text: str) -> None:
        self.client, self.config, self.url, self._run = client, config, url, run
        config.write_text(text)

    def run(self, *arguments: str) -> Ran:
        return self._run("--config", str(self.config), *arguments)

    def sweep(self) -> None:
        run_once(load(self.config, {"SWEEPERD_REDIS__URL": self.url}), threading.Event())


def expire(client: redis.Redis, ids: Sequence[bytes | str], prefix: str = "") -> None:
    """Have expire.lua expire these reservations, which are overdue."""
    kind = reservations_kind(Keys(prefix), SweepSettings())
    bare = [entry.encode() if isinstance(entry, str) else entry for entry in ids]
    for entry, reply in zip(
        bare, kind.script.run_many(client, [kind.call(entry, "f" * 32) for entry in bare]), strict=True
    ):
        assert kind.decision(entry, reply).outcome is Outcome.EXPIRED


def give_up(
    shard: Shard, ids: Sequence[bytes | str], endpoint: str = "billing", reason: str = "HTTP 500", tenant: str = "acme"
) -> list[bytes]:
    """Have these reservations expire, and the endpoint not get their events. Returns the ids of the dead letters."""
    stream = Outbox(shard, "test")
    stream.groups.ensure(endpoint)
    reserve(shard.client, ids, tenant=tenant)
    expire(shard.client, ids)
    before = shard.client.xlen(shard.keys.dead_letters)
    bare = {entry.encode() if isinstance(entry, str) else entry for entry in ids}
    for entry in stream.read(endpoint, 100_000):
        if entry.fields[b"id"] in bare:
            assert stream.dead_letter(endpoint, entry, reason)
        else:
            stream.acknowledge(endpoint, [entry.id])  # another endpoint's
    return [letter for letter, _ in entries(shard.client, shard.keys.dead_letters)][before:]
