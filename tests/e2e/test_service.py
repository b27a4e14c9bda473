"""The daemon as a service, in real processes: new settings at SIGHUP, and the messages to the service manager."""

import json
import re
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from sweeperd.outbox import PARKED
from tests.support.authority import Authority
from tests.support.harness import Daemon, daemon, environment, eventually, reserve, run
from tests.support.manager import manager
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server, free_port


def reloads(running: Daemon, result: str) -> float:
    return running.metric("sweeperd_reloads_total", result=result)


def write(path: Path, *endpoints: str, interval: str = "100ms", rest: str = "") -> None:
    """A configuration with endpoints of these URLs, named a, b, c."""
    blocks = [
        f'[[webhooks.endpoints]]\nname = "{name}"\nurl = "{url}"' for name, url in zip("abc", endpoints, strict=False)
    ]
    path.write_text("\n".join([f'[sweep]\ninterval = "{interval}"', *blocks, rest]))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    directory = tmp_path / "config"
    directory.mkdir()
    return directory / "config.toml"


@pytest.fixture
def env(server: Server, config: Path) -> dict[str, str]:
    return environment(server.url) | {"SWEEPERD_CONFIG": str(config)}


def test_what_is_probably_a_mistake_is_told_at_a_start_and_at_a_reload(
    env: dict[str, str], config: Path, tmp_path: Path
) -> None:
    with Receiver() as receiver:
        write(config, receiver.url, rest='events = ["reservation.expird"]')
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.told("the settings are probably wrong"))
            assert "did you mean reservation.expired?" in running.told("the settings are probably wrong")[0]["problem"]
            write(config, receiver.url, rest='events = ["seat.expired"]')
            running.reload()
            eventually(lambda: len(running.told("the settings are probably wrong")) == 2)
            write(config, receiver.url)
            running.reload()
            eventually(lambda: len(running.told("reloaded")) == 2)
            assert len(running.told("the settings are probably wrong")) == 2


def test_a_shorter_interval_takes_effect_and_the_counters_stay(
    env: dict[str, str], client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    write(config, interval="1h")
    reserve(client, ["one"])
    with daemon(env, tmp_path) as running:
        assert [reloads(running, result) for result in ("ok", "refused")] == [0, 0]
        assert "sweeperd_reloads_total" in running.get("/metrics")[1]
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") == 1)
        write(config, interval="100ms")
        running.reload()
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") >= 4)
        assert reloads(running, "ok") == 1
        assert running.metric("sweeperd_expired_total", tenant="acme") == 1
        assert running.told("reloaded")[0]["interval_seconds"] == 0.1
        assert running.get("/readyz") == running.get("/healthz") == (200, "ok\n")
        assert running.terminate() == 0
        assert running.logged("stopped")


def test_a_kind_and_a_group_that_go_leave_no_gauge_behind(
    env: dict[str, str], client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    """The value of such a gauge would never change again, and an alert on the gauge would fire until a restart."""
    active, ended = '{ state = "HELD" }', '{ state = "FREE" }'
    kind = [
        'name = "lock"',
        'index = "l"',
        'key = "l:{id}"',
        'deadline = "at"',
        f"active = {active}",
        f"ended = {ended}",
    ]
    write(config, rest="\n".join(['[events]\ngroups = ["warehouse"]\n[[kinds]]', *kind]))
    gauges = 'oldest_due_seconds{kind="lock"', 'stream_group_oldest_seconds{group="warehouse"'
    with daemon(env, tmp_path) as running:
        eventually(lambda: all(gauge in running.get("/metrics")[1] for gauge in gauges))
        write(config)
        running.reload()
        eventually(lambda: reloads(running, "ok") == 1)
        assert not [gauge for gauge in gauges if gauge in running.get("/metrics")[1]]
        assert 'sweeperd_due_entries{kind="reservations"' in running.get("/metrics")[1]


def test_an_endpoint_comes_and_another_goes_while_a_receiver_hangs(
    env: dict[str, str], client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    answering = threading.Event()

    def answer_when_told(_: Request, _before: int) -> Answer:
        answering.wait(30)
        return Answer()

    with Receiver(answer_when_told) as slow, Receiver() as quick:
        write(config, slow.url)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["one"])
            slow.wait_for(lambda requests: len(requests) == 1)
            eventually(lambda: running.metric("sweeperd_webhook_pending_events", endpoint="a") == 1)
            before = running.metric("sweeperd_sweeps_total", result="ok")
            config.write_text(f'[sweep]\ninterval="100ms"\n[[webhooks.endpoints]]\nname="b"\nurl="{quick.url}"')
            running.reload()
            eventually(lambda: reloads(running, "ok") == 1)  # nobody waits for the request in flight
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") > before)
            reserve(client, ["two"])
            quick.wait_for(lambda requests: len(requests) == 1)
            answering.set()
            # What was in flight is finished by those who sent it, and acknowledged.
            eventually(lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="a", result="delivered") == 1)
            # The second event may have been taken too, and put back without a try: this receiver is not asked any more.
            eventually(lambda: all(row["times_delivered"] == 0 for row in _pending(client)))
            page = running.get("/metrics")[1]
            assert 'sweeperd_webhook_pending_events{endpoint="b"}' in page
            assert 'sweeperd_webhook_pending_events{endpoint="a"}' not in page
            assert running.terminate() == 0
        assert (len(slow.requests), len(quick.requests)) == (1, 1)


#: A file that is refused, None: it is gone; and what is said of it.
BROKEN = [
    ("[sweep\n", "is not TOML"),
    ("[sweep]\nintervall = '5s'\n", "sweep.intervall: unknown key"),
    ("[sweep]\ninterval = 5\nbatch_size = 0\n", "sweep.batch_size: must be"),
    ("[http]\nlisten = '127.0.0.1:1x'\n", "http.listen"),
    (None, "cannot be read"),
]


def test_a_broken_file_is_refused_with_the_text_that_the_start_has(
    env: dict[str, str], config: Path, tmp_path: Path
) -> None:
    write(config)
    with daemon(env, tmp_path) as running:
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") >= 1)
        for number, (text, problem) in enumerate(BROKEN, 1):
            if text is None:
                config.unlink()
            else:
                config.write_text(text)
            running.reload()
            eventually(lambda number=number: reloads(running, "refused") == number)
            lines = eventually(
                lambda number=number: running.logged("the new settings are refused, the old ones stay")[number - 1 :]
            )
            assert problem in lines[0]["error"]
            refused = run([], env)
            assert refused.returncode == 2
            messages = [json.loads(part)["message"] for part in refused.stderr.splitlines()]
            assert messages == lines[0]["error"].splitlines()
        sweeps = running.metric("sweeperd_sweeps_total", result="ok")
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") >= sweeps + 3)
        assert (reloads(running, "ok"), reloads(running, "refused")) == (0, len(BROKEN))


def test_a_storm_of_signals_ends_with_the_last_file(
    env: dict[str, str], client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    with Receiver() as receiver:
        write(config, receiver.url, interval="200ms")
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            for number in range(1, 31):
                reserve(client, [str(number)])
                write(config, receiver.url, interval=f"{200 - number}ms")
                running.reload()
            receiver.wait_for(lambda requests: len(requests) == 30)
            eventually(lambda: _interval(running) == 0.17)
            assert reloads(running, "refused") == 0
            assert 1 <= reloads(running, "ok") <= 30
            eventually(
                lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="a", result="delivered") == 30
            )
            assert running.metric("sweeperd_sweeps_total", result="error") == 0
            eventually(lambda: running.get("/readyz")[0] == 200)
            # Those that were replaced have taken themselves out of the group.
            eventually(lambda: len(_consumers(client)) <= 1)
            assert running.terminate() == 0
        assert sorted(request.event["data"]["reservation_id"] for request in receiver.requests) == sorted(
            str(number) for number in range(1, 31)
        )


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads and files are counted on Linux only")
def test_reloads_leave_no_thread_and_no_connection(
    env: dict[str, str], client: redis.Redis, config: Path, tmp_path: Path
) -> None:
    """Each reload opens new connections to Redis and to endpoints, with and without TLS."""
    authority = Authority(tmp_path)
    with Receiver() as plain, Receiver(tls=authority.server()) as tls, Receiver() as other:
        ca = f'ca = "{authority.ca()}"'
        write(config, plain.url, other.url, tls.url, rest=ca)
        with daemon(env, tmp_path) as running:
            at_rest: list[int] = []
            for number in range(1, 9):
                reserve(client, [f"{number}-{event}" for event in range(20)])
                eventually(lambda number=number: plain.distinct == other.distinct == tls.distinct == 20 * number)
                write(config, plain.url, other.url, tls.url, interval=f"{100 + number}ms", rest=ca)
                running.reload()
                eventually(lambda number=number: reloads(running, "ok") == number)
                eventually(lambda: len(_consumers(client)) <= 1)  # the one that was replaced has ended
                at_rest = at_rest or [_settled(running)]
                # A life opens a few connections to Redis more or fewer, as its threads happen to ask at the same time.
                eventually(lambda open_once=at_rest[0]: _opened(running) <= open_once + 10)


def _settled(running: Daemon) -> int:
    """The most that is open once a second's readings differ by a few at most: nothing is being built or taken down."""
    readings = deque([_opened(running)], maxlen=10)

    def steady() -> bool:
        time.sleep(0.1)
        readings.append(_opened(running))
        return len(readings) == 10 and max(readings) - min(readings) <= 3

    eventually(steady)
    return max(readings)


def _opened(running: Daemon) -> int:
    """How many threads, files and connections a process has."""
    process = Path(f"/proc/{running.process.pid}")
    return sum(len(list((process / what).iterdir())) for what in ("task", "fd"))


def _pending(client: redis.Redis) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], client.xpending_range("sweeperd:events", "a", "-", "+", 10))


def _consumers(client: redis.Redis) -> list[bytes]:
    names = [row["name"] for row in client.xinfo_consumers("sweeperd:events", "a")]
    return [name for name in names if name != PARKED]


def _interval(running: Daemon) -> float | None:
    lines = running.logged("reloaded")
    return lines[-1]["interval_seconds"] if lines else None


def test_the_http_port_moves_where_it_can(env: dict[str, str], config: Path, tmp_path: Path) -> None:
    del env["SWEEPERD_HTTP__LISTEN"]
    first, second, taken = free_port(), free_port(), Receiver()
    with taken:
        write(config, rest=f'[http]\nlisten = "127.0.0.1:{first}"')
        with daemon(env, tmp_path) as running:
            address = taken.url.removeprefix("http://").split("/")[0]
            write(config, rest=f'[http]\nlisten = "{address}"')
            running.reload()
            eventually(lambda: reloads(running, "refused") == 1)
            (line,) = running.told("the new settings are refused, the old ones stay")
            assert line["error"].startswith(f"http.listen: cannot listen on {address}: Address already in use")
            write(config, rest=f'[http]\nlisten = "127.0.0.1:{second}"')
            running.reload()
            eventually(lambda: running.logged("reloaded"))
            running._port = second
            assert (reloads(running, "ok"), reloads(running, "refused")) == (1, 1)
            assert running.terminate() == 0


def test_the_soft_limit_of_files_is_raised_to_the_hard_one(env: dict[str, str], config: Path, tmp_path: Path) -> None:
    write(config)
    wrapper = ["sh", "-c", 'ulimit -S -n 200 && ulimit -H -n 4096 && exec "$@"', "sh"]
    with daemon(env, tmp_path, wrapper) as running:
        limits = Path(f"/proc/{running.process.pid}/limits").read_text()
    assert re.search(r"^Max open files +4096 +4096 ", limits, re.MULTILINE)


def test_what_needs_a_restart_is_said(env: dict[str, str], config: Path, tmp_path: Path) -> None:
    write(config)
    with daemon(env, tmp_path) as running:
        write(config, rest="[metrics]\ntenant_label = false\n[log]\nlevel = 'warning'")
        running.reload()
        eventually(lambda: reloads(running, "ok") == 1)
        assert running.told("the settings of [metrics] take effect with the next start")
        # The level has taken effect.
        assert not running.logged("reloaded")
        # A file that says the same as before is no reason to stop anything.
        running.reload()
        eventually(lambda: reloads(running, "ok") == 2)
        assert running.terminate() == 0


def test_the_service_manager_is_told(env: dict[str, str], config: Path, tmp_path: Path) -> None:
    write(config)
    with manager(tmp_path) as heard:
        env |= {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "400000"}
        with daemon(env, tmp_path) as running:
            eventually(lambda: heard.said("READY") == ["1"])
            eventually(lambda: len(heard.said("WATCHDOG")) >= 3)
            eventually(lambda: heard.said("STATUS")[-1] == "Sweeping every 0.1 s, delivering to 0 endpoints")
            write(config, "http://127.0.0.1:1/", interval="2s")
            running.reload()
            eventually(lambda: heard.said("READY") == ["1", "1"])
            eventually(lambda: heard.said("STATUS")[-1] == "Sweeping every 2 s, delivering to 1 endpoint")
            config.write_text("broken")
            running.reload()
            eventually(lambda: heard.said("READY") == ["1"] * 3)
            assert len(heard.said("RELOADING")) == 2
            assert heard.said("STATUS")[-1].startswith(f"The new settings were refused: {config}: is not TOML: ")
            assert heard.said("STATUS")[-1].endswith(" Sweeping every 2 s, delivering to 1 endpoint")
            fed = len(heard.said("WATCHDOG"))
            eventually(lambda: len(heard.said("WATCHDOG")) > fed)
            assert running.terminate() == 0
        kinds = [next(iter(message)) for message in heard.listen()]
        assert kinds[0] == "READY"
        assert kinds[-1] == "STOPPING"
        assert [kind for kind in kinds if kind in ("READY", "RELOADING")] == ["READY", *["RELOADING", "READY"] * 2]
        assert json.dumps(heard.heard).count("MONOTONIC_USEC") == 2


def test_a_daemon_that_cannot_reach_redis_is_alive_and_says_what_is_wrong(config: Path, tmp_path: Path) -> None:
    write(config)
    url = f"redis://127.0.0.1:{free_port()}/0"
    with manager(tmp_path) as heard:
        env = environment(url) | {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "400000"}
        with daemon(env | {"SWEEPERD_CONFIG": str(config)}, tmp_path) as running:
            eventually(lambda: any(text.startswith(f"Not ready: default: {url}") for text in heard.said("STATUS")))
            # To restart it would not bring Redis back.
            fed = len(heard.said("WATCHDOG"))
            eventually(lambda: len(heard.said("WATCHDOG")) > fed)
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(20) == 0
