"""
Events that are no expiries, end to end: an endpoint that names their types gets them, nobody else does, and each body
fits the schema.
"""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis

from sweeperd.ledger import Ledger
from tests.support.harness import daemon, environment, eventually, once, reserve
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Server

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "webhook.schema.json").read_text())
SPIKE, DISABLED = "reservation.expiry_rate_spike", "webhook.disabled"
FAILED, CROSSED = "system.webhook_delivery_failed", "budget.threshold_crossed"


@pytest.fixture
def operator() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def received(receiver: Receiver) -> list[dict[str, Any]]:
    events = [request.event for request in receiver.requests]
    for event in events:
        jsonschema.Draft202012Validator(SCHEMA).validate(event)
    return events


def test_a_dead_letter_and_a_pause(server: Server, client: redis.Redis, operator: Receiver, tmp_path: Path) -> None:
    reserve(client, ["one"])
    with (
        Receiver(lambda request, _: Answer(410)) as gone,
        Receiver(lambda request, _: Answer(500)) as broken,
        Receiver() as plain,
    ):
        endpoints = [
            {"name": "gone", "url": gone.url},
            {"name": "broken", "url": broken.url},
            {"name": "plain", "url": plain.url},
            {"name": "operator", "url": operator.url, "events": [DISABLED, FAILED]},
        ]
        env = environment(
            server.url,
            endpoints=endpoints,
            webhooks__attempts=1,
            webhooks__max_age="1s",
            webhooks__redelivery_initial="200ms",
            webhooks__redelivery_max="200ms",
        )
        with daemon(env, tmp_path) as running:
            eventually(lambda: {event["event_type"] for event in received(operator)} == {DISABLED, FAILED}, limit=60)
            eventually(lambda: running.metric("sweeperd_webhook_dead_letters_total", endpoint="broken") == 1)
        by_type = {event["event_type"]: event for event in received(operator)}
        assert len(received(operator)) == 2, "one each, and no expiry"
        assert by_type[DISABLED]["data"] == {
            "subscription_id": "gone",
            "tenant_id": "__system__",
            "previous_status": "ACTIVE",
            "new_status": "DISABLED",
            "changed_fields": [],
            "disable_reason": "the receiver answered 410",
        }
        failed = by_type[FAILED]
        assert (failed["tenant_id"], failed["category"]) == ("__system__", "system")
        assert failed["data"]["details"]["endpoint"] == "broken"
        assert [event["event_type"] for event in received(plain)] == ["reservation.expired"]


def test_what_is_said_about_deliveries_says_nothing_of_itself(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """The endpoint that asks for these events fails: its own dead letters make no further ones."""
    reserve(client, ["one"])
    with Receiver(lambda request, _: Answer(500)) as broken:
        endpoints = [{"name": "operator", "url": broken.url, "events": ["reservation", FAILED]}]
        env = environment(
            server.url,
            endpoints=endpoints,
            webhooks__attempts=1,
            webhooks__max_age="500ms",
            webhooks__redelivery_initial="100ms",
            webhooks__redelivery_max="100ms",
        )
        with daemon(env, tmp_path) as running:
            eventually(
                lambda: running.metric("sweeperd_webhook_dead_letters_total", endpoint="operator") == 2, limit=60
            )
    assert client.xlen("sweeperd:events") == 2, "the expiry, and one event about its dead letter"


@pytest.mark.slow
def test_of_two_daemons_one_says_that_an_endpoint_fails_and_that_it_has_recovered(
    server: Server, client: redis.Redis, operator: Receiver, tmp_path: Path
) -> None:
    works = threading.Event()
    with Receiver(lambda *_: Answer(200 if works.is_set() else 500)) as broken:
        endpoints = [
            {"name": "broken", "url": broken.url},
            {"name": "operator", "url": operator.url, "events": ["webhook.failing", "webhook.recovered"]},
        ]
        waits = {f"webhooks__{name}": "200ms" for name in ("redelivery_initial", "redelivery_max", "probe_max")}
        env = environment(server.url, endpoints=endpoints, webhooks__attempts=1, **waits)
        with daemon(env, tmp_path) as one, daemon(env, tmp_path) as other:

            def counted(to: str) -> float:
                name = "sweeperd_endpoint_transitions_total"
                return sum(each.metric(name, endpoint="broken", to=to) for each in (one, other))

            reserve(client, [f"entry {number}" for number in range(40)])
            (failing,) = eventually(lambda: received(operator), limit=90)
            assert eventually(lambda: counted("failing") == 1)
            works.set()
            eventually(lambda: len(received(operator)) > 1, limit=90)
            assert eventually(lambda: counted("recovered") == 1)
            eventually(lambda: not client.xpending("sweeperd:events", "broken")["pending"], limit=30)
            assert one.terminate() == other.terminate() == 0
            recovered = received(operator)[1]
    assert [event["event_type"] for event in received(operator)] == ["webhook.failing", "webhook.recovered"]
    assert (failing["data"]["endpoint"], failing["data"]["failure"]) == ("broken", "HTTP 500")
    assert recovered["data"]["failing_seconds"] > 0


def test_nothing_is_made_where_no_endpoint_names_it(server: Server, client: redis.Redis) -> None:
    reserve(client, ["one", "two"])
    with Receiver(lambda request, _: Answer(410)) as gone:
        env = environment(server.url, endpoints=[{"name": "gone", "url": gone.url}])
        once(env)
    assert client.xlen("sweeperd:events") == 2
    assert not client.exists("sweeperd:rates")


def test_a_crossed_threshold_reaches_the_endpoint_that_names_it(
    server: Server, client: redis.Redis, operator: Receiver, tmp_path: Path
) -> None:
    """The ledger crosses it, and the sweep crosses it back."""
    with Receiver() as plain, Ledger.from_url(server.url) as ledger:
        ledger.open_budget("acme", "TOKENS", 1000, thresholds=(80, 100))
        held = ledger.reserve("acme", ["acme"], "TOKENS", 1000, ttl=timedelta(milliseconds=1), idempotency_key="a")
        endpoints = [
            {"name": "operator", "url": operator.url, "events": [CROSSED], "scopes": ["acme"], "start": "beginning"},
            {"name": "elsewhere", "url": plain.url, "events": [CROSSED], "scopes": ["other"], "start": "beginning"},
            {"name": "plain", "url": plain.url, "start": "beginning"},
        ]
        env = environment(server.url, endpoints=endpoints, sweep__interval="100ms")
        with daemon(env, tmp_path) as running:
            eventually(lambda: len(received(operator)) == 2, limit=30)
            eventually(lambda: plain.requests)
            assert running.terminate() == 0
    rising, falling = sorted(received(operator), key=lambda event: str(event["timestamp"]))
    expected = {"scope": "acme", "unit": "TOKENS", "allocated": 1000}
    for event, operation, change in (
        (rising, "reserve", {"direction": "rising", "utilization": 1, "remaining": 0}),
        (falling, "expire", {"direction": "falling", "utilization": 0, "remaining": 1000}),
    ):
        assert event["event_type"] == CROSSED
        assert event["data"] == {
            "operation": operation,
            "crossings": [expected | change | {"threshold": threshold} for threshold in (0.8, 1)],
        }
    assert [event["data"]["reservation_id"] for event in received(plain)] == [held.reservation_id]


def test_a_spike_reaches_the_endpoint_that_names_it(
    server: Server, client: redis.Redis, operator: Receiver, tmp_path: Path
) -> None:
    endpoints = [{"name": "operator", "url": operator.url, "events": [SPIKE]}]
    env = environment(server.url, endpoints=endpoints, cycles__spike_window="1s", sweep__interval="100ms")
    with daemon(env, tmp_path) as running:

        def one_more() -> bool:
            """A steady trickle, so that the tenant has a usual rate."""
            reserve(client, [f"steady {client.xlen('sweeperd:events')}"])
            return client.hlen("sweeperd:rates") == 1 and b" -1 " not in (client.hget("sweeperd:rates", "acme") or b"")

        eventually(one_more, limit=30)
        reserve(client, [f"burst {number}" for number in range(3000)])
        events = eventually(lambda: received(operator), limit=30)
        assert eventually(lambda: running.metric("sweeperd_expiry_spikes_total") >= 1)
    assert events[0]["event_type"] == SPIKE
    assert events[0]["tenant_id"] == "acme"
    assert events[0]["data"]["current_rate"] > events[0]["data"]["threshold_rate"]
