"""What all replicas know of an endpoint."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.config import WEBHOOK_DISABLED
from sweeperd.delivery.circuit import EndpointStateCache
from sweeperd.outbox import Announcements, EndpointState, EndpointStateStore
from sweeperd.store import Shard
from tests.support.fixtures import full
from tests.support.harness import server_time
from tests.support.streams import entries

KEY = "sweeperd:endpoints"


@pytest.fixture
def store(shard: Shard) -> EndpointStateStore:
    return EndpointStateStore(shard)


def test_pause(store: EndpointStateStore, shard: Shard, client: redis.Redis) -> None:
    before = server_time(client)
    told = store.pause("billing", "the receiver answered 410")
    state = EndpointStateStore(shard).read("billing")  # another replica
    assert state == told
    assert state.paused
    assert state.reason == "the receiver answered 410"
    assert state.paused_at is not None
    assert before - 1000 <= state.paused_at <= server_time(client) + 1000
    assert not store.read("audit").paused
    note = json.loads(client.hget(KEY, "billing") or "")
    assert (note["paused_at"], note["reason"]) == (state.paused_at, "the receiver answered 410")


def test_a_pause_is_announced_once_where_that_is_asked_for(shard: Shard, client: redis.Redis) -> None:
    shard.read_clock()
    announcing = EndpointStateStore(shard, Announcements(shard.clock, [WEBHOOK_DISABLED]))
    announcing.mute("billing", 60)
    assert client.xlen("sweeperd:events") == 0
    for reason in ("the receiver answered 410", "moving house"):
        announcing.pause("billing", reason)
    ((_, fields),) = entries(client, "sweeperd:events")
    assert (fields[b"type"], fields[b"id"]) == (WEBHOOK_DISABLED.encode(), b"billing")
    # cycles-governance-admin-v0.1.25.yaml, EventDataWebhookLifecycle.
    assert json.loads(fields[b"data"]) == {
        "subscription_id": "billing",
        "tenant_id": "__system__",
        "previous_status": "ACTIVE",
        "new_status": "DISABLED",
        "changed_fields": [],
        "disable_reason": "the receiver answered 410",
    }


def test_an_operator_resumes_it(store: EndpointStateStore, client: redis.Redis) -> None:
    store.pause("billing", "")
    store.pause("audit", "")
    assert store.resume("billing")
    assert not store.read("billing").paused
    assert store.read("audit").paused
    assert not store.resume("billing"), "it is open already"
    store.mute("billing", 60)
    assert store.resume("billing")
    assert store.read("billing") == EndpointState()


def test_quiet_does_not_lift_a_pause(store: EndpointStateStore) -> None:
    """A request that was in flight when somebody paused the endpoint is answered with Retry-After."""
    paused = store.pause("billing", "moving house")
    assert store.mute("billing", 60) == paused
    assert store.read("billing") == paused


def test_a_mute_without_its_length_holds_against_a_shorter_one(store: EndpointStateStore, client: redis.Redis) -> None:
    """As an earlier version wrote it."""
    until = server_time(client) + 600_000
    client.hset(KEY, "billing", f'{{"muted_until": {until}}}')
    assert store.mute("billing", 60).muted_until == until


def test_the_later_end_of_two_mutes_holds(store: EndpointStateStore) -> None:
    """Two responses with `Retry-After`, the second with a shorter one."""
    longer = store.mute("billing", 600)
    assert store.mute("billing", 60) == longer
    assert store.read("billing") == longer


def test_quiet(store: EndpointStateStore, client: redis.Redis) -> None:
    told = store.mute("billing", 90.5)
    state = store.read("billing")
    assert state == told
    assert not state.paused
    assert state.muted_until == pytest.approx(server_time(client) + 90_500, abs=20_000)


@pytest.mark.parametrize("note", [b"", b"nonsense", b"\xff", b"[]", b"null", b'"paused"', b'{"muted_until": "soon"}'])
def test_what_cannot_be_read_pauses_it(note: bytes, store: EndpointStateStore, client: redis.Redis) -> None:
    """To send to a receiver that must be left alone is worse than to wait."""
    client.hset(KEY, "billing", note)
    state = store.read("billing")
    assert state.paused
    assert KEY in state.reason
    assert store.mute("billing", 60).paused
    assert client.hget(KEY, "billing") == note, "it stays as it is"


def test_a_field_of_a_later_version_is_ignored(store: EndpointStateStore, client: redis.Redis) -> None:
    client.hset(KEY, "billing", '{"colour": 1}')
    assert store.read("billing") == EndpointState()
    client.hset(KEY, "billing", '{"paused_at": 1, "reason": "gone", "colour": 1}')
    assert store.read("billing") == EndpointState(paused_at=1, reason="gone")
    assert store.mute("billing", 60).paused
    client.hset(KEY, "billing", '{"muted_until": 7, "colour": 1}')
    assert store.mute("billing", 60).muted_until > 7


@pytest.mark.every_redis
def test_a_full_redis_takes_the_state(own_shard: Shard) -> None:
    store = EndpointStateStore(own_shard)
    with full(own_shard):
        muted = store.mute("audit", 5)
        paused = store.pause("billing", "gone")
    assert store.read("audit") == muted != EndpointState()
    assert store.read("billing") == paused
    assert paused.paused


def test_any_other_refusal_is_raised(store: EndpointStateStore, client: redis.Redis) -> None:
    client.set(KEY, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.pause("billing", "gone")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.read("billing")


def refresh(cache: EndpointStateCache, shard: Shard, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Read the state as the reader does. `meanwhile` is called after the read, before the cache learns of it."""
    cache.save()
    changes = cache.changes
    entry: Any = shard.client.hget("sweeperd:endpoints", "billing")
    meanwhile()
    cache.learn(entry, changes)


@pytest.mark.parametrize("change", [lambda cache: cache.mute(60), lambda cache: cache.pause("gone")])
def test_a_change_outlives_a_refresh_that_began_before(
    change: Callable[[EndpointStateCache], None], shard: Shard
) -> None:
    cache = EndpointStateCache(shard, "billing")

    def overtake() -> None:
        change(cache)
        cache.save()

    refresh(cache, shard, overtake)
    assert cache.resting
    refresh(cache, shard)
    assert cache.state == EndpointStateStore(shard).read("billing") != EndpointState()


def test_a_mute_ends_neither_a_longer_one_nor_a_pause_that_redis_has_not_taken_yet(
    shard: Shard, store: EndpointStateStore
) -> None:
    cache = EndpointStateCache(shard, "billing")
    cache.mute(600)
    until = cache.state.muted_until
    assert 590 < cache.rest <= 600
    cache.mute(1)
    assert cache.state.muted_until == until
    cache.save()
    assert store.read("billing").muted_until == until
    cache.mute(1)
    cache.save()
    assert cache.state.muted_until == store.read("billing").muted_until == until
    cache.pause("gone")
    cache.mute(3600)
    assert cache.state.paused
    cache.save()
    assert store.read("billing").reason == "gone"


def test_a_refresh_sees_that_an_endpoint_was_resumed(shard: Shard, store: EndpointStateStore) -> None:
    cache = EndpointStateCache(shard, "billing")
    cache.pause("gone")
    cache.save()
    assert cache.state.paused
    store.resume("billing")
    refresh(cache, shard)
    assert cache.state == EndpointState()


@pytest.mark.parametrize("change", [lambda cache: cache.mute(60), lambda cache: cache.pause("gone")])
def test_a_change_is_kept_until_redis_takes_it(
    change: Callable[[EndpointStateCache], None], own_shard: Shard, client: redis.Redis
) -> None:
    """Without the right to write, the state would otherwise be forgotten at the next refresh."""
    cache, store = EndpointStateCache(own_shard, "billing"), EndpointStateStore(own_shard)
    change(cache)
    own_shard.client.acl_setuser("default", commands=["-hset"])
    assert "HSET" in str(cache.save())
    refresh(cache, own_shard)
    assert cache.resting
    assert store.read("billing") == EndpointState()
    before = cache.changes
    cache.resume()
    assert (cache.resting, cache.save()) == (False, None)
    change(cache)
    cache.learn(None, before)
    assert cache.resting, "what was read before the change is out of date"
    own_shard.client.acl_setuser("default", commands=["+hset"])
    refresh(cache, own_shard)
    assert store.read("billing") == cache.state
    assert cache.resting


def test_all_states_are_read_at_once(store: EndpointStateStore) -> None:
    store.pause("gone", "HTTP 410")
    store.mute("busy", 60)
    assert store.read_all() == {name: store.read(name) for name in ("gone", "busy")}
