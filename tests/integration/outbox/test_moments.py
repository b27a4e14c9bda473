"""Stored moments that lie ahead of Redis's clock, because it was set back, are corrected where they are stored."""

import json

import pytest
import redis

from sweeperd.delivery.circuit import Redelivery
from sweeperd.outbox import (
    CircuitNote,
    CircuitStateStore,
    ConsumerGroups,
    EndpointState,
    EndpointStateStore,
    correct_moments,
)
from sweeperd.store import Shard
from tests.support.fixtures import full
from tests.support.harness import server_time

HOUR = 3_600_000
ENDPOINTS, CIRCUITS, PROCESSES = "sweeperd:endpoints", "sweeperd:circuits", "sweeperd:processes"


def note(client: redis.Redis, key: str, field: str, text: str) -> None:
    """`AHEAD` stands for a moment an hour ahead."""
    client.hset(key, field, text.replace("AHEAD", str(server_time(client) + HOUR)))


def test_what_must_be_past_becomes_now_and_nothing_else_changes(shard: Shard, client: redis.Redis) -> None:
    text = '{"process":"p 1","at": AHEAD,"delivered_at":AHEAD,"probe_at":AHEAD,"reason":"\\"at\\":9999999999999"}'
    note(client, CIRCUITS, "hook@p", text)
    note(client, CIRCUITS, "hook", "AHEAD")
    note(client, PROCESSES, "p", '{"at":AHEAD,"more":[]}')
    note(client, ENDPOINTS, "hook", '{"paused_at":AHEAD,"reason":"moving"}')
    client.hset(CIRCUITS, "other@p", '{"at":17}')
    fresh = b'{"at":%d}' % (server_time(client) - 10)
    client.hset(PROCESSES, "fresh", fresh)
    before, closed = json.loads(client.hget(CIRCUITS, "hook@p") or ""), client.hget(CIRCUITS, "hook")
    behind = correct_moments(shard)
    assert HOUR - 60_000 < behind <= HOUR
    now = server_time(client)
    after = json.loads(client.hget(CIRCUITS, "hook@p") or "")
    assert after == before | {"at": after["at"], "delivered_at": after["at"]}
    found = [
        after["at"],
        *(json.loads(client.hget(key, name) or "") for key, name in ((PROCESSES, "p"), (ENDPOINTS, "hook"))),
    ]
    for moment in (found[0], found[1]["at"], found[2]["paused_at"]):
        assert now - 60_000 < moment <= now
    assert found[1]["more"] == []
    assert (client.hget(CIRCUITS, "hook"), client.hget(CIRCUITS, "other@p")) == (closed, b'{"at":17}')
    assert client.hget(PROCESSES, "fresh") == fresh
    assert correct_moments(shard) == 0


@pytest.mark.parametrize(("mute_ms", "left_ms"), [(50_000, 50_000), (2 * HOUR, HOUR), (0, HOUR)])
def test_a_mute_lasts_no_longer_than_its_length(mute_ms: int, left_ms: int, shard: Shard, client: redis.Redis) -> None:
    """Without a length, as an earlier version wrote it, it stays."""
    note(client, ENDPOINTS, "hook", f'{{"muted_until":AHEAD,"mute_ms":{mute_ms}}}')
    assert correct_moments(shard) == 0, "the end of a mute is in the future"
    left = EndpointStateStore(shard).read("hook").muted_until - server_time(client)
    assert max(0, left_ms - 60_000) < left <= left_ms


def test_a_mute_is_stored_with_its_length(shard: Shard) -> None:
    shard.read_clock()
    assert EndpointStateStore(shard).mute("hook", 90.5).mute_ms == 90_500


def test_a_mute_that_seems_longer_because_the_clock_was_set_back_loses_against_a_new_one(
    shard: Shard, client: redis.Redis
) -> None:
    shard.read_clock()
    note(client, ENDPOINTS, "hook", '{"muted_until":AHEAD,"mute_ms":5000}')
    state = EndpointStateStore(shard).mute("hook", 60)
    assert state.muted_until < server_time(client) + 61_000


def test_the_last_event_tells_that_the_clock_was_set_back(shard: Shard, client: redis.Redis) -> None:
    assert correct_moments(shard) == 0
    client.xadd(shard.keys.events, {"id": "r1"})
    assert correct_moments(shard) == 0
    client.xadd(shard.keys.events, {"id": "r1"}, id=f"{server_time(client) + HOUR}-1")
    assert HOUR - 60_000 < correct_moments(shard) <= HOUR
    client.xadd(shard.keys.events, {"id": "r1"}, id="18446744073709551615-1")
    assert correct_moments(shard) > HOUR


@pytest.mark.every_redis
def test_in_a_full_redis_and_without_the_right_to_write(own_shard: Shard) -> None:
    client = own_shard.client
    note(client, PROCESSES, "p", '{"at":AHEAD}')
    client.xadd(own_shard.keys.events, {"id": "r1"}, id=f"{server_time(client) + HOUR}-1")
    kept = client.hget(PROCESSES, "p")
    client.acl_setuser("default", commands=["-hset"])
    assert HOUR - 60_000 < correct_moments(own_shard) <= HOUR
    assert client.hget(PROCESSES, "p") == kept
    client.acl_setuser("default", commands=["+hset"])
    with full(own_shard):
        assert correct_moments(own_shard)
    assert client.hget(PROCESSES, "p") != kept


def test_the_circuit_of_a_process_that_died_before_the_clock_was_set_back_does_not_count(
    shard: Shard, client: redis.Redis
) -> None:
    now, store = shard.read_clock(), CircuitStateStore(shard)
    store.write("hook", CircuitNote(process="dead", at=now + HOUR, probe_at=now + HOUR))
    assert store.read("hook").processes == 0
    store.write("hook", CircuitNote(process="living", at=now))
    assert store.read("hook").processes == 1
    assert EndpointStateStore(shard).read("hook") == EndpointState()


def test_the_age_of_events_counts_from_no_moment_ahead(shard: Shard, client: redis.Redis) -> None:
    client.xgroup_create(shard.keys.events, "hook", "0-0", mkstream=True)
    note(client, "sweeperd:groups", "hook", '{"made_at":AHEAD,"position":"0-0"}')
    made_at = ConsumerGroups(shard, "us").ensure("hook")
    assert made_at <= server_time(client)
    assert json.loads(client.hget("sweeperd:groups", "hook") or "") == {"made_at": made_at, "position": "0-0"}
    redelivery = Redelivery(1.0, 1.0, max_age_ms=1000, counts_from_ms=made_at + HOUR)
    assert redelivery.oldest_ms(made_at) == 0
    assert redelivery.oldest_ms(made_at + 1001) == made_at + 1, "a second after the clock was set back"
