"""Where a new endpoint begins: `start`, and the age of the events that it then gets."""

import json
from datetime import timedelta

import pytest
import redis

from sweeperd.outbox import Outbox
from sweeperd.store import Shard
from tests.support.deliveries import EVENTS, Deliver, expire
from tests.support.harness import eventually, server_time
from tests.support.receiver import Answer, Receiver

HOUR = 3_600_000
GROUPS = "sweeperd:groups"


def expire_at(client: redis.Redis, at: int, *names: str) -> None:
    """Add an event for each name, as if it had expired at that time, ms."""
    for number, name in enumerate(names):
        client.xadd(EVENTS, {"id": name, "tenant": "acme", "expired_at": at}, id=f"{at}-{number + 1}")


def delivered(receiver: Receiver) -> set[str]:
    return {request.event["data"]["reservation_id"] for request in receiver.requests}


def note(client: redis.Redis) -> int:
    """When the group was made, by its note; 0: there is none."""
    found = client.hget(GROUPS, "hook")
    return 0 if found is None else int(json.loads(found)["made_at"])


@pytest.mark.parametrize(
    ("start", "expected"),
    [("now", {"now"}), ("beginning", {"yesterday", "just"}), ("6h", {"just"})],
    ids=["now", "beginning", "duration"],
)
def test_a_new_endpoint_begins_where_start_says(
    client: redis.Redis, deliver: Deliver, start: str, expected: set[str]
) -> None:
    now = server_time(client)
    expire_at(client, now - 24 * HOUR, "yesterday")
    expire_at(client, now - 5 * HOUR, "just")
    with Receiver() as receiver, deliver(receiver.url, 2, {"start": start}) as delivery:
        expire(client, "now")
        receiver.wait_for(lambda requests: len(requests) == len(expected | {"now"}))
        eventually(lambda: delivery.events("delivered") == len(expected | {"now"}))
        assert delivered(receiver) == expected | {"now"}
    assert (note(client) >= now) == (start != "now")


def test_start_counts_only_for_a_new_group(client: redis.Redis, deliver: Deliver) -> None:
    with Receiver() as receiver:
        expire(client, "before")
        with deliver(receiver.url):
            pass
        with deliver(receiver.url, 2, {"start": "beginning"}):
            expire(client, "after")
            receiver.wait_for(lambda requests: len(requests) == 1)
        assert delivered(receiver) == {"after"}
        assert note(client) == 0


def test_a_group_that_could_not_be_made_at_first_keeps_its_start(client: redis.Redis, shard: Shard) -> None:
    """Where a call to make it fails, the next one makes it with its note: without it, old events would be given up."""
    now = server_time(client)
    expire_at(client, now - 5 * HOUR, "old")
    groups = Outbox(shard, "us").groups
    client.set(GROUPS, "no hash")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        groups.ensure("hook", "beginning")
    client.delete(GROUPS)
    after = Outbox(shard, "us").groups
    after.adopt(groups, ["hook"])
    assert after.ensure("hook", "beginning") >= now
    assert note(client) >= now


def test_the_age_of_backfilled_events_counts_from_when_the_group_was_made(
    client: redis.Redis, deliver: Deliver
) -> None:
    """Also while the circuit is open. Where the group was made long ago, they are too old."""
    expire_at(client, server_time(client) - 5 * HOUR, *(f"r{number}" for number in range(8)))
    with Receiver(lambda *_: Answer(500)) as receiver:
        with deliver(receiver.url, 4, {"start": "beginning"}, max_age="1h", probe_max="200ms") as delivery:
            receiver.wait_for(lambda requests: len(requests) > 12)
            assert delivery.dead_letters() == 0
            assert client.xlen("sweeperd:dead-letters") == 0
        client.hset(GROUPS, "hook", json.dumps({"made_at": server_time(client) - 2 * HOUR}))
        with deliver(receiver.url, 4, {"start": "beginning"}, max_age="1h", probe_max="200ms") as delivery:
            eventually(lambda: client.xlen("sweeperd:dead-letters") == 8)
            eventually(lambda: delivery.dead_letters() == 8)


def test_events_of_a_backfill_that_could_not_begin_yet_are_kept(own_shard: Shard) -> None:
    """A group that was refused holds the trimming back: it gets its events once it is made."""
    client = own_shard.client
    expire_at(client, server_time(client) - 5 * HOUR, *(f"r{number}" for number in range(300)))
    expire(client, "young")
    outbox = Outbox(own_shard, "us")
    client.set(GROUPS, "no hash")
    with pytest.raises(redis.ResponseError):
        outbox.groups.ensure("hook", timedelta(hours=6))
    assert outbox.groups.trim(["hook"], HOUR, HOUR).removed == 0
    client.delete(GROUPS)
    outbox.groups.ensure("hook", timedelta(hours=6))
    assert len(outbox.read("hook", 1000)) == 301
