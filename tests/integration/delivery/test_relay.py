"""The relay: the records that it writes for many events, once, and nothing if it cannot."""

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from sweeperd import progress
from sweeperd.config import CyclesSettings
from sweeperd.delivery import relay as relay_module
from sweeperd.delivery.batches import Batch
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import Brake
from sweeperd.delivery.relay import CyclesRecords, Relay, Written
from sweeperd.delivery.settler import Disposition, Settlement
from sweeperd.metrics import Metrics
from sweeperd.outbox import CircuitStateStore, Message, Outbox, OutboxEntry, message
from sweeperd.store import Shard
from tests.support.builders import StillClock, make_lane
from tests.support.fixtures import full
from tests.support.streams import append, delivery_id

UNBRAKED = CyclesSettings(dispatch_backlog=0)
EXPIRED_AT = 1_795_507_205_123
FIELDS = {
    b"id": b"r1",
    b"tenant": b"acme",
    b"scope": b"tenant:acme/workspace:prod",
    b"unit": b"TOKENS",
    b"amount": b"500",
    b"expires_at": b"1795507200000",
    b"expired_at": b"%d" % EXPIRED_AT,
    b"trace_id": b"0123456789abcdef0123456789abcdef",
}


def subscribe(client: redis.Redis, subscription: str, tenant: str = "acme", **fields: object) -> None:
    record = {"subscription_id": subscription, "tenant_id": tenant, "status": "ACTIVE", "event_types": []} | fields
    client.set(f"webhook:{subscription}", json.dumps(record))
    client.sadd(f"webhooks:{tenant}", subscription)


def entry(number: int = 1, **changes: bytes) -> OutboxEntry:
    """An event as the relay takes it, never too old; `changes`: fields."""
    return OutboxEntry.of(
        b"9999999999999-%d" % number, 1, FIELDS | {name.encode(): value for name, value in changes.items()}
    )


def entries(count: int, **changes: bytes) -> list[OutboxEntry]:
    return [entry(number, id=b"r%d" % number, **changes) for number in range(1, count + 1)]


def sent(shard: Shard, taken: OutboxEntry) -> Message:
    """The event as other endpoints get it."""
    return message(shard.origin, taken.fields)


def made(shard: Shard, *taken: OutboxEntry) -> int:
    """Write the records of these events in one call. Returns how many deliveries are new."""
    done = CyclesRecords(shard, UNBRAKED).write(taken)
    assert (done.taken, sorted(done.written + done.without), done.failed) == (len(taken), sorted(taken), [])
    return done.deliveries


class Relaying:
    """A relay with its lane, its metrics and the results that it observed."""

    def __init__(self, shard: Shard, settings: CyclesSettings | None = None) -> None:
        self.metrics = Metrics()
        self.lane = make_lane(shard, "relay", metrics=self.metrics)
        self.observed: list[DeliveryResult] = []
        self.relay = Relay(self.lane, self.observed.append, settings or UNBRAKED)

    def send(self, *taken: OutboxEntry, probe: bool = False) -> list[Settlement]:
        return list(self.relay.send(Batch(taken, probe)).settlements)

    def counted(self, result: Result) -> float | None:
        """The counter of events."""
        labels = {"endpoint": "relay", "result": result}
        return self.metrics.registry.get_sample_value("sweeperd_webhook_events_total", labels)


def document(client: redis.Redis, key: str) -> Any:
    text = client.get(key)
    assert isinstance(text, bytes)
    return json.loads(text)


def test_an_event_and_a_delivery_for_each_match(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    subscribe(client, "whsub_2", "__system__", event_categories=["reservation"])
    subscribe(client, "whsub_3", event_types=["budget.exhausted"])
    client.sadd("webhooks:__system__", "whsub_1")  # in both sets, and still one delivery
    event = sent(shard, entry())
    assert made(shard, entry()) == 2
    assert client.get(f"event:{event.event_id}") == event.body
    assert 90 * 86400 - 5 <= client.ttl(f"event:{event.event_id}") <= 90 * 86400
    for index in ("events:acme", "events:_all"):
        assert client.zrange(index, 0, -1, withscores=True) == [(event.event_id.encode(), EXPIRED_AT)]
    ids = [delivery_id(event.event_id, "whsub_1"), delivery_id(event.event_id, "whsub_2")]
    assert sorted(client.lrange("dispatch:pending", 0, -1)) == sorted(each.encode() for each in ids)
    delivery = document(client, f"delivery:{ids[0]}")
    assert delivery | {"attempted_at": ""} == {
        "delivery_id": ids[0],
        "subscription_id": "whsub_1",
        "event_id": event.event_id,
        "event_type": "reservation.expired",
        "status": "PENDING",
        "attempted_at": "",
        "attempts": 0,
        "trace_id": event.trace_id,
        "trace_flags": "01",
        "traceparent_inbound_valid": False,
    }
    made_at = client.zscore("deliveries:whsub_1", ids[0])
    assert made_at is not None
    assert abs(made_at - shard.read_clock()) < 5000, "the dispatcher takes an old delivery for a stale one"
    assert 14 * 86400 - 5 <= client.ttl(f"delivery:{ids[0]}") <= 14 * 86400


def test_records_are_kept_as_long_as_the_settings_say(shard: Shard, client: redis.Redis) -> None:
    """EVENT_TTL_DAYS and DELIVERY_TTL_DAYS in application.properties of the services."""
    subscribe(client, "whsub_1")
    settings = CyclesSettings.model_validate({"event_ttl": "7d", "delivery_ttl": "2d"})
    assert CyclesRecords(shard, settings).write([entry()]).deliveries == 1
    event = sent(shard, entry()).event_id
    assert 7 * 86400 - 5 <= client.ttl(f"event:{event}") <= 7 * 86400
    assert 2 * 86400 - 5 <= client.ttl(f"delivery:{delivery_id(event, 'whsub_1')}") <= 2 * 86400


def test_a_second_try_writes_nothing_twice(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    made(shard, entry())
    # The dispatcher has taken and sent the delivery before the relay tries again.
    delivery = delivery_id(sent(shard, entry()).event_id, "whsub_1")
    client.rpop("dispatch:pending")
    client.set(f"delivery:{delivery}", '{"status":"SUCCESS"}')
    event = f"event:{sent(shard, entry()).event_id}"
    client.set(event, "as somebody left it")
    assert made(shard, entry()) == 0
    assert client.get(event) == b"as somebody left it"
    assert client.llen("dispatch:pending") == 0
    assert document(client, f"delivery:{delivery}") == {"status": "SUCCESS"}


def test_a_second_try_writes_what_is_missing(shard: Shard, client: redis.Redis) -> None:
    """Also beside events whose records exist."""
    for subscription in ("whsub_1", "whsub_2"):
        subscribe(client, subscription)
    first, second = entries(2)
    made(shard, first)
    event = sent(shard, first)
    lost = delivery_id(event.event_id, "whsub_2")
    client.delete(f"delivery:{lost}", "deliveries:whsub_2", "dispatch:pending")
    assert made(shard, first, second) == 3
    assert client.zcard("events:_all") == client.zcard("deliveries:whsub_2") == 2
    ids = [lost, *(delivery_id(sent(shard, second).event_id, each) for each in ("whsub_1", "whsub_2"))]
    assert sorted(client.lrange("dispatch:pending", 0, -1)) == sorted(each.encode() for each in ids)


def test_an_event_is_acknowledged_in_the_step_that_writes_its_records(shard: Shard, client: redis.Redis) -> None:
    """A fail-over between two steps would lose the records and keep the acknowledgement."""
    outbox = Outbox(shard, "us")
    outbox.groups.ensure("relay")
    subscribe(client, "whsub_1")
    client.set("events:bad", "x")
    for number, tenant in enumerate((b"acme", b"bad", b"", b"acme"), 1):
        append(client, "sweeperd:events", FIELDS | {b"id": b"r%d" % number, b"tenant": tenant})
    first, bad, without, last = outbox.read("relay", 10)
    relaying = Relaying(shard)
    for again in (False, True):
        settled = {(each.action, each.acknowledged): each.ids for each in relaying.send(first, bad, without, last)}
        assert settled == {
            (Disposition.ACKNOWLEDGE, True): [first.id, last.id],
            (Disposition.ACKNOWLEDGE, False): [without.id],
            (Disposition.NACK, False): [bad.id],
        }
        assert [pending.id for pending in outbox.pending("relay")] == [bad.id, without.id], again
    assert (relaying.counted(Result.DELIVERED), client.llen("dispatch:pending")) == (6, 2)


def test_a_stream_that_has_become_another_key_gets_no_records(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    client.set("sweeperd:events", "x")
    relaying = Relaying(shard)
    (settled,) = relaying.send(entry())
    assert (settled.action, "WRONGTYPE" in settled.reason) == (Disposition.NACK, True)
    assert client.keys("event:*") == client.keys("deliver*") == client.keys("dispatch*") == []


def test_the_same_event_twice_has_records_once(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    records, twice = CyclesRecords(shard, UNBRAKED), [entry(1), entry(2)]
    assert [(done := records.write(twice)).taken, done.deliveries] == [1, 1]
    assert [(done := records.write(twice[1:])).taken, done.deliveries] == [1, 0]
    assert client.llen("dispatch:pending") == 1


def test_many_events_in_one_call(shard: Shard, client: redis.Redis) -> None:
    """Of several tenants, scopes, traces and subscriptions: each event has the records that it has alone."""
    for tenant in ("acme", "other"):
        subscribe(client, f"whsub_{tenant}", tenant)
    subscribe(client, "whsub_scope", scope_filter="tenant:acme/x*")
    subscribe(client, "whsub_all", "__system__")
    taken = [
        entry(1, id=b"r1"),
        entry(2, id=b"r2", tenant=b"other"),
        entry(3, id=b"r3", scope=b"tenant:acme/xy", trace_id=b"2" * 32),
        entry(4, id=b"r4", trace_id=b""),
        entry(5, id=b"r5", tenant=b""),
        entry(6, id=b"r6"),
    ]
    assert made(shard, *taken) == 2 + 2 + 3 + 2 + 2
    events = {number: sent(shard, each) for number, each in enumerate(taken, 1)}
    assert set(client.keys("event:*")) == {f"event:{events[n].event_id}".encode() for n in (1, 2, 3, 4, 6)}
    assert client.zcard("events:_all") == client.zcard("deliveries:whsub_all") == 5
    assert (client.zcard("events:acme"), client.zcard("events:other")) == (4, 1)
    for number, tenant, subscriptions, trace in (
        (1, "acme", {"whsub_acme", "whsub_all"}, FIELDS[b"trace_id"].decode()),
        (2, "other", {"whsub_other", "whsub_all"}, FIELDS[b"trace_id"].decode()),
        (3, "acme", {"whsub_acme", "whsub_all", "whsub_scope"}, "2" * 32),
        (4, "acme", {"whsub_acme", "whsub_all"}, None),
    ):
        event = events[number]
        assert client.get(f"event:{event.event_id}") == event.body
        assert client.zscore(f"events:{tenant}", event.event_id) == EXPIRED_AT
        for subscription in subscriptions:
            delivery = document(client, f"delivery:{delivery_id(event.event_id, subscription)}")
            assert (delivery["subscription_id"], delivery["event_id"]) == (subscription, event.event_id)
            assert delivery.get("trace_id") == trace
            assert client.zscore(f"deliveries:{subscription}", delivery["delivery_id"]) is not None
    first = document(client, f"delivery:{client.lindex('dispatch:pending', -1).decode()}")  # type: ignore[union-attr]
    assert first["event_id"] == events[1].event_id, "the dispatcher takes the oldest first"


def test_more_deliveries_than_a_command_gets_values(shard: Shard, client: redis.Redis) -> None:
    count = 1001
    for number in range(count):
        subscribe(client, f"whsub_{number}")
    assert made(shard, entry()) == count
    pending = client.lrange("dispatch:pending", 0, -1)
    assert len(pending) == len(set(pending)) == count


def test_subscriptions_are_read_for_each_call(shard: Shard, client: redis.Redis) -> None:
    records = CyclesRecords(shard, UNBRAKED)
    subscribe(client, "whsub_1")
    first, second, third = entries(3)
    assert records.write([first]).deliveries == 1
    subscribe(client, "whsub_2")
    assert records.write([second]).deliveries == 2
    subscribe(client, "whsub_1", status="PAUSED")
    assert records.write([third]).deliveries == 1


def test_a_call_has_as_many_events_as_redis_takes_in_the_time(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(client, "whsub_1")
    taken = entries(600)

    def sizes(micros: float) -> list[int]:
        monkeypatch.setattr(relay_module, "CALL_MICROS", micros)
        records, left, found = CyclesRecords(shard, UNBRAKED), taken, list[int]()
        while left:
            found.append(records.write(left).taken)
            left = left[found[-1] :]
        return found

    first = int(relay_module.CALL_MICROS / relay_module.FIRST_ESTIMATE / 2)  # a record for the event, and a delivery
    monkeypatch.setattr(relay_module, "FIRST_ESTIMATE", 1000.0)
    assert max(sizes(100_000.0)) > 55, "a record takes less than a millisecond"
    monkeypatch.setattr(relay_module, "FIRST_ESTIMATE", 0.01)
    slow = sizes(1.0)
    assert slow[0] == first == 50
    assert slow[-1] < 5
    monkeypatch.setattr(relay_module, "FIRST_ESTIMATE", 1e7)
    quick = sizes(1e9)
    assert quick[0] == 50
    assert max(quick) > 55
    assert max(quick) <= relay_module.LARGEST_SIZE / 2


def test_the_delivery_id_is_that_of_the_service() -> None:
    assert delivery_id("evt_1", "whsub_1") == "del_29bf40434e8635ee"


@pytest.mark.parametrize("at", [b"soon", b"99999999999999999"])
def test_a_time_that_cannot_be_read(shard: Shard, client: redis.Redis, at: bytes) -> None:
    subscribe(client, "whsub_1")
    bad, good = entry(1, expired_at=at), entry(2, id=b"r2")
    done = CyclesRecords(shard, UNBRAKED).write([bad, good])
    assert (done.taken, done.written) == (2, [good])
    assert done.failed == [(bad, "the time of the expiry is unreadable")]


@pytest.mark.parametrize(
    "without", [entry(tenant=b""), entry(type=b"system.webhook_delivery_failed")], ids=["no tenant", "no expiry"]
)
def test_an_event_without_records(shard: Shard, client: redis.Redis, without: OutboxEntry) -> None:
    subscribe(client, "whsub_1", "__system__")
    assert made(shard, without) == 0
    assert client.keys("event*") == client.keys("deliver*") == []


def test_an_unreadable_subscription_is_skipped_and_logged_once(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(client, "whsub_1")
    subscribe(client, "paused", status="paused")
    client.sadd("webhooks:acme", "broken", "list", "absent")
    client.set("webhook:broken", "{")
    client.rpush("webhook:list", "x")
    records = CyclesRecords(shard, UNBRAKED)
    with caplog.at_level(logging.WARNING):
        assert [records.write([each]).deliveries for each in entries(2)] == [1, 1]
    said = {record.__dict__["subscription"]: record.__dict__["error"] for record in caplog.records}
    assert said.keys() == {"broken", "list", "paused"}
    assert said["paused"] == 'status is "paused"'


def test_unreadable_subscriptions_are_remembered_up_to_a_limit(
    shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So memory does not grow. At one more than the limit all are forgotten, and each is logged once more."""
    monkeypatch.setattr(relay_module, "REMEMBERED", 2)
    client.mset({"webhook:broken1": "{", "webhook:broken2": "{", "webhook:broken3": "{"})
    records = CyclesRecords(shard, UNBRAKED)
    client.sadd("webhooks:acme", "broken1", "broken2")
    for _ in range(2):
        records.write([entry()])
    assert len(caplog.records) == 2
    client.sadd("webhooks:acme", "broken3")
    caplog.clear()
    for expected in (["broken3"], ["broken1", "broken2", "broken3"]):
        records.write([entry()])
        assert [record.__dict__["subscription"] for record in caplog.records] == expected
        caplog.clear()


def test_subscriptions_are_kept_in_memory_up_to_a_limit(
    shard: Shard, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "PARSED", 2)
    records = CyclesRecords(shard, UNBRAKED)
    for number, each in enumerate(entries(5)):
        subscribe(client, f"whsub_{number}")
        assert records.write([each]).deliveries == number + 1
        assert len(records._parsed) <= 2


def test_results_are_observed_with_their_duration_and_counted(shard: Shard, client: redis.Redis) -> None:
    client.set("events:bad", "x")
    relaying, started = Relaying(shard), time.monotonic()
    good, bad = entries(3), entry(9, tenant=b"bad")
    settled = relaying.send(*good, bad)
    assert [(each.action, each.entries) for each in settled] == [
        (Disposition.ACKNOWLEDGE, good),
        (Disposition.NACK, [bad]),
    ]
    assert [each.result for each in relaying.observed] == [Result.DELIVERED, Result.FAILED]
    assert all(0 <= each.seconds <= time.monotonic() - started for each in relaying.observed)
    assert (relaying.counted(Result.DELIVERED), relaying.counted(Result.FAILED)) == (3, 1)


def test_a_full_redis_changes_nothing_and_the_events_wait(own_shard: Shard) -> None:
    client = own_shard.client
    subscribe(client, "whsub_1")
    relaying, taken = Relaying(own_shard), entries(2)
    with full(own_shard):
        (settled,) = relaying.send(*taken)
    assert (settled.action, settled.entries, "maxmemory" in settled.reason) == (Disposition.NACK, taken, True)
    assert relaying.lane.circuit.failures == 1
    assert client.keys("event*") == client.keys("deliver*") == client.keys("dispatch*") == []
    assert [each.action for each in relaying.send(*taken)] == [Disposition.ACKNOWLEDGE]
    assert client.llen("dispatch:pending") == 2
    assert relaying.lane.circuit.failures == 0


def published(shard: Shard) -> int:
    """How many failures in a row operators see."""
    (note,) = CircuitStateStore(shard).read("relay").notes
    return note.failures


@pytest.mark.parametrize("key", ["events:_all", "dispatch:pending", "webhooks:__system__"])
def test_a_key_of_all_tenants_of_another_type_opens_the_circuit(
    shard: Shard, client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe(client, "whsub_1")
    client.set(key, "x")
    before = sorted(client.keys("[dew]*"))
    relaying = Relaying(shard)
    for each in entries(5):
        (settled,) = relaying.send(each)
        assert (settled.action, "WRONGTYPE" in settled.reason) == (Disposition.NACK, True)
    assert relaying.lane.circuit.open
    assert published(shard) == 5
    relaying.send(entry(), probe=True)
    assert published(shard) == 6
    assert caplog.messages.count("the endpoint fails; its events wait") == 1
    assert relaying.counted(Result.FAILED) == 6
    assert sorted(client.keys("[dew]*")) == before
    client.delete(key)
    assert [each.action for each in relaying.send(entry(), probe=True)] == [Disposition.ACKNOWLEDGE]
    assert not relaying.lane.circuit.open
    assert published(shard) == 0


@pytest.mark.parametrize("key", ["events:bad", "webhooks:bad", "deliveries:whsub_bad"])
def test_a_key_of_one_tenant_of_another_type_makes_its_events_wait_alone(
    shard: Shard, client: redis.Redis, key: str
) -> None:
    """Whatever such a key is: the events of the others have their records, and the circuit does not move."""
    subscribe(client, "whsub_1")
    if not key.startswith("webhooks:"):
        subscribe(client, "whsub_bad", "bad")
    client.set(key, "x")
    relaying = Relaying(shard)
    for number in range(1, 8):
        good, bad = entry(1, id=b"good %d" % number), entry(2, id=b"bad %d" % number, tenant=b"bad")
        settled = {each.action: each for each in relaying.send(bad, good)}
        assert settled.keys() == {Disposition.ACKNOWLEDGE, Disposition.NACK}
        assert settled[Disposition.ACKNOWLEDGE].entries == [good]
        assert settled[Disposition.NACK].entries == [bad]
        assert settled[Disposition.NACK].reason == f"WRONGTYPE {key}"
    assert [each.action for each in relaying.send(bad)] == [Disposition.NACK], "alone too"
    assert relaying.lane.circuit.failures == 0
    assert (relaying.counted(Result.DELIVERED), relaying.counted(Result.FAILED)) == (7, 8)
    assert client.zcard("events:_all") == client.zcard("events:acme") == client.llen("dispatch:pending") == 7
    client.delete(key)
    assert [each.action for each in relaying.send(bad)] == [Disposition.ACKNOWLEDGE]


def test_to_wait_is_no_failure(shard: Shard, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    subscribe(client, "whsub_1")
    limit = 2
    relaying = Relaying(shard, CyclesSettings(dispatch_backlog=limit))
    taken = entries(limit + 2, expired_at=b"9999999999999")
    settled = {each.action: each.entries for each in relaying.send(*taken)}
    assert settled == {Disposition.ACKNOWLEDGE: taken[:limit], Disposition.RELEASE: taken[limit:]}
    assert relaying.lane.brake.waiting
    assert relaying.lane.circuit.failures == 0
    assert (relaying.counted(Result.DELIVERED), relaying.counted(Result.FAILED)) == (limit, 0)
    waiting = "sweeperd_relay_waiting", {"shard": shard.name}
    assert relaying.metrics.registry.get_sample_value(*waiting) == 1
    unmatched = entry(9, tenant=b"other")
    assert [each.action for each in relaying.send(unmatched)] == [Disposition.ACKNOWLEDGE]
    assert relaying.lane.brake.waiting, "an event without deliveries says nothing about the room"
    client.delete("dispatch:pending")
    assert [each.action for each in relaying.send(*taken[limit:])] == [Disposition.ACKNOWLEDGE]
    assert not relaying.lane.brake.waiting
    assert relaying.metrics.registry.get_sample_value(*waiting) == 0
    assert [record.message for record in caplog.records] == [
        "events wait for the dispatcher of Cycles",
        "the dispatcher of Cycles has room again",
    ]


def test_the_pause_grows_while_there_is_no_room_at_all(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    relaying, now = Relaying(shard, CyclesSettings(dispatch_backlog=1)), StillClock(0)
    brake = relaying.lane.brake = Brake(1.0, now.now_ms)
    taken = entries(2, expired_at=b"9999999999999")
    for at, room, pause in [(0, 1, 1), (64, 0, 2), (128, 0, 4)]:
        now.now = at
        settled = {each.action: len(each.entries) for each in relaying.send(*taken)}
        assert settled.get(Disposition.ACKNOWLEDGE, 0) == room
        assert brake.until == at + pause
        taken = taken[-1:]


def test_a_relay_that_writes_may_take_as_long_as_redis_may(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    relaying, now, silent = Relaying(shard), StillClock(0), list[float]()

    def write(_: CyclesRecords, left: Sequence[OutboxEntry]) -> Written:
        now.now += int(shard.patience)
        silent.append(work.silent_for)
        return Written(len(left), list(left))

    monkeypatch.setattr(CyclesRecords, "write", write)
    with progress.working(progress.Progress(now.now_ms)) as work:
        relaying.send(*entries(1))
    assert silent == [0]
