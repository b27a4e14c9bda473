"""Receivers that misbehave: what the contract says happens, and the other endpoint is not delayed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.acl import limited
from tests.support.harness import SCOPES, Daemon, daemon, environment, eventually, once, reserve
from tests.support.receiver import Answer, Behaviour, Receiver, Request
from tests.support.servers import Server

#: Quick enough for a test, slow enough to distinguish the two layers of retries.
QUICK = {
    "sweep__interval": "200ms",
    "webhooks__timeout": "1s",
    "webhooks__connect_timeout": "1s",
    "webhooks__attempts": 2,
    "webhooks__backoff_initial": "20ms",
    "webhooks__backoff_max": "1s",
    "webhooks__redelivery_initial": "400ms",
    "webhooks__redelivery_max": "2s",
}
IDS = [f"r{number}" for number in range(20)]


@contextmanager
def sweeping(
    server: Server, directory: Path, odd: str, good: Receiver, url: str | None = None, **settings: object
) -> Iterator[Daemon]:
    """A daemon with an endpoint `odd` at that URL and an endpoint `good`; both groups are there."""
    endpoints = [{"name": "odd", "url": odd}, {"name": "good", "url": good.url}]
    env = environment(url or server.url, endpoints=endpoints, **(QUICK | settings))
    with daemon(env, directory) as running:
        eventually(lambda: running.metric("sweeperd_sweeps_total", result="ok"))
        yield running


def pending(client: redis.Redis, group: str = "odd") -> int:
    """How many events the group holds unacknowledged; those not taken yet do not count."""
    return int(client.xpending("sweeperd:events", group)["pending"])


def all_of(requests: list[Request]) -> bool:
    return len({request.event_id for request in requests}) >= len(IDS)


def test_500_then_200(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with (
        limited(server, client) as url,
        Receiver(lambda _, before: Answer(500 if before < 3 else 200)) as odd,
        Receiver() as good,
        sweeping(server, tmp_path, odd.url, good, url) as running,
    ):
        reserve(client, IDS[:3])
        odd.wait_for(lambda requests: len(requests) == 12)
        eventually(lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result="delivered") == 3)
        assert running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result="failed") == 9
        eventually(lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="good", result="delivered") == 3)
        eventually(lambda: running.metric("sweeperd_webhook_duration_seconds_count", endpoint="odd") == 12)
        eventually(lambda: pending(client) == 0)
        # Two quick requests, the wait of a redelivery, two more.
        times = [request.at for request in odd.requests if request.event_id == odd.requests[0].event_id]
        assert times[2] - times[1] >= 0.4
        assert len(odd.event_ids) == 3


MISBEHAVIOURS: dict[str, tuple[Behaviour, str]] = {
    "hangs": (lambda *_: Answer(delay=30), "failed"),
    "redirect": (lambda *_: Answer(302, {"Location": "http://127.0.0.1:1/elsewhere"}), "rejected"),
}


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_it_fails_and_nobody_else_waits(name: str, server: Server, client: redis.Redis, tmp_path: Path) -> None:
    behaviour, result = MISBEHAVIOURS[name]
    with Receiver(behaviour) as odd, Receiver() as good, sweeping(server, tmp_path, odd.url, good) as running:
        reserve(client, IDS)
        good.wait_for(all_of)  # with the limit that it has, long before the one that hangs answers
        eventually(lambda: running.logged("the endpoint fails; its events wait"))
        assert running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result=result) > 0
        assert running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result="delivered") == 0
        eventually(
            lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="good", result="delivered") == len(IDS)
        )
        # Once it behaves, it gets all of them.
        odd.behaviour = lambda *_: Answer(200)
        odd.wait_for(all_of)
        eventually(lambda: pending(client) == 0)
        assert running.metric("sweeperd_webhook_dead_letters_total", endpoint="odd") == 0


def test_410_pauses_the_endpoint_until_it_is_resumed(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    with (
        Receiver(lambda *_: Answer(410)) as odd,
        Receiver() as good,
        sweeping(server, tmp_path, odd.url, good, webhooks__concurrency=2) as running,
    ):
        reserve(client, ["one"])
        eventually(lambda: client.hexists("sweeperd:endpoints", "odd"))
        assert len(odd.requests) == 1
        assert running.metric("sweeperd_webhook_attempts_total", endpoint="odd", result="rejected") == 1
        odd.behaviour = lambda *_: Answer(200)
        reserve(client, ["two", "three"])
        good.wait_for(lambda requests: len(requests) == 3)
        assert len(odd.requests) == 1
        assert running.logged("the endpoint is gone and is paused until it is resumed")
        eventually(lambda: running.metric("sweeperd_endpoint_state", endpoint="odd", state="paused") == 1)
        assert running.metric("sweeperd_endpoint_state", endpoint="odd", state="delivering") == 0
        assert running.metric("sweeperd_endpoint_state", endpoint="good", state="delivering") == 1

        assert running.terminate() == 0
        done = once(environment(server.url, endpoints=[{"name": "odd", "url": odd.url}]))
        assert (done.code, done.report["delivered"], done.report["undelivered"]) == (3, 0, 3)
        assert len(odd.requests) == 1

        client.hdel("sweeperd:endpoints", "odd")
        done = once(environment(server.url, endpoints=[{"name": "odd", "url": odd.url}], **QUICK))
        assert (done.code, done.report["delivered"]) == (0, 3)
        assert len(odd.event_ids) == 3


def test_a_new_endpoint_gets_the_events_from_then_on(server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver:
        reserve(client, ["before"])
        once(environment(server.url))
        reserve(client, ["after"])
        once(environment(server.url, endpoints=[{"name": "hook", "url": receiver.url}]))
        assert [request.event["data"]["reservation_id"] for request in receiver.requests] == ["after"]


def test_the_waits_grow_over_restarts(server: Server, client: redis.Redis) -> None:
    with Receiver(lambda *_: Answer(500)) as receiver:
        settings = QUICK | {"webhooks__attempts": 1, "webhooks__redelivery_initial": "300ms"}
        env = environment(server.url, endpoints=[{"name": "hook", "url": receiver.url}], **settings)
        once(env)
        reserve(client, ["one"])

        def handed_over(times: int) -> bool:
            once(env)
            return len(receiver.requests) >= times

        for times in (1, 2, 3, 4):
            eventually(lambda times=times: handed_over(times))
        gaps = [later.at - earlier.at for earlier, later in zip(receiver.requests, receiver.requests[1:], strict=False)]
        assert gaps[0] >= 0.3
        assert gaps[1] >= 0.6
        assert gaps[2] >= 1.2
        assert client.xpending_range("sweeperd:events", "hook", "-", "+", 1)[0]["times_delivered"] == 4


def test_what_cannot_be_acknowledged_is_not_sent_again(own_server: Server, tmp_path: Path) -> None:
    ids = IDS[:10]  # no more than are in hand at most, or the others would wait for the first to be acknowledged
    with redis.Redis.from_url(own_server.url) as client, Receiver() as odd, Receiver() as good:
        with sweeping(own_server, tmp_path, odd.url, good) as running:
            client.execute_command("ACL", "SETUSER", "default", "-xack")
            reserve(client, ids)
            odd.wait_for(lambda requests: len(requests) == len(ids))
            eventually(lambda: running.logged("events in hand wait to be settled"))
            assert pending(client) == len(ids)
            delivered = {"endpoint": "odd", "result": "delivered"}
            # A receiver has a request before its sender has the answer, and counts it.
            eventually(lambda: running.metric("sweeperd_webhook_attempts_total", **delivered) == len(ids))
            client.execute_command("ACL", "SETUSER", "default", "+xack")
            # Within the pause after a failure, long before anybody would take them for a dead process's.
            eventually(lambda: pending(client) == 0, limit=10)
        assert len(odd.requests) == len(ids)


def test_the_endpoint_that_asks_for_balances(server: Server, client: redis.Redis) -> None:
    with Receiver() as asks, Receiver() as other:
        endpoints = [{"name": "asks", "url": asks.url, "balances": True}, {"name": "other", "url": other.url}]
        env = environment(server.url, endpoints=endpoints, events__balances="true")
        reserve(client, ["r1"], amount=100)
        done = once(env)
        assert (done.code, done.report["delivered"]) == (0, 2)
        (asked,), (plain,) = asks.requests, other.requests
    data = json.loads(asked.body)["data"]
    assert data.pop("balances") == {scope: {"remaining": 100, "reserved": 0} for scope in SCOPES}
    assert json.loads(plain.body)["data"] == data
