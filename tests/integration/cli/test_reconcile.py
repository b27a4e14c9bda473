"""`sweeperd reconcile`: options, what goes to which output, exit codes."""

import json
from typing import Any

import redis
from click.testing import Result

from sweeperd.config import Settings
from sweeperd.store import Shard
from sweeperd.text import timestamp
from tests.integration.conftest import Cli
from tests.support.books import Property, check, read
from tests.support.builders import make_reconciler
from tests.support.harness import SCOPES, environment, on_terminal, reserve
from tests.support.servers import Server

LATER = -50_000
DRIFTED = f"budget:{SCOPES[0]}:TOKENS"


def document(done: Result) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def plant(client: redis.Redis) -> None:
    reserve(client, ["right", "lost"], overdue_by=LATER)
    client.zrem("reservation:ttl", "lost")
    client.zadd("reservation:ttl", {"\x1b[31morphan\t": 9e15})


def test_it_finds_and_mends(cli: Cli, client: redis.Redis, server: Server) -> None:
    env = environment(server.url)
    clean = cli("reconcile", env)
    assert (clean.exit_code, clean.stdout) == (0, "shard\tkind\tfault\twhat\tfound\texpected\tdifference\tdone\n")
    assert "reservations: 0 hashes, 0 index entries and 0 budgets in " in clean.stderr
    plant(client)

    looked = cli("reconcile", env)
    assert looked.exit_code == 1
    _, *rows = (line.split("\t") for line in looked.stdout.splitlines())
    deadline: Any = client.hget("reservation:res_lost", "expires_at")
    expires_at = deadline.decode()
    assert sorted(row[:6] for row in rows) == [
        ["default", "reservations", "lost", "lost", "", expires_at],
        ["default", "reservations", "orphan", r"\x1b[31morphan\t", "9000000000000000", ""],
    ]
    assert "1 lost, 1 orphan" in looked.stderr
    assert client.zscore("reservation:ttl", "lost") is None

    mended = cli("reconcile", env, "--repair", "--yes")
    assert mended.exit_code == 0
    assert [line.split("\t")[-1] for line in mended.stdout.splitlines()] == ["done", "repaired", "repaired"]
    assert "repaired 1 lost" in mended.stderr
    check(read(client), {Property.INDEXED})

    client.zrem("reservation:ttl", "lost")
    code, seen = on_terminal(["reconcile", "--repair"], server.url, b"y\n")
    assert (code, b"reservations: repaired 1 lost" in seen, rb"\n" in seen) == (0, True, False)

    client.hincrby(DRIFTED, "reserved", -7)
    drifted = cli("reconcile", env, "--repair", "--yes")
    assert drifted.exit_code == 1
    assert drifted.stdout.splitlines()[1].split("\t") == [
        *("default", "reservations", "budget_drift", f"{DRIFTED} reserved", "3", "10", "-7", "")
    ]


def test_the_last_walk_of_the_daemon_is_shown_as_it_was(cli: Cli, shard: Shard, server: Server) -> None:
    env = environment(server.url)
    none = cli("reconcile", env, "--last")
    assert (none.exit_code, none.stderr.count("\n"), "no walk" in none.stderr) == (3, 1, True)
    assert document(cli("reconcile", env, "--last", "--json"))["shards"] == []
    plant(shard.client)
    shard.client.hincrby(DRIFTED, "reserved", 7)
    began = shard.read_clock()
    daemon = make_reconciler(Settings.model_validate({"reconcile": {"rate": 1_000_000}}), shard)
    for _ in range(2):  # the first time it does not walk
        daemon.run_if_due()
    assert cli("reconcile", env, "--repair", "--yes").exit_code == 1  # the index is mended; the drift is left
    done = cli("reconcile", env, "--last", "--json")
    assert done.exit_code == 1
    whole = document(done)
    (last,) = whole["shards"]
    assert (whole["repair"], whole["found"], whole["remaining"]) == (False, 3, 1)
    found = {kind: count for kind, count in last["found"].items() if count}
    assert found == {"lost": 1, "orphan": 1, "budget_drift": 1}
    assert {row.get("id", row.get("key")) for row in last["findings"]} == {"lost", "\x1b[31morphan\t", DRIFTED}
    assert timestamp(began) <= last["started_at"] <= last["finished_at"]
    assert (last["kind"], last["hashes"], last["counters"]) == ("reservations", 2, 2)
    table = cli("reconcile", env, "--last")
    assert sorted(line.split("\t")[2] for line in table.stdout.splitlines()[1:]) == ["budget_drift", "lost", "orphan"]
    assert "1 budget_drift" in table.stderr


def test_json_is_one_object(cli: Cli, client: redis.Redis, server: Server) -> None:
    plant(client)
    client.hincrby(DRIFTED, "reserved", 7)
    done = cli(
        "reconcile", environment(server.url), "--json", "--limit", "2", "--repair", "--yes", "--shard", "default"
    )
    assert (done.exit_code, done.stderr) == (1, "")
    told = document(done)
    assert (told["repair"], told["found"], told["remaining"], told["truncated"]) == (True, 3, 1, True)
    (shard,) = told["shards"]
    assert (shard["shard"], shard["hashes"], shard["counters"]) == ("default", 2, 2)
    mended = {"lost": 1, "orphan": 1, "wrong_score": 0, "short_ttl": 0}
    assert shard["found"] == {**mended, "foreign_quarantine": 0, "budget_drift": 1}
    assert shard["mended"] == mended
    assert {finding["id"] for finding in shard["findings"]} == {"lost", "\x1b[31morphan\t"}
    (drift,) = document(cli("reconcile", environment(server.url), "--json"))["shards"][0]["findings"]
    assert drift == {
        "fault": "budget_drift",
        "key": DRIFTED,
        "field": "reserved",
        "holds": 17,
        "sum": 10,
        "difference": 7,
        "difference_least": 7,
        "difference_most": 7,
        "mended": False,
    }
