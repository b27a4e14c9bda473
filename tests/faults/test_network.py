"""Breaks the network between sweeperd, Redis and receivers: nothing is lost or released twice."""

from pathlib import Path

import pytest
import redis

from tests.faults.subscribers import Subscribers
from tests.support.books import Property, check, read
from tests.support.harness import IN_HAND, budget, daemon, environment, eventually, once, reserve
from tests.support.proxy import Mode, Proxy
from tests.support.receiver import Receiver, Request
from tests.support.servers import Server

TOTAL = 2000


def distinct(requests: list[Request]) -> int:
    return len({request.event_id for request in requests})


def check_books(client: redis.Redis, total: int) -> None:
    """Every expiry once in the ledger and once in the stream."""
    check(read(client), set(Property))
    assert client.xlen("sweeperd:events") == total
    assert budget(client) == (0, 5 * total)


@pytest.mark.slow
def test_connections_to_redis_are_cut_again_and_again(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Subscribers() as subscribers, Proxy(server.port) as proxy:
        env = environment(proxy.url, sweep__interval="100ms", endpoints=subscribers.endpoints)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            proxy.mode = Mode.CUT
            reserve(client, [str(number) for number in range(TOTAL)])
            eventually(lambda: proxy.cuts >= 10)
            eventually(lambda: client.xlen("sweeperd:events") == TOTAL, limit=60)
            proxy.mode = Mode.PASS
            subscribers.await_all(client, TOTAL)
            assert running.metric("sweeperd_sweeps_total", result="error") > 0
            assert running.get("/healthz")[0] == 200
        subscribers.check_doubled(proxy.cuts)
    check_books(client, TOTAL)


@pytest.mark.slow
def test_redis_answers_in_drips_and_then_not_at_all(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver() as receiver, Proxy(server.port) as proxy:
        env = environment(
            proxy.url,
            sweep__interval="100ms",
            redis__socket_timeout="1s",
            endpoints=[{"name": "hook", "url": receiver.url}],
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            proxy.mode = Mode.DRIP
            reserve(client, [str(number) for number in range(TOTAL)])
            eventually(lambda: client.xlen("sweeperd:events") > 0)
            proxy.mode = Mode.STALL
            eventually(lambda: running.get("/readyz")[0] == 503)
            assert running.get("/healthz")[0] == 200
            proxy.mode = Mode.PASS
            eventually(lambda: client.xlen("sweeperd:events") == TOTAL, limit=60)
            receiver.wait_for(lambda requests: distinct(requests) == TOTAL, limit=60)
            eventually(lambda: running.get("/readyz")[0] == 200)
        assert len(receiver.requests) - TOTAL <= IN_HAND
    check_books(client, TOTAL)


@pytest.mark.slow
def test_two_daemons_and_a_once_on_one_backlog(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Subscribers() as subscribers:
        env = environment(
            server.url, sweep__interval="100ms", sweep__pipeline_depth=10, endpoints=subscribers.endpoints
        )
        with daemon(env, tmp_path) as one, daemon(env, tmp_path) as two:
            eventually(lambda: one.metric("sweeperd_sweeps_total", result="ok"))
            eventually(lambda: two.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, [str(number) for number in range(3 * TOTAL)])
            third = once(env)
            assert third.code in (0, 3), third.errors
            subscribers.await_all(client, 3 * TOTAL)
            expired = third.report["expired"] + sum(
                running.metric("sweeperd_candidates_total", outcome="expired") for running in (one, two)
            )
            assert expired == 3 * TOTAL
            subscribers.check_doubled(0)  # no process died
    check_books(client, 3 * TOTAL)
