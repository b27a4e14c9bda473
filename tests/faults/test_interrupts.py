"""Raises from signal handlers during ledger calls while Redis responds slowly."""

import subprocess
import sys
import threading

import redis

from tests.support.servers import Server

INTERRUPTS = 200
#: Keeps Redis busy for some ms. It counts, because time stands still in a script from Redis 7.2 on.
BUSY = "for _ = 1, 500000 do end"


def test_no_call_gets_the_answer_of_an_interrupted_one(server: Server, client: redis.Redis) -> None:
    """And the process lives: with hiredis' packer it sometimes ended with a segmentation fault."""
    stop = threading.Event()

    def be_busy() -> None:
        with redis.Redis(port=server.port) as other:
            while not stop.wait(0.001):
                other.eval(BUSY, 0)

    busy = threading.Thread(target=be_busy)
    busy.start()
    try:
        line = [sys.executable, "-m", "tests.faults.interrupted", server.url, str(INTERRUPTS)]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        stop.set()
        busy.join()
    assert (done.returncode, done.stdout) == (0, f"{INTERRUPTS} 0\n")
    assert client.hget("budget:s:TOKENS", "spent") == b"0"
