"""
Beside the services of a Cycles installation: a recorded one is swept in this mode, and the records that are left are
those that the service's own sweep would have left.
"""

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from sweeperd.sweep.reservations import REASONS
from tests.fixture.cycles.load import expected, load
from tests.support.harness import daemon, environment, eventually, once, reserve, server_time
from tests.support.servers import Server
from tests.support.streams import delivery_id, entries, parse_rfc3339

#: What differs on purpose: the time of expiry instead of the deadline, and further fields.
OURS = {"expired_at", "expires_at", "grace_ms", "missing_budgets", "closed_budgets"}


def swept_twice(env: dict[str, str], client: redis.Redis, _events: int, _directory: Path) -> None:
    """With balances: an event of the stream has them, and a record of the service never does."""
    env |= {"SWEEPERD_EVENTS__BALANCES": "true"}
    assert once(env).code == 0
    assert any(b"balances" in fields for _, fields in entries(client, "sweeperd:events"))
    again = once(env)
    assert (again.code, again.report["expired"], again.report["delivered"]) == (0, 0, 0)


def swept_by_the_daemon(env: dict[str, str], client: redis.Redis, events: int, directory: Path) -> None:
    with daemon(env, directory) as running:
        eventually(lambda: client.zcard("events:_all") >= events, limit=60)
        eventually(
            lambda: running.metric("sweeperd_webhook_attempts_total", endpoint="_cycles", result="delivered") > 0
        )
        assert running.terminate() == 0


@pytest.mark.parametrize("sweep", [swept_twice, swept_by_the_daemon])
def test_the_records_are_those_of_the_service(server: Server, client: redis.Redis, tmp_path: Path, sweep: Any) -> None:
    base = load(client)
    wanted = expected(base)
    before = {name: set(client.keys(f"{name}:*")) for name in ("event", "delivery")}
    queued = client.lrange("dispatch:pending", 0, -1)
    events_before = client.zcard("events:_all")
    env = environment(server.url, cycles__enabled="true", cycles__dispatch_backlog=0)
    sweep(env, client, events_before + len(wanted["expired"]), tmp_path)
    now = server_time(client)

    events = {}
    for key in set(client.keys("event:*")) - before["event"]:
        event = json.loads(text(client, key))
        events[event["data"]["reservation_id"]] = event
        assert key == f"event:{event['event_id']}".encode()
        assert abs(client.ttl(key) - wanted["event_keys"]["ttl_seconds"]) < 120
    assert events.keys() == wanted["expired"].keys(), "each expiry of a tenant has its event, and nothing else"
    assert len({event["trace_id"] for event in events.values()}) == 1
    made = {}
    for reservation, event in events.items():
        check_event(event, wanted["event_template"], wanted["expired"][reservation], base, now)
        moment = parse_rfc3339(event["timestamp"])
        for index in (f"events:{event['tenant_id']}", "events:_all"):
            assert client.zscore(index, event["event_id"]) == moment
        for subscription in wanted["expired"][reservation]["subscriptions"]:
            made[delivery_id(event["event_id"], subscription)] = (event, subscription)
    assert client.zcard("events:_all") == events_before + len(events)

    assert set(client.keys("delivery:*")) - before["delivery"] == {f"delivery:{delivery}".encode() for delivery in made}
    for delivery, (event, subscription) in made.items():
        check_delivery(client, delivery, event, subscription, wanted, base, now)
    queue = client.lrange("dispatch:pending", 0, -1)
    assert sorted(queue[: len(made)]) == sorted(delivery.encode() for delivery in made), "pushed on the left, once"
    assert queue[len(made) :] == queued

    check_reservations_and_budgets(client, wanted)


def check_event(event: dict[str, Any], template: dict[str, Any], wanted: dict[str, Any], base: int, now: int) -> None:
    assert event.keys() == template.keys() - ({"scope"} if "scope" not in wanted else set())
    assert base <= parse_rfc3339(event["timestamp"]) <= now
    assert event["data"]["expired_at"] == event["timestamp"]
    assert event["data"]["expires_at"] == wanted["data"]["expired_at"], "the service calls the deadline expired_at"
    ours, theirs = event["data"], wanted["data"]
    assert {key: value for key, value in ours.items() if key not in OURS} == {
        key: value for key, value in theirs.items() if key not in OURS
    }
    fixed = ("event_type", "category", "actor")
    assert [event[key] for key in fixed] == [template[key] for key in fixed]
    assert (event["tenant_id"], event.get("scope")) == (wanted["tenant_id"], wanted.get("scope"))
    assert event["source"] == "sweeperd"


def check_delivery(
    client: redis.Redis,
    delivery: str,
    event: dict[str, Any],
    subscription: str,
    wanted: dict[str, Any],
    base: int,
    now: int,
) -> None:
    record = json.loads(text(client, f"delivery:{delivery}"))
    attempted_at = parse_rfc3339(record["attempted_at"])
    assert base <= attempted_at <= now
    assert record == wanted["delivery_template"] | {
        "delivery_id": delivery,
        "subscription_id": subscription,
        "event_id": event["event_id"],
        "attempted_at": record["attempted_at"],
        "trace_id": event["trace_id"],
    }
    assert abs(client.ttl(f"delivery:{delivery}") - wanted["delivery_keys"]["ttl_seconds"]) < 120
    assert client.zscore(f"deliveries:{subscription}", delivery) == attempted_at


def check_reservations_and_budgets(client: redis.Redis, wanted: dict[str, Any]) -> None:
    for reservation in [*wanted["expired"], *wanted["expired_without_event"]]:
        assert client.hget(f"reservation:res_{reservation}", "state") == b"EXPIRED"
    for reservation, reason in wanted["quarantined"].items():
        row = client.hgetall(f"reservation:res_{reservation}")
        assert row[b"quarantine_reason"] == reason.encode()
        assert row.get(b"state") != b"EXPIRED"
    assert client.zcard("reservation:ttl") == wanted["counts"]["index_after"]
    for key, budget in wanted["budgets_after"].items():
        row = client.hgetall(key)
        assert {field: int(row[field.encode()]) for field in budget} == budget, key


def text(client: redis.Redis, key: str | bytes) -> bytes:
    value = client.get(key)
    assert isinstance(value, bytes), key
    return value


def test_nothing_is_relayed_where_it_is_not_enabled(server: Server, client: redis.Redis) -> None:
    load(client)
    before = sorted(client.keys("event*") + client.keys("deliver*"))
    assert once(environment(server.url)).code == 0
    assert sorted(client.keys("event*") + client.keys("deliver*")) == before


class Dispatcher:
    """As the dispatcher of Cycles: one thread takes a delivery after the other from the right end, RATE a second."""

    RATE = 150

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.taken = 0
        #: The deliveries of others, and when each was taken, monotonic.
        self.others: dict[bytes, float] = {}

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(max(0.0, began + self.taken / self.RATE - time.monotonic())):
            delivery: Any = self._client.rpop("dispatch:pending")
            # A pause is not made up for.
            began, self.taken = (
                (began, self.taken + 1) if delivery else (time.monotonic() - self.taken / self.RATE, self.taken)
            )
            if delivery is None:
                self._stop.wait(0.002)
            elif delivery.startswith(b"other"):
                self.others[delivery] = time.monotonic()

    def __enter__(self) -> "Dispatcher":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize(
    "replicas", [pytest.param(1, marks=pytest.mark.release), pytest.param(3, marks=pytest.mark.slow)]
)
def test_another_webhook_waits_ten_seconds_at_most(
    replicas: int, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """Under 20,000 expiries, with a dispatcher of 150 a second."""
    total = 20_000
    reserve(client, list(map(str, range(total))), scopes=["tenant:acme"])
    subscription = {"subscription_id": "whsub_1", "tenant_id": "acme", "status": "ACTIVE", "url": "https://example.com"}
    client.sadd("webhooks:acme", "whsub_1")
    client.set("webhook:whsub_1", json.dumps(subscription | {"event_types": ["reservation.expired"]}))
    env = environment(server.url, cycles__enabled="true", reconcile__interval="")
    asked: dict[bytes, float] = {}
    with contextlib.ExitStack() as stack:
        dispatcher = stack.enter_context(Dispatcher(client))
        running = [stack.enter_context(daemon(env, tmp_path)) for _ in range(replicas)]
        eventually(lambda: client.xlen("sweeperd:events") == total, limit=60)
        began, before, longest_list, waited = time.monotonic(), dispatcher.taken, 0, False
        while time.monotonic() < began + 15:
            asked[other := b"other %d" % len(asked)] = time.monotonic()
            client.lpush("dispatch:pending", other)
            longest_list = max(longest_list, client.llen("dispatch:pending"))
            waited = waited or any(each.metric("sweeperd_relay_waiting") == 1 for each in running)
            time.sleep(0.25)
        eventually(lambda: dispatcher.others.keys() == asked.keys(), limit=60)
        rate = (dispatcher.taken - before) / (time.monotonic() - began)
        assert [each.terminate() for each in running] == [0] * replicas
    longest = max(dispatcher.others[each] - at for each, at in asked.items())
    print(f"{replicas} replicas: {longest:.1f} s at most, {rate:.0f} deliveries a second, {longest_list} in the list")
    assert waited
    # A busy machine slows the dispatcher down, and the relay fills the list for its rate.
    assert min(900, 4 * rate) < longest_list <= 1000 + len(asked)
    assert longest <= 10 * max(1, Dispatcher.RATE / rate)


def test_the_page_names_what_differs() -> None:
    """The service's reasons are the calls of `quarantine` in expire.lua of cycles-server."""
    reference = Path(__file__).parents[2] / "docs" / "reference"
    page, model = ((reference / name).read_text(encoding="utf-8") for name in ("cycles.md", "data-model.md"))
    service = {"INVALID_EXPIRY", "INVALID_ESTIMATE", "MISSING_SCOPES", "MALFORMED_SCOPES"}
    assert [name for name in REASONS.keys() - service if f"`{name}`" not in page + model] == []
    assert [name for name in OURS if f"`{name}`" not in page] == []
    assert "within 30 s" not in page, "the lease and the interval of the service"
