"""The event stream and its groups, on real servers."""

import functools
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from sweeperd.config import DELIVERY_FAILED, EndpointSettings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.outbox import (
    PAGE,
    PARKED,
    PARKED_ALONE,
    Announcements,
    ConsumerGroups,
    Outbox,
    OutboxEntry,
    Pending,
    Replication,
    Subscription,
)
from sweeperd.outbox.groups import CLAIM_COUNT, LONG_IDLE_MS, Trimmed
from sweeperd.store import Shard, streams
from tests.support.fixtures import full
from tests.support.harness import eventually, server_time
from tests.support.servers import Binary, Server
from tests.support.streams import entries

KEY, DEAD = "sweeperd:events", "sweeperd:dead-letters"
GROUP = "billing"
BILLING = Subscription(EndpointSettings.model_validate({"name": GROUP, "url": "http://127.0.0.1:9/"}))
DAY = 86_400_000


@pytest.fixture
def stream(shard: Shard) -> Outbox:
    """This process's view of the stream."""
    return Outbox(shard, "us")


@pytest.fixture
def other(shard: Shard) -> Outbox:
    """Another replica's."""
    return Outbox(shard, "them")


def add(client: redis.Redis, count: int = 1, at: int | None = None) -> list[bytes]:
    """Append so many events, at a moment of the test's own or now. Returns their ids."""
    with client.pipeline() as pipeline:
        for number in range(count):
            pipeline.xadd(KEY, {"id": f"r{number}", "tenant": "acme"}, id="*" if at is None else f"{at}-{number + 1}")
        return list(pipeline.execute())


def held(client: redis.Redis, group: str = GROUP) -> dict[bytes, tuple[bytes, int]]:
    """What the group has not acknowledged: id -> owner and deliveries."""
    rows: Any = client.xpending_range(KEY, group, "-", "+", 10_000)
    return {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}


def age(client: redis.Redis, entry: OutboxEntry, milliseconds: int, owner: bytes = b"us") -> None:
    """Let a pending event have been idle for so long."""
    client.xclaim(KEY, GROUP, owner.decode(), 0, [entry.id], idle=milliseconds, justid=True)


def idle(stream: Outbox, entry: OutboxEntry) -> int:
    (pending,) = [pending for pending in stream.pending(GROUP) if pending.id == entry.id]
    return pending.idle_ms


def ids(entries: Sequence[OutboxEntry | Pending]) -> list[bytes]:
    return [entry.id for entry in entries]


def taken(stream: Outbox, client: redis.Redis, count: int = 1) -> list[OutboxEntry]:
    """Events that this process has taken and not acknowledged."""
    stream.groups.ensure(GROUP)
    add(client, count)
    return stream.read(GROUP, count)


def in_stream(client: redis.Redis) -> set[bytes]:
    return {entry for entry, _ in entries(client, KEY)}


# ---- groups


@pytest.mark.parametrize("before", [0, 3])
def test_a_group_gets_the_events_from_now_on(before: int, stream: Outbox, client: redis.Redis) -> None:
    add(client, before)
    stream.groups.ensure(GROUP)
    assert client.xlen(KEY) == before
    later = add(client, 2)
    assert ids(stream.read(GROUP, 10)) == later
    stream.groups.ensure(GROUP)
    assert stream.read(GROUP, 10) == [], "the group that is there stays as it is"


def test_what_waits_is_made_due_and_what_is_in_hand_is_left_alone(stream: Outbox, client: redis.Redis) -> None:
    """More than one call can hold, those that travel alone too."""
    assert stream.groups.make_due(GROUP) == 0, "there is no group"
    events = taken(stream, client, CLAIM_COUNT + 30)
    in_hand, alone, parked = events[0], events[1], events[2:]
    assert stream.groups.make_due(GROUP) == 0
    stream.nack(GROUP, [*parked, alone._replace(alone=True)])
    assert stream.groups.make_due(GROUP) == len(parked) + 1
    waiting = {pending.id: pending for pending in [*stream.pending(GROUP), *stream.pending(GROUP, events[99].id)]}
    assert waiting[in_hand.id].idle_ms < LONG_IDLE_MS
    assert waiting[in_hand.id].owner == b"us"
    assert waiting[alone.id].owner == PARKED_ALONE
    del waiting[in_hand.id]
    assert len(waiting) == len(parked) + 1
    assert all(pending.idle_ms >= LONG_IDLE_MS for pending in waiting.values())
    assert all(pending.deliveries == 1 for pending in waiting.values())


def test_nothing_is_trimmed_that_a_group_to_be_made_shall_have(stream: Outbox, client: redis.Redis) -> None:
    old = server_time(client) - 10 * DAY
    stream.groups.ensure(GROUP)
    add(client, 300, at=old)
    consume(stream)
    stream.groups.trim([GROUP], 100 * DAY, DAY)
    later = add(client, 300, at=old + 1)
    client.xgroup_destroy(KEY, GROUP)
    assert stream.groups.trim([GROUP], DAY, DAY).removed >= 200
    assert in_stream(client) >= set(later)
    stream.groups.ensure(GROUP)
    assert ids(stream.read(GROUP, 1000))[-300:] == later


@pytest.mark.parametrize("known_by", ["trim", "adopt"])
def test_a_group_that_another_replica_made_is_made_again_with_its_note(
    known_by: str, stream: Outbox, other: Outbox, client: redis.Redis
) -> None:
    """Its events keep their age: with a new note they would be young again."""
    add(client, 2)
    made_at = other.groups.ensure(GROUP, "beginning")
    assert made_at > 0
    first, second = other.read(GROUP, 2)
    other.acknowledge(GROUP, [first.id])
    other.groups.ensure(GROUP, "beginning")
    if known_by == "trim":
        stream.groups.trim([GROUP], DAY, DAY)
    else:
        stream.groups.adopt(other.groups, [GROUP])
    client.xgroup_destroy(KEY, GROUP)
    eventually(lambda: server_time(client) > made_at)
    assert stream.groups.ensure(GROUP, "beginning") == made_at
    assert ids(stream.read(GROUP, 10)) == [second.id]


def test_a_group_that_was_forgotten_is_a_new_one(stream: Outbox, client: redis.Redis) -> None:
    added = add(client, 2)
    stream.groups.ensure(GROUP)
    client.xgroup_destroy(KEY, GROUP)
    client.hdel("sweeperd:groups", GROUP)
    stream.groups.forget(GROUP)
    assert stream.groups.ensure(GROUP, "beginning") > 0, "its note is gone too"
    assert ids(stream.read(GROUP, 10)) == added


# ---- taking and putting back


def test_read(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    stream.groups.ensure(GROUP)
    before = server_time(client)
    added = add(client, 5)
    entries = stream.read(GROUP, 3)
    assert ids(entries) == added[:3]
    assert entries[1].fields == {b"id": b"r1", b"tenant": b"acme"}
    assert {entry.deliveries for entry in entries} == {1}
    assert before <= entries[0].added_ms <= server_time(client)
    assert ids(other.read(GROUP, 10)) == added[3:], "each is given once"
    assert set(held(client).values()) == {(b"us", 1), (b"them", 1)}


def test_pending(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    first, second = taken(stream, client, 2)
    stream.nack(GROUP, [second])
    age(client, first, 60_000)
    pending = stream.pending(GROUP)
    assert [(p.id, p.owner, p.deliveries) for p in pending] == [(first.id, b"us", 1), (second.id, PARKED, 1)]
    assert pending[0].idle_ms >= 60_000 > pending[1].idle_ms
    assert pending[0].added_ms == first.added_ms
    assert ids(stream.parked(GROUP)) == [second.id]


@pytest.mark.parametrize("count", [0, PAGE, 2 * PAGE + 50])
def test_pending_page_by_page(count: int, stream: Outbox, client: redis.Redis) -> None:
    stream.groups.ensure(GROUP)
    added = add(client, count, at=5)  # many in the same millisecond
    stream.read(GROUP, count + 1)
    seen: list[Pending] = stream.pending(GROUP)
    while len(page := stream.pending(GROUP, seen[-1].id if seen else None)):
        assert len(page) <= PAGE
        seen += page
    assert ids(seen) == added


def test_events_that_other_processes_hold(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    first, second = taken(stream, client, 2)
    assert not stream.groups.held_elsewhere(GROUP)
    assert other.groups.held_elsewhere(GROUP)
    stream.nack(GROUP, [first, second])
    assert not other.groups.held_elsewhere(GROUP), "parked"
    client.xgroup_destroy(KEY, GROUP)
    assert not other.groups.held_elsewhere(GROUP), "a group that is lost holds nothing"


def test_claim(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    entry, mine = taken(stream, client, 2)
    age(client, entry, 60_000)
    wanted = stream.pending(GROUP)[:1]
    assert ids(wanted) == [entry.id]
    (claimed,) = other.claim(GROUP, wanted, 30_000)
    assert (claimed.id, claimed.deliveries, claimed.fields) == (entry.id, 2, entry.fields)
    assert held(client) == {entry.id: (b"them", 2), mine.id: (b"us", 1)}
    assert stream.claim(GROUP, wanted, 30_000) == [], "another replica was faster"
    assert held(client)[entry.id] == (b"them", 2)
    assert stream.claim(GROUP, [], 0) == []


def test_an_event_that_was_refused_alone_travels_alone_when_it_is_claimed(stream: Outbox, client: redis.Redis) -> None:
    together, alone = taken(stream, client, 2)
    stream.nack(GROUP, [together, alone._replace(alone=True)])
    assert [(entry.id, entry.alone) for entry in stream.claim(GROUP, stream.pending(GROUP), 0)] == [
        (together.id, False),
        (alone.id, True),
    ]


def test_park(stream: Outbox, client: redis.Redis) -> None:
    (entry,) = taken(stream, client)
    age(client, entry, 60_000)
    stream.nack(GROUP, [entry])
    assert held(client) == {entry.id: (PARKED, 1)}
    assert idle(stream, entry) < 30_000, "its wait begins now"
    assert stream.read(GROUP, 10) == [], "it is not given as a new one"


def test_only_what_this_process_still_has_in_hand_gets_a_heartbeat(
    stream: Outbox, other: Outbox, client: redis.Redis
) -> None:
    """The list of what is in hand is older than the heartbeat; the process may have been stopped in between."""
    ours, parked, theirs, settled = entries = taken(stream, client, 4)
    stream.nack(GROUP, [parked])
    age(client, ours, 60_000)
    age(client, parked, 40_000, PARKED)
    age(client, theirs, 10_000, b"them")
    stream.acknowledge(GROUP, [settled.id])
    stream.heartbeat(GROUP, ids(entries))
    assert held(client) == {ours.id: (b"us", 1), parked.id: (PARKED, 1), theirs.id: (b"them", 1)}
    assert idle(stream, ours) < 30_000 < idle(stream, parked), "its wait goes on"
    assert idle(stream, theirs) >= 10_000, "they are dead where they send none"


def test_nothing_is_parked_that_another_process_has_in_hand(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    """This process was stopped for so long that it was taken for dead."""
    entries = taken(stream, client, 2)
    for entry in entries:
        age(client, entry, 20_000)
    other.claim(GROUP, other.pending(GROUP), 15_000)
    stream.nack(GROUP, entries[:1])
    stream.release(GROUP, entries[1:])
    assert held(client) == {entry.id: (b"them", 2) for entry in entries}
    assert idle(stream, entries[1]) < 10_000


def test_a_wait_does_not_begin_anew_where_parking_is_repeated(stream: Outbox, client: redis.Redis) -> None:
    """The reply to the first time was lost."""
    (entry,) = taken(stream, client)
    stream.nack(GROUP, [entry])
    age(client, entry, 60_000, PARKED)
    stream.nack(GROUP, [entry])
    assert idle(stream, entry) >= 60_000


@pytest.mark.parametrize("least_idle_ms", [0, 100])
def test_claim_what_another_process_has_taken_meanwhile(
    least_idle_ms: int, stream: Outbox, other: Outbox, client: redis.Redis
) -> None:
    (entry,) = taken(stream, client)
    stream.nack(GROUP, [entry])
    age(client, entry, 60_000, PARKED)
    listed = stream.pending(GROUP)
    assert ids(other.claim(GROUP, listed, least_idle_ms)) == [entry.id]
    age(client, entry, 5_000, b"them")  # its next heartbeat is due
    assert stream.claim(GROUP, listed, least_idle_ms) == []
    assert held(client) == {entry.id: (b"them", 2)}


def test_many_events_are_claimed_with_what_each_of_them_counts(stream: Outbox, client: redis.Redis) -> None:
    entries = taken(stream, client, 2 * CLAIM_COUNT + 10)
    for deliveries, owner, part in ((3, PARKED, entries[::3]), (1, PARKED_ALONE, entries[1::3])):
        some: Any = ids(part)
        client.xclaim(KEY, GROUP, owner.decode(), 0, some, idle=60_000, retrycount=deliveries, justid=True)
    claimed = stream.claim(GROUP, [pending for pending in stream.pending(GROUP) if pending.owner != b"us"], 30_000)
    assert sorted(ids(claimed)) == sorted([*ids(entries[::3]), *ids(entries[1::3])])
    assert {(entry.deliveries, entry.alone) for entry in claimed} == {(4, False), (2, True)}
    assert {entry.id: entry.pairs for entry in claimed}.items() <= {entry.id: entry.pairs for entry in entries}.items()
    assert {counted for _, counted in held(client).values()} == {1, 2, 4}


def test_what_a_dead_process_had_is_found_page_by_page(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    """Not what waits, what a living process has in hand, or what this process has."""
    dead, _alive, _waiting, ours, lost = entries = taken(stream, client, 5)
    for entry, owner, idle_ms in zip(
        entries, [b"dead", b"them", PARKED, b"us", b"us"], [15_000, 14_000, 10**8, 15_000, 15_000], strict=True
    ):
        age(client, entry, idle_ms, owner)
    assert sorted(ids(stream.orphaned(BILLING, {ours.id}, 10))) == [dead.id, lost.id]
    assert len(stream.orphaned(BILLING, {ours.id}, 1)) == 1
    assert stream.orphaned(BILLING, set(ids(entries)), 10) == []


def test_give_back(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    """It was not handed over: it counts as before, and anybody may take it at once."""
    (entry,) = taken(stream, client)
    stream.release(GROUP, [entry])
    assert held(client) == {entry.id: (PARKED, 0)}
    assert idle(stream, entry) >= DEFAULT_TIMING.take_over_after * 1000
    (again,) = other.claim(GROUP, other.pending(GROUP), 15_000)
    assert again.deliveries == 1
    assert held(client) == {entry.id: (b"them", 1)}


def test_what_came_back_is_not_lost_again(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    """An event that another process has acknowledged does not become pending again where it is put back."""
    (entry,) = taken(stream, client)
    listed = stream.pending(GROUP)
    other.acknowledge(GROUP, [entry.id])
    assert not stream.dead_letter(GROUP, entry, "too late")
    assert letters(client) == []
    for put_back in (stream.nack, stream.release):
        put_back(GROUP, [entry])
    stream.heartbeat(GROUP, [entry.id])
    assert stream.claim(GROUP, listed, 0) == []
    assert held(client) == {}


# ---- dead letters


def letters(client: redis.Redis) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in entries(client, DEAD)]


def test_bury(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    first, second = taken(stream, client, 2)
    assert stream.dead_letter(GROUP, first, "HTTP 500")
    assert list(held(client)) == [second.id]
    expected = {
        b"event": first.id,
        b"endpoint": GROUP.encode(),
        b"reason": b"HTTP 500",
        b"attempts": b"1",
        b"id": b"r0",
        b"tenant": b"acme",
    }
    assert letters(client) == [expected]
    assert not stream.dead_letter(GROUP, first, "HTTP 500")
    assert not other.dead_letter(GROUP, first, "HTTP 500")
    assert letters(client) == [expected], "once"
    assert first.id in in_stream(client), "other endpoints may still want it"


def test_bury_what_another_process_has_taken_meanwhile(
    shard: Shard, stream: Outbox, other: Outbox, client: redis.Redis
) -> None:
    """As a process does that was stopped for long: the other one may be sending the event at this moment."""
    (entry,) = taken(stream, client)
    age(client, entry, int(DEFAULT_TIMING.take_over_after * 1000))
    (theirs,) = other.claim(GROUP, other.orphaned(BILLING, (), 1), int(DEFAULT_TIMING.take_over_after * 1000))
    assert not stream.dead_letter(GROUP, entry, "too late")
    assert (letters(client), held(client)) == ([], {entry.id: (b"them", 2)})
    other.nack(GROUP, [theirs])
    assert not stream.dead_letter(GROUP, entry, "too late"), "it waits for its next delivery"
    assert (letters(client), held(client)) == ([], {entry.id: (PARKED, 2)})
    operator = Outbox(shard, "operator")
    assert operator.dead_letter(GROUP, entry, "skipped", in_hand=False), "an operator takes it from whoever has it"
    assert (len(letters(client)), held(client)) == (1, {})


def test_bury_for_each_endpoint(stream: Outbox, client: redis.Redis) -> None:
    stream.groups.ensure("audit")
    (entry,) = taken(stream, client)
    stream.read("audit", 1)
    assert stream.dead_letter(GROUP, entry, "x")
    assert stream.dead_letter("audit", entry, "x")
    assert [letter[b"endpoint"] for letter in letters(client)] == [b"billing", b"audit"]


@pytest.mark.parametrize(("fields", "kept"), [(3500, 3500), (3501, 0)])
def test_bury_an_event_of_another_writer_with_many_fields(
    fields: int, kept: int, stream: Outbox, client: redis.Redis
) -> None:
    stream.groups.ensure(GROUP)
    client.xadd(KEY, {f"f{number}": "" for number in range(fields)})
    (entry,) = stream.read(GROUP, 1)
    assert stream.dead_letter(GROUP, entry, "gone")
    (letter,) = letters(client)
    assert len(letter) == 4 + kept


def test_claim_and_bury_what_is_no_longer_in_the_stream(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    """Redis 7 forgets such an event when it is claimed, and 6.2 does not; it must be reported in both."""
    first, second = taken(stream, client, 2)
    client.xdel(KEY, first.id)
    gone, there = other.claim(GROUP, other.pending(GROUP), 0)
    assert (gone.id, gone.fields) == (first.id, {})
    assert (there.id, there.fields) == (second.id, second.fields)
    assert other.dead_letter(GROUP, gone, "the event is no longer in the stream")
    assert [letter[b"event"] for letter in letters(client)] == [first.id]
    assert list(held(client)) == [second.id]


@pytest.mark.parametrize("how", ["heartbeat", "nack", "release", "made due"])
def test_no_change_of_owner_forgets_what_is_no_longer_in_the_stream(
    how: str, stream: Outbox, other: Outbox, client: redis.Redis
) -> None:
    """Somebody has removed events that were in hand, or waited. Redis 7 would forget them; they become dead letters."""
    gone, there, last = taken(stream, client, 3)
    if how == "made due":
        stream.nack(GROUP, [gone, there, last])
    client.xdel(KEY, gone.id, last.id)
    match how:
        case "heartbeat":
            stream.heartbeat(GROUP, [gone.id, there.id, last.id])
        case "nack":
            stream.nack(GROUP, [gone, there, last])
        case "release":
            stream.release(GROUP, [gone])
            stream.release(GROUP, [last, there])
        case "made due":
            assert stream.groups.make_due(GROUP) == 3
    assert held(client).keys() == {gone.id, there.id, last.id}
    claimed = other.claim(GROUP, other.pending(GROUP), 0)
    assert {entry.id for entry in claimed if not entry.pairs} == {gone.id, last.id}


def test_all_that_waits_or_is_in_hand_has_left_the_stream(stream: Outbox, client: redis.Redis) -> None:
    waits, in_hand = taken(stream, client, 2)
    stream.nack(GROUP, [waits])
    client.xtrim(KEY, maxlen=0, approximate=False)
    assert stream.groups.make_due(GROUP) == 1
    stream.nack(GROUP, [in_hand])
    assert held(client) == {waits.id: (PARKED, 1), in_hand.id: (b"us", 1)}, "until this process is seen as dead"


def test_a_page_is_given_up_in_one_script(shard: Shard, other: Outbox, client: redis.Redis) -> None:
    """What another process has by then is left out; each announcement is about its own event."""
    shard.read_clock()
    stream = Outbox(shard, "us", announcements=Announcements(shard.clock, [DELIVERY_FAILED]))
    page = taken(stream, client, 4)
    age(client, page[1], int(DEFAULT_TIMING.take_over_after * 1000))
    other.claim(GROUP, other.orphaned(BILLING, (), 1), int(DEFAULT_TIMING.take_over_after * 1000))
    client.xdel(KEY, page[2].id)
    page[2], page[3] = page[2]._replace(pairs=[]), page[3]._replace(deliveries=7)
    scripts = calls(client)
    assert [entry.id for entry in stream.give_up(GROUP, page, "old")] == [page[0].id, page[2].id, page[3].id]
    assert calls(client) - scripts == 1
    assert held(client) == {page[1].id: (b"them", 2)}
    assert [(letter[b"event"], letter[b"attempts"]) for letter in letters(client)] == [
        (page[0].id, b"1"),
        (page[2].id, b"1"),
        (page[3].id, b"7"),
    ]
    announced = [json.loads(fields[b"data"]) for _, fields in entries(client, KEY) if b"data" in fields]
    assert [each["details"]["attempts"] for each in announced] == [1, 1, 7]


def test_parked_events_are_given_up_unless_somebody_has_taken_them(
    stream: Outbox, other: Outbox, client: redis.Redis
) -> None:
    first, second = page = taken(stream, client, 2)
    stream.nack(GROUP, page)
    other.claim(GROUP, other.pending(GROUP)[:1], 0)
    listed = stream.look_up(other.pending(GROUP))
    assert [(entry.id, entry.deliveries, entry.fields) for entry in listed] == [
        (first.id, 2, first.fields),
        (second.id, 1, second.fields),
    ]
    assert stream.give_up(GROUP, page, "old", owner=PARKED) == [second]
    assert held(client) == {first.id: (b"them", 2)}


def test_a_page_of_dead_letters_where_the_stream_is_about_to_end(stream: Outbox, client: redis.Redis) -> None:
    """No letter may find no place after the first was written: one event a call, and then none."""
    page = taken(stream, client, 3)
    client.xadd(DEAD, {"by": "hand"}, id="18446744073709551615-18446744073709551613")
    assert stream.give_up(GROUP, page, "old") == page[:1]
    assert stream.give_up(GROUP, page, "old") == page[1:2]
    with pytest.raises(redis.ResponseError):
        stream.give_up(GROUP, page, "old")
    assert list(held(client)) == [page[2].id]


def calls(client: redis.Redis) -> int:
    """How many scripts have run. The first call fails where it is not loaded."""
    rows: Any = client.info("commandstats")
    return sum(row["calls"] - row["failed_calls"] for name, row in rows.items() if name.startswith("cmdstat_eval"))


@pytest.mark.every_redis
def test_bury_in_a_full_redis(own_shard: Shard) -> None:
    stream, client = Outbox(own_shard, "us"), own_shard.client
    (entry,) = taken(stream, client)
    with full(own_shard):
        assert stream.dead_letter(GROUP, entry, "HTTP 500")
    assert [letter[b"event"] for letter in letters(client)] == [entry.id]


def test_dead_letters_cannot_be_written(stream: Outbox, client: redis.Redis) -> None:
    (entry,) = taken(stream, client)
    client.set(DEAD, "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        stream.dead_letter(GROUP, entry, "HTTP 500")
    assert list(held(client)) == [entry.id], "nothing has been done"


# ---- what waits


def test_untaken(stream: Outbox, client: redis.Redis) -> None:
    assert stream.groups.untaken(GROUP, streams.StreamId.at(10**15), 5) == 0
    stream.groups.ensure(GROUP)
    for at in (1000, 2000, 3000):
        add(client, 2, at=at)
    assert stream.groups.untaken(GROUP, streams.StreamId.at(3000), 100) == 4
    assert stream.groups.untaken(GROUP, streams.StreamId.at(3001), 100) == 6
    assert stream.groups.untaken(GROUP, streams.StreamId.at(1000), 100) == 0
    assert stream.groups.untaken(GROUP, streams.StreamId.at(3001), 3) == 3
    stream.read(GROUP, 3)
    assert stream.groups.untaken(GROUP, streams.StreamId.at(3000), 100) == 1


# ---- trimming: whole nodes of up to 100 entries go at a time, so a few older ones may stay

NODE = 100


@pytest.fixture
def now(client: redis.Redis) -> int:
    return server_time(client)


@pytest.fixture
def trimmed(stream: Outbox) -> functools.partial[Trimmed]:
    """Trim with a retention of a day and a `max_age` of three, for a single endpoint."""
    return functools.partial(stream.groups.trim, [GROUP], DAY, 3 * DAY)


def consume(stream: Outbox, group: str = GROUP, count: int = 10_000) -> list[bytes]:
    """Take and acknowledge."""
    done = ids(stream.read(group, count))
    stream.acknowledge(group, done)
    return done


def test_trim_what_is_acknowledged_and_old(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    stream.groups.ensure(GROUP)
    old = add(client, 5 * NODE, at=now - 2 * DAY)
    young = add(client, 5 * NODE, at=now - DAY // 2)
    consume(stream)
    assert trimmed().removed >= 4 * NODE
    assert set(young) <= in_stream(client)
    assert len(in_stream(client) & set(old)) <= NODE
    assert trimmed().removed == 0


def test_a_named_group_holds_the_stream_for_its_own_age_and_what_it_loses_is_counted(
    stream: Outbox, client: redis.Redis, now: int
) -> None:
    stream.groups.ensure(GROUP)
    client.xgroup_create(KEY, "warehouse", id="0", mkstream=True)
    old, young = add(client, 5 * NODE, at=now - 50 * DAY), add(client, 5 * NODE, at=now - 5 * DAY)
    consume(stream)
    held = stream.groups.trim([GROUP], DAY, 3 * DAY, ["warehouse"], 100 * DAY)
    assert held == Trimmed(0, {"warehouse": 0})
    assert stream.groups.oldest_unread_ms("warehouse") == int(old[0].partition(b"-")[0])
    lost = stream.groups.trim([GROUP], DAY, 3 * DAY, ["warehouse"], 20 * DAY)
    assert 4 * NODE <= lost.removed == lost.unread["warehouse"] <= 5 * NODE
    assert set(young) <= in_stream(client)
    # An acknowledged event is not lost.
    client.xreadgroup("warehouse", "reader", {KEY: ">"}, count=100 * NODE)
    client.xack(KEY, "warehouse", *in_stream(client))
    done = stream.groups.trim([GROUP], DAY, 3 * DAY, ["warehouse", "missing"], 20 * DAY)
    assert done.removed > 0
    assert done.unread == {"warehouse": 0}
    assert stream.groups.oldest_unread_ms("warehouse") is None
    assert stream.groups.oldest_unread_ms("missing") is None


def test_nothing_is_trimmed_that_is_not_acknowledged(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    stream.groups.ensure(GROUP)
    added = add(client, 5 * NODE, at=now - 100 * DAY)
    stream.read(GROUP, 10_000)
    left = added[2 * NODE + 50]
    stream.acknowledge(GROUP, [entry for entry in added if entry != left])
    assert NODE <= trimmed().removed <= 2 * NODE + 50
    assert set(added[2 * NODE + 50 :]) <= in_stream(client)
    stream.acknowledge(GROUP, [left])
    assert trimmed().removed > NODE


def test_nothing_is_trimmed_that_is_not_taken(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    stream.groups.ensure(GROUP)
    added = add(client, 5 * NODE, at=now - 100 * DAY)
    assert trimmed().removed == 0
    consume(stream, count=2 * NODE + 50)
    assert NODE <= trimmed().removed <= 2 * NODE + 50
    assert ids(stream.read(GROUP, 10_000)) == added[2 * NODE + 50 :]


def test_the_slowest_endpoint_counts(stream: Outbox, client: redis.Redis, now: int) -> None:
    for group in (GROUP, "audit"):
        stream.groups.ensure(group)
    added = add(client, 5 * NODE, at=now - 2 * DAY)
    consume(stream)
    consume(stream, "audit", NODE + 50)
    for order in ([GROUP, "audit"], ["audit", GROUP]):
        assert stream.groups.trim(order, DAY, 3 * DAY).removed <= NODE + 50
    assert set(added[NODE + 50 :]) <= in_stream(client)


@pytest.mark.parametrize("state", ["untaken", "taken"])
def test_an_endpoint_that_is_configured_no_more(
    state: str, stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    """Its group holds the stream for `max_age` at most."""
    for group in (GROUP, "former"):
        stream.groups.ensure(group)
    older = add(client, 5 * NODE, at=now - 4 * DAY)
    younger = add(client, 5 * NODE, at=now - 2 * DAY)
    consume(stream)
    if state == "taken":
        stream.read("former", 10_000)
    assert stream.groups.trim([GROUP, "former"], DAY, 3 * DAY).removed == 0, "while it is configured"
    assert trimmed().removed >= 4 * NODE
    assert set(younger) <= in_stream(client)
    assert len(in_stream(client) & set(older)) <= NODE


@pytest.mark.parametrize("note", ["there", "gone", "unreadable"])
def test_a_lost_group_of_another_process_holds_what_it_has_not_read(
    note: str, stream: Outbox, other: Outbox, client: redis.Redis, now: int
) -> None:
    """Until that process makes it again; this one has settings without the endpoint."""
    stream.groups.ensure(GROUP)
    other.groups.ensure("audit")
    add(client, 2 * NODE, at=now - 2 * DAY)
    consume(stream)
    consume(other, "audit")
    other.groups.ensure("audit")
    left = add(client, 2 * NODE, at=now - 2 * DAY + 1)
    consume(stream)
    client.xgroup_destroy(KEY, "audit")
    if note == "gone":
        client.hdel("sweeperd:groups", "audit")
    elif note == "unreadable":
        client.hset("sweeperd:groups", "audit", "{")
    trimmed = stream.groups.trim([GROUP], DAY, 3 * DAY, elsewhere=["audit"])
    assert trimmed.removed == (NODE if note == "there" else 0)
    assert set(left) <= in_stream(client)
    other.groups.ensure("audit")
    assert ids(other.read("audit", 10_000)) == left


def test_a_group_that_is_made_meanwhile_keeps_what_it_reads(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may begin a replay between the look at the groups and the trim."""
    stream.groups.ensure(GROUP)
    old = add(client, 5 * NODE, at=now - 2 * DAY)
    consume(stream)
    look = streams.groups

    def make_after_the_look(*args: Any) -> Any:
        found = look(*args)
        client.xgroup_create(KEY, "replay", id="0")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(streams, "groups", make_after_the_look)
        assert trimmed().removed == 0
    assert ids(stream.read("replay", 10_000)) == old
    assert trimmed().removed == 0, "held by the replay"


def test_a_group_of_another_program_may_have_any_name(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    stream.groups.ensure(GROUP)
    client.xgroup_create(KEY, b"\xff \n", id="0")
    add(client, 5 * NODE, at=now - 4 * DAY)
    consume(stream)
    assert trimmed().removed >= 4 * NODE


def test_a_replay_that_this_process_does_not_know_yet_keeps_its_events(
    stream: Outbox, client: redis.Redis, now: int
) -> None:
    """They are older than the retention, and than what a group of others may hold. Not if the replay has ended."""
    stream.groups.ensure(GROUP)
    old = add(client, 5 * NODE, at=now - 2 * DAY)
    consume(stream)
    client.xgroup_create(KEY, "_replay.hook", id="0")
    client.hset("sweeperd:groups", "_replay.hook", "{}")
    assert stream.groups.trim([GROUP], DAY, DAY).removed == 0
    assert ids(stream.read("_replay.hook", 10_000)) == old
    client.hdel("sweeperd:groups", "_replay.hook")
    assert stream.groups.trim([GROUP], DAY, DAY).removed >= 4 * NODE


def test_a_replay_to_an_endpoint_that_nobody_has_holds_its_events_for_a_time(
    stream: Outbox, client: redis.Redis, now: int
) -> None:
    """Else a replay that was forgotten when its endpoint was removed would fill the server."""
    stream.groups.ensure(GROUP)
    add(client, 5 * NODE, at=now - 4 * DAY)
    consume(stream)
    client.xgroup_create(KEY, "_replay.gone", id="0")
    old, young = (json.dumps({"made_at": now - days * DAY}) for days in (3, 1))
    client.hset("sweeperd:groups", "_replay.gone", young)
    assert stream.groups.trim([GROUP], DAY, 2 * DAY).removed == 0
    client.hset("sweeperd:groups", "_replay.gone", old)
    assert stream.groups.trim([GROUP], DAY, 2 * DAY, elsewhere=["gone"]).removed == 0, "another process has it"
    assert stream.groups.trim([GROUP], DAY, 2 * DAY).removed >= 4 * NODE


def test_a_former_endpoint_that_lags_behind_nothing_holds_nothing(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    for group in (GROUP, "former"):
        stream.groups.ensure(group)
    add(client, 5 * NODE, at=now - 2 * DAY)
    for group in (GROUP, "former"):
        consume(stream, group)
    assert trimmed().removed >= 4 * NODE


def test_one_call_trims_for_as_long_as_it_may(
    shard: Shard, stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    """One XTRIM removes 10,000 at most: with one for each round, 700 expiries a second fill the server."""
    hasty = ConsumerGroups(shard, "us", timing=Timing(trim_for=0)).trim
    stream.groups.ensure(GROUP)
    add(client, 12_000, at=now - 2 * DAY)
    while consume(stream):
        pass
    assert hasty(*trimmed.args, **trimmed.keywords).removed == 10_000
    assert trimmed().removed >= 2_000 - NODE


def test_an_endpoint_whose_group_is_unknown_holds_everything(
    stream: Outbox, trimmed: functools.partial[Trimmed], client: redis.Redis, now: int
) -> None:
    add(client, 5 * NODE, at=now - 100 * DAY)
    assert trimmed().removed == 0


# ---- consumers


def consumers(client: redis.Redis) -> set[bytes]:
    return {row["name"] for row in client.xinfo_consumers(KEY, GROUP)}


def test_leave(stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    (entry,) = taken(stream, client)
    other.read(GROUP, 1)
    client.xgroup_createconsumer(KEY, GROUP, "them")
    assert consumers(client) == {b"us", b"them"}
    assert not stream.groups.leave(GROUP), "to remove it would lose what it holds"
    assert held(client) == {entry.id: (b"us", 1)}
    assert other.groups.leave(GROUP)
    assert consumers(client) == {b"us"}
    stream.acknowledge(GROUP, [entry.id])
    assert stream.groups.leave(GROUP)
    assert consumers(client) == set()


def test_remove_silent_consumers(shard: Shard, stream: Outbox, other: Outbox, client: redis.Redis) -> None:
    assert stream.groups.remove_silent(GROUP) == 0
    first, second = taken(stream, client, 2)
    stream.nack(GROUP, [first])
    stream.acknowledge(GROUP, [first.id, second.id])
    for name in ("dead-1", "dead-2"):
        client.xgroup_createconsumer(KEY, GROUP, name)
    add(client)
    (entry,) = other.read(GROUP, 1)
    everybody = {b"us", b"them", PARKED, b"dead-1", b"dead-2"}
    assert consumers(client) == everybody
    eventually(lambda: all(consumer["idle"] >= 5 for consumer in client.xinfo_consumers(KEY, GROUP)))
    assert stream.groups.remove_silent(GROUP) == 0, "they have spoken lately"
    assert consumers(client) == everybody
    soon = ConsumerGroups(shard, "us", timing=Timing(take_over_after=0.05))
    removed: list[int] = []
    eventually(lambda: removed.append(soon.remove_silent(GROUP)) or sum(removed) == 2)
    assert consumers(client) == {b"us", b"them", PARKED}
    assert held(client) == {entry.id: (b"them", 1)}


def test_nobody_is_waited_for_unless_asked(stream: Outbox, client: redis.Redis) -> None:
    entries = taken(stream, client, 3)
    client.config_resetstat()
    assert stream.confirmed(GROUP, entries)
    assert "cmdstat_wait" not in client.info("commandstats")


def test_replicas_that_are_not_there_confirm_nothing(shard: Shard, client: redis.Redis) -> None:
    stream = Outbox(shard, "us", Replication(replicas=1, timeout_seconds=0.1))
    entries = taken(stream, client, 3)
    started = time.monotonic()
    assert not stream.confirmed(GROUP, entries)
    assert 0.1 <= time.monotonic() - started < shard.socket_timeout
    assert held(client) == {entry.id: (b"us", 1) for entry in entries}, "to ask is no hand-over"
    assert stream.confirmed(GROUP, []), "nothing to confirm"
    gone = OutboxEntry(b"1-1", 1, [])
    assert stream.confirmed(GROUP, [gone]), "what is no more has nothing to confirm"


def test_the_wait_ends_before_the_socket_gives_up(shard: Shard, client: redis.Redis) -> None:
    stream = Outbox(shard, "us", Replication(replicas=1, timeout_seconds=3600))
    entries = taken(stream, client)
    shard.socket_timeout = 0.2
    with client.monitor() as monitor:
        assert not stream.confirmed(GROUP, entries)
        client.echo("that was all")
        commands = itertools.takewhile(
            lambda each: "that was all" not in each, (c["command"] for c in monitor.listen())
        )
        asked = [each for each in commands if each.startswith("WAIT ")]
    assert asked == ["WAIT 1 100"], "the hour is not waited for"


def test_to_ask_replicas_writes_on_the_same_connection(shard: Shard, client: redis.Redis) -> None:
    """WAIT is about the writes of its own connection."""
    stream = Outbox(shard, "us", Replication(replicas=1, timeout_seconds=0.01))
    (entry,) = taken(stream, client)
    age(client, entry, 60_000)
    stream.confirmed(GROUP, [entry])
    assert idle(stream, entry) < 30_000


def test_as_many_replicas_as_are_asked_for_are_enough(
    own_server: Server, own_shard: Shard, redis_binary: Binary
) -> None:
    client = own_shard.client
    client.config_set("repl-diskless-sync-delay", 0)
    with Server(redis_binary, ["--replicaof", "127.0.0.1", str(own_server.port)]):
        one, two = (Outbox(own_shard, "us", Replication(replicas, 0.1)) for replicas in (1, 2))
        entries = taken(one, client, 2)
        eventually(lambda: one.confirmed(GROUP, entries))
        assert not two.confirmed(GROUP, entries)
