"""Checks that a host clock that is hours off expires nothing early or late, and that receivers accept deliveries."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from standardwebhooks import Webhook

from tests.support.harness import daemon, environment, eventually, reserve, server_time
from tests.support.host import ServerClock, fake_clock
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Binary, Server

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.skipif(not fake_clock(), reason="faketime is not installed")
@pytest.mark.parametrize("skew", ["+2h", "-2h"])
def test_the_host_is_two_hours_off(skew: str, server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with Receiver() as receiver:
        env = environment(
            server.url, sweep__interval="100ms", endpoints=[{"name": "hook", "url": receiver.url, "secrets": [SECRET]}]
        )
        # A host whose clock is wrong still counts seconds like any other: only the wall clock is off.
        env |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
        with daemon(env | {"LD_PRELOAD": fake_clock(), "FAKETIME": skew}, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["not for an hour"], overdue_by=-3_600_000)
            reserve(client, ["in grace"], overdue_by=-3_600_000, grace=7_200_000)
            reserve(client, ["soon"], overdue_by=-1500)
            receiver.wait_for(lambda requests: len(requests) == 1)
            sweeps = running.metric("sweeperd_sweeps_total", result="ok")
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok") > sweeps + 3)
            request = receiver.requests[0]
            assert request.event["data"]["reservation_id"] == "soon"
            assert client.hget("reservation:res_not for an hour", "state") == b"ACTIVE"
            assert client.hget("reservation:res_in grace", "state") == b"ACTIVE"
            row = client.hgetall("reservation:res_soon")
            assert 0 < int(row[b"expired_at"]) - int(row[b"expires_at"]) < 3000
            assert abs(int(row[b"expired_at"]) - server_time(client)) < 30_000
            # The signed time is Redis's, so a receiver whose own clock is right does not refuse it.
            Webhook(SECRET).verify(request.body, request.headers)


HOURS = 2 * 3600

Settable = tuple[Server, ServerClock]


@pytest.fixture
def settable(redis_binary: Binary, tmp_path: Path) -> Iterator[Settable]:
    """A server whose clock can be set."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the clock of the server")
    server, clock = Server(redis_binary), ServerClock(tmp_path, "CLOCK_AHEAD")
    clock.set(HOURS)
    with clock.given():
        server.start()
    yield server, clock
    server.close()


@pytest.mark.slow
def test_the_clock_of_redis_is_set_back_while_no_daemon_runs(
    settable: tuple[Server, ServerClock], tmp_path: Path
) -> None:
    """A process dies in a request and with its lease, an event waits, and the receiver has asked for a pause."""
    server, clock = settable
    answers = {"in hand": Answer(delay=8), "muted": Answer(status=503, headers={"Retry-After": "2"})}
    with redis.Redis.from_url(server.url) as client, Receiver(lambda *_: Answer(status=500)) as receiver:
        assert server_time(client) > (time.time() + 7000) * 1000
        endpoint = {"name": "hook", "url": receiver.url, "max_rate": 20}
        env = environment(server.url, sweep__interval="2s", endpoints=[endpoint])
        env |= {"SWEEPERD_WEBHOOKS__REDELIVERY_INITIAL": "1h", "SWEEPERD_WEBHOOKS__REDELIVERY_MAX": "1h"}
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
            reserve(client, ["parked"])
            eventually(lambda: client.xpending_range("sweeperd:events", "hook", "-", "+", 1, "(parked)"))
            receiver.behaviour = lambda request, _: answers[request.event["data"]["reservation_id"]]
            reserve(client, ["in hand"])
            eventually(lambda: receiver.distinct == 2)
            reserve(client, ["muted"])
            eventually(lambda: client.hexists("sweeperd:endpoints", "hook"))
            running.kill()
        client.set("sweeperd:lease:sweep", "dead-1-0123456789abcdef:3000", px=3000)
        clock.set(0)
        eventually(lambda: server_time(client) < (time.time() + 7000) * 1000)
        receiver.behaviour = lambda *_: Answer()
        reserve(client, ["after"])
        before, began = receiver.distinct, time.monotonic()
        with daemon(env, tmp_path) as running:
            eventually(lambda: running.metric("sweeperd_webhook_pending_events", endpoint="hook") == 0, limit=60)
            eventually(lambda: not client.zcard("reservation:ttl"), limit=60)
            eventually(lambda: not client.xpending("sweeperd:events", "hook")["pending"], limit=60)
            assert running.told("the clock of redis was set back: no event waits any longer")
        assert time.monotonic() - began < 60
        assert receiver.distinct == before + 1
