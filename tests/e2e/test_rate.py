"""`max_rate` with three daemons: how many requests come to the receiver."""

import contextlib
import os
import time
from pathlib import Path

import pytest
import redis

from sweeperd.delivery.rate_limit import BURST
from tests.support.harness import daemon, environment, eventually, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

#: How long the requests are counted, seconds. The full size is 30.
SECONDS = float(os.environ.get("SWEEPERD_TEST_RATE_SECONDS", "1"))
#: From here on the rate is judged too. In a shorter time, the bound holds, and a busy machine may send less.
LONG = 30.0
RATE = 50


def test_three_daemons_keep_to_the_rate(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """In no time more than the rate and one burst; over 30 s, within 5 % of the rate."""
    total = int(RATE * (SECONDS + 1))
    with Receiver() as receiver, contextlib.ExitStack() as stack:
        endpoint = {"name": "hook", "url": receiver.url, "max_rate": RATE}
        env = environment(server.url, sweep__interval="100ms", endpoints=[endpoint])
        daemons = [stack.enter_context(daemon(env, tmp_path)) for _ in range(3)]
        for each in daemons:
            eventually(lambda each=each: each.get("/readyz")[0] == 200)
        began = time.monotonic()
        reserve(client, [str(number) for number in range(total)])
        requests = receiver.wait_for(lambda requests: len(requests) == total, SECONDS + 60)
        for number, request in enumerate(requests, 1):
            assert number <= RATE * (request.at - began) + RATE * BURST + 1
        # After the burst.
        counted = sum(requests[0].at + 0.5 <= request.at < requests[0].at + 0.5 + SECONDS for request in requests)
        print(f"{counted} requests in {SECONDS:.0f} s: {counted / SECONDS / RATE:.3f} of {RATE} a second")
        if SECONDS >= LONG:
            assert counted == pytest.approx(RATE * SECONDS, rel=0.05)

        def sent() -> list[float]:
            name = "sweeperd_webhook_attempts_total"
            return [each.metric(name, endpoint="hook", result="delivered") for each in daemons]

        # An attempt counts when its answer is read: after the receiver has seen the request.
        eventually(lambda: sum(sent()) == total)
        assert min(sent()) > 0, "each of them delivers"
        assert sum(each.metric("sweeperd_webhook_rate_waits_total", endpoint="hook") for each in daemons) > 0
