"""The notes and groups of replays: what begins, ends and cancels one, on a full Redis too, and what is left alone."""

from typing import Any

import pytest
import redis

from sweeperd.context import DEFAULT_TIMING
from sweeperd.outbox import PAGE, PARKED, CircuitNote, CircuitStateStore, Outbox
from sweeperd.outbox.replays import (
    ReplayNote,
    ReplayProgress,
    ReplayStore,
    dead_letters,
    end_cancelled,
    obstacle,
    replay_group,
)
from sweeperd.store import Shard, streams
from tests.support.deliveries import EVENTS
from tests.support.fixtures import full
from tests.support.streams import append

GROUPS = "sweeperd:groups"
GROUP = replay_group("hook")


@pytest.fixture
def store(shard: Shard) -> ReplayStore:
    return ReplayStore(shard)


def add(client: redis.Redis, count: int = 3) -> list[str]:
    return [client.xadd(EVENTS, {"id": f"r{number}"}).decode() for number in range(count)]  # type: ignore[union-attr]


def note(ids: list[str], made_at: int = 5) -> ReplayNote:
    return ReplayNote(
        made_at=made_at, endpoint="hook", since_ms=0, until_ms=9, first=ids[0], last=ids[-1], events=len(ids)
    )


def group(client: redis.Redis) -> dict[str, Any] | None:
    return streams.groups(client, EVENTS.encode()).get(GROUP.encode())


@pytest.mark.every_redis
def test_it_begins_is_cancelled_and_ends_on_a_full_redis(store: ReplayStore, shard: Shard, client: redis.Redis) -> None:
    meant = note(add(client))
    with full(shard):
        assert store.begin(meant) == "begun"
        assert store.cancel(meant)
        assert store.read("hook") == meant.model_copy(update={"cancelled": True})
        assert store.end(meant, by_force=True)
    assert not client.exists(GROUPS)
    assert group(client) is None


def test_one_that_runs_is_left_alone(store: ReplayStore, shard: Shard, client: redis.Redis) -> None:
    ids = add(client)
    assert store.begin(note(ids)) == "begun"
    taken = Outbox(shard, "us").read(GROUP, 2)
    assert store.begin(note(ids[1:], made_at=6)) == "running"
    assert store.read("hook") == note(ids)
    assert client.xpending(EVENTS, GROUP)["pending"] == len(taken) == 2


def test_what_is_left_of_a_group_without_a_note_is_made_anew(store: ReplayStore, client: redis.Redis) -> None:
    ids = add(client)
    client.xgroup_create(EVENTS, GROUP, "$")
    assert store.begin(note(ids)) == "begun"
    found = group(client)
    assert found is not None
    assert streams.StreamId.parse(found["last-delivered-id"]) == streams.StreamId.parse(ids[0]).before


def test_where_its_first_event_is_gone_nothing_changes(store: ReplayStore, client: redis.Redis) -> None:
    ids = add(client)
    client.xgroup_create(EVENTS, GROUP, "$")
    before = group(client)
    client.xdel(EVENTS, ids[0])
    assert store.begin(note(ids)) == "gone"
    assert group(client) == before
    assert not client.exists(GROUPS)


def test_a_later_one_is_neither_cancelled_nor_ended(store: ReplayStore, client: redis.Redis) -> None:
    earlier, later = note(ids := add(client)), note(ids, made_at=6)
    assert store.begin(later) == "begun"
    assert not store.cancel(earlier)
    assert not store.end(earlier, by_force=True)
    assert store.progress(earlier) == ReplayProgress()
    assert store.read("hook") == later
    assert group(client) is not None


def test_one_with_pending_events_ends_by_force_alone(store: ReplayStore, shard: Shard, client: redis.Redis) -> None:
    meant = note(add(client))
    store.begin(meant)
    Outbox(shard, "us").read(GROUP, 1)
    assert not store.end(meant)
    assert store.read("hook") == meant
    assert store.end(meant, by_force=True)
    assert group(client) is None


def test_it_is_exhausted_from_its_last_event_on(store: ReplayStore, shard: Shard, client: redis.Redis) -> None:
    meant, outbox = note(add(client, 5)[:3]), Outbox(shard, "us")
    assert not store.exhausted(meant), "it has no group yet"
    store.begin(meant)
    exhausted = [store.exhausted(meant)]
    while outbox.read(GROUP, 1):
        exhausted.append(store.exhausted(meant))
    assert exhausted == [False, False, False, True, True, True]


def test_it_is_exhausted_where_what_is_left_of_it_was_removed(store: ReplayStore, client: redis.Redis) -> None:
    ids = add(client, 5)
    meant = note(ids[:3])
    store.begin(meant)
    client.xdel(EVENTS, *ids[:2])
    assert not store.exhausted(meant)
    client.xdel(EVENTS, ids[2])
    assert store.exhausted(meant)


@pytest.mark.parametrize("made_again", [False, True])
def test_one_whose_group_was_lost_ends_by_force_alone(
    store: ReplayStore, shard: Shard, client: redis.Redis, made_again: bool
) -> None:
    """A process that found all events given out, before the group was lost, ends nothing."""
    meant, outbox = note(add(client)), Outbox(shard, "us")
    store.begin(meant)
    outbox.read(GROUP, len(meant.marks) or 100)
    assert store.exhausted(meant)
    client.xgroup_destroy(EVENTS, GROUP)
    if made_again:
        client.xgroup_create(EVENTS, GROUP, str(meant.start))
    assert not store.end(meant)
    assert store.read("hook") == meant
    assert store.end(meant, by_force=True)
    assert not client.exists(GROUPS)


def test_one_that_has_ended_cannot_be_cancelled(store: ReplayStore, client: redis.Redis) -> None:
    meant = note(add(client))
    assert not store.cancel(meant)
    assert not store.end(meant)
    assert not client.exists(GROUPS)


def test_a_stream_of_another_type_ends_nothing(store: ReplayStore, client: redis.Redis) -> None:
    meant = note(add(client))
    store.begin(meant)
    client.delete(EVENTS)
    client.set(EVENTS, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.end(meant)
    assert store.read("hook") == meant


@pytest.mark.parametrize(
    ("owner", "idle_seconds", "ends"),
    [
        ("us", 0, False),
        ("us", DEFAULT_TIMING.take_over_after / 2, False),
        ("us", DEFAULT_TIMING.take_over_after + 1, True),
        (PARKED, 0, True),
        (PARKED, DEFAULT_TIMING.take_over_after + 1, True),
    ],
    ids=["in hand", "in hand between two heartbeats", "of a dead process", "parked", "parked for long"],
)
def test_a_cancelled_one_ends_once_no_process_has_an_event_in_hand(
    store: ReplayStore, shard: Shard, client: redis.Redis, owner: str | bytes, idle_seconds: float, ends: bool
) -> None:
    meant = note(add(client))
    store.begin(meant)
    outbox = Outbox(shard, "us")
    (entry,) = outbox.read(GROUP, 1)
    client.xclaim(EVENTS, GROUP, owner, 0, [entry.id], idle=int(idle_seconds * 1000), justid=True)
    assert store.cancel(meant)
    assert end_cancelled(store, outbox, meant) == ends
    assert (group(client) is None) == ends
    assert (store.read("hook") is None) == ends


def test_a_cancelled_one_does_not_end_while_an_event_is_in_hand_behind_many_that_wait(
    store: ReplayStore, shard: Shard, client: redis.Redis
) -> None:
    meant, outbox = note(add(client, PAGE + 1)), Outbox(shard, "us")
    store.begin(meant)
    outbox.nack(GROUP, outbox.read(GROUP, PAGE))
    outbox.read(GROUP, 1)
    assert store.cancel(meant)
    assert not end_cancelled(store, outbox, meant)
    assert store.read("hook") is not None


def test_a_cancelled_one_whose_group_is_gone_ends(store: ReplayStore, shard: Shard, client: redis.Redis) -> None:
    meant = note(add(client))
    store.begin(meant)
    assert store.cancel(meant)
    client.xgroup_destroy(EVENTS, GROUP)
    assert end_cancelled(store, Outbox(shard, "us"), meant)
    assert not client.exists(GROUPS)


def test_a_note_that_can_be_read_is_not_removed_as_unreadable(store: ReplayStore, client: redis.Redis) -> None:
    meant = note(add(client))
    store.begin(meant)
    assert not store.remove_unreadable("hook")
    assert store.read("hook") == meant
    assert group(client) is not None


def test_one_whose_note_is_lost_has_not_ended_unless_another_has_begun(
    store: ReplayStore, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = add(client)
    meant, later = note(ids), note(ids, made_at=6)
    store.begin(meant)
    client.hdel(GROUPS, GROUP)
    assert store.progress(meant) == ReplayProgress(False, 3, 0, lost=True)
    assert not store.progress(meant).only_waits
    position = ReplayStore.position

    def begun_meanwhile(store: ReplayStore, *arguments: Any) -> Any:
        found = position(store, *arguments)
        if len(seen) == 1:
            assert store.begin(later) == "begun"
        seen.append(found)
        return found

    seen: list[Any] = []
    monkeypatch.setattr(ReplayStore, "position", begun_meanwhile)
    assert store.progress(meant) == ReplayProgress()


def test_its_own_events_alone_count_as_its_dead_letters(shard: Shard, client: redis.Redis) -> None:
    before, *ids, after = add(client, 5)
    for event, endpoint, expired_at in (
        (ids[0], "hook", 8),
        (ids[1], "hook", 8),
        (ids[2], "hook", 9),
        (ids[2], "audit", 8),
        (before, "hook", 8),
        (after, "hook", 8),
    ):
        append(client, "sweeperd:dead-letters", {"event": event, "endpoint": endpoint, "expired_at": expired_at})
    assert dead_letters(shard, note(ids)) == 2


@pytest.mark.parametrize(
    ("circuit", "told"),
    [
        ({"probe_at": 1, "reason": "HTTP 500"}, "deliveries to hook fail: HTTP 500"),
        ({"reason": "NOPERM"}, "deliveries to hook fail: cannot deliver on 1 of 1: NOPERM"),
        ({}, ""),
    ],
)
def test_either_kind_of_failure_keeps_it_from_going_on(shard: Shard, circuit: dict[str, Any], told: str) -> None:
    CircuitStateStore(shard).write("hook", CircuitNote(process="us", at=shard.clock.now_ms(), **circuit))
    assert obstacle(shard, "hook") == told
