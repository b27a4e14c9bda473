"""The pages that are read once for all lanes with a filter: what they say about a lane's next events."""

import pytest
import redis

from sweeperd.config import EndpointSettings
from sweeperd.delivery.ahead import FEW, PAGES, Ahead, Page
from sweeperd.delivery.in_flight import FIRST_GUESS, Room
from sweeperd.outbox import Outbox, OutboxEntry, Subscription
from sweeperd.outbox.event import ONLY_FOR
from sweeperd.store import Shard
from sweeperd.store.operations import run
from tests.support.deliveries import expire


def subscription(**settings: object) -> Subscription:
    return Subscription(EndpointSettings.model_validate({"name": "hook", "url": "http://127.0.0.1:9/"} | settings))


@pytest.mark.parametrize("settings", [{"tenants": ["acme"]}, {"scopes": ["acme"]}], ids=["tenant", "scope"])
@pytest.mark.parametrize(
    ("tenants", "place", "passed", "worth"),
    [
        ("xxx", 0, 3, 0),
        ("axxx", 1, 3, 0),
        ("xxaax", 0, 2, 2),
        ("aaxxaax", 1, 0, 5),
        ("aaxxaax", 2, 2, 2),
        ("aaaaaaaaaaaaa", 0, 0, 12),
        ("a" + "x" * (FEW - 1) + "a", 0, 0, FEW + 1),
        ("a" + "x" * FEW + "a", 0, 0, 1),
        ("oxroxx", 1, 1, 1),
    ],
)
def test_how_far_the_next_wanted_events_are(
    settings: dict[str, object], tenants: str, place: int, passed: int, worth: int
) -> None:
    """`r` is replayed to this endpoint only, and `o` to another one."""
    kinds = {
        "a": {b"tenant": b"acme"},
        "x": {},
        "r": {ONLY_FOR: b"hook"},
        "o": {ONLY_FOR: b"other", b"tenant": b"acme"},
    }
    events = [
        OutboxEntry.of(b"%d-0" % number, 1, {b"id": b"r", b"scope": kinds[each].get(b"tenant", b"x")} | kinds[each])
        for number, each in enumerate(tenants, 1)
    ]
    assert Page(b"0-0", events, more=False).look(place, subscription(**settings), 12) == (passed, worth)


def test_pages_are_read_for_several_lanes_and_the_last_ones_are_kept(shard: Shard, client: redis.Redis) -> None:
    ids, room = expire(client, *map(str, range(PAGES + 2))), Room(16)
    ahead = Ahead(Outbox(shard, "us"), room)

    def known() -> list[bool]:
        return [ahead.page(each) is not None for each in ids[:-1]]

    run(client, ahead.read(ids[:2], 1))
    assert not any(known()), "each lane is at another place"
    for each in ids[:-1]:
        run(client, ahead.read([each, each], 1))
    assert known() == [False] + [True] * PAGES
    assert room.typical < FIRST_GUESS / 2
    ahead.forget()
    assert not any(known())


@pytest.mark.parametrize(("asked", "known"), [(2, False), (3, True)])
def test_a_page_that_may_have_more_after_it_does_not_tell_its_end(
    shard: Shard, client: redis.Redis, asked: int, known: bool
) -> None:
    first, second = expire(client, "one", "two")
    ahead = Ahead(Outbox(shard, "us"), Room(16))
    run(client, ahead.read([b"0-0", b"0-0"], asked))
    assert ahead.page(first) is not None
    assert (ahead.page(second) is not None) is known
    ahead.news()
    assert ahead.page(second) is None
