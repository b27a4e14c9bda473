"""`sweeperd reconcile` as a process, and the daemon's own walks."""

import json
import subprocess
from pathlib import Path

import pytest
import redis

from tests.e2e.terminal import Terminal
from tests.support.acl import limited
from tests.support.harness import SCOPES, budget, daemon, environment, eventually, once, reserve, run
from tests.support.kind_settings import SEAT_HOLD, hold_seats
from tests.support.servers import Server

LATER = -50_000
DRIFTED = f"budget:{SCOPES[0]}:TOKENS"


def repair(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run(["reconcile", "--repair", "--yes"], env, timeout=60)


def plant(client: redis.Redis) -> None:
    reserve(client, ["right", "lost"], overdue_by=LATER)
    client.zrem("reservation:ttl", "lost")
    client.zadd("reservation:ttl", {"\x1b[31morphan\t": 9e15})


def test_with_the_rights_of_the_acl(own_server: Server) -> None:
    prefix = "{tenant-a}:"
    with redis.Redis.from_url(own_server.url, protocol=2) as client:
        reserve(client, ["lost"], overdue_by=LATER, prefix=prefix)
        client.delete(f"{prefix}reservation:ttl")
        with limited(own_server, client, prefix) as url:
            done = repair(environment(url, keys__prefix=prefix))
        assert done.returncode == 0, done.stderr
        assert client.zcard(f"{prefix}reservation:ttl") == 1


def test_replicas_walk_once_and_all_tell_what_was_found(client: redis.Redis, server: Server, tmp_path: Path) -> None:
    plant(client)
    client.hincrby(DRIFTED, "reserved", 7)
    env = environment(server.url, reconcile__interval="1s", reconcile__rate=100_000)

    def found(finding: str) -> float:
        return min(each.metric("sweeperd_reconcile_findings", finding=finding) for each in (one, other))

    with daemon(env, tmp_path) as one, daemon(env, tmp_path) as other:
        eventually(lambda: found("lost") == 1 and found("orphan") == 1 and found("budget_drift") == 1)
        assert client.zscore("reservation:ttl", "lost") is None, "the daemon mends nothing"
        told = one.logged("reconcile found a fault") + other.logged("reconcile found a fault")
        assert {line["fault"] for line in told} == {"lost", "orphan", "budget_drift"}
        assert repair(environment(server.url)).returncode == 1
        eventually(lambda: found("lost") == 0 and found("orphan") == 0 and found("budget_drift") == 1)
        # An endless walk does not keep it from stopping.
        assert one.terminate() == 0
        assert other.terminate() == 0


def test_the_daemon_walks_kinds_and_its_page_names_them(client: redis.Redis, server: Server, tmp_path: Path) -> None:
    hold_seats(client, "a", 1, 4_000_000_000_000)
    client.zadd("seats:ttl", {"orphan": 4_000_000_000_000})
    config = tmp_path / "config.toml"
    config.write_text(SEAT_HOLD)
    env = environment(server.url, reconcile__interval="1s", reconcile__rate=100_000, config=config)
    with daemon(env, tmp_path) as running:
        found = {"kind": "seat-hold", "finding": "orphan"}
        eventually(lambda: running.metric("sweeperd_reconcile_findings", **found) == 1)
        assert running.metric("sweeperd_reconcile_runs_total", kind="seat-hold", result="ok") >= 1
        assert client.zscore("seats:ttl", "orphan") is not None, "the daemon mends nothing"

        def warnings() -> list[str]:
            (shard,) = json.loads(running.get("/status.json")[1])["shards"]
            return [each["text"] for each in (shard["status"] or {}).get("warnings", [])]

        eventually(lambda: any("last walk over seat-hold" in text and "1 orphan" in text for text in warnings()))
        assert running.terminate() == 0


def test_two_operators_end_one_drift_once(client: redis.Redis, server: Server) -> None:
    reserve(client, ["one", "two"], overdue_by=LATER, amount=100)
    before = budget(client)
    client.hincrby(DRIFTED, "reserved", 100)
    client.hincrby(DRIFTED, "remaining", -100)
    arguments = ("reconcile", "--repair-budget", f"{SCOPES[0]}:TOKENS")
    env = environment(server.url)
    with Terminal(env, arguments) as one, Terminal(env, arguments) as other:
        one.ask()
        other.ask()
        one.answer("y")
        other.answer("y")
        one.end()
        other.end()
        shown = [one.plain, other.plain]
    assert budget(client) == before
    assert sum(": repaired" in text for text in shown) == 1, shown
    assert sum("another repair" in text or ": no drift" in text for text in shown) == 1, shown
    assert client.hget("sweeperd:action-counts", "repair-budget") == b"1"


def test_on_a_terminal_there_are_a_bar_and_a_table(client: redis.Redis, server: Server) -> None:
    plant(client)
    with Terminal(environment(server.url), ["reconcile"]) as terminal:
        assert terminal.end() == 1
    for told in (b"default: walking the hashes", b"100%", b"expected", b"\x1b[31mlost", rb"\x1b[31morphan\t"):
        assert told in terminal.seen, terminal.seen


def test_a_hash_belongs_to_the_kind_with_the_longer_key(client: redis.Redis, server: Server, tmp_path: Path) -> None:
    """The keys of seat-hold could be entries of a kind `seats:{id}`, which would give back in its own way."""
    hold_seats(client, "a", 1, 4_000_000_000_000)
    client.hset("seats:b", mapping={"state": "HELD", "expires_at": 4_000_000_000_000})
    config = tmp_path / "config.toml"
    outer = SEAT_HOLD.replace("seat-hold", "seat").replace("seats:ttl", "seat:ttl").replace("seats:hold:", "seats:")
    config.write_text(outer + SEAT_HOLD)
    env = environment(server.url, config=config)
    assert run(["reconcile", "--kind", "seat", "--repair", "--yes"], env).returncode == 0
    assert client.zrange("seat:ttl", 0, -1) == [b"b"]
    assert run(["reconcile", "--kind", "seat-hold"], env).returncode == 0


@pytest.mark.parametrize("state", ["HELD", "EXPIRED"])
def test_what_was_set_aside_under_another_name_of_its_kind_is_lost(
    client: redis.Redis, server: Server, tmp_path: Path, state: str
) -> None:
    hold_seats(client, "a", 1, 1)  # the deadline is in seconds
    config = tmp_path / "config.toml"
    config.write_text(SEAT_HOLD)
    assert once(environment(server.url, config=config)).report["quarantined"] == 1
    client.hset("seats:hold:a", "state", state)
    config.write_text(SEAT_HOLD.replace("seat-hold", "seats"))
    env = environment(server.url, config=config)
    assert run(["reconcile", "--repair", "--yes", "--kind", "seats"], env).returncode == 0
    assert client.zrange("seats:ttl", 0, -1) == ([b"a"] if state == "HELD" else [])
    once(env)
    assert client.zrange("sweeperd:quarantine:seats", 0, -1) == ([b"a"] if state == "HELD" else [])
    assert run(["quarantine", "dismiss", "a", "--yes", "--kind", "seats"], env).returncode == (state == "EXPIRED")
    assert run(["reconcile", "--kind", "seats"], env).returncode == 0
