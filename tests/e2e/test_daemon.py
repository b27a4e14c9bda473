"""The daemon: its metrics, its health, its end."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import redis

from sweeperd.runtime.cpu_affinity import FIRST_AFTER, busy_times
from tests.support.harness import Daemon, budget, daemon, environment, eventually, reserve, run, server_time
from tests.support.host import fake_clock
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server, free_port

#: What the daemon logs once of the sweep while Redis cannot be reached.
TICK_FAILED = "sweep failed, the next tick tries again"


def outcome(running: Daemon, name: str) -> float:
    return running.metric("sweeperd_candidates_total", shard="default", outcome=name)


def test_every_counter_of_the_sweep_goes_up_with_its_effect(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    env = environment(server.url, sweep__interval="100ms")
    with daemon(env, tmp_path) as running:
        eventually(lambda: running.metric("sweeperd_sweeps_total", shard="default", result="ok") >= 2)

        reserve(client, ["one", "two"], overdue_by=2000, tenant="acme")
        reserve(client, ["three"], overdue_by=2000, tenant="globex")
        eventually(lambda: outcome(running, "expired") == 3)
        assert running.metric("sweeperd_expired_total", tenant="acme") == 2
        assert running.metric("sweeperd_expired_total", tenant="globex") == 1
        assert running.metric("sweeperd_expiry_lag_seconds_count", shard="default") == 3
        assert 6 <= running.metric("sweeperd_expiry_lag_seconds_sum", shard="default") < 30
        assert budget(client) == (0, 15)

        client.delete("budget:tenant:acme:TOKENS")
        reserve(client, ["no-budget"], scopes=["tenant:acme", "tenant:other"], overdue_by=-3000)
        client.delete("budget:tenant:other:TOKENS")
        client.zadd("reservation:ttl", {"orphan": 1})
        client.hset("reservation:res_done", mapping={"state": "COMMITTED"})
        client.zadd("reservation:ttl", {"done": 1})
        client.hset("reservation:res_broken", mapping={"state": "?"})
        client.zadd("reservation:ttl", {"broken": 1})
        eventually(lambda: outcome(running, "expired") == 4)
        eventually(lambda: outcome(running, "not_found") == 1)
        eventually(lambda: outcome(running, "skipped") == 1)
        eventually(lambda: outcome(running, "quarantined") == 1)
        eventually(lambda: running.metric("sweeperd_quarantined_entries", shard="default") == 1)
        assert running.metric("sweeperd_missing_budgets_total", shard="default") >= 1
        warned = eventually(lambda: [line for line in running.logged("expired") if line["level"] == "WARNING"])
        assert warned[0]["missing_budgets"] == ["tenant:other"]

        reserve(client, ["extended"], overdue_by=-60_000)
        client.zadd("reservation:ttl", {"extended": 1})
        eventually(lambda: outcome(running, "not_due") == 1)
        assert (client.zscore("reservation:ttl", "extended") or 0) > server_time(client)

        reserve(client, ["graceful"], overdue_by=-3_595_000, grace=3_600_000)
        eventually(lambda: outcome(running, "in_grace") >= 2)
        eventually(lambda: running.metric("sweeperd_due_entries", shard="default") == 1)
        assert running.metric("sweeperd_oldest_due_seconds", shard="default") >= 5
        assert running.metric("sweeperd_sweep_duration_seconds_count", shard="default") >= 5
        assert running.metric("sweeperd_redis_up", shard="default") == 1
        assert running.metric("sweeperd_build_info") == 1
        assert outcome(running, "error") == 0


def test_tenants_can_be_left_out_of_the_metrics(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    env = environment(server.url, sweep__interval="100ms", metrics__tenant_label="false")
    with daemon(env, tmp_path) as running:
        reserve(client, ["one"], tenant="acme")
        eventually(lambda: running.metric("sweeperd_expired_total") == 1)
        assert "acme" not in running.get("/metrics")[1]


def test_a_replica_that_holds_the_lease_has_the_others_stand_by(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    client.set("sweeperd:lease:sweep", "somebody else", px=60_000)
    reserve(client, ["one"])
    with daemon(environment(server.url, sweep__interval="100ms"), tmp_path) as running:
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="standby") >= 2)
        assert running.get("/readyz") == (200, "ok\n")
        assert outcome(running, "expired") == 0
        # A lease that is not renewed runs out.
        client.pexpire("sweeperd:lease:sweep", 1)
        eventually(lambda: outcome(running, "expired") == 1)
        assert running.terminate() == 0
    eventually(lambda: not client.exists("sweeperd:lease:sweep"), limit=5)


def test_redis_that_is_down_is_one_clear_line(own_server: Server, tmp_path: Path) -> None:
    """At the start, and after a reload that names a Redis that cannot be reached."""
    config = tmp_path / "config.toml"
    with Receiver() as receiver:
        endpoint = f'[sweep]\ninterval = "200ms"\n[[webhooks.endpoints]]\nname = "hook"\nurl = "{receiver.url}"\n'

        def names(url: str) -> None:
            config.write_text(f'{endpoint}[redis]\nurl = "{url}"\n')

        env = environment(config=str(config))
        del env["SWEEPERD_REDIS__URL"]
        names(own_server.url)
        own_server.kill()
        with daemon(env, tmp_path) as running:
            down_is_told_clearly(running, env, own_server.url)
            own_server.start()
            eventually(lambda: running.logged("delivery goes on") and running.logged("sweep goes on"))
            with redis.Redis.from_url(own_server.url) as client:
                eventually(lambda: running.get("/readyz")[0] == 200)
                reserve(client, ["one"])
            receiver.wait_for(lambda requests: len(requests) == 1)
            before = len(running.lines())
            absent = f"redis://127.0.0.1:{free_port()}/0"
            names(absent)
            running.reload()
            eventually(lambda: running.metric("sweeperd_reloads_total", result="ok") == 1)
            down_is_told_clearly(running, env, absent, before)
            status, problem = running.get("/readyz")
            assert (status, absent in problem) == (503, True)
            assert running.metric("sweeperd_reloads_total", result="refused") == 0
            names(own_server.url)
            running.reload()
            eventually(lambda: running.get("/readyz")[0] == 200)
            assert running.terminate() == 0


def down_is_told_clearly(running: Daemon, env: dict[str, str], url: str, before: int = 0) -> None:
    """One line for each task, however often it tries; one line for the operator; never a traceback."""
    failed = running.metric("sweeperd_sweeps_total", result="error")
    eventually(lambda: running.metric("sweeperd_sweeps_total", result="error") >= failed + 3)
    waiting = [f"{task} waits for redis" for task in ("delivery", "maintenance", "reconcile")]
    eventually(lambda: {TICK_FAILED, *waiting} <= {line["message"] for line in running.lines()[before:]})
    lines = running.lines()[before:]
    for message in waiting:
        (line,) = [line for line in lines if line["message"] == message]
        assert url.removesuffix("/0") in line["error"]
    assert not [line for line in lines if "exc_info" in line]
    assert [each["error"] for each in lines if each["message"] == TICK_FAILED] == [line["error"]]
    ended = run(["status"], env)
    assert ended.returncode == 1
    (told,) = [line for line in ended.stderr.splitlines() if "Connection refused" in line]
    assert url in told


@pytest.mark.skipif(not fake_clock(), reason="faketime is not installed")
@pytest.mark.slow
def test_a_clock_that_is_really_set_back_is_told(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """The sweep goes on at once."""
    clock = tmp_path / "clock"
    clock.write_text("+0")
    env = environment(server.url, sweep__interval="1s") | {
        "LD_PRELOAD": fake_clock(),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    with daemon(env, tmp_path) as running:
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") >= 1)
        clock.write_text("-2h")
        line = eventually(lambda: running.logged("the host's clock was set back; running at once"))[0]
        assert line["task"]
        swept = running.metric("sweeperd_sweeps_total", result="ok")
        reserve(client, ["one"])
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") > swept)
        eventually(lambda: client.hget("reservation:res_one", "state") == b"EXPIRED")
        assert running.terminate() == 0


def test_sigterm_finishes_what_is_in_flight(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver(lambda *_: Answer(delay=1)) as receiver:
        env = environment(server.url, sweep__interval="100ms", endpoints=[{"name": "hook", "url": receiver.url}])
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, [str(number) for number in range(40)])
            receiver.wait_for(lambda requests: len(requests) >= 16)
            assert running.terminate() == 0
            assert running.logged("stopped")
        # What was in flight was answered and acknowledged; what was only taken is free for the next one at once.
        left = client.xpending_range("sweeperd:events", "hook", "-", "+", 100)
        assert 40 - len(receiver.event_ids) <= len(left) + client.xinfo_groups("sweeperd:events")[0].get("lag", 40)
        assert all(row["times_delivered"] == 0 for row in left)
        receiver.behaviour = lambda *_: Answer()
        with daemon(env, tmp_path):
            receiver.wait_for(lambda requests: len({request.event_id for request in requests}) == 40)
        assert len(receiver.requests) == 40


def test_a_receiver_that_hangs_does_not_keep_it_longer_than_the_grace(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    with Receiver(lambda *_: Answer(delay=60)) as receiver:
        env = environment(
            server.url, sweep__interval="100ms", shutdown_grace="2s", endpoints=[{"name": "hook", "url": receiver.url}]
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["one"])
            receiver.wait_for(lambda requests: len(requests) == 1)
            assert running.terminate(limit=20) == 0
    assert client.xpending("sweeperd:events", "hook")["pending"] == 1


def test_a_second_signal_ends_it_at_once(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver(lambda *_: Answer(delay=60)) as receiver:
        env = environment(server.url, sweep__interval="100ms", endpoints=[{"name": "hook", "url": receiver.url}])
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["one"])
            receiver.wait_for(lambda requests: len(requests) == 1)
            running.process.send_signal(signal.SIGINT)
            eventually(lambda: running.logged("stopping"))
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(5) == -signal.SIGTERM


def test_secrets_are_nowhere(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    client.acl_setuser("known", enabled=True, passwords=["+hunter2-redis"], categories=["+@all"], keys=["*"])
    try:
        with Receiver(lambda *_: Answer(500)) as receiver:
            url = server.url.replace("redis://", "redis://known:hunter2-redis@")
            hook = receiver.url.replace("http://", "http://user:hunter2-url@") + "?token=hunter2-query"
            endpoint = {
                "name": "hook",
                "url": hook,
                "secrets": ["hunter2-secret"],
                "headers": {"Authorization-Too": "hunter2-header"},
            }
            env = environment(
                url, sweep__interval="100ms", log__level="debug", webhooks__attempts=1, endpoints=[endpoint]
            )
            with daemon(env, tmp_path) as running:
                eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
                reserve(client, ["one"])
                eventually(lambda: running.logged("not delivered"))
                assert receiver.requests[0].headers["Authorization-Too"] == "hunter2-header"
                assert receiver.requests[0].headers["Authorization"].startswith("Basic ")
                pages = "".join(running.get(path)[1] for path in ("/metrics", "/healthz", "/readyz"))
                assert running.terminate() == 0
                shown = pages + "".join(path.read_text() for path in tmp_path.iterdir())
                assert "hunter2" not in shown
                assert '"estimated_amount"' not in shown
    finally:
        client.acl_deluser("known")


def cores(running: Daemon) -> set[int]:
    """The cores that its threads may use."""
    allowed: set[int] = set()
    for task in Path(f"/proc/{running.process.pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            allowed |= os.sched_getaffinity(int(task.name))
    return allowed


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to a core")
def test_a_process_that_delivers_keeps_to_one_core(server: Server, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use a single core only")
    with daemon(
        environment(server.url, endpoints=[{"name": "hook", "url": "http://127.0.0.1:9/"}]), tmp_path
    ) as running:
        since, before = time.monotonic(), busy_times()
        try:
            eventually(lambda: len(cores(running)) == 1, limit=8)
        except AssertionError:
            busy = [(now - before[core]) / (time.monotonic() - since) for core, now in busy_times().items()]
            if min(busy) < 0.3:
                raise
            pytest.skip("other processes keep each core busy")
    with daemon(environment(server.url, sweep__interval="200ms"), tmp_path) as running:
        # By then it would have chosen.
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") > 10 * FIRST_AFTER)
        assert cores(running) == os.sched_getaffinity(0)
