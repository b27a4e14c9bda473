"""The brake of the relay: room for the deliveries of others in the list of the dispatcher of Cycles."""

import pytest
import redis

from sweeperd.config import CyclesSettings
from sweeperd.delivery.relay import CyclesRecords
from sweeperd.outbox import OutboxEntry
from sweeperd.store import Shard
from tests.integration.delivery.test_relay import entries, entry, subscribe

LATE = b"9999999999999"  # an expiry that is never an hour old
LIMIT = 3


def limited(shard: Shard, limit: int = LIMIT) -> CyclesRecords:
    shard.read_clock()
    return CyclesRecords(shard, CyclesSettings(dispatch_backlog=limit))


def young(count: int, **changes: bytes) -> list[OutboxEntry]:
    return entries(count, expired_at=LATE, **changes)


def test_as_many_deliveries_as_fit_below_the_limit(shard: Shard, client: redis.Redis) -> None:
    """The later events wait, in order. An event without a subscription, or an hour old, never waits."""
    subscribe(client, "whsub_1")
    subscribe(client, "whsub_2")
    client.lpush("dispatch:pending", "of somebody else")
    taken = young(4)
    unmatched, old = entry(8, tenant=b"other", expired_at=LATE), entry(9, id=b"old", expired_at=b"1000")
    done = limited(shard, 5).write([*taken, unmatched, old])
    assert (done.taken, done.deliveries, done.failed) == (6, 6, [])
    assert sorted(done.written) == sorted([*taken[:2], unmatched, old])
    assert done.held == taken[2:]
    assert client.llen("dispatch:pending") == 7
    assert client.zcard("events:_all") == 4
    assert abs(int(client.hget("sweeperd:relay", "waiting") or 0) - shard.read_clock()) < 5000
    assert client.hget("sweeperd:relay", "last") == b"of somebody else"


def test_the_events_that_wait_get_the_room_of_sent_deliveries(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    records, taken = limited(shard), young(5)
    assert records.write(taken).held == taken[3:]
    assert records.write(taken[3:]).held == taken[3:]
    assert records.write([entry(9, tenant=b"other", expired_at=LATE)]).held == []
    assert client.hget("sweeperd:relay", "waiting"), "an event without deliveries says nothing about the room"
    client.rpop("dispatch:pending")
    done = records.write(taken[3:])
    assert (done.written, done.held) == (taken[3:4], taken[4:])
    client.delete("dispatch:pending")
    assert records.write(taken[4:]).held == []
    assert client.hget("sweeperd:relay", "waiting") == b""
    assert client.zcard("events:acme") == client.zcard("deliveries:whsub_1") == 5


def test_an_event_with_records_does_not_wait(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    records, taken = limited(shard), young(4)
    records.write(taken)
    done = records.write(taken)
    assert (sorted(done.written), done.held, done.deliveries) == (taken[:3], taken[3:], 0)


def test_an_event_with_more_deliveries_than_the_limit_needs_an_empty_list(shard: Shard, client: redis.Redis) -> None:
    for number in range(LIMIT + 1):
        subscribe(client, f"whsub_{number}")
    client.lpush("dispatch:pending", "x")
    records, taken = limited(shard), young(2)
    assert records.write(taken).held == taken
    client.delete("dispatch:pending")
    done = records.write(taken)
    assert (done.deliveries, done.held) == (LIMIT + 1, taken[1:])


@pytest.mark.parametrize(
    ("still_ms", "held"), [(55_000, 1), (61_000, 0), (-60_000, 1)], ids=["lives", "dead", "the clock was set back"]
)
def test_without_a_living_dispatcher_everything_is_written(
    shard: Shard, client: redis.Redis, still_ms: int, held: int
) -> None:
    """The dispatcher takes from the right: if the right end stays for a minute, for all processes, it does not live."""
    subscribe(client, "whsub_1")
    taken = young(4)
    assert limited(shard).write(taken).held == taken[3:]
    assert limited(shard).write(taken[3:]).held == taken[3:]
    since = int(client.hget("sweeperd:relay", "since") or 0)
    assert abs(since - shard.read_clock()) < 5000
    client.hset("sweeperd:relay", "since", shard.read_clock() - still_ms)
    assert len(limited(shard).write(taken[3:]).held) == held
    assert bool(client.hget("sweeperd:relay", "waiting")) == bool(held)


def test_a_dispatcher_that_takes_again_lives(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    taken = young(9)
    limited(shard).write(taken[:4])
    limited(shard).write(taken[3:4])
    client.hset("sweeperd:relay", "since", shard.read_clock() - 61_000)
    assert limited(shard).write(taken[3:7]).held == []
    client.rpop("dispatch:pending")
    assert limited(shard).write(taken[7:]).held == taken[7:]


def test_an_empty_list_is_the_work_of_a_living_dispatcher(shard: Shard, client: redis.Redis) -> None:
    """Also after hours without an expiry."""
    subscribe(client, "whsub_1")
    client.hset("sweeperd:relay", mapping={"last": "", "since": 1})
    assert len(limited(shard).write(young(5)).held) == 2


def test_without_a_limit_nothing_waits_and_nothing_is_noted(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    client.lpush("dispatch:pending", *range(2000))
    assert limited(shard, 0).write(young(30)).held == []
    assert not client.exists("sweeperd:relay")
