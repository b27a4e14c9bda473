"""Checks that SIGTERM ends the daemon within `shutdown_grace`, whatever hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.harness import daemon, environment, eventually
from tests.support.receiver import Receiver
from tests.support.servers import Server

GRACE = 2


@pytest.mark.parametrize(("role", "interval"), [("all", "100ms"), ("sweep", "1h")], ids=["busy", "idle"])
def test_redis_hangs(own_server: Server, tmp_path: Path, role: str, interval: str) -> None:
    """While a tick waits for Redis, and when the last words to Redis wait."""
    with Receiver() as receiver:
        env = environment(
            own_server.url,
            role=role,
            sweep__interval=interval,
            shutdown_grace=f"{GRACE}s",
            redis__socket_timeout="20s",
            endpoints=[{"name": "hook", "url": receiver.url}],
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                assert running.terminate() == 0
                assert time.monotonic() - began < 15, "long before the time-out of Redis"
            finally:
                os.kill(own_server.pid, signal.SIGCONT)


#: The main thread is in a call of the C library that no signal interrupts, as a name server that hangs keeps it.
HANGING = """
import ctypes, os, signal
from sweeperd.runtime.last_resort import LastResort
signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
LastResort(lambda: {grace}, lambda: os._exit(7), signal.SIGTERM).start()
print("ready", flush=True)
ctypes.CDLL(None).system(b"exec sleep 30")
"""


def hanging(grace: float) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", HANGING.format(grace=grace)], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.2)  # the call begins
    return process


@pytest.mark.parametrize(("grace", "signals"), [(1.0, 1), (60.0, 2)], ids=["grace ends", "second signal"])
def test_the_main_thread_hangs(grace: float, signals: int) -> None:
    with hanging(grace) as process:
        for _ in range(signals):
            process.terminate()
            time.sleep(0.3)  # two at the same time would be one
        assert process.wait(30) == 7
