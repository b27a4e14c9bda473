"""The FastAPI example: streams that are cut and a process that dies leave the books right to the unit."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import requests

from sweeperd.ledger import Ledger
from tests.support.examples import EXAMPLES
from tests.support.harness import daemon, environment, eventually
from tests.support.servers import Server, free_port

STREAMS, MOST, ALLOCATED = 200, 20, 100_000
SCOPES = ("tenant:acme", "tenant:acme/app:chat")


class App:
    """The example, as a process of its own."""

    def __init__(self, redis_url: str, log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/stream"
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(self.port)]
        # A busy machine may need long for so many connections at once.
        patient = "?socket_connect_timeout=60&socket_timeout=60"
        env = os.environ | {"REDIS_URL": redis_url + patient, "HOLD_SECONDS": "2"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=EXAMPLES / "fastapi-budget", env=env, stdout=output, stderr=subprocess.STDOUT
            )
        eventually(self._listens, limit=60)

    def _listens(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(self.url, timeout=5).status_code == 422
        return False

    async def stream(self, tokens: int, cut_after: int | None) -> tuple[str, int]:
        """One stream of so many tokens, cut after so many. Returns the reservation's id, and how many tokens came."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET /stream?prompt=hi&max_tokens={tokens} HTTP/1.0\r\n\r\n".encode())
        reservation, came = "", 0
        while line := await reader.readline():
            name, _, value = line.decode().strip().partition(": ")
            reservation = value if name.lower() == "x-reservation-id" else reservation
            came += line.startswith(b"hi ")
            if came == cut_after:
                break
        writer.close()
        return reservation, came

    async def streams(self, count: int) -> list[tuple[str, int]]:
        """All at once; every third is cut, after another number of tokens each time."""
        cuts = (1 + number % (MOST - 1) if number % 3 == 0 else None for number in range(count))
        return await asyncio.gather(*(self.stream(MOST, cut) for cut in cuts))


@pytest.fixture
def ledger(server: Server, client: redis.Redis) -> Iterator[Ledger]:
    with Ledger.from_url(server.url) as ledger:
        for scope in SCOPES:
            ledger.open_budget(scope, "TOKENS", ALLOCATED)
        yield ledger


@pytest.fixture
def app(server: Server, ledger: Ledger, tmp_path: Path) -> Iterator[App]:
    app = App(server.url, tmp_path / "app.log")
    yield app
    app.process.kill()
    app.process.wait()
    assert "Traceback" not in (text := (tmp_path / "app.log").read_text()), text[-4000:]


def spent(ledger: Ledger) -> int:
    """What both budgets have spent; nothing is held."""
    (spent,) = {ledger.budget(scope, "TOKENS").spent for scope in SCOPES}
    for scope in SCOPES:
        budget = ledger.budget(scope, "TOKENS")
        assert (budget.reserved, budget.debt, budget.remaining) == (0, 0, ALLOCATED - spent)
    return spent


@pytest.mark.slow
def test_two_hundred_streams_of_which_a_third_is_cut(app: App, ledger: Ledger, server: Server, tmp_path: Path) -> None:
    with daemon(environment(server.url, sweep__interval="100ms", sweep__grace="0s"), tmp_path):
        came = dict(asyncio.run(app.streams(STREAMS)))
        assert len(came) == STREAMS
        eventually(lambda: all(ledger.get(each).charged is not None for each in came), limit=60)
    held = {each: ledger.get(each) for each in came}
    for each, tokens in came.items():
        if tokens == MOST:
            assert held[each].charged == MOST
        else:
            # Tokens may have left the process and not have come.
            assert tokens <= (held[each].charged or 0) <= MOST
    assert sum(tokens < MOST for tokens in came.values()) == len(range(0, STREAMS, 3))
    assert spent(ledger) == sum(each.charged or 0 for each in held.values()) < STREAMS * MOST


def test_a_process_that_dies_gives_all_back(app: App, ledger: Ledger, server: Server, tmp_path: Path) -> None:
    running = asyncio.new_event_loop()

    async def killed() -> list[tuple[str, int]]:
        streams = asyncio.gather(*(app.stream(MOST, None) for _ in range(9)))
        await asyncio.to_thread(eventually, lambda: ledger.budget(SCOPES[0], "TOKENS").reserved == 9 * MOST)
        app.process.kill()
        return await streams

    came = running.run_until_complete(killed())
    running.close()
    assert all(tokens < MOST for _, tokens in came)
    with daemon(environment(server.url, sweep__interval="100ms", sweep__grace="0s"), tmp_path) as swept:
        eventually(lambda: swept.metric("sweeperd_candidates_total", outcome="expired") == 9)
    assert spent(ledger) == 0


def test_a_refusal_holds_nothing(app: App, ledger: Ledger, client: redis.Redis) -> None:
    client.hset(f"budget:{SCOPES[1]}:TOKENS", "status", "FROZEN")
    answer = requests.get(app.url, params={"prompt": "hi"}, timeout=5)
    assert (answer.status_code, answer.json()) == (402, {"error": "BUDGET_FROZEN"})
    assert spent(ledger) == 0
