"""Real reservations, swept by the installed command: counts, ledger, events and webhooks are exactly as expected."""

import json
from pathlib import Path

import pytest
import redis
from standardwebhooks import Webhook

from tests.fixture.load import load
from tests.fixture.verify import differences
from tests.support.acl import limited
from tests.support.harness import environment, once
from tests.support.receiver import Receiver, Request
from tests.support.servers import Server

PREFIX = "{tenant-a}:"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EXPECTED = json.loads((Path(__file__).parents[1] / "fixture" / "reservations.expected.json").read_text())
TOP_LEVEL = {
    "event_id": str,
    "event_type": str,
    "category": str,
    "timestamp": str,
    "tenant_id": str,
    "scope": str,
    "actor": dict,
    "source": str,
    "data": dict,
    "trace_id": str,
}
DATA = {
    "reservation_id": str,
    "scope": str,
    "unit": str,
    "estimated_amount": int,
    "created_at": str,
    "expires_at": str,
    "expired_at": str,
    "ttl_ms": int,
    "grace_ms": int,
    "extensions_used": int,
    "missing_budgets": list,
    "closed_budgets": list,
}


@pytest.mark.every_redis
def test_the_fixture_is_swept_exactly(server: Server, client: redis.Redis) -> None:
    with limited(server, client, PREFIX) as url:
        _swept_exactly(server, url, client, PREFIX)


def _swept_exactly(server: Server, url: str, client: redis.Redis, prefix: str) -> None:
    load(client, prefix)
    with Receiver() as receiver, redis.Redis.from_url(server.url, decode_responses=True) as text_client:
        env = environment(
            url, keys__prefix=prefix, endpoints=[{"name": "billing", "url": receiver.url, "secrets": [SECRET]}]
        )
        first = once(env)

        assert first.code == 0, first.errors
        counts = EXPECTED["counts"]
        assert {
            name: first.report[name] for name in ("expired", "in_grace", "skipped", "not_found", "quarantined")
        } == {name: counts[name] for name in ("expired", "in_grace", "skipped", "not_found", "quarantined")}
        assert first.report["candidates"] == sum(
            counts[name] for name in ("expired", "in_grace", "skipped", "not_found", "quarantined")
        )
        assert first.report["not_due"] == first.report["errors"] == 0
        assert first.report["delivered"] == counts["expired"]
        assert first.report["undelivered"] == first.report["dead_lettered"] == 0
        assert differences(text_client, prefix) == []
        assert client.zcard(f"{prefix}sweeperd:quarantine") == counts["quarantined"]
        assert _expired_ids(receiver.requests) == sorted(
            rid for rid, outcome in EXPECTED["outcome"].items() if outcome == "expired"
        )
        for request in receiver.requests:
            _check(request, client, prefix)
        assert len({request.event["trace_id"] for request in receiver.requests}) == 1

        filters = f"{prefix}sweeperd:filters".encode()
        before, events = _dump(client), client.xlen(f"{prefix}sweeperd:events")
        receiver.clear()
        second = once(env)
        assert second.code == 0
        assert second.report["candidates"] == second.report["in_grace"] == counts["in_grace"]
        assert (second.report["expired"], second.report["delivered"], receiver.requests) == (0, 0, [])
        assert client.xlen(f"{prefix}sweeperd:events") == events
        after = _dump(client)
        # Each process that delivers notes its filters, and counts for how long Redis has answered.
        assert after.keys() == before.keys()
        assert {key for key in after if after[key] != before[key]} <= {filters}


def _expired_ids(requests: list[Request]) -> list[str]:
    return sorted(request.event["data"]["reservation_id"] for request in requests)


def _check(request: Request, client: redis.Redis, prefix: str) -> None:
    Webhook(SECRET).verify(request.body, request.headers)
    event = request.event
    assert {key: type(value) for key, value in event.items()} == TOP_LEVEL
    assert {key: type(value) for key, value in event["data"].items()} == DATA
    assert event["event_id"] == request.event_id == request.headers["X-Cycles-Event-Id"]
    assert event["event_type"] == request.headers["X-Cycles-Event-Type"] == "reservation.expired"
    assert event["trace_id"] == request.headers["X-Cycles-Trace-Id"] == request.headers["traceparent"].split("-")[1]
    assert (event["category"], event["source"], event["actor"]) == ("reservation", "sweeperd", {"type": "system"})
    row = client.hgetall(f"{prefix}reservation:res_{event['data']['reservation_id']}")
    assert event["data"]["estimated_amount"] == int(row[b"estimate_amount"])
    assert event["data"]["ttl_ms"] == int(row[b"expires_at"]) - int(row[b"created_at"])
    assert event["timestamp"] == event["data"]["expired_at"]
    assert event["tenant_id"].encode() == row[b"tenant"]


def _dump(client: redis.Redis) -> dict[bytes, object]:
    """Every ledger key and its content."""
    found: dict[bytes, object] = {}
    for key in client.scan_iter(count=1000):
        if not any(ours in key for ours in (b"sweeperd:events", b"sweeperd:ticks", b"sweeperd:attempts")):
            found[key] = (
                client.hgetall(key) if client.type(key) == b"hash" else client.zrange(key, 0, -1, withscores=True)
            )
    return found
