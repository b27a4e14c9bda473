"""The pages that are read once for all lanes with a filter: what they say about a lane's next events."""

import pytest
import redis

from sweeperd.config import EndpointSettings
from sweeperd.delivery.ahead import FEW, Ahead, Page
from sweeperd.delivery.in_flight import Room
from sweeperd.outbox import Outbox, OutboxEntry, Subscription
from sweeperd.store import Shard
from sweeperd.store.operations import run
from tests.support.deliveries import expire

ACME = Subscription(
    EndpointSettings.model_validate({"name": "hook", "url": "http://127.0.0.1:9/", "tenants": ["acme"]})
)


@pytest.mark.parametrize(
    ("tenants", "passed", "worth"),
    [
        ("xxx", 3, 0),
        ("xxaax", 2, 2),
        ("aaaaaaaaaaaaa", 0, 12),
        ("a" + "x" * (FEW - 1) + "a", 0, FEW + 1),
        ("a" + "x" * FEW + "a", 0, 1),
    ],
)
def test_how_far_the_next_wanted_events_are(tenants: str, passed: int, worth: int) -> None:
    names = {"a": b"acme", "x": b"another"}
    events = [
        OutboxEntry.of(b"%d-0" % number, 1, {b"id": b"r", b"tenant": names[each]})
        for number, each in enumerate(tenants, 1)
    ]
    assert Page(b"0-0", events, more=False).look(0, ACME, 12) == (passed, worth)


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
