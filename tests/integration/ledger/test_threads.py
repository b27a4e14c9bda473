"""A Ledger that many threads share."""

from concurrent.futures import ThreadPoolExecutor

import redis

from sweeperd.ledger import Ledger
from tests.support.harness import eventually
from tests.support.servers import Server

THREADS = 150


def test_each_of_many_threads_has_a_connection(server: Server, client: redis.Redis) -> None:
    with Ledger.from_url(server.url) as ledger, ThreadPoolExecutor(THREADS) as pool:
        ledger.open_budget("acme", "TOKENS", 10)
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # so that all calls are in flight at the same time
        calls = [pool.submit(ledger.budget, "acme", "TOKENS") for _ in range(THREADS)]
        waiting = eventually(
            lambda: int(client.info("clients")["connected_clients"]) > THREADS or any(call.done() for call in calls)
        )
        client.execute_command("CLIENT", "UNPAUSE")
        assert waiting
        assert [call.result().remaining for call in calls] == [10] * THREADS
