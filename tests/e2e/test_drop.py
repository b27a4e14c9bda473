"""`sweeperd endpoints drop` beside a daemon whose receiver is down: the backlog ends, and later events arrive."""

import json
import subprocess
from pathlib import Path

import redis

from tests.support.harness import command, daemon, environment, eventually, reserve, server_time
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

BACKLOG = 300


def test_a_backlog_is_dropped_beside_the_daemon(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver(lambda *_: Answer(500)) as receiver:
        env = environment(
            server.url,
            sweep__interval="100ms",
            webhooks__attempts=1,
            webhooks__redelivery_initial="200ms",
            webhooks__redelivery_max="200ms",
            webhooks__probe_max="200ms",
            endpoints=[{"name": "hook", "url": receiver.url}],
        )

        def sweeperd(*arguments: str) -> dict[str, object]:
            done = subprocess.run(command(*arguments, "--json"), env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            document: dict[str, object] = json.loads(done.stdout)
            return document

        with daemon(env, tmp_path) as running:
            reserve(client, [f"old-{number}" for number in range(BACKLOG)])
            eventually(lambda: client.xlen("sweeperd:events") == BACKLOG)
            eventually(lambda: running.metric("sweeperd_endpoint_state", endpoint="hook", state="open"))
            before = server_time(client) + 1
            eventually(lambda: server_time(client) > before)
            dropped = sweeperd("endpoints", "drop", "hook", "--before", "1ms", "--yes", "--dead-letters")
            assert dropped["shards"][0]["dropped"] == BACKLOG  # type: ignore[index]
            assert client.xlen("sweeperd:dead-letters") == BACKLOG
            eventually(lambda: running.metric("sweeperd_webhook_pending_events", endpoint="hook") == 0)
            receiver.behaviour = lambda *_: Answer()
            sent = len(receiver.requests)
            reserve(client, ["young"])
            eventually(lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="hook", result="delivered"))
            eventually(lambda: client.xpending("sweeperd:events", "hook")["pending"] == 0)
            # A probe that was on its way may still have come, and nothing else.
            late = receiver.requests[sent:]
            assert b"young" in late[-1].body
            assert len(late) <= 2
            changed = eventually(
                lambda: running.metric("sweeperd_operator_changes_total", shard="default", action="drop-backlog")
            )
            assert changed == BACKLOG
            assert running.terminate() == 0
