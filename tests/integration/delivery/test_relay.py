"""The relay: the records that it writes for one event, once, and nothing where it cannot."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.delivery import relay as relay_module
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.relay import Relay, _delivery_id
from sweeperd.outbox.event import Message, message, single_request
from sweeperd.store import Shard
from tests.support.fixtures import full

EXPIRED_AT = 1_795_507_205_123
FIELDS = {
    b"id": b"r1",
    b"tenant": b"acme",
    b"scope": b"tenant:acme/workspace:prod",
    b"unit": b"TOKENS",
    b"amount": b"500",
    b"expires_at": b"1795507200000",
    b"expired_at": b"%d" % EXPIRED_AT,
    b"trace_id": b"0123456789abcdef0123456789abcdef",
}


def subscribe(client: redis.Redis, subscription: str, tenant: str = "acme", **fields: object) -> None:
    record = {"subscription_id": subscription, "tenant_id": tenant, "status": "ACTIVE", "event_types": []} | fields
    client.set(f"webhook:{subscription}", json.dumps(record))
    client.sadd(f"webhooks:{tenant}", subscription)


def event(**changes: bytes) -> Message:
    return message(b"", FIELDS | {name.encode(): value for name, value in changes.items()})


def relay(shard: Shard) -> Callable[[Message], DeliveryResult]:
    """Relays one message at a time."""
    relaying = Relay(shard, lambda _: None)
    return lambda sent: relaying.deliver(single_request(sent, "event"))


def document(client: redis.Redis, key: str) -> Any:
    text = client.get(key)
    assert isinstance(text, bytes)
    return json.loads(text)


def test_an_event_and_a_delivery_for_each_match(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    subscribe(client, "whsub_2", "__system__", event_categories=["reservation"])
    subscribe(client, "whsub_3", event_types=["budget.exhausted"])
    client.sadd("webhooks:__system__", "whsub_1")  # in both sets, and still one delivery
    sent = event()
    result = relay(shard)(sent)
    assert (result.result, result.reason) == (Result.DELIVERED, "2 deliveries")
    assert document(client, f"event:{sent.event_id}") == json.loads(sent.body)
    assert 90 * 86400 - 5 <= client.ttl(f"event:{sent.event_id}") <= 90 * 86400
    for index in ("events:acme", "events:_all"):
        assert client.zrange(index, 0, -1, withscores=True) == [(sent.event_id.encode(), EXPIRED_AT)]
    ids = [_delivery_id(sent.event_id, "whsub_1"), _delivery_id(sent.event_id, "whsub_2")]
    assert sorted(client.lrange("dispatch:pending", 0, -1)) == sorted(entry.encode() for entry in ids)
    delivery = document(client, f"delivery:{ids[0]}")
    assert delivery | {"attempted_at": ""} == {
        "delivery_id": ids[0],
        "subscription_id": "whsub_1",
        "event_id": sent.event_id,
        "event_type": "reservation.expired",
        "status": "PENDING",
        "attempted_at": "",
        "attempts": 0,
        "trace_id": sent.trace_id,
        "trace_flags": "01",
        "traceparent_inbound_valid": False,
    }
    made_at = client.zscore("deliveries:whsub_1", ids[0])
    assert made_at is not None
    assert abs(made_at - shard.read_clock()) < 5000, "the dispatcher takes an old delivery for a stale one"
    assert 14 * 86400 - 5 <= client.ttl(f"delivery:{ids[0]}") <= 14 * 86400


def test_a_second_try_writes_nothing_twice(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    deliver, sent = relay(shard), event()
    deliver(sent)
    # The dispatcher has taken and sent the delivery before the relay tries again.
    delivery = _delivery_id(sent.event_id, "whsub_1")
    client.rpop("dispatch:pending")
    client.set(f"delivery:{delivery}", '{"status":"SUCCESS"}')
    assert deliver(sent).reason == "0 deliveries"
    assert client.llen("dispatch:pending") == 0
    assert document(client, f"delivery:{delivery}") == {"status": "SUCCESS"}


def test_the_delivery_id_is_that_of_the_service() -> None:
    assert _delivery_id("evt_1", "whsub_1") == "del_29bf40434e8635ee"


@pytest.mark.parametrize("changes", [{"tenant": b""}], ids=["no tenant"])
def test_an_event_without_a_tenant_has_no_records(shard: Shard, client: redis.Redis, changes: dict[str, bytes]) -> None:
    subscribe(client, "whsub_1", "__system__")
    assert relay(shard)(event(**changes)).delivered
    assert client.keys("event*") == client.keys("deliver*") == []


def test_an_unreadable_subscription_is_skipped_and_logged_once(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(client, "whsub_1")
    subscribe(client, "paused", status="paused")
    client.sadd("webhooks:acme", "broken", "list", "absent")
    client.set("webhook:broken", "{")
    client.rpush("webhook:list", "x")
    deliver = relay(shard)
    with caplog.at_level(logging.WARNING):
        assert [deliver(event(id=name)).reason for name in (b"r1", b"r2")] == ["1 deliveries"] * 2
    said = {record.__dict__["subscription"]: record.__dict__["error"] for record in caplog.records}
    assert said.keys() == {"broken", "list", "paused"}
    assert said["paused"] == 'status is "paused"'


def test_a_subscription_of_a_newer_kind_gets_its_events(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """The admin service accepts and keeps EventTypes, EventCategories and fields that the runtime does not know."""
    subscribe(client, "type", event_types=["reservation.released_via_tenant_cascade", "reservation.expired"])
    subscribe(client, "category", event_categories=["webhook", "reservation"])
    subscribe(client, "field", delivery_mode="batch")
    subscribe(client, "newer", event_types=["reservation.released_via_tenant_cascade"])
    assert relay(shard)(event()).reason == "3 deliveries"
    assert sorted(client.keys("deliveries:*")) == [b"deliveries:category", b"deliveries:field", b"deliveries:type"]
    assert not caplog.records


def test_unreadable_subscriptions_are_remembered_up_to_a_limit(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So memory does not grow. At one more than the limit all are forgotten, and each is logged once more."""
    monkeypatch.setattr(relay_module, "REMEMBERED", 2)
    client.mset({"webhook:broken1": "{", "webhook:broken2": "{", "webhook:broken3": "{"})
    deliver = relay(shard)
    client.sadd("webhooks:acme", "broken1", "broken2")
    for _ in range(2):
        deliver(event())
    assert len(caplog.records) == 2
    client.sadd("webhooks:acme", "broken3")
    caplog.clear()
    for expected in (["broken3"], ["broken1", "broken2", "broken3"]):
        deliver(event())
        assert [record.__dict__["subscription"] for record in caplog.records] == expected
        caplog.clear()


@pytest.mark.parametrize("broken", [False, True])
def test_each_result_is_observed_with_its_duration(shard: Shard, client: redis.Redis, broken: bool) -> None:
    if broken:
        client.set("events:acme", "x")
    observed: list[DeliveryResult] = []
    started = time.monotonic()
    result = Relay(shard, observed.append).deliver(single_request(event(), "event"))
    assert observed == [result]
    assert result.result is (Result.FAILED if broken else Result.DELIVERED)
    assert 0 <= result.seconds <= time.monotonic() - started


def test_a_full_redis_changes_nothing_and_the_event_waits(own_shard: Shard) -> None:
    client = own_shard.client
    subscribe(client, "whsub_1")
    deliver, sent = relay(own_shard), event()
    with full(own_shard):
        result = deliver(sent)
    assert (result.result, "maxmemory" in result.reason) == (Result.FAILED, True)
    assert client.keys("event*") == client.keys("deliver*") == client.keys("dispatch*") == []
    assert deliver(sent).reason == "1 deliveries"


@pytest.mark.parametrize("key", ["events:acme", "events:_all", "dispatch:pending", "deliveries:whsub_1"])
def test_a_key_of_another_type_fails_before_the_first_write(shard: Shard, client: redis.Redis, key: str) -> None:
    subscribe(client, "whsub_1")
    client.set(key, "x")
    before = sorted(client.keys())
    result = relay(shard)(event())
    assert (result.result, "WRONGTYPE" in result.reason) == (Result.FAILED, True)
    assert sorted(client.keys()) == before
