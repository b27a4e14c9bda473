"""`order = "key"`: the events of one key are delivered one after the other, in the order of the stream."""

import itertools
import json
import random
import threading
import time
from collections import defaultdict
from typing import Any

import pytest
import redis

from sweeperd.config import EndpointSettings
from sweeperd.context import Timing
from sweeperd.delivery import lane as lanes
from sweeperd.delivery import scan
from sweeperd.delivery.order import KNOWN, OrderedQueue
from sweeperd.metrics import Metrics
from sweeperd.ops.endpoints import skip
from sweeperd.outbox import ConsumerGroups
from sweeperd.store import Shard
from sweeperd.store.lease import Lease, holder
from tests.support.deliveries import Deliver, Delivery, Running, expire, settled
from tests.support.harness import eventually
from tests.support.receiver import Answer, Behaviour, Receiver, Request

BY_TENANT: dict[str, Any] = {"order": "key", "order_key": "tenant"}
HOOK = EndpointSettings.model_validate({"name": "hook", "url": "http://127.0.0.1:9/"})
#: Waits that no test outlasts.
LONG: dict[str, Any] = {"redelivery_initial": "1h", "redelivery_max": "1h"}


def events(request: Request) -> list[tuple[str, str]]:
    """Tenant and id of each event of a request."""
    whole = json.loads(request.body)
    return [
        (event["tenant_id"], event["data"]["reservation_id"])
        for event in (whole if isinstance(whole, list) else [whole])
    ]


class Judge:
    """
    Answers as `behaviour` says. Keeps what it has accepted, by tenant; how many tenants it had requests of at once; and
    how many requests came while another one of the same tenant was open.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.accepted = defaultdict[str, list[str]](list)
        self.open: set[str] = set()
        self.most, self.together = 0, 0
        self.lock = threading.Lock()

    def __call__(self, request: Request, number: int) -> Answer:
        tenants = {tenant for tenant, _ in events(request)}
        with self.lock:
            self.together += bool(self.open & tenants)
            self.open |= tenants
            self.most = max(self.most, len(self.open))
        answer = self.behaviour(request, number)
        time.sleep(answer.delay)
        with self.lock:
            self.open -= tenants
            if answer.status == 200:
                for tenant, name in events(request):
                    if name not in self.accepted[tenant]:
                        self.accepted[tenant].append(name)
        return Answer(answer.status, answer.headers)


def add(client: redis.Redis, count: int, tenants: int, seed: int = 1) -> dict[str, list[str]]:
    """Events of random tenants. Returns the ids of each tenant in the order of the stream."""
    rng, added = random.Random(seed), defaultdict[str, list[str]](list)
    for number in range(count):
        tenant = f"t{rng.randrange(tenants)}"
        added[tenant].append(f"{tenant} {number:04}")
        expire(client, added[tenant][-1], tenant=tenant)
    return added


def test_events_of_a_key_come_one_after_the_other(client: redis.Redis, deliver: Deliver) -> None:
    rng, lock = random.Random(2), threading.Lock()

    def moody(_request: Request, _number: int) -> Answer:
        with lock:
            return Answer(rng.choices([200, 503, 422], [8, 1, 1])[0], delay=rng.choice([0, 0.002]))

    judge = Judge(moody)
    with Receiver(judge) as receiver:
        endpoint = BY_TENANT | {"batch_size": 7}
        with deliver(receiver.url, 4, endpoint, redelivery_initial="20ms", redelivery_max="20ms") as delivery:
            added = add(client, 200, 6)
            eventually(lambda: delivery.events("delivered") == 200, limit=30)
            settled(delivery)
    assert judge.accepted == added
    assert not judge.together
    assert judge.most > 1, "keys are delivered side by side"
    assert delivery.sample("sweeperd_webhook_order_waits_total") > 100


def test_a_failed_event_holds_back_its_key_and_nothing_else(client: redis.Redis, deliver: Deliver) -> None:
    well = threading.Event()

    def behaviour(request: Request, _number: int) -> Answer:
        bad = any(name == "a1" for _, name in events(request))
        return Answer(422 if bad and not well.is_set() else 200)

    with Receiver(behaviour) as receiver, deliver(receiver.url, 4, BY_TENANT) as delivery:
        expire(client, "a0", "a1", tenant="a")
        expire(client, "b0", tenant="b")
        expire(client, "a2", "a3", tenant="a")
        expire(client, "b1", tenant="b")
        receiver.wait_for(lambda requests: sum("a1" in str(events(each)) for each in requests) >= 3)
        assert {"a2", "a3"}.isdisjoint(name for each in receiver.requests for _, name in events(each))
        assert delivery.events("delivered") == 3
        well.set()
        eventually(lambda: delivery.events("delivered") == 6)
        names = [name for each in receiver.requests for _, name in events(each)]
        assert [name for name in names if name[0] == "a"][-3:] == ["a1", "a2", "a3"]


def test_what_is_pending_is_learnt_once_as_long_as_the_lease_is_held(
    client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs a scan of all that is pending."""
    lost, beats = list[bool](), list[bool]()
    lose, hold = OrderedQueue.lose, Lease.hold
    monkeypatch.setattr(OrderedQueue, "lose", lambda queue: lost.append(True) or lose(queue))
    monkeypatch.setattr(Lease, "hold", lambda lease: beats.append(True) or hold(lease))
    with Receiver() as receiver, deliver(receiver.url, 1, BY_TENANT, timing=Timing(block=0.1, heartbeat_every=0.05)):
        eventually(lambda: len(beats) > 5)
        expire(client, "one")
        receiver.wait_for(lambda requests: len(requests) == 1)
    assert len(lost) == 1


def test_ordered_endpoints_share_what_may_be_known(shard: Shard) -> None:
    names = {"one": BY_TENANT, "two": BY_TENANT, "three": {}}
    made = Running(
        shard, [{"name": name, "url": "http://127.0.0.1:9/"} | how for name, how in names.items()], Metrics()
    )
    bounds = [lane.order._bound if lane.order is not None else 0 for lane in made.dispatcher.lanes]
    assert bounds == [KNOWN // 2, KNOWN // 2, 0]


def test_only_the_oldest_events_of_keys_are_probes(client: redis.Redis, deliver: Deliver) -> None:
    well = threading.Event()
    judge = Judge(lambda _request, _number: Answer(200 if well.is_set() else 503))
    with Receiver(judge) as receiver, deliver(receiver.url, 4, BY_TENANT, probe_max="20ms") as delivery:
        added = add(client, 30, 3)
        eventually(lambda: delivery.attempts("failed") >= 9)
        sent = {name for each in receiver.requests for _, name in events(each)}
        assert sent == {names[0] for names in added.values()}
        well.set()
        eventually(lambda: delivery.events("delivered") == 30)
    assert judge.accepted == added
    assert not judge.together


def test_a_pause_by_the_receiver_keeps_the_order(client: redis.Redis, deliver: Deliver) -> None:
    answers = itertools.chain([Answer(429, {"Retry-After": "1"})], itertools.repeat(Answer()))
    judge = Judge(lambda _request, _number: next(answers))
    with Receiver(judge) as receiver, deliver(receiver.url, 1, BY_TENANT | {"batch_size": 4}) as delivery:
        added = add(client, 30, 3)
        eventually(lambda: delivery.events("delivered") == 30)
    assert judge.accepted == added


def test_a_reload_that_asks_for_an_order_goes_on_in_order(client: redis.Redis, shard: Shard) -> None:
    judge = Judge(lambda _request, _number: Answer(delay=0.01))
    with Receiver(judge) as receiver:
        endpoint = {"name": "hook", "url": receiver.url}
        before = Running(shard, [endpoint], Metrics())
        before.dispatcher.prepare()
        before.dispatcher.start()
        after = Running(shard, [endpoint | BY_TENANT], before.dispatcher._metrics)
        after.dispatcher.adopt(before.dispatcher)
        after.dispatcher.prepare()
        after.dispatcher.start()
        before.stop.set()
        assert before.dispatcher.join(time.monotonic() + 1), "nothing of it is left to end"
        added = add(client, 30, 3)
        eventually(lambda: sum(map(len, judge.accepted.values())) == 30)
        after.stop.set()
        assert after.dispatcher.join(time.monotonic() + 20)
    assert judge.accepted == added
    assert not judge.together


def test_a_dead_letter_or_a_skipped_event_lets_the_next_one_go(
    client: redis.Redis, shard: Shard, deliver: Deliver
) -> None:
    def behaviour(request: Request, _number: int) -> Answer:
        return Answer(422 if any("bad" in name for _, name in events(request)) else 200)

    with Receiver(behaviour) as receiver:
        with deliver(receiver.url, 2, BY_TENANT, max_age="1s", redelivery_max="200ms") as delivery:
            expire(client, "bad", "next", tenant="a")
            eventually(lambda: (delivery.dead_letters(), delivery.events("delivered")) == (1, 1))
            settled(delivery)
        with deliver(receiver.url, 2, BY_TENANT, **LONG) as delivery:
            (bad, _) = expire(client, "bad", "next", tenant="a")
            eventually(lambda: delivery.pending().get(bad, (b"",))[0] == b"(parked)")
            assert skip(shard, HOOK, bad.decode())
            eventually(lambda: delivery.events("delivered") == 1)


def test_a_skipped_event_is_noticed_while_other_keys_are_busy(
    client: redis.Redis, shard: Shard, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "WAITING", 0.1)
    answered = threading.Event()

    def behaviour(request: Request, _number: int) -> Answer:
        ((tenant, name),) = events(request)
        if tenant == "busy":
            answered.wait(20)
        return Answer(422 if name == "bad" else 200)

    with Receiver(behaviour) as receiver, deliver(receiver.url, 2, BY_TENANT, **LONG) as delivery:
        expire(client, "slow", tenant="busy")
        (bad, _) = expire(client, "bad", "next", tenant="a")
        eventually(lambda: delivery.pending().get(bad, (b"",))[0] == b"(parked)")
        assert skip(shard, HOOK, bad.decode())
        eventually(lambda: delivery.events("delivered") == 1)
        answered.set()


def test_one_process_works_and_the_next_goes_on_where_it_stopped(
    client: redis.Redis, shard: Shard, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process learns what is pending, and reads nothing new while it knows too little of it."""
    monkeypatch.setattr(lanes, "LEAST_KNOWN", 10)
    monkeypatch.setattr(lanes, "KNOWN", 300)
    well = threading.Event()
    judge = Judge(lambda _request, _number: Answer(200 if well.is_set() else 422))
    with Receiver(judge) as receiver:
        with deliver(receiver.url, 4, BY_TENANT, **LONG) as first:
            added = add(client, 400, 3)
            eventually(lambda: len(first.pending()) >= 300 and len(receiver.requests) == 3)
            assert len(first.pending()) < 400, "no more is read"
            with deliver(receiver.url, 4, BY_TENANT) as second:
                assert not second.attempts("rejected")
        assert not holder(shard, "order:hook")
        well.set()
        monkeypatch.setattr(lanes, "KNOWN", 10)
        ConsumerGroups(shard, "operator").make_due("hook")
        with deliver(receiver.url, 4, BY_TENANT) as third:
            eventually(lambda: sum(map(len, judge.accepted.values())) == 400, limit=30)
            settled(third)
            assert holder(shard, "order:hook")
    assert judge.accepted == added
    assert not judge.together
    assert first.events("delivered") + third.events("delivered") == 400


def test_a_run_that_ends_leaves_an_ordered_endpoint_to_the_process_that_has_it(
    client: redis.Redis, shard: Shard
) -> None:
    with Receiver() as receiver:
        run = Delivery(shard, receiver.url, 2, BY_TENANT, until_idle=True)
        client.set("sweeperd:lease:order:hook", "another-process-0123456789abcdef:15000", px=60_000)
        run.dispatcher.start()
        assert run.dispatcher.join(time.monotonic() + 10), "nothing waits, so nobody is waited for"
        client.delete("sweeperd:lease:order:hook")
        expire(client, *map(str, range(20)))
        run = Delivery(shard, receiver.url, 2, BY_TENANT, until_idle=True)
        run.dispatcher.start()
        assert run.dispatcher.join(time.monotonic() + 20)
        assert run.dispatcher.report().delivered == 20
        names = [name for each in receiver.requests for _, name in events(each)]
        assert names == [str(number) for number in range(20)]


def test_a_lost_lease_stops_the_deliveries(client: redis.Redis, shard: Shard) -> None:
    with Receiver() as receiver:
        delivery = Delivery(shard, receiver.url, 2, BY_TENANT, timing=Timing(heartbeat_every=0.1, block=0.1))
        delivery.dispatcher.start()
        expire(client, "one")
        eventually(lambda: delivery.events("delivered") == 1)
        client.set("sweeperd:lease:order:hook", "another-process-0123456789abcdef:15000", px=60_000)
        (lane,) = delivery.dispatcher.lanes
        eventually(lambda: not lane.works_here, limit=20)
        expire(client, "two")
        time.sleep(0.3)
        assert len(receiver.requests) == 1
        client.delete("sweeperd:lease:order:hook")
        eventually(lambda: delivery.events("delivered") == 2, limit=20)
        delivery.stop.set()
        assert delivery.dispatcher.join(time.monotonic() + 20)
    assert list(itertools.chain(*map(events, receiver.requests))) == [("acme", "one"), ("acme", "two")]
