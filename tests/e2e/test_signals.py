"""Signals at each moment in the life of a process, and a system that gives no more threads."""

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from tests.support.harness import Daemon, budget, command, daemon, environment, eventually, heed_interrupts, reserve
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server

MODULE = [sys.executable, "-m", "sweeperd"]
#: In place of a limit of the system, which does not hold for root: no thread is started while there are as many as
#: the file says.
NO_MORE_THREADS = """
import os, threading

start = threading.Thread.start

def limited(self):
    try:
        limit = int(open(os.environ["THREADS"]).read())
    except OSError:
        limit = 10**6
    if threading.active_count() >= limit:
        raise RuntimeError("can't start new thread")
    start(self)

threading.Thread.start = limited
"""


# ---- while it starts


class Starting:
    """A process that waits for its settings: they come through a pipe."""

    def __init__(self, env: dict[str, str], directory: Path, *arguments: str, first: bool = False) -> None:
        self._path = directory / "config.toml"
        os.mkfifo(self._path)
        more = {"SWEEPERD_CONFIG": str(self._path)}
        line = [*(AS_FIRST if first else []), *MODULE, *arguments]
        self.process = subprocess.Popen(line, env=env | more, stderr=subprocess.PIPE, text=True)
        self._pipe = os.open(self._path, os.O_WRONLY)  # waits for the reader

    def go_on(self) -> None:
        """Give it the settings, and a file to read later."""
        self._path.unlink()
        self._path.touch()
        os.close(self._pipe)

    def wait_for(self, message: str) -> None:
        """Until it has logged this."""
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if json.loads(line)["message"] == message:
                return
        pytest.fail(f"it ended with {self.process.wait()}: {lines}")


def test_a_hang_up_while_a_daemon_starts_is_a_reload(server: Server, tmp_path: Path) -> None:
    starting = Starting(environment(server.url), tmp_path)
    with starting.process as process:
        try:
            process.send_signal(signal.SIGHUP)
            starting.go_on()
            starting.wait_for("reloaded; nothing has changed")
            process.send_signal(signal.SIGTERM)
            starting.wait_for("stopped")
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_daemon_that_is_ended_while_it_starts_has_nothing_to_finish(tmp_path: Path) -> None:
    starting = Starting(environment(), tmp_path)
    with starting.process as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        starting.go_on()


def test_a_run_that_is_ended_while_it_starts_has_done_nothing(tmp_path: Path) -> None:
    starting = Starting(environment(), tmp_path, "--once")
    with starting.process as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 1
        starting.go_on()


def test_a_hang_up_ends_a_command_that_is_no_daemon(tmp_path: Path) -> None:
    starting = Starting(environment(), tmp_path, "status")
    with starting.process as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == -signal.SIGHUP
        starting.go_on()


# ---- before it knows its command, and as the first process of a container

#: In place of click: says that the imports have begun, and waits.
BLOCKS = "print('imports', flush=True); input()"
SLOW = """
import time
from sweeperd.runtime.signals import stop_on_signals

with stop_on_signals() as stop:
    print("begun", flush=True)
    stop.wait()
    print("stopping", flush=True)
    time.sleep(60)
"""
#: Runs a command as the first process of a namespace, as a container does.
AS_FIRST = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@functools.cache
def has_namespaces() -> bool:
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run([*AS_FIRST, "true"], capture_output=True, check=False).returncode
    )


def child_of(process: subprocess.Popen[str]) -> int:
    """The process that `unshare` has started."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


@pytest.mark.parametrize("first", [False, True], ids=["a process", "the first of a container"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_imports_ends_the_process(number: signal.Signals, first: bool, tmp_path: Path) -> None:
    if first and not has_namespaces():
        pytest.skip("no namespaces of processes here")
    (tmp_path / "click.py").write_text(BLOCKS)
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env.get("PYTHONPATH", "")])
    pipe = subprocess.PIPE
    line = [*(AS_FIRST if first else []), *MODULE]
    with subprocess.Popen(
        line,
        env=env,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - the child only sets a signal
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "imports\n"
            os.kill(child_of(process) if first else process.pid, number)
            assert process.wait(20) == (128 + number if first else -number)
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_a_job_in_the_background_goes_on_at_ctrl_c(tmp_path: Path) -> None:
    """A shell without job control lets it ignore SIGINT."""
    (tmp_path / "click.py").write_text("import os, signal; os._exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)")
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env.get("PYTHONPATH", "")])
    line = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh", *MODULE]
    assert subprocess.run(line, env=env, timeout=20, check=False).returncode == 1


@pytest.mark.skipif("not has_namespaces()")
def test_sigterm_ends_a_command_that_is_the_first_process_of_a_container(tmp_path: Path) -> None:
    starting = Starting(environment(), tmp_path, "status", first=True)
    with starting.process as process:
        os.kill(child_of(process), signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
        starting.go_on()


@pytest.mark.parametrize("first", [False, True], ids=["a process", "the first of a container"])
def test_the_second_signal_ends_the_process_at_once(first: bool) -> None:
    if first and not has_namespaces():
        pytest.skip("no namespaces of processes here")
    line = [*(AS_FIRST if first else []), sys.executable, "-c", SLOW]
    with subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for said in ("begun\n", "stopping\n"):
                assert process.stdout.readline() == said
                os.kill(child_of(process) if first else process.pid, signal.SIGTERM)
            assert process.wait(20) == (128 + signal.SIGTERM if first else -signal.SIGTERM)
        finally:
            process.kill()


# ---- `--once`


def test_a_signal_ends_a_run_after_its_batch(server: Server, client: redis.Redis) -> None:
    reserve(client, [str(number) for number in range(3000)])
    with subprocess.Popen(
        command("--once", "--log-level", "error"), env=environment(server.url, sweep__pipeline_depth=1)
    ) as process:
        eventually(lambda: client.xlen("sweeperd:events"))
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 1
    expired = client.xlen("sweeperd:events")
    assert 0 < expired < 3000
    assert client.zcard("reservation:ttl") == 3000 - expired
    assert budget(client) == (5 * (3000 - expired), 5 * expired)
    assert not client.exists("sweeperd:lease:sweep"), "the lease is given back"


def test_a_signal_after_the_last_expiry_does_not_change_how_a_run_ends(server: Server, client: redis.Redis) -> None:
    """The run has ended, and its metrics are being pushed."""
    reserve(client, ["one"])
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        url = f"http://127.0.0.1:{gateway.getsockname()[1]}"
        with subprocess.Popen(
            command("--once", "--json", "--metrics-push", url),
            env=environment(server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            connection, _ = gateway.accept()
            with connection:
                pushed = connection.recv(100_000)
                process.send_signal(signal.SIGINT)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            assert process.stdout is not None
            assert json.loads(process.stdout.read())["expired"] == 1
            assert process.wait(20) == 0
    assert pushed.startswith(b"PUT ")


def test_a_signal_while_a_run_leaves_does_not_change_how_it_ends(server: Server) -> None:
    for _ in range(2):
        with subprocess.Popen(
            command("--once", "--json"), env=environment(server.url), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


# ---- no more threads


class Limited:
    """The environment of a daemon whose threads can be limited."""

    def __init__(self, env: dict[str, str], directory: Path) -> None:
        (directory / "sitecustomize.py").write_text(NO_MORE_THREADS)
        self._limit = directory / "threads"
        self.config = directory / "config.toml"
        more = {
            "PYTHONPATH": os.pathsep.join([str(directory), env.get("PYTHONPATH", "")]),
            "THREADS": str(self._limit),
            "SWEEPERD_CONFIG": str(self.config),
        }
        self.env = env | more

    def write(self, interval: str, url: str) -> None:
        endpoints = [f'[[webhooks.endpoints]]\nname = "e{number}"\nurl = "{url}"' for number in range(8)]
        self.config.write_text("\n".join([f'[sweep]\ninterval = "{interval}"', *endpoints]))

    def allow(self, running: Daemon, more: int) -> None:
        """Let the process start this many more threads."""
        self._limit.write_text(str(len(list(Path(f"/proc/{running.process.pid}/task").iterdir())) + more))


@pytest.fixture
def limited(server: Server, tmp_path: Path) -> Limited:
    return Limited(environment(server.url, webhooks__concurrency=16), tmp_path)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux only")
def test_a_reload_that_gets_no_threads_ends_the_process(limited: Limited, client: redis.Redis, tmp_path: Path) -> None:
    """No daemon is left that would deliver to every endpoint, so the service manager has to start another process."""
    answering = threading.Event()

    def answer_when_told(_: Request, _before: int) -> Answer:
        answering.wait(30)
        return Answer()

    with Receiver(answer_when_told) as receiver:
        limited.write("100ms", receiver.url)
        with daemon(limited.env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["one"])
            receiver.wait_for(lambda requests: len(requests) == 8)
            limited.allow(running, -10)  # with a few more, those that end may make room enough
            limited.write("200ms", receiver.url)
            running.reload()
            eventually(lambda: running.logged("sweeperd cannot go on and ends"))
            answering.set()
            assert running.process.wait(20) == 1
            (line,) = running.logged("sweeperd cannot go on and ends")
            assert "can't start new thread" in line["exc_info"]
            assert running.logged("stopped")
        # What was in flight was finished and acknowledged.
        assert len(receiver.requests) == 8
        groups = client.xinfo_groups("sweeperd:events")
        assert [(group["pending"], group["consumers"]) for group in groups] == [(0, 0)] * 8
        assert not client.exists("sweeperd:lease:sweep")


def test_a_start_that_gets_no_threads_ends_the_process(limited: Limited, server: Server) -> None:
    limited.write("100ms", "http://127.0.0.1:1/")
    Path(limited.env["THREADS"]).write_text("5")
    done = subprocess.run(command(), env=limited.env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "sweeperd cannot go on and ends" in done.stderr


def test_a_daemon_that_gets_no_more_threads_is_ended_as_ever(
    limited: Limited, client: redis.Redis, tmp_path: Path
) -> None:
    with Receiver() as receiver:
        limited.write("100ms", receiver.url)
        with daemon(limited.env, tmp_path) as running:
            reserve(client, ["one"])
            receiver.wait_for(lambda requests: len(requests) == 8)
            limited.allow(running, -10)
            assert running.terminate() == 0
            assert running.logged("stopped")
