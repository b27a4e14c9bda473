"""What the tests put into Redis, and the sweeperd processes that they run on it."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import redis
from prometheus_client.parser import text_string_to_metric_families

from sweeperd.config import RedisSettings
from sweeperd.ledger import Ledger
from sweeperd.store import Keys, Shard
from sweeperd.store.scripts import Call, Script
from tests.support.forked import TELL_STACKS, Forked, can_fork

#: A running sweeperd.
Process: TypeAlias = Forked | subprocess.Popen[Any]
SCOPES = ("tenant:acme", "tenant:acme/workspace:prod")
#: Events that a process has in hand at most, two for each of its 16 connections: queued, being sent, or delivered and
#: not acknowledged yet. When it dies, so many webhooks may come again.
IN_HAND = 32
#: The same of an endpoint that gets batches of BATCH events, on the half of these connections.
BATCH = 50
BATCHES_IN_HAND = IN_HAND // 2 * BATCH
#: How long a reservation lives before its deadline.
TTL_MS = 60_000


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
    Have the ledger make reservations whose deadline and grace passed `overdue_by` ms ago (negative: are yet to come),
    each holding `amount` of budget that is there for it in each scope.
    """
    keys = Keys(prefix)
    bare = [entry.encode() if isinstance(entry, str) else entry for entry in ids]
    for start in range(0, len(bare), 1000):
        part = bare[start : start + 1000]
        _fund(client, keys, scopes, amount * len(part))
        calls = _reserve_calls(part, prefix, tenant, scopes, amount, grace)
        refused = [reply for reply in Script("ledger/reserve").run_many(client, calls) if reply[0] != b"ok"]
        assert not refused, refused[0]
        expires_at = server_time(client) - overdue_by - grace
        pipeline = client.pipeline()  # atomic: a sweeper may be at work
        for entry in part:
            times: dict[Any, Any] = {"created_at": expires_at - TTL_MS, "expires_at": expires_at}
            pipeline.hset(keys.reservation(entry), mapping=times)
            pipeline.zadd(keys.reservation_index, {entry: expires_at})
        pipeline.execute()


def _fund(client: redis.Redis, keys: Keys, scopes: Sequence[str], amount: int) -> None:
    """Open the budgets that are not there, and put `amount` into each."""
    pipeline = client.pipeline()
    for scope in scopes:
        key = keys.budget(scope.encode(), b"TOKENS")
        for field in ("spent", "reserved", "debt", "overdraft_limit"):
            pipeline.hsetnx(key, field, 0)
        pipeline.hset(key, mapping={"status": "ACTIVE", "is_over_limit": "false"})
        pipeline.hincrby(key, "allocated", amount)
        pipeline.hincrby(key, "remaining", amount)
    pipeline.execute()


def _reserve_calls(
    ids: Sequence[bytes], prefix: str, tenant: str, scopes: Sequence[str], amount: int, grace: int
) -> list[Call]:
    """The calls of the ledger's script that `Ledger.reserve` makes one by one, to be sent in one go."""

    class Collector(Script):
        calls: ClassVar[list[Call]] = []

        def run(self, _client: redis.Redis, call: Call) -> list[Any]:
            self.calls.append(call)
            answer = b'{"reservation_id":"","unit":"","created_at":0,"expires_at":0,"balances":[],"missing":[]}'
            return [b"ok", answer, call.args[0]]

    waiting = iter(ids)
    ledger = Ledger(Shard(RedisSettings(), prefix), new_id=lambda: next(waiting))
    ledger.scripts["reserve"] = Collector("ledger/reserve")
    for entry in ids:
        ledger.reserve(
            tenant,
            scopes,
            "TOKENS",
            amount,
            ttl=timedelta(milliseconds=TTL_MS),
            grace=timedelta(milliseconds=grace),
            idempotency_key=entry,
        )
    return Collector.calls


def budget(client: redis.Redis, scope: str = SCOPES[0], prefix: str = "") -> tuple[int, int]:
    """(reserved, remaining) of a budget."""
    values: Any = client.hmget(f"{prefix}budget:{scope}:TOKENS", "reserved", "remaining")
    return int(values[0]), int(values[1])


def waits(thread: threading.Thread) -> bool:
    """Whether it waits for a condition or an event at this moment."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) == (threading.__file__, "wait")


def eventually(condition: Callable[..., Any], limit: float = 60.0, pause: float = 0.1) -> Any:
    """
    Wait until the condition holds and return what it gave; fails after `limit` seconds. To ask costs CPU that others
    wait for, so the longer the wait was, the longer is the next pause, up to `pause` seconds.
    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < limit, f"not so within {limit} s"
        time.sleep(min(0.01 + waited / 10, pause))


def environment(url: str = "", **settings: object) -> dict[str, str]:
    """
    The environment of a sweeperd on this Redis, without the settings of whoever runs the tests. Settings are named as
    in the environment: `sweep__interval="100ms"`; `endpoints` is the list of endpoints, `shards` that of shards, which
    then stand in the place of the URL.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SWEEPERD_") and not name.lower().endswith("_proxy")
    }
    ours |= {"SWEEPERD_REDIS__URL": url, "SWEEPERD_HTTP__LISTEN": "127.0.0.1:0", "SWEEPERD_CONFIG": os.devnull}
    if "endpoints" in settings:
        ours["SWEEPERD_WEBHOOKS__ENDPOINTS"] = json.dumps(settings.pop("endpoints"))
    if "shards" in settings:
        del ours["SWEEPERD_REDIS__URL"]
        ours["SWEEPERD_SHARDS"] = json.dumps(settings.pop("shards"))
    return ours | {f"SWEEPERD_{name.upper()}": str(value) for name, value in settings.items()}


def heed_interrupts() -> None:
    """In the child: a shell that starts the tests in the background has them ignore SIGINT, and children inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def command(*arguments: str) -> list[str]:
    """The installed command of the environment that the tests run in."""
    return [str(Path(sys.executable).parent / "sweeperd"), *arguments]


def run(
    arguments: Sequence[str], env: Mapping[str, str], *, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run sweeperd with these arguments, without input, to its end. Raises TimeoutExpired after `timeout` seconds."""
    with (
        Path(os.devnull).open() as none,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        streams = [none.fileno(), output.fileno(), errors.fileno()]
        process = started(arguments, env, streams)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess([*arguments], code, output.read(), errors.read())


def started(
    arguments: Sequence[str], env: Mapping[str, str], streams: Sequence[int], wrapper: Sequence[str] = ()
) -> Process:
    """
    A sweeperd with these arguments. `streams`: the descriptors of its input, output and error output. The process leads
    a group of its own, so that what a wrapper starts ends with it.
    """
    if can_fork(env) and not wrapper:
        return Forked(arguments, env, streams)
    given, output, errors = streams
    line = [*wrapper, *command(*arguments)]
    return subprocess.Popen(line, env=env, stdin=given, stdout=output, stderr=errors, start_new_session=True)


def on_terminal(
    arguments: Sequence[str], url: str, answer: bytes, meanwhile: Callable[[], object] = lambda: None
) -> tuple[int, bytes]:
    """Exit code and output of a command on a terminal, which answers each question after `meanwhile`."""
    leader, follower = pty.openpty()
    asked = started(arguments, environment(url) | {"TERM": "xterm"}, [follower] * 3)
    os.close(follower)
    seen = b""
    with contextlib.suppress(OSError):  # that is how the other side's end shows
        while part := os.read(leader, 4096):
            seen += part
            if seen.endswith(b"[y/N]: "):
                meanwhile()
                os.write(leader, answer)
    os.close(leader)
    return asked.wait(20), seen


@dataclass(frozen=True)
class Once:
    """What a `--once --json` came to."""

    code: int
    report: dict[str, Any]
    errors: str


def once(env: Mapping[str, str], *options: str, limit: float = 120.0) -> Once:
    """Run `sweeperd --once --json` to its end. The caller checks how it ends."""
    done = run(["--once", "--json", "--log-level", "warning", *options], env, timeout=limit)
    return Once(done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr)


def http_get(address: str, path: str) -> tuple[int, str]:
    """Status and body of a GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Daemon:
    """A running `sweeperd` process, its log and its HTTP port."""

    def __init__(self, env: Mapping[str, str], log: Path, wrapper: Sequence[str] = (), limit: float = 60.0) -> None:
        """Raises AssertionError if it has not started within `limit` seconds; it is ended then."""
        self._log = log
        with log.open("ab") as output:
            self.process = started([], env, [0, 1, output.fileno()], wrapper)
        try:
            self._port = eventually(lambda: self._fatal() or self.logged("started"), limit)[0]["http_port"]
        except BaseException:
            self.kill()
            raise

    def lines(self) -> list[dict[str, Any]]:
        """The log so far, parsed; it is one JSON object a line."""
        text = self._log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The log lines with this message."""
        return [line for line in self.lines() if line["message"] == message]

    def told(self, message: str) -> list[dict[str, Any]]:
        """The same, once there is one: a thread of its own writes the log, after the effect that a line tells of."""
        lines: list[dict[str, Any]] = eventually(lambda: self.logged(message))
        return lines

    @property
    def address(self) -> str:
        """Host and port of its HTTP."""
        return f"127.0.0.1:{self._port}"

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        return http_get(self.address, path)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample; 0 if it is not there."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    def reload(self) -> None:
        """SIGHUP."""
        self.process.send_signal(signal.SIGHUP)

    def terminate(self, limit: float = 60.0) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and so has all that it started
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stacks(self) -> str:
        """What each of its threads does now; empty if it has ended, or cannot tell."""
        if not isinstance(self.process, Forked) or self.process.poll() is not None:
            return ""
        before = len(self._log.read_bytes())
        with contextlib.suppress(AssertionError, ProcessLookupError):  # the process is stopped, or has just ended
            self.process.send_signal(TELL_STACKS)
            eventually(lambda: b"\nCurrent thread" in self._log.read_bytes()[before:], 2)
        return self._log.read_bytes()[before:].decode()

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
        print(log.read_text()[-8000:], running.stacks(), sep="\n")
        raise
    finally:
        if running.process.poll() is None:
            running.kill()
