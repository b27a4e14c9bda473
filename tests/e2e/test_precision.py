"""`sweep.precision`: deadlines are met long before the interval, whoever dies, and trouble stays quiet."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.acl import PASSWORD, rules
from tests.support.books import Property, check, read
from tests.support.harness import Daemon, daemon, environment, eventually, reserve, server_time
from tests.support.servers import Server

#: Longer than any test.
INTERVAL = "10m"
#: How long a daemon is watched that must do nothing, seconds.
WATCHED = 1.5


def sweeps(running: Daemon, result: str) -> float:
    return running.metric("sweeperd_sweeps_total", shard="default", kind="reservations", result=result)


def outcome(running: Daemon, name: str) -> float:
    return running.metric("sweeperd_candidates_total", shard="default", kind="reservations", outcome=name)


def calls(client: redis.Redis) -> int:
    """How many commands the server has run, those of scripts among them."""
    stats: dict[str, Any] = client.info("commandstats")
    return sum(row["calls"] for name, row in stats.items() if name not in ("cmdstat_info", "cmdstat_ping"))


def looks(client: redis.Redis) -> int:
    stats: dict[str, Any] = client.info("commandstats")
    return int(stats.get("cmdstat_zrange", {}).get("calls", 0))


@contextlib.contextmanager
def replicas(server: Server, directory: Path, count: int, **settings: object) -> Iterator[list[Daemon]]:
    """So many daemons that have had their first tick, or have stood by."""
    env = environment(server.url, sweep__interval=INTERVAL, **settings)
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(daemon(env, directory)) for _ in range(count)]
        for each in running:
            eventually(lambda each=each: sweeps(each, "ok") + sweeps(each, "standby"))
        yield running


def late(client: redis.Redis, ids: set[str]) -> list[int]:
    """How late these have expired, ms."""
    rows: Any = client.xrange("sweeperd:events")
    found = {fields[b"id"].decode(): int(fields[b"expired_at"]) - int(fields[b"expires_at"]) for _, fields in rows}
    return [found[entry] for entry in ids]


def leader(client: redis.Redis, running: list[Daemon]) -> Daemon:
    """The daemon that noted the last tick, once this is one of those that run."""

    def noted() -> list[Daemon]:
        by: Any = client.hget("sweeperd:ticks", "by")
        return [each for each in running if by.decode().split("-")[-2] == str(each.process.pid)]

    found: list[Daemon] = eventually(noted)
    return found[0]


def test_deadlines_are_met_long_before_the_interval_whoever_dies(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    with replicas(server, tmp_path, 3) as running:
        for life in range(3):
            ids = {f"{life} {number}" for number in range(20)}
            for entry in sorted(ids):
                reserve(client, [entry], overdue_by=-300)
            eventually(lambda: not client.zcard("reservation:ttl"))
            assert min(late(client, ids)) > 0
            check(read(client), set(Property))
            last = leader(client, running)
            running.remove(last)
            last.kill()


def test_a_grace_is_asked_about_at_its_end(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with replicas(server, tmp_path, 1) as (running,):
        reserve(client, ["kept", "committed", "extended"], overdue_by=-1300, grace=1000)
        eventually(lambda: outcome(running, "in_grace") == 3)
        client.hset("reservation:res_committed", "state", "COMMITTED")
        client.zrem("reservation:ttl", "committed")
        soon = server_time(client) + 1500
        client.hset("reservation:res_extended", "expires_at", soon)
        client.zadd("reservation:ttl", {"extended": soon})
        eventually(lambda: outcome(running, "expired") == 2)
        assert client.zcard("reservation:ttl") == 0
        assert outcome(running, "skipped") + outcome(running, "not_due") + outcome(running, "not_found") == 0
        eventually(lambda: running.metric("sweeperd_expiry_lag_seconds_bucket", le="10.0") == 2)
        assert not running.logged("swept"), "that line comes once an interval"
        assert running.terminate() == 0
        (line,) = running.logged("swept")
    assert (line["expired"], line["in_grace"], line["ticks"] >= 3) == (2, 4, True)


def test_the_next_leader_learns_when_graces_end_that_only_the_last_one_knew(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    with replicas(server, tmp_path, 2) as running:
        reserve(client, ["kept"], overdue_by=-300)
        eventually(lambda: not client.zcard("reservation:ttl"))
        first = leader(client, running)
        ids = {f"{number}" for number in range(20)}
        reserve(client, sorted(ids), overdue_by=-6000, grace=6000)
        eventually(lambda: outcome(first, "in_grace") == 20)
        first.kill()
        reserve(client, ["wakes"], overdue_by=-100)
        # Long before the interval.
        eventually(lambda: not client.zcard("reservation:ttl"))
        assert min(late(client, ids)) > 6000


def test_without_precision_a_deadline_waits_for_the_interval(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    with replicas(server, tmp_path, 1, sweep__precision="0s") as (running,):
        reserve(client, ["entry"], overdue_by=-100)
        before = looks(client)
        threading.Event().wait(WATCHED)
        assert looks(client) - before < 10
        assert sweeps(running, "ok") == 1
    assert client.zcard("reservation:ttl") == 1


def is_quiet(running: Daemon, client: redis.Redis) -> bool:
    """Whether a daemon that has failed once neither looks nor tries again."""
    threading.Event().wait(0.2)
    errors, before = sweeps(running, "error"), looks(client)
    threading.Event().wait(WATCHED)
    return (errors, sweeps(running, "error")) == (1, 1) and looks(client) - before < 10


def test_a_right_that_was_taken_away(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.execute_command("ACL", "SETUSER", "sweeper", "reset", f">{PASSWORD}", *rules())
    url = server.url.replace("redis://", f"redis://sweeper:{PASSWORD}@")
    env = environment(url, sweep__interval=INTERVAL)
    with daemon(env, tmp_path) as running:
        eventually(lambda: sweeps(running, "ok"))
        reserve(client, ["entry"], overdue_by=-300)
        client.execute_command("ACL", "SETUSER", "sweeper", "-xadd")
        eventually(lambda: sweeps(running, "error"))
        assert is_quiet(running, client)
        client.execute_command("ACL", "SETUSER", "sweeper", "+xadd")
    client.acl_deluser("sweeper")
    assert client.zcard("reservation:ttl") == 1


def test_a_server_that_was_demoted(own_server: Server, tmp_path: Path) -> None:
    with redis.Redis.from_url(own_server.url) as client, replicas(own_server, tmp_path, 1) as (running,):
        reserve(client, ["entry"], overdue_by=-300)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        eventually(lambda: sweeps(running, "error"))
        assert is_quiet(running, client)
        assert client.zcard("reservation:ttl") == 1


def test_a_refused_kind_keeps_no_other_from_its_deadline(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    (tmp_path / "bad.lua").write_text("function decide(")
    bad = {
        "name": "bad",
        "index": "bad:ttl",
        "key": "bad:{id}",
        "deadline": "at",
        "writes": ["bad:*"],
        "ended": {"state": "EXPIRED"},
    }
    kinds = json.dumps([bad | {"script": f"file:{tmp_path / 'bad.lua'}"}])
    with replicas(server, tmp_path, 1, kinds=kinds) as (running,):
        refused = eventually(lambda: running.metric("sweeperd_sweeps_total", kind="bad", result="error"))
        client.zadd("bad:ttl", {"one": server_time(client) + 100})
        reserve(client, ["entry"], overdue_by=-300)
        eventually(lambda: not client.zcard("reservation:ttl"))
        assert running.metric("sweeperd_sweeps_total", kind="bad", result="error") == refused == 1


def test_a_lease_that_is_never_given_back(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.set("sweeperd:lease:sweep", "somebody-1-0123456789abcdef")
    with replicas(server, tmp_path, 1) as (running,):
        reserve(client, ["entry"], overdue_by=-100)
        threading.Event().wait(WATCHED)
        assert (sweeps(running, "standby"), sweeps(running, "ok")) == (1, 0)


def test_what_idle_daemons_ask(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """Three of them send up to 40 commands a second."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(daemon(environment(server.url), tmp_path)) for _ in range(3)]
        for each in running:
            eventually(lambda each=each: sweeps(each, "ok") + sweeps(each, "standby"))
        threading.Event().wait(6.0)  # each has heard who leads
        began, before = time.monotonic(), calls(client)
        threading.Event().wait(2.0)
        assert calls(client) - before <= 40 * (time.monotonic() - began)
