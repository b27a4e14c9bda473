"""Endpoints that fail and recover, as all processes see them: other endpoints hear of each transition once."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.config import RELAY, WEBHOOK_FAILING, WEBHOOK_RECOVERED, RedisSettings, Settings
from sweeperd.context import ShardContext
from sweeperd.delivery.dispatcher import Dispatcher
from sweeperd.delivery.failures import FailureWatch
from sweeperd.metrics import Metrics
from sweeperd.outbox import (
    Announcements,
    CircuitNote,
    CircuitStateStore,
    EndpointStateStore,
    GroupBacklog,
)
from sweeperd.store import Shard
from tests.support.acl import limited
from tests.support.builders import make_lane
from tests.support.fixtures import full
from tests.support.harness import server_time
from tests.support.servers import Server
from tests.support.streams import entries

EVENTS, CIRCUITS = "sweeperd:events", "sweeperd:circuits"
TYPES = [WEBHOOK_FAILING, WEBHOOK_RECOVERED]
MINUTE = 60_000


class Fleet:
    """Several processes with the endpoints `hook` and `operator`, none of which sends anything."""

    def __init__(self, shard: Shard, client: redis.Redis, hook: dict[str, Any] | None = None) -> None:
        self._circuits, self._client = CircuitStateStore(shard), client
        self.metrics = Metrics()
        url = "http://127.0.0.1:9/"
        endpoints = [{"name": "hook", "url": url} | (hook or {}), {"name": "operator", "url": url, "events": TYPES}]
        settings = Settings.model_validate({"webhooks": {"endpoints": endpoints}})
        self.processes = [
            Dispatcher(ShardContext(settings, shard, self.metrics, threading.Event(), 2)) for _ in range(4)
        ]
        for process in self.processes:
            process.prepare()

    def circuits(self, **is_open: bool) -> None:
        """Publish the circuit to `hook` of each of these processes. An event waits for `hook`."""
        now = server_time(self._client)
        if not self._client.xlen(EVENTS):
            self._client.xadd(EVENTS, {"tenant": "acme"})
        for process, opened in is_open.items():
            probe_at, reason = (now + 1000, "HTTP 500") if opened else (0, "")
            self._circuits.write("hook", CircuitNote(process=process, at=now, probe_at=probe_at, reason=reason))

    def maintain(self) -> list[dict[str, Any]]:
        """All processes at once. Returns the data of all announcements so far, with their types."""
        threads = [threading.Thread(target=process.maintain) for process in self.processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = [fields for _, fields in entries(self._client, EVENTS) if b"data" in fields]
        return [json.loads(fields[b"data"]) | {"type": fields[b"type"].decode()} for fields in told]

    def counted(self, to: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "sweeperd_endpoint_transitions_total", {"endpoint": "hook", "to": to}
        )


@pytest.fixture
def fleet(shard: Shard, client: redis.Redis) -> Fleet:
    return Fleet(shard, client)


def test_each_transition_is_announced_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fleet.circuits(one=True, two=False)
    assert fleet.maintain() == [], "not every process fails"
    assert fleet.counted("failing") == fleet.counted("recovered") == 0
    fleet.circuits(two=True)
    fleet.maintain()
    (failing,) = fleet.maintain()
    assert 0 <= failing.pop("oldest_pending_seconds") < 60
    assert failing == {"type": WEBHOOK_FAILING, "endpoint": "hook", "failure": "HTTP 500", "pending": 1}
    fleet.circuits(one=False)
    fleet.maintain()
    _, recovered = fleet.maintain()
    for seconds in ("failing_seconds", "oldest_pending_seconds"):
        assert 0 <= recovered.pop(seconds) < 60
    assert recovered == failing | {"type": WEBHOOK_RECOVERED, "failure": "HTTP 500"}
    told = [(record.levelname, record.message) for record in caplog.records if record.message.startswith("deliver")]
    assert told == [("WARNING", "deliveries fail"), ("INFO", "deliveries work again")]
    assert fleet.counted("failing") == fleet.counted("recovered") == 1
    fleet.circuits(one=True)
    assert [event["type"] for event in fleet.maintain()] == [*TYPES, WEBHOOK_FAILING]


def test_an_open_circuit_with_nothing_to_deliver_is_no_new_failure(client: redis.Redis, fleet: Fleet) -> None:
    """
    The process that has delivered everything ends first. The other process had nothing to try with since, so its
    circuit is still open.
    """
    fleet.circuits(one=True)
    fleet.maintain()
    client.xgroup_setid(EVENTS, "hook", "$")
    assert len(fleet.maintain()) == 1, "everything was given up: it still fails"
    fleet.circuits(two=False)
    fleet.maintain()
    client.hdel(CIRCUITS, "hook@two")
    assert [event["type"] for event in fleet.maintain()] == TYPES
    assert (fleet.counted("failing"), fleet.counted("recovered")) == (1, 1)
    client.xadd(EVENTS, {"tenant": "acme"})
    assert [event["type"] for event in fleet.maintain()] == [*TYPES, WEBHOOK_FAILING]


def test_an_announcement_without_its_time_still_ends(client: redis.Redis, fleet: Fleet) -> None:
    client.hset(CIRCUITS, "failing:hook", "failing")
    fleet.circuits(one=False)
    (recovered,) = fleet.maintain()
    assert (recovered["type"], recovered["failing_seconds"]) == (WEBHOOK_RECOVERED, 0)
    assert fleet.counted("recovered") == 1


def test_an_event_that_waits_for_minutes(shard: Shard, client: redis.Redis, fleet: Fleet) -> None:
    client.xadd(EVENTS, {"tenant": "acme"}, id=f"{server_time(client) - 4 * MINUTE}-1")
    assert fleet.maintain() == []
    client.delete(EVENTS)
    client.xgroup_create(EVENTS, "hook", "0", mkstream=True)
    old = client.xadd(EVENTS, {"tenant": "acme"}, id=f"{server_time(client) - 6 * MINUTE}-1")
    (failing,) = fleet.maintain()
    assert (failing["failure"], failing["pending"]) == ("", 1)
    assert 360 <= failing["oldest_pending_seconds"] < 400
    client.xreadgroup("hook", "us", {EVENTS: ">"})
    client.xack(EVENTS, "hook", old)
    assert [event["type"] for event in fleet.maintain()] == TYPES


def test_events_from_before_a_new_group_count_from_when_it_was_made(shard: Shard, client: redis.Redis) -> None:
    client.xadd(EVENTS, {"tenant": "acme"}, id=f"{server_time(client) - 6 * MINUTE}-1")
    assert Fleet(shard, client, {"start": "beginning"}).maintain() == []


@pytest.mark.parametrize(
    "rest", [lambda store: store.pause("hook", "moving house"), lambda store: store.mute("hook", 60)]
)
def test_a_paused_or_muted_endpoint_is_left_alone(
    rest: Callable[[EndpointStateStore], object], shard: Shard, client: redis.Redis, fleet: Fleet
) -> None:
    """The processes have not yet noticed that it is; the script sees it."""
    fleet.circuits(one=True)
    state = EndpointStateStore(shard)
    rest(state)
    assert fleet.maintain() == []
    assert state.resume("hook")
    assert len(fleet.maintain()) == 1


def test_a_mute_that_is_over_hides_nothing(client: redis.Redis, fleet: Fleet) -> None:
    client.hset("sweeperd:endpoints", "hook", '{"muted_until": 7, "mute_ms": 5}')
    fleet.circuits(one=True)
    assert len(fleet.maintain()) == 1


@pytest.fixture
def watch(shard: Shard) -> FailureWatch:
    shard.read_clock()
    return FailureWatch(CircuitStateStore(shard), Announcements(shard.clock, TYPES))


def test_a_process_that_looked_before_another_announced_announces_nothing(
    shard: Shard, client: redis.Redis, fleet: Fleet, watch: FailureWatch
) -> None:
    """It may have been suspended in between, over two transitions."""
    fleet.circuits(one=True)
    fleet.maintain()
    fleet.circuits(one=False)
    fleet.maintain()
    watch.look()
    for opened in (True, False):
        fleet.circuits(one=opened)
        fleet.maintain()
    watch.judge(make_lane(shard), GroupBacklog(1, True, 1000.0), server_time(client))
    assert len(fleet.maintain()) == 4


def test_the_rights_of_a_process_that_delivers_are_enough(server: Server, client: redis.Redis) -> None:
    with limited(server, client, role="deliver") as url:
        shard = Shard(RedisSettings.model_validate({"url": url}))
        fleet = Fleet(shard, client)
        fleet.circuits(one=True)
        assert [event["type"] for event in fleet.maintain()] == [WEBHOOK_FAILING]
        shard.close()


@pytest.mark.parametrize(
    ("name", "seconds", "announced"), [("hook", 300.0, 0), ("hook", 300.1, 1), (RELAY.name, 300.1, 0)]
)
def test_an_endpoint_fails_after_more_than_five_minutes_and_the_relay_is_none(
    shard: Shard, client: redis.Redis, watch: FailureWatch, name: str, seconds: float, announced: int
) -> None:
    lane = make_lane(shard)
    lane.endpoint = name
    watch.look()
    watch.judge(lane, GroupBacklog(1, True, seconds), server_time(client))
    assert client.xlen(EVENTS) == announced


def test_a_full_redis_takes_the_announcement(shard: Shard, client: redis.Redis, watch: FailureWatch) -> None:
    watch.look()
    with full(shard):
        watch.judge(make_lane(shard), GroupBacklog(1, True, 1000.0), server_time(client))
    assert client.xlen(EVENTS) == client.hlen(CIRCUITS) == 1


@pytest.mark.parametrize(
    ("delivers", "events", "judges"), [(True, TYPES, True), (False, TYPES, False), (True, None, False)]
)
def test_a_process_that_delivers_judges_endpoints_if_one_asks_for_it(
    shard: Shard, delivers: bool, events: list[str] | None, judges: bool
) -> None:
    endpoint = {"name": "operator", "url": "http://127.0.0.1:9/", "events": events}
    settings = Settings.model_validate({"webhooks": {"endpoints": [endpoint]}})
    made = Dispatcher(ShardContext(settings, shard, Metrics(), threading.Event(), 2), delivers=delivers)
    assert (made._failures is not None) is judges
