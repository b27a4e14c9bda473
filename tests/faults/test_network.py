"""Breaks the network between sweeperd, Redis and receivers: nothing is lost or released twice."""

from pathlib import Path

import pytest
import redis

from tests.faults.subscribers import Subscribers
from tests.support.books import Property, check, read
from tests.support.harness import IN_HAND, budget, daemon, environment, eventually, once, reserve
from tests.support.proxy import Mode, Proxy
from tests.support.receiver import Answer, Receiver, Request
from tests.support.servers import Server

TOTAL = 2000


def distinct(requests: list[Request]) -> int:
    return len({request.event_id for request in requests})


def check_books(client: redis.Redis, total: int) -> None:
    """Every expiry once in the ledger and once in the stream."""
    check(read(client), set(Property))
    assert client.xlen("sweeperd:events") == total
    assert budget(client) == (0, 5 * total)


def test_connections_to_redis_are_cut_again_and_again(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Subscribers() as subscribers, Proxy(server.port) as proxy:
        env = environment(proxy.url, sweep__interval="100ms", endpoints=subscribers.endpoints)
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            proxy.mode = Mode.CUT
            reserve(client, [str(number) for number in range(TOTAL)])
            eventually(lambda: proxy.cuts >= 20)
            eventually(lambda: client.xlen("sweeperd:events") == TOTAL, limit=60)
            proxy.mode = Mode.PASS
            subscribers.await_all(client, TOTAL)
            assert running.metric("sweeperd_sweeps_total", result="error") > 0
            assert running.get("/healthz")[0] == 200
        subscribers.check_doubled(proxy.cuts)
    check_books(client, TOTAL)


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
            reserve(client, [str(number) for number in range(5000)])
            third = once(env)
            assert third.code in (0, 3), third.errors
            subscribers.await_all(client, 5000)
            expired = third.report["expired"] + sum(
                running.metric("sweeperd_candidates_total", outcome="expired") for running in (one, two)
            )
            assert expired == 5000
            subscribers.check_doubled(0)  # no process died
    check_books(client, 5000)


@pytest.mark.parametrize(("status", "requests_for_each"), [(200, 1), (500, 2)])
def test_a_receiver_dies_between_status_line_and_body(
    status: int, requests_for_each: int, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """The status line is the answer: a 200 is delivered, and the rest of the answer is not needed."""

    def behaviour(_: Request, before: int) -> Answer:
        return Answer(200) if before else Answer(status, dies=True)

    with Receiver(behaviour) as receiver:
        env = environment(
            server.url,
            sweep__interval="100ms",
            webhooks__attempts=2,
            webhooks__backoff_initial="20ms",
            endpoints=[{"name": "hook", "url": receiver.url}],
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["one", "two"])
            receiver.wait_for(lambda requests: len(requests) == 2 * requests_for_each)
            eventually(lambda: client.xpending("sweeperd:events", "hook")["pending"] == 0)
            assert running.metric("sweeperd_webhook_attempts_total", endpoint="hook", result="delivered") == 2
            failed = running.metric("sweeperd_webhook_attempts_total", endpoint="hook", result="failed")
            assert failed == 2 * (requests_for_each - 1)
            assert len(receiver.requests) == 2 * requests_for_each
