"""`sweeperd endpoints attempts`, and the attempts in `sweeperd show`."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from sweeperd.outbox.attempts import Attempt, attempts_as
from sweeperd.store import Shard
from tests.integration.cli.conftest import Run
from tests.support.harness import reserve

ENDPOINTS: list[dict[str, Any]] = [{"name": "billing", "url": "http://127.0.0.1:9/"}]
AT = 1_795_248_005_123
Add = Callable[..., Attempt]


@pytest.fixture
def add(shard: Shard) -> Add:
    """Record an attempt as a daemon does."""

    def record(number: int, first: bytes = b"1-1", last: bytes = b"1-1", events: int = 1) -> Attempt:
        attempt = Attempt(
            AT + number,
            f"evt_{number}",
            b"r\xff",
            first,
            last,
            events,
            2,
            number,
            "failed",
            "HTTP 500",
            12,
            "busy",
            "h-1",
            f"batch_{number}",
        )
        fields: dict[Any, Any] = attempt.fields()
        shard.client.xadd(shard.keys.attempts("billing"), fields)
        return attempt

    return record


def test_the_newest_first_up_to_the_limit(invoke: Run, add: Add) -> None:
    for number in range(5):
        add(number)
    result = invoke("endpoints", "attempts", "billing", "--limit", "3", "--json", endpoints=ENDPOINTS)
    document = json.loads(result.stdout)
    assert [row["event_id"] for row in document["attempts"]] == ["evt_4", "evt_3", "evt_2"]
    assert document["attempts"][0] == {
        "at": "2026-11-21T08:00:05.127Z",
        "shard": "default",
        "endpoint": "billing",
        "result": "failed",
        "reason": "HTTP 500",
        "milliseconds": 12,
        "hand_over": 2,
        "attempt": 4,
        "events": 1,
        "event_id": "evt_4",
        "webhook_id": "batch_4",
        "reservation_id": "r\\xff",
        "first_stream_id": "1-1",
        "last_stream_id": "1-1",
        "replica": "h-1",
        "answer": "busy",
    }
    table = invoke("endpoints", "attempts", "billing", endpoints=ENDPOINTS).stdout.splitlines()
    assert table[1].split("\t") == [
        *("2026-11-21T08:00:05.127Z", "default", "HTTP 500", "12", "2.4", "1", "evt_4", "r\\xff", "h-1", "busy")
    ]


def test_show_has_those_of_its_event(invoke: Run, client: redis.Redis, add: Add) -> None:
    reserve(client, ["one", "two"])
    invoke("--once", "--json", endpoints=ENDPOINTS)
    rows: Any = client.xrange("sweeperd:events")
    (entry, _), (after, _) = rows
    alone, batch, _ = add(1, entry, entry), add(2, b"1-1", after, 40), add(3, after, after)
    name = "one" if client.hget("reservation:res_one", "expired_event") == entry else "two"
    result = invoke("show", name, "--json", endpoints=ENDPOINTS)
    event = json.loads(result.stdout)["shards"][0]["event"]
    ids = [row["event_id"] for row in event["attempts"] if row["replica"] == "h-1"]
    assert ids == [batch.event_id, alone.event_id]
    text = invoke("show", name, endpoints=ENDPOINTS).stdout
    assert re.search("2[.]2 .*billing.* HTTP 500 .*40", text)


def test_a_search_by_webhook_id_reads_no_more_attempts_than_asked_for(shard: Shard, add: Add) -> None:
    for number in range(5):
        add(number)
    for most, ids in ((5, ["evt_2"]), (3, ["evt_2"]), (2, [])):
        for endpoints in (["billing"], ["other", "billing", "billing"]):
            found, read = attempts_as(shard, endpoints, "batch_2", most)
            assert ([each.attempt.event_id for each in found], read) == (ids, most)
