"""What the tests put into Redis, and the sweeperd processes that they run on it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from prometheus_client.parser import text_string_to_metric_families

SCOPES = ("tenant:acme", "tenant:acme/workspace:prod")


def server_time(client: redis.Redis) -> int:
    """The server's TIME, ms."""
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000


def reserve(
    client: redis.Redis,
    ids: Sequence[bytes | str],
    *,
    overdue_by: int = 60_000,
    grace: int = 0,
    amount: int = 5,
    tenant: str = "acme",
    scopes: Sequence[str] = SCOPES,
    prefix: str = "",
) -> None:
    """
    Write ACTIVE reservations whose deadline and grace passed `overdue_by` ms ago (negative: are yet to come), as a
    budget service does, and hold `amount` of each scope's budget for each.
    """
    now = server_time(client)
    expires_at = now - overdue_by - grace
    row = {
        "tenant": tenant,
        "state": "ACTIVE",
        "estimate_amount": amount,
        "estimate_unit": "TOKENS",
        "scope_path": scopes[-1],
        "affected_scopes": json.dumps(scopes),
        "budgeted_scopes": json.dumps(scopes),
        "created_at": expires_at - 60_000,
        "expires_at": expires_at,
        "grace_ms": grace,
        "extension_count": 0,
    }
    stem = prefix.encode()
    for start in range(0, len(ids), 1000):
        pipeline = client.pipeline()  # atomic: a sweeper may be at work
        for entry in ids[start : start + 1000]:
            bare = entry.encode() if isinstance(entry, str) else entry
            pipeline.hset(stem + b"reservation:res_" + bare, mapping={"reservation_id": bare, **row})
            pipeline.zadd(stem + b"reservation:ttl", {bare: expires_at})
        for scope in scopes:
            budget = f"{prefix}budget:{scope}:TOKENS"
            held = amount * len(ids[start : start + 1000])
            pipeline.hincrby(budget, "reserved", held)
            pipeline.hincrby(budget, "allocated", held)
            pipeline.hincrby(budget, "remaining", 0)
            pipeline.hincrby(budget, "spent", 0)
        pipeline.execute()


def budget(client: redis.Redis, scope: str = SCOPES[0], prefix: str = "") -> tuple[int, int]:
    """(reserved, remaining) of a budget."""
    reserved, remaining = client.hmget(f"{prefix}budget:{scope}:TOKENS", "reserved", "remaining")
    return int(reserved), int(remaining)


def eventually(condition: Callable[[], Any], limit: float = 20.0) -> Any:
    """Wait until the condition holds and return what it gave; fails after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not so within {limit} s"
        time.sleep(0.02)


def environment(url: str, **settings: object) -> dict[str, str]:
    """
    The environment of a sweeperd on this Redis. Settings are named as in the environment: `sweep__interval="100ms"`;
    `endpoints` is the list of endpoints.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SWEEPERD_") and not name.lower().endswith("_proxy")
    }
    ours |= {"SWEEPERD_REDIS__URL": url, "SWEEPERD_HTTP__LISTEN": "127.0.0.1:0"}
    if "endpoints" in settings:
        ours["SWEEPERD_WEBHOOKS__ENDPOINTS"] = json.dumps(settings.pop("endpoints"))
    return ours | {f"SWEEPERD_{name.upper()}": str(value) for name, value in settings.items()}


def command(*arguments: str) -> list[str]:
    """The installed command of the environment that the tests run in."""
    return [str(Path(sys.executable).parent / "sweeperd"), *arguments]


@dataclass(frozen=True)
class Once:
    """What a `--once --json` came to."""

    code: int
    report: dict[str, Any]
    errors: str


def once(env: Mapping[str, str], *, limit: float = 120.0) -> Once:
    """Run the installed `sweeperd --once --json` to its end."""
    done = subprocess.run(  # noqa: PLW1510 - how it ends is what the tests look at
        command("--once", "--json", "--log-level", "warning"), env=env, capture_output=True, text=True, timeout=limit
    )
    return Once(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)


class Daemon:
    """A running `sweeperd` process, its log and its HTTP port."""

    def __init__(self, env: Mapping[str, str], log: Path, wrapper: Sequence[str] = ()) -> None:
        self._log = log
        with log.open("ab") as output:
            # A group of its own, so that what a wrapper starts ends with it.
            self.process = subprocess.Popen([*wrapper, *command()], env=env, stderr=output, start_new_session=True)
        self._port = eventually(lambda: self._fatal() or self.logged("started"))[0]["http_port"]

    def lines(self) -> list[dict[str, Any]]:
        """The log so far, parsed; it is one JSON object a line."""
        text = self._log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The log lines with this message."""
        return [line for line in self.lines() if line["message"] == message]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 where it is not there."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    def terminate(self, limit: float = 20.0) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _fatal(self) -> None:
        assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self._log.read_text()}"


@contextlib.contextmanager
def daemon(env: Mapping[str, str], directory: Path, wrapper: Sequence[str] = ()) -> Iterator[Daemon]:
    """Run a daemon while the block lasts; what it logged is shown where the block fails."""
    log = directory / f"sweeperd-{time.monotonic_ns()}.log"
    running = Daemon(env, log, wrapper)
    try:
        yield running
    except BaseException:
        print(log.read_text()[-8000:])
        raise
    finally:
        if running.process.poll() is None:
            running.kill()
