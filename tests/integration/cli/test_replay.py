"""replay.lua: a dead letter becomes an event for one endpoint again, once, or stays what it is."""

import threading

import pytest
import redis

from sweeperd.outbox import Outbox, OutboxEntry, dead_letters, message
from sweeperd.outbox.dead_letters import PAGE, DeadLetterFilter, Replayed
from sweeperd.outbox.event import ONLY_FOR
from sweeperd.store import Shard
from tests.integration.cli.conftest import give_up
from tests.support.books import ALWAYS, check, read
from tests.support.fixtures import a_shard, full
from tests.support.servers import Server
from tests.support.streams import append, entries

EVENTS, DEAD = "sweeperd:events", "sweeperd:dead-letters"


def text(ids: list[bytes]) -> list[str]:
    return [letter.decode() for letter in ids]


def test_event_and_letter_change_places(shard: Shard, client: redis.Redis) -> None:
    letters = text(give_up(shard, ["one", "two"]))
    first, second = (fields for _, fields in entries(client, EVENTS))
    assert dead_letters.replay(shard, letters[:1]) == [Replayed.REPLAYED]
    assert [entry.decode() for entry, _ in entries(client, DEAD)] == letters[1:]
    *before, (stream_id, event) = entries(client, EVENTS)
    assert [fields for _, fields in before] == [first, second]
    assert event == first | {ONLY_FOR: b"billing"}
    told, again = message(b"", first), message(b"", event)
    assert (again.event_id, again.body) == (told.event_id, told.body)
    (taken,) = Outbox(shard, "test").read("billing", 10)
    assert (taken.id, taken.only_for) == (stream_id, "billing")
    assert taken.added_ms >= int(before[-1][0].partition(b"-")[0]), "its age begins anew"
    check(read(client), ALWAYS)


def test_given_up_on_again_and_replayed_again(shard: Shard, client: redis.Redis) -> None:
    letters = text(give_up(shard, ["one"]))
    stream, first = Outbox(shard, "test"), entries(client, EVENTS)[0][1]
    for _ in range(3):
        assert dead_letters.replay(shard, letters) == [Replayed.REPLAYED]
        (entry,) = stream.read("billing", 10)
        assert stream.dead_letter("billing", entry, "HTTP 500")
        letters = text([letter for letter, _ in entries(client, DEAD)])
    *_, (_, event) = entries(client, EVENTS)
    assert list(event.items()) == [*first.items(), (ONLY_FOR, b"billing")]


def test_what_cannot_be_replayed_stays(shard: Shard, client: redis.Redis) -> None:
    letters = text(give_up(shard, ["one"]))
    assert dead_letters.replay(shard, ["1-1"]) == [Replayed.GONE]
    Outbox(shard, "test").groups.ensure("audit")
    lost = append(client, DEAD, {"event": "5-0", "endpoint": "audit", "reason": "gone", "attempts": 2}).decode()
    client.xgroup_destroy(EVENTS, "billing")
    before = entries(client, EVENTS)
    assert dead_letters.replay(shard, [lost, *letters]) == [Replayed.NO_EVENT, Replayed.NO_GROUP]
    assert entries(client, EVENTS) == before
    client.delete(EVENTS)
    assert dead_letters.replay(shard, letters) == [Replayed.NO_GROUP]
    assert client.xlen(DEAD) == 2
    assert not client.exists(EVENTS)


def test_a_letter_does_not_go_before_its_event_is_there(shard: Shard, client: redis.Redis) -> None:
    letters = text(give_up(shard, ["one"]))
    client.xadd(EVENTS, {"id": "last"}, id="18446744073709551615-18446744073709551615")
    (refused,) = dead_letters.replay(shard, letters)
    assert isinstance(refused, redis.ResponseError)
    assert client.xlen(DEAD) == 1


@pytest.mark.every_redis
def test_in_a_full_redis(own_shard: Shard) -> None:
    letters = text(give_up(own_shard, ["one"]))
    with full(own_shard):
        assert dead_letters.replay(own_shard, letters) == [Replayed.REPLAYED]
    assert own_shard.client.xlen(DEAD) == 0
    assert own_shard.client.xlen(EVENTS) == 2


def test_rivals_replay_each_letter_once(shard: Shard, client: redis.Redis, server: Server) -> None:
    letters = text(give_up(shard, [str(number) for number in range(3 * PAGE)]))
    outcomes: list[Replayed | Exception] = []
    start = threading.Barrier(3)

    def rival() -> None:
        with a_shard(server) as own:
            start.wait()
            for begin in range(0, len(letters), 7):
                outcomes.extend(dead_letters.replay(own, letters[begin : begin + 7]))

    rivals = [threading.Thread(target=rival) for _ in range(3)]
    for thread in rivals:
        thread.start()
    for thread in rivals:
        thread.join()
    assert outcomes.count(Replayed.REPLAYED) == len(letters)
    assert outcomes.count(Replayed.GONE) == 2 * len(letters)
    assert client.xlen(DEAD) == 0
    replayed = [fields[b"id"] for _, fields in entries(client, EVENTS) if ONLY_FOR in fields]
    assert sorted(replayed) == sorted(str(number).encode() for number in range(3 * PAGE))
    check(read(client), ALWAYS)


def test_it_is_read_in_pages_and_both_ways(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = text(give_up(shard, [str(number) for number in range(8)]))
    for page in (3, 4, 8, 9):
        monkeypatch.setattr("sweeperd.store.streams.PAGE", page)
        assert [letter.id for letter in dead_letters.read(shard, DeadLetterFilter())] == letters
        assert [letter.id for letter in dead_letters.read(shard, DeadLetterFilter(), newest_first=True)] == letters[
            ::-1
        ]
        assert [letter.id for letter in dead_letters.read(shard, DeadLetterFilter(), letters[4])] == letters[:5]
    assert [letter.id for letter in dead_letters.find(shard, ["1-1", letters[3]])] == [letters[3]]
    assert dead_letters.last_id(shard) == letters[-1]


def test_they_are_counted_up_to_a_limit(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up(shard, ["a", "b", "c"])
    give_up(shard, ["d", "e"], endpoint="audit")
    monkeypatch.setattr(dead_letters, "COUNT_PAGE", 2)
    counts = dead_letters.LetterCounts()
    for most, of_audit in ((6, 2), (4, 1)):
        monkeypatch.setattr(dead_letters, "COUNTED", most)
        found = dead_letters.LetterCounts().read(shard)
        assert (found.by_endpoint, found.total) == ({"billing": 3, "audit": of_audit}, 5)
        assert found.complete == (of_audit == 2)
        assert counts.read(shard).by_endpoint == {"billing": 3, "audit": 2}, "it is counted once"
    monkeypatch.undo()
    dead_letters.drop(shard, text(give_up(shard, ["f"])))
    shard.client.xtrim("sweeperd:dead-letters", minid=dead_letters.last_id(shard), approximate=False)
    assert counts.read(shard).by_endpoint == {"audit": 1}, "a change is seen"
    shard.client.delete("sweeperd:dead-letters")
    assert (counts.read(shard).by_endpoint, counts.complete) == ({}, True)


# ---- the books


def test_who_is_to_have_it_may_be_any_bytes() -> None:
    assert OutboxEntry.of(b"1-0", 1, {ONLY_FOR: b"\xff"}).only_for == "\\xff"


# ---- the endpoints
