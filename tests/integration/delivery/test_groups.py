"""Consumer groups that are lost, on real servers: each is made again at its position, whatever its endpoint does."""

import json
import time
from datetime import timedelta
from typing import Any

import pytest
import redis

from sweeperd.config import RELAY
from sweeperd.context import Timing
from sweeperd.outbox import PARKED, PARKED_ALONE, ConsumerGroups, EndpointStateStore, Outbox
from sweeperd.store import Shard, streams
from tests.integration.delivery.test_replays import add, begin, ended, refreshed
from tests.support.deliveries import EVENTS, Deliver, Delivery, expire
from tests.support.fixtures import full
from tests.support.harness import eventually, server_time
from tests.support.receiver import Answer, Receiver

GROUPS = "sweeperd:groups"
NOWHERE = "http://127.0.0.1:9/"
HOUR = 3_600_000
DAY = 24 * HOUR
WARNING = "a consumer group was lost and is made again"


def remade(delivery: Delivery) -> float:
    return delivery.metrics.registry.get_sample_value("sweeperd_groups_remade_total", {"shard": "default"}) or 0.0


def note(client: redis.Redis, group: str = "hook") -> Any:
    found: Any = client.hget(GROUPS, group)
    return found and json.loads(found)


def group_names(client: redis.Redis) -> set[bytes]:
    return set(streams.groups(client, EVENTS.encode()))


def ids_left(shard: Shard) -> list[bytes]:
    """The events that the group gives out from here on."""
    return [entry.id for entry in Outbox(shard, "test").read("hook", 1000)]


def received(receiver: Receiver) -> list[str]:
    return sorted(request.event["data"]["reservation_id"] for request in receiver.requests)


# ---- lost while a process runs


@pytest.mark.parametrize("state", ["paused", "open"])
def test_the_group_of_an_endpoint_that_rests_is_made_again(
    state: str, shard: Shard, client: redis.Redis, deliver: Deliver, caplog: pytest.LogCaptureFixture
) -> None:
    """Within one round of maintenance, and its position is before the first event that was not acknowledged."""
    down = [state == "open"]
    with Receiver(lambda *_: Answer(500 if down[0] else 200)) as receiver:
        waits: dict[str, Any] = {"redelivery_initial": "1h", "redelivery_max": "1h", "probe_max": "1h"}
        with deliver(receiver.url, 2, timing=Timing(block=0.1, refresh_every=0.2), **waits) as delivery:
            (endpoint,) = delivery.dispatcher.lanes
            if down[0]:
                expire(client, *map(str, range(8)))
            else:
                EndpointStateStore(shard).pause("hook", "moving house")
            eventually(lambda: endpoint.resting)
            expire(client, "one", "two")
            delivery.dispatcher.maintain()
            client.xgroup_destroy(EVENTS, "hook")
            expire(client, "three")
            delivery.dispatcher.maintain()  # unless the reader of an open circuit was first
            assert group_names(client) == {b"hook"}
            assert remade(delivery) == 1
            assert caplog.messages.count(WARNING) == 1
            delivery.dispatcher.maintain()
            assert remade(delivery) == 1
        down[0] = False
        EndpointStateStore(shard).resume("hook")
        receiver.clear()
        with deliver(receiver.url, 2):
            receiver.wait_for(lambda _: {"one", "two", "three"} <= set(received(receiver)))


def test_a_run_that_ends_counts_what_a_lost_group_shall_have(shard: Shard, client: redis.Redis) -> None:
    """Its exit code says that events wait, though nothing has read from the endpoint that is paused."""
    delivery = Delivery(shard, NOWHERE, 2, {}, until_idle=True)
    EndpointStateStore(shard).pause("hook", "moving house")
    expire(client, "one", "two")
    client.xgroup_destroy(EVENTS, "hook")
    delivery.dispatcher.start()
    assert delivery.dispatcher.join(time.monotonic() + 20)
    delivery.dispatcher.maintain()
    assert delivery.dispatcher.report().undelivered == 2
    assert remade(delivery) == 1


def test_a_group_without_a_note_gets_one_at_the_first_round(shard: Shard, client: redis.Redis) -> None:
    """An earlier version made the group. Its position is right before the first event that it has not acknowledged."""
    client.xgroup_create(EVENTS, "hook", id="0", mkstream=True)
    ids: list[Any] = [client.xadd(EVENTS, {"id": "r"}, id=f"5-{number}") for number in range(4)]
    outbox = Outbox(shard, "them")
    outbox.read("hook", 3)
    outbox.acknowledge("hook", ids[:2])
    delivery = Delivery(shard, NOWHERE, 2, {})
    assert note(client) == {"made_at": 0, "position": "5-1"}
    outbox.acknowledge("hook", ids[:3])
    delivery.dispatcher.maintain()
    assert note(client) == {"made_at": 0, "position": "5-2"}
    assert remade(delivery) == 0


@pytest.mark.parametrize("owner", [PARKED, PARKED_ALONE])
def test_parked_events_that_were_removed_from_the_group_come_again(
    shard: Shard, client: redis.Redis, owner: bytes
) -> None:
    """XGROUP DELCONSUMER takes the pending events of a consumer out of the group without a word."""
    delivery = Delivery(shard, NOWHERE, 2, {})
    outbox = Outbox(shard, "them")
    expire(client, "done", "parked", "later")
    done, parked = outbox.read("hook", 2)
    outbox.acknowledge("hook", [done.id])
    outbox.nack("hook", [parked._replace(alone=owner == PARKED_ALONE)])
    delivery.dispatcher.maintain()
    assert remade(delivery) == 0
    client.xgroup_delconsumer(EVENTS, "hook", owner)
    assert [entry.fields[b"id"] for entry in outbox.read("hook", 10)] == [b"later"]
    delivery.dispatcher.maintain()
    assert remade(delivery) == 1
    assert [entry.fields[b"id"] for entry in outbox.read("hook", 10)] == [b"parked", b"later"]
    delivery.dispatcher.maintain()
    assert remade(delivery) == 1, "once"
    outbox.nack("hook", [parked])
    delivery.dispatcher.maintain()
    client.xgroup_delconsumer(EVENTS, "hook", PARKED)
    delivery.dispatcher.maintain()
    assert remade(delivery) == 2


def test_parked_events_that_were_removed_are_told_without_the_right_to_read_again(
    own_shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    client = own_shard.client
    delivery, outbox = Delivery(own_shard, NOWHERE, 2, {}), Outbox(own_shard, "them")
    expire(client, "parked")
    outbox.nack("hook", outbox.read("hook", 1))
    delivery.dispatcher.maintain()
    client.xgroup_delconsumer(EVENTS, "hook", PARKED)
    # All but SETID; Redis 6.2 can't take away a subcommand.
    client.acl_setuser("default", commands=["-xgroup", "+xgroup|create", "+xgroup|destroy", "+xgroup|delconsumer"])
    delivery.dispatcher.maintain()
    assert remade(delivery) == 1
    assert any("are lost to it" in message for message in caplog.messages)
    delivery.dispatcher.maintain()
    assert remade(delivery) == 1, "once"


@pytest.mark.parametrize("sequence", [9_999_999_999_999_999, 18_446_744_073_709_551_610])
def test_the_position_before_the_first_of_a_millisecond(shard: Shard, client: redis.Redis, sequence: int) -> None:
    client.xgroup_create(EVENTS, "hook", id="0", mkstream=True)
    client.xadd(EVENTS, {"id": "r"}, id="5-0")
    client.xadd(EVENTS, {"id": "r"}, id=f"6-{sequence}")
    outbox = Outbox(shard, "them")
    first, second = outbox.read("hook", 2)
    groups = ConsumerGroups(shard, "us")
    groups.ensure("hook")
    assert note(client)["position"] == "4-18446744073709551615"
    outbox.acknowledge("hook", [first.id])
    groups.ensure("hook")
    client.xgroup_destroy(EVENTS, "hook")
    groups.ensure("hook")
    assert ids_left(shard) == [second.id], "beyond what a double holds exactly"


def test_a_note_is_written_only_when_its_group_has_moved(shard: Shard, client: redis.Redis) -> None:
    """So that a run that finds nothing to do writes nothing."""
    expire(client, "one")
    groups = ConsumerGroups(shard, "us")
    made_at = groups.ensure("hook", "beginning")
    client.config_resetstat()
    assert groups.ensure("hook") == made_at > 0
    assert not {"cmdstat_hset", "cmdstat_xack", "cmdstat_xgroup|create"} & client.info("commandstats").keys()
    ids_left(shard)
    assert groups.ensure("hook") == made_at
    assert note(client)["made_at"] == made_at, "it is kept"
    (event,) = (pending.id for pending in Outbox(shard, "us").pending("hook"))
    client.xack(EVENTS, "hook", event)
    groups.ensure("hook")
    assert note(client) == {"made_at": made_at, "position": event.decode()}


def test_the_age_of_a_backfill_survives_its_note(shard: Shard, client: redis.Redis) -> None:
    """In the process that knows of it: else its events would become dead letters at once."""
    expire(client, "one")
    delivery = Delivery(shard, NOWHERE, 2, {"start": "beginning"})
    made_at = note(client)["made_at"]
    client.delete(GROUPS)
    delivery.dispatcher.maintain()
    (endpoint,) = delivery.dispatcher.lanes
    assert endpoint.redelivery.counts_from_ms == made_at > 0
    assert note(client)["position"], "it has a note again"


def test_many_groups_in_one_round(shard: Shard, client: redis.Redis) -> None:
    """More than one call of the script takes."""
    wanted = dict.fromkeys((f"hook{number}" for number in range(250)), "now")
    groups = ConsumerGroups(shard, "us")
    assert groups.keep(wanted) == dict.fromkeys(wanted, 0)  # type: ignore[arg-type]
    assert len(group_names(client)) == client.hlen(GROUPS) == 250
    expire(client, "one")
    for name in ("hook3", "hook249"):
        client.xgroup_destroy(EVENTS, name)
    groups.keep(wanted)  # type: ignore[arg-type]
    assert len(group_names(client)) == 250
    assert len(Outbox(shard, "us").read("hook249", 10)) == 1


# ---- lost while no process runs


def lost(shard: Shard, client: redis.Redis, *names: str) -> list[bytes]:
    """A process has made the group, and the group is lost before these events. Returns the ids."""
    Delivery(shard, NOWHERE, 2, {})
    ids = expire(client, *names)
    client.xgroup_destroy(EVENTS, "hook")
    return ids


@pytest.mark.parametrize("start", ["now", "beginning"])
def test_a_process_begins_at_the_note_of_a_lost_group(
    start: str, shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    expire(client, "before")
    ids = lost(shard, client, "one", "two")
    caplog.clear()
    now = server_time(client)
    delivery = Delivery(shard, NOWHERE, 2, {"start": start})
    assert (remade(delivery), caplog.messages.count(WARNING)) == (1, 1)
    assert note(client)["made_at"] >= now
    assert ids_left(shard) == ids


def test_it_goes_back_no_further_than_max_age(shard: Shard, client: redis.Redis) -> None:
    now = server_time(client)
    client.xgroup_create(EVENTS, "hook", id="0", mkstream=True)
    add(client, now - 5 * DAY, 2, "seen")
    for entry in Outbox(shard, "them").read("hook", 2):
        client.xack(EVENTS, "hook", entry.id)
    Delivery(shard, NOWHERE, 2, {})
    add(client, now - 4 * DAY, 2, "old")
    add(client, now - 2 * DAY, 2, "young")
    client.xgroup_destroy(EVENTS, "hook")
    Delivery(shard, NOWHERE, 2, {"max_age": "72h"}, max_age="1h")
    assert ids_left(shard) == [f"{now - 2 * DAY}-{number}".encode() for number in (1, 2)]
    client.xgroup_destroy(EVENTS, "hook")
    ConsumerGroups(shard, "us").ensure("hook")
    assert len(ids_left(shard)) == 2, "the same without settings"


def test_a_new_group_goes_back_no_further_than_its_start(shard: Shard, client: redis.Redis) -> None:
    """Also if all events are older. What comes next is read, even by a clock that is behind."""
    end = server_time(client) - 2 * HOUR
    add(client, end, 2, "old")
    ConsumerGroups(shard, "us").ensure("hook", timedelta(hours=1))
    assert ids_left(shard) == []
    add(client, end + 1, 1, "new")
    assert ids_left(shard) == [f"{end + 1}-1".encode()]


def test_an_endpoint_that_is_configured_again_goes_on_from_its_note(shard: Shard, client: redis.Redis) -> None:
    """Here in a process that had it before, as at a reload: what that process knows of the group is out of date."""
    groups = ConsumerGroups(shard, "us")
    groups.ensure("hook", max_age_ms=3 * DAY)
    add(client, server_time(client) - 5 * DAY, 2, "old")
    ids = expire(client, "one", "two")
    client.xgroup_destroy(EVENTS, "hook")
    without, with_it = (ConsumerGroups(shard, "us") for _ in range(2))
    without.adopt(groups, [])
    with_it.adopt(without, ["hook"])
    with_it.ensure("hook", max_age_ms=3 * DAY)
    assert ids_left(shard) == ids


@pytest.mark.every_redis
def test_a_full_redis_makes_a_lost_group_at_its_position(own_shard: Shard) -> None:
    client = own_shard.client
    ids = lost(own_shard, client, "one", "two")
    with full(own_shard):
        delivery = Delivery(own_shard, NOWHERE, 2, {})
        assert remade(delivery) == 1
        assert ids_left(own_shard) == ids
        client.xack(EVENTS, "hook", ids[0])
        delivery.dispatcher.maintain()
        assert note(client)["position"] < ids[1].decode()
        assert note(client)["position"] >= ids[0].decode()


# ---- the stream is lost with its groups


@pytest.mark.parametrize("who", ["a process that runs", "a new one"])
def test_the_stream_is_lost(who: str, shard: Shard, client: redis.Redis) -> None:
    """Or its key only. All that is added from then on is delivered, also by a clock that was set back."""
    expire(client, "before")
    delivery = Delivery(shard, NOWHERE, 2, {})
    client.delete(EVENTS)
    if who == "a new one":
        Delivery(shard, NOWHERE, 2, {})
    else:
        delivery.dispatcher.maintain()
    behind = server_time(client) - HOUR
    added = add(client, behind, 2)
    assert ids_left(shard) == [f"{behind}-{number + 1}".encode() for number in range(len(added))]


@pytest.mark.parametrize("who", ["a process that runs", "a new one"])
def test_an_older_copy_of_the_stream_takes_its_place(who: str, shard: Shard, client: redis.Redis) -> None:
    """
    A fail-over to a replica that was behind, whose clock is slow, and the group is not in it. The position is beyond
    the last id. Events of before may come again; none that is new is passed over, be it there already or added later.
    """
    now = server_time(client)
    client.xgroup_create(EVENTS, "hook", id="0", mkstream=True)
    add(client, now - HOUR, 1)
    expire(client, "lost")
    outbox = Outbox(shard, "them")
    outbox.acknowledge("hook", [entry.id for entry in outbox.read("hook", 10)])
    delivery = Delivery(shard, NOWHERE, 2, {})
    client.delete(EVENTS)
    add(client, now - 5 * DAY, 1)
    add(client, now - HOUR, 1)
    add(client, now - HOUR + 1, 1, "new")
    if who == "a new one":
        delivery = Delivery(shard, NOWHERE, 2, {})
    else:
        delivery.dispatcher.maintain()
    assert remade(delivery) == 1
    add(client, now - HOUR + 2, 1, "later")
    assert ids_left(shard) == [f"{now - HOUR + number}-1".encode() for number in range(3)]


def test_a_note_goes_back_with_its_group(shard: Shard, client: redis.Redis) -> None:
    """In an older copy the group is where it was then."""
    expire(client, "one", "two")
    client.xgroup_create(EVENTS, "hook", id="$")
    delivery = Delivery(shard, NOWHERE, 2, {})
    client.xgroup_setid(EVENTS, "hook", "1-0")
    delivery.dispatcher.maintain()
    assert note(client)["position"] == "1-0"


def test_an_older_copy_without_the_group_has_the_position_of_that_time(shard: Shard, client: redis.Redis) -> None:
    """
    The group was lost when the copy was taken. What the process has seen acknowledged since then, the copy has not: its
    records of Cycles, say, are lost with the fail-over.
    """
    client.xgroup_create(EVENTS, "hook", id="0", mkstream=True)
    ids = expire(client, "one", "two")
    delivery = Delivery(shard, NOWHERE, 2, {})
    delivery.dispatcher.maintain()
    copied: Any = client.hget(GROUPS, "hook")
    outbox = Outbox(shard, "them")
    outbox.acknowledge("hook", [entry.id for entry in outbox.read("hook", 10)])
    delivery.dispatcher.maintain()
    assert note(client)["position"] == ids[1].decode()
    client.hset(GROUPS, "hook", copied)
    client.xgroup_destroy(EVENTS, "hook")
    delivery.dispatcher.maintain()
    assert remade(delivery) == 1
    assert ids_left(shard) == ids


@pytest.mark.parametrize("copied", ["nothing", "the note"])
def test_a_copy_without_the_group_of_the_relay_gets_the_records_of_the_past(
    copied: str, shard: Shard, client: redis.Redis
) -> None:
    """What the process has seen acknowledged had its records in the Redis that was lost."""
    name, groups, outbox = RELAY.name, ConsumerGroups(shard, "us"), Outbox(shard, "them")
    ids = expire(client, "one", "two", "three")
    assert groups.ensure(name, RELAY.start) > 0
    outbox.acknowledge(name, [entry.id for entry in outbox.read(name, 1)])
    groups.ensure(name, RELAY.start)
    earlier: Any = client.hget(GROUPS, name)
    outbox.acknowledge(name, [entry.id for entry in outbox.read(name, 10)])
    groups.ensure(name, RELAY.start)
    assert note(client, name)["position"] == ids[2].decode()
    client.xgroup_destroy(EVENTS, name)
    client.delete(GROUPS)
    if copied == "the note":
        client.hset(GROUPS, name, earlier)
    made_at = groups.ensure(name, RELAY.start)
    assert made_at > 0, "their age counts from now"
    assert [entry.id for entry in outbox.read(name, 10)] == ids[int(copied == "the note") :]


# ---- replays that end, groups that go, while they are looked at


def test_a_consumer_leaves_a_group_that_has_gone(shard: Shard, client: redis.Redis) -> None:
    groups = ConsumerGroups(shard, "us")
    assert not groups.leave("hook"), "there is no stream"
    groups.ensure("other")
    assert not groups.leave("hook")
    assert groups.remove_silent("hook") == 0


def test_a_replay_whose_group_is_lost_after_its_last_event_was_taken_goes_on(
    shard: Shard, client: redis.Redis, deliver: Deliver
) -> None:
    """It takes its events anew, and ends."""
    now, down = server_time(client), [True]
    add(client, now - HOUR, 3)
    with Receiver(lambda *_: Answer(503 if down[0] else 200)) as receiver:
        with deliver(receiver.url, 2) as delivery, refreshed(delivery):
            running = begin(shard, now - 2 * HOUR, now)
            receiver.wait_for(lambda requests: len(requests) > 3)
            (replay,) = delivery.dispatcher._replays._running.values()
            eventually(lambda: replay.subscription.exhausted)
            client.xgroup_destroy(EVENTS, running.group)
            eventually(lambda: running.group.encode() in group_names(client))
            down[0] = False
            receiver.clear()
            eventually(lambda: ended(client))
            assert set(received(receiver)) == {"r0", "r1", "r2"}
            assert remade(delivery) >= 1
