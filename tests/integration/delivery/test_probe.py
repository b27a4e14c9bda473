"""Which event is the probe of an open circuit."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import redis

from sweeperd.config import EndpointSettings
from sweeperd.delivery.order import OrderedQueue
from sweeperd.delivery.scan import ProbeChooser
from sweeperd.outbox import PAGE, PARKED, Outbox, OutboxEntry, Subscription
from sweeperd.store import Shard
from sweeperd.store.operations import run
from tests.support.builders import batch_limits
from tests.support.deliveries import EVENTS, expire


@pytest.fixture
def outbox(shard: Shard) -> Outbox:
    """That of a process whose group is there."""
    made = Outbox(shard, "us")
    made.groups.ensure("hook")
    return made


def parked(outbox: Outbox, client: redis.Redis, *deliveries: int) -> list[bytes]:
    """An event that waits for its next delivery, for each number of deliveries so far. Returns their ids."""
    ids = expire(client, *map(str, range(len(deliveries))))
    outbox.read("hook", len(ids))
    with client.pipeline() as pipeline:
        for entry, count in zip(ids, deliveries, strict=True):
            pipeline.xclaim(EVENTS, "hook", PARKED.decode(), 0, [entry], idle=0, retrycount=count, justid=True)
        pipeline.execute()
    return ids


def chooser(outbox: Outbox, order: OrderedQueue | None = None, **endpoint: Any) -> ProbeChooser:
    settings = EndpointSettings.model_validate({"name": "hook", "url": "http://127.0.0.1:9/"} | endpoint)
    return ProbeChooser(Subscription(settings), outbox, order)


def probed(outbox: Outbox, probes: ProbeChooser, count: int) -> list[bytes]:
    """The probes that are taken one after another, each in vain."""
    return [entry.id for entry in (probe(outbox, probes) for _ in range(count))]


def took(probes: ProbeChooser, count: int = 1) -> list[OutboxEntry]:
    """What is taken for the next probe: new events, then a parked one."""
    new, parked = run(probes._outbox.client, probes.take(count))
    return new + parked


def probe(outbox: Outbox, probes: ProbeChooser) -> OutboxEntry:
    (entry,) = took(probes)
    outbox.nack("hook", [entry])
    return entry


def test_nothing_waits(outbox: Outbox) -> None:
    assert took(chooser(outbox)) == []


def test_a_replay_that_has_handed_out_its_last_event_reads_no_more(outbox: Outbox, client: redis.Redis) -> None:
    (waits,) = parked(outbox, client, 1)
    expire(client, "new")
    probes = chooser(outbox)
    probes._subscription.exhausted = True
    assert [entry.id for entry in took(probes)] == [waits]


def test_a_new_event_goes_before_one_that_was_sent_and_is_no_probe_of_another_process(
    outbox: Outbox, client: redis.Redis
) -> None:
    (sent,) = parked(outbox, client, 1)
    new = expire(client, "new", "later")
    probes = chooser(outbox)
    assert [entry.id for entry in took(probes)] == new[:1]
    assert [entry.id for entry in took(probes)] == new[1:]
    assert [entry.id for entry in took(probes)] == [sent]


def test_beside_an_event_that_is_not_wanted_there_is_a_probe(outbox: Outbox, client: redis.Redis) -> None:
    ids = parked(outbox, client, 1, 2)
    unwanted = expire(client, "one", "two", tenant="other")
    probes = chooser(outbox, tenants=["acme"])
    assert [entry.id for entry in took(probes)] == [unwanted[0], ids[0]]
    assert [entry.id for entry in took(probes)] == [unwanted[1], ids[1]]


def test_an_event_that_was_given_back_unsent_goes_before_a_new_one(outbox: Outbox, client: redis.Redis) -> None:
    given_back = parked(outbox, client, 3, 0)[1]
    expire(client, "new")
    (entry,) = took(chooser(outbox))
    assert (entry.id, entry.deliveries) == (given_back, 1)


def test_the_event_with_the_fewest_deliveries_is_the_probe(outbox: Outbox, client: redis.Redis) -> None:
    ids = parked(outbox, client, 4, 2, 3)
    assert probed(outbox, chooser(outbox), 1) == ids[1:2]


def test_the_same_event_is_not_the_probe_twice_in_a_row_where_there_is_another(
    outbox: Outbox, client: redis.Redis
) -> None:
    """Else one that the receiver cannot take would keep the circuit open."""
    first, second = parked(outbox, client, 1, 9)
    assert probed(outbox, chooser(outbox), 4) == [first, second, first, second]


def test_the_same_event_is_the_probe_again_where_there_is_no_other(outbox: Outbox, client: redis.Redis) -> None:
    ids = parked(outbox, client, 1)
    assert probed(outbox, chooser(outbox), 3) == ids * 3


def test_an_event_that_is_given_back_unsent_again_and_again_lets_a_new_one_go_first(
    outbox: Outbox, client: redis.Redis
) -> None:
    (given_back,) = parked(outbox, client, 0)
    (new,) = expire(client, "new")
    probes = chooser(outbox)
    taken: list[bytes] = []
    for _ in range(2):
        (entry,) = took(probes)
        taken.append(entry.id)
        outbox.release("hook", [entry])
    assert taken == [given_back, new]


@pytest.mark.parametrize("rest", [0, 1, 10])
def test_each_probe_is_of_the_next_page(rest: int, outbox: Outbox, client: redis.Redis) -> None:
    """And after the last page the first one comes again."""
    ids = parked(outbox, client, *[1] * (2 * PAGE + rest))
    firsts = [ids[0], ids[PAGE], *ids[2 * PAGE : 2 * PAGE + 1], ids[1]]
    assert probed(outbox, chooser(outbox), len(firsts)) == firsts


def test_pages_that_are_delivered_meanwhile_leave_the_first(outbox: Outbox, client: redis.Redis) -> None:
    ids = parked(outbox, client, *[1] * (PAGE + 5))
    probes = chooser(outbox)
    _acknowledged_after(outbox, probes, ids)
    assert probed(outbox, probes, 1) == ids[1:2]


def _acknowledged_after(outbox: Outbox, probes: ProbeChooser, ids: Sequence[bytes]) -> None:
    """A first probe, and then all events of the pages after it are delivered by another process."""
    assert probed(outbox, probes, 1) == [ids[0]]
    outbox.acknowledge("hook", ids[PAGE:])


def test_with_an_order_no_event_is_a_probe_before_an_earlier_one_of_its_key(
    outbox: Outbox, client: redis.Redis
) -> None:
    order = OrderedQueue(batch_limits(), lambda: 0.0, cast(Any, None), "tenant", 10, lambda: None)
    order.owned_until, order.complete = 1.0, True
    first, second = parked(outbox, client, 1, 1)
    order.add(outbox.look_up(outbox.parked("hook")))
    probes = chooser(outbox, order)
    (later,) = expire(client, "later")
    assert [entry.id for entry in took(probes)] == [later, first]
    (other,) = expire(client, "other", tenant="other")
    outbox.acknowledge("hook", [first])
    assert [entry.id for entry in took(probes)] == [other], "the first was settled by an operator"
    assert [entry.id for entry in took(probes)] == [second]
    assert took(probes) == [], "it is in hand"
    order.complete = False
    expire(client, "unread", tenant="third")
    assert took(probes) == []
