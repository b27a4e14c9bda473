"""The receivers of examples/receivers take what sweeperd sends, drop duplicates, and refuse what is not signed."""

import base64
import fcntl
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import requests

from tests.support.documents import ROOT
from tests.support.harness import environment, eventually, once, reserve
from tests.support.servers import Server, free_port

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
#: A file of examples/receivers -> the program that runs it.
PROGRAMS = {
    "standard_library.py": [sys.executable],
    "flask_app.py": [sys.executable],
    "fastapi_app.py": [sys.executable],
    "node.mjs": ["node"],
    "express.mjs": ["node"],
    "receiver.go": ["go"],
}
#: How long Go may take to compile its standard library and the receiver on a machine that is busy, seconds.
COMPILE_LIMIT = 900


class Running:
    """A receiver, as a process."""

    def __init__(self, program: list[str], directory: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}/"
        self._log = directory / "output"
        env = os.environ | {"WEBHOOK_SECRET": SECRET, "PORT": str(port)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(program, cwd=directory, env=env, stdout=log, stderr=subprocess.STDOUT)
        eventually(self._listens, limit=60)

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.output()
        try:
            return requests.post(self.url, data=b"{}", timeout=5).status_code == 401
        except requests.ConnectionError:
            return False

    def output(self) -> str:
        return self._log.read_text()

    def post(self, event_id: str, body: bytes, *, at: int | None = None, key: bytes = KEY) -> int:
        """Send a body, signed at this time; returns the status."""
        timestamp = str(int(time.time()) if at is None else at)
        mac = hmac.digest(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256)
        headers = {
            "webhook-id": event_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": "v1," + base64.b64encode(mac).decode(),
        }
        return requests.post(self.url, data=body, headers=headers, timeout=5).status_code


def compiled(source: Path, directory: Path) -> Path:
    """The program of Go, which the first worker that comes compiles. Go keeps its library compiled for the next run."""
    program = directory / "receiver"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            # Without optimizations: two thirds of the time.
            build = ["go", "build", "-gcflags=all=-N -l", "-o", str(program), str(source)]
            env = {"GOCACHE": str(directory / "cache")} | os.environ if "HOME" not in os.environ else os.environ
            subprocess.run(build, cwd=directory, env=env, check=True, timeout=COMPILE_LIMIT)
    return program


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(file, marks=pytest.mark.timeout(COMPILE_LIMIT + 300)) if file.endswith(".go") else file
        for file in PROGRAMS
    ],
)
def receiver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file, program = request.param, PROGRAMS[request.param]
    folder = tmp_path_factory.mktemp("receiver")
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    if file == "express.mjs":
        # Node looks for modules beside the program and above; the variable names the folder that npm has filled.
        modules = os.environ.get("SWEEPERD_TEST_NODE_MODULES")
        if not modules:
            pytest.skip("SWEEPERD_TEST_NODE_MODULES names no folder with express and standardwebhooks")
        (folder / "node_modules").symlink_to(modules)
    path = Path(shutil.copy(ROOT / "examples" / "receivers" / file, folder))
    if file == "receiver.go":
        # With pytest-xdist each worker has a directory of its own below that of the run.
        base = tmp_path_factory.getbasetemp()
        shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "go"
        shared.mkdir(exist_ok=True)
        command = [str(compiled(path, shared))]
    else:
        command = [*program, str(path)]
    running = Running(command, folder)
    yield running
    running.process.kill()
    running.process.wait()


def test_it_takes_the_events_of_sweeperd(receiver: Running, server: Server, client: redis.Redis) -> None:
    env = environment(server.url, endpoints=[{"name": "r", "url": receiver.url, "secrets": [SECRET]}])
    assert once(env).code == 0
    reserve(client, ["a", "b"])
    result = once(env)
    assert (result.code, result.report["delivered"]) == (0, 2)
    # Two threads of a receiver may print on the same line.
    eventually(lambda: all(f"expired {entry}" in receiver.output() for entry in ("a", "b")))


def test_it_drops_duplicates_and_refuses_what_is_not_signed(receiver: Running) -> None:
    before = receiver.output().count("expired")
    body = b'{"event_type": "reservation.expired", "data": {"reservation_id": "one"}}'
    assert [receiver.post("evt_1", body), receiver.post("evt_1", body)] == [204, 204]
    eventually(lambda: "expired one" in receiver.output())
    assert receiver.post("evt_0", b'{"event_type": "webhook.test", "data": {"reservation_id": "no"}}') == 204
    forged = body.replace(b"one", b"forged")
    assert receiver.post("evt_2", forged, key=b"another key") == 401
    assert receiver.post("evt_2", forged, at=int(time.time()) - 3600) == 401
    assert receiver.post("evt_3", body.replace(b"one", b"last")) == 204
    eventually(lambda: "expired last" in receiver.output())
    assert receiver.output().count("expired") - before == 2


def calls(client: redis.Redis, command: str) -> int:
    """How often the server has run a command."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


def test_the_consumer_of_the_stream_reads_each_event_and_acknowledges_it(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    source, log = ROOT / "examples" / "consumers" / "stream.py", tmp_path / "output"
    env, before = os.environ | {"REDIS_URL": server.url}, calls(client, "xautoclaim")
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, str(source)], env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: calls(client, "xautoclaim") >= before + 2 or process.poll() is not None, limit=60)
        assert process.poll() is None, "it reads on after a read that found nothing"
        reserve(client, ["a", "b"])
        assert once(environment(server.url, events__groups='["warehouse"]')).code == 0
        eventually(lambda: log.read_text().count("expired") == 2)
        assert sorted(line.split()[1] for line in log.read_text().splitlines()) == ["a", "b"]
        eventually(lambda: client.xpending("sweeperd:events", "warehouse")["pending"] == 0)
    finally:
        process.kill()
        process.wait()
