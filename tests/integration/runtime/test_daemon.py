"""The daemon, in this process, on a real Redis."""

import time

import redis

from sweeperd.config import Settings
from sweeperd.runtime.daemon import Daemon
from tests.support.harness import eventually, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

#: More than the connections that redis-py's pool has by default.
ENDPOINTS = 200


def test_many_endpoints_on_one_shard_stop_neither_sweep_nor_delivery(server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver:
        settings = Settings.model_validate(
            {
                "redis": {"url": server.url},
                "sweep": {"interval": "1s"},
                "webhooks": {
                    "concurrency": ENDPOINTS,
                    "endpoints": [
                        {"name": f"hook-{number}", "url": f"{receiver.url}{number}"} for number in range(ENDPOINTS)
                    ],
                },
            }
        )
        daemon = Daemon(settings)
        daemon.start()
        try:
            # The groups are there before the first sweep, and so get all of it.
            eventually(lambda: client.exists("sweeperd:ticks"), 60)
            reserve(client, ["one", "two"])
            eventually(lambda: len(receiver.requests) == 2 * ENDPOINTS, 120)
            assert daemon.readiness() == (True, "ok")
            assert daemon.health() == (True, "ok")
        finally:
            assert daemon.stop(time.monotonic() + 60)
