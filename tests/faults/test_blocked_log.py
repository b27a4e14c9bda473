"""Checks that work and shutdown go on while standard error is a full pipe that nobody reads."""

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.harness import environment, eventually, http_get, reserve, started
from tests.support.receiver import Receiver
from tests.support.servers import Server, free_port


class FullPipe:
    """A pipe with no room left."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"." * 4095 + b"\n")
        os.set_blocking(self.writing, True)

    def read(self, last: str) -> list[dict[str, Any]]:
        """What is in the pipe up to this message, without what filled the pipe."""
        os.set_blocking(self.reading, False)
        text = b""

        def all_read() -> bool:
            nonlocal text
            with contextlib.suppress(BlockingIOError):
                while part := os.read(self.reading, 65536):
                    text += part
            return f'"{last}"'.encode() in text and text.endswith(b"\n")

        eventually(all_read)
        return [json.loads(line) for line in text.splitlines() if not line.startswith(b".")]

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[FullPipe]:
    made = FullPipe()
    yield made
    made.close()


def test_the_work_goes_on_while_nobody_reads_the_log(server: Server, client: redis.Redis, pipe: FullPipe) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Receiver() as receiver:
        env = environment(
            server.url,
            http__listen=address,
            sweep__interval="100ms",
            shutdown_grace="60s",
            log__level="debug",
            endpoints=[{"name": "hook", "url": receiver.url}],
        )
        process = started([], env, [0, 1, pipe.writing])
        try:
            eventually(lambda: client.exists("sweeperd:ticks"))
            reserve(client, [str(number) for number in range(20)])
            receiver.wait_for(lambda requests: len(requests) == 20)
            eventually(lambda: client.xpending("sweeperd:events", "hook")["pending"] == 0)
            assert http_get(address, "/healthz") == (200, "ok\n")
            process.terminate()
            assert process.wait(20) == 0, "long before the grace is over"
        finally:
            process.kill()


def test_what_waited_is_written_when_somebody_reads_again(server: Server, client: redis.Redis, pipe: FullPipe) -> None:
    env = environment(server.url, http__listen="", sweep__interval="100ms")
    process = started([], env, [0, 1, pipe.writing])
    try:
        reserve(client, ["one"])
        eventually(lambda: client.xlen("sweeperd:events"))
        assert {"started", "expired"} <= {line["message"] for line in pipe.read("expired")}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert os.read(pipe.reading, 65536).rstrip().endswith(b"}")
    finally:
        process.kill()


def test_a_run_for_cron_waits_for_the_reader_and_ends_when_told(
    server: Server, client: redis.Redis, pipe: FullPipe
) -> None:
    reserve(client, ["one"])
    env = environment(server.url, shutdown_grace="1s", log__level="debug")
    process = started(["--once"], env, [0, 1, pipe.writing])
    try:
        eventually(lambda: client.xlen("sweeperd:events"))
        process.terminate()
        assert process.wait(20) == 1
    finally:
        process.kill()


def test_a_run_for_cron_loses_no_line(server: Server, client: redis.Redis, pipe: FullPipe) -> None:
    reserve(client, ["one"])
    process = started(["--once"], environment(server.url), [0, 1, pipe.writing])
    try:
        eventually(lambda: client.xlen("sweeperd:events"))
        assert "expired" in {line["message"] for line in pipe.read("run ended")}
        assert process.wait(20) == 0
    finally:
        process.kill()
