"""What operators did: recorded, listed, counted, exported."""

import getpass
import logging
import socket

import pytest
import redis

from sweeperd.metrics import Metrics
from sweeperd.ops import actions
from sweeperd.ops.actions import Action, ActionExporter, read_actions, record
from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from tests.integration.cli.conftest import expire, give_up
from tests.integration.conftest import Sweeperd
from tests.support.fixtures import a_shard, full
from tests.support.harness import SCOPES, reserve, server_time
from tests.support.servers import Server

ENDPOINTS = '[{"name": "billing", "url": "http://127.0.0.1:9/"}]'


def test_each_action_leaves_a_record(sweeperd: Sweeperd, shard: Shard, client: redis.Redis) -> None:
    def run(*arguments: str, code: int = 0) -> None:
        ran = sweeperd(*arguments, "--yes", SWEEPERD_WEBHOOKS__ENDPOINTS=ENDPOINTS)
        assert ran.code == code, ran.err

    first = server_time(client)
    (letter, _) = give_up(shard, ["l1", "l2"])
    reserve(client, ["requeued", "dismissed", "adopted", "lost"], overdue_by=-50_000)
    client.zadd("sweeperd:quarantine", {"requeued": 1, "dismissed": 1})
    client.hset("reservation:res_adopted", mapping={"quarantined_at": 5, "quarantine_reason": "INVALID_ESTIMATE"})
    client.zrem("reservation:ttl", "adopted", "lost", "requeued", "dismissed")
    run("endpoints", "pause", "billing")
    run("endpoints", "pause", "billing")
    run("endpoints", "resume", "billing")
    reserve(client, ["skipped"])
    expire(client, ["skipped"])
    (taken,) = Outbox(shard, "test").read("billing", 1)
    run("endpoints", "skip", "billing", taken.id.decode())
    run("endpoints", "skip", "billing", "evt_unknown", code=1)
    run("dead-letters", "replay", letter.decode())
    run("dead-letters", "drop", "--all")
    run("quarantine", "requeue", "requeued")
    run("quarantine", "dismiss", "--all")
    run("quarantine", "adopt", "adopted")
    run("reconcile", "--repair")
    client.hincrby(f"budget:{SCOPES[0]}:TOKENS", "reserved", 7)
    run("reconcile", "--repair-budget", f"{SCOPES[0]}:TOKENS")
    listed = sweeperd("actions", "--json").document["actions"]
    assert [(row["action"], row["target"], row["count"]) for row in reversed(listed)] == [
        ("pause", "billing", 1),
        ("resume", "billing", 1),
        ("skip", f"billing {taken.id.decode()}", 1),
        ("replay", "billing", 1),
        ("drop", "billing", 2),
        ("requeue", "requeued", 1),
        ("dismiss", "all", 1),
        ("adopt", "adopted", 1),
        ("repair", "index of reservations", 1),
        ("repair-budget", f"{SCOPES[0]}:TOKENS +7", 1),
    ]
    assert {row["who"] for row in listed} == {f"{getpass.getuser()}@{socket.gethostname()}"}
    assert all(first <= action.at <= server_time(client) for _, action in read_actions(shard))
    assert len(sweeperd("actions", "--limit", "2", "--json").document["actions"]) == 2


def test_neither_user_nor_target_has_to_be_utf_8(
    sweeperd: Sweeperd, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER"):
        monkeypatch.setenv(name, "\udcff")
    reserve(client, ["a"], scopes=[SCOPES[0]])
    budget = SCOPES[0].encode() + b"\xff:TOKENS"
    client.rename(f"budget:{SCOPES[0]}:TOKENS", b"budget:" + budget)
    client.hincrby(b"budget:" + budget, "reserved", 7)
    ran = sweeperd("reconcile", "--repair-budget", budget.decode("utf-8", "surrogateescape"), "--yes")
    (row,) = sweeperd("actions", "--json").document["actions"]
    assert row["who"] == f"\\xff@{socket.gethostname()}", ran.err
    assert row["target"].startswith(f"{SCOPES[0]}\\xff:TOKENS")


def test_a_daemon_exports_the_counts_and_logs_new_actions(
    shard: Shard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "EXPORT_EVERY", 0.0)
    record(shard, Action.PAUSE, "billing")
    metrics = Metrics()
    exporter = ActionExporter(shard, metrics)
    with caplog.at_level(logging.INFO, "sweeperd"):
        exporter.update()
        record(shard, Action.REQUEUE, "all", 20)
        record(shard, Action.PAUSE, "crm")
        exporter.update()
        exporter.update()
    logged = [vars(entry) for entry in caplog.records if entry.message == "an operator acted"]
    assert [(entry["action"], entry["target"], entry["count"]) for entry in logged] == [
        ("requeue", "all", 20),
        ("pause", "crm", 1),
    ]

    def count(action: str, name: str = "actions") -> float | None:
        labels = {"shard": "default", "action": action}
        return metrics.registry.get_sample_value(f"sweeperd_operator_{name}_total", labels)

    assert (count("pause"), count("requeue"), count("drop")) == (2, 1, 0)
    assert (count("pause", "changes"), count("requeue", "changes"), count("drop", "changes")) == (2, 20, 0)


def test_the_stream_is_bounded(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "KEPT", 10)
    for number in range(500):
        record(shard, Action.PAUSE, str(number))
    assert shard.client.xlen(shard.keys.actions) <= 200
    assert shard.client.hget(shard.keys.action_counts, "pause") == b"500"


@pytest.mark.every_redis
def test_a_full_redis_records_too(own_server: Server) -> None:
    with a_shard(own_server) as shard, full(shard):
        record(shard, Action.DROP, "billing")
        assert shard.client.xlen(shard.keys.actions) == 1
