"""Which subscriptions of a Cycles installation match an event, and which records its runtime could not read."""

import json

import pytest

from sweeperd.outbox.subscription import parse

BASE = {"subscription_id": "whsub_1", "status": "ACTIVE", "event_types": [], "url": "https://hooks.example.com/"}


def matches(fields: dict[str, object], scope: str = "tenant:acme/workspace:prod") -> bool:
    record = json.dumps(BASE | fields).encode()
    return parse(record).matches("reservation.expired", "reservation", scope)


@pytest.mark.parametrize(
    ("fields", "matching"),
    [
        ({}, True),
        ({"event_types": None}, True),
        ({"event_types": ["reservation.expired"]}, True),
        ({"event_types": ["budget.exhausted"]}, False),
        ({"event_types": ["budget.exhausted"], "event_categories": ["reservation"]}, True),
        ({"event_types": [], "event_categories": ["reservation"]}, True),
        ({"event_types": [], "event_categories": ["tenant"]}, False),
        ({"event_types": ["reservation.expired"], "event_categories": ["tenant"]}, True),
        ({"status": "PAUSED"}, False),
        ({"status": "DISABLED"}, False),
        ({"status": None}, False),
    ],
)
def test_type_and_status(fields: dict[str, object], matching: bool) -> None:
    assert matches(fields) == matching


@pytest.mark.parametrize(
    ("wanted", "scope", "matching"),
    [
        (None, "", True),
        ("", "", True),
        ("  ", "", True),
        ("*", "tenant:a", True),
        ("*", "", False),
        ("*", " ", False),
        ("tenant:a", "tenant:a", True),
        ("tenant:a", "tenant:a/workspace:p", False),
        ("tenant:A", "tenant:a", False),
        ("tenant:a/*", "tenant:a/workspace:p", True),
        ("tenant:a/*", "tenant:a/", False),
        ("tenant:a/*", "tenant:a", False),
        ("tenant:a/workspace:p*", "tenant:a/workspace:production", True),
        ("tenant:*/workspace:p", "tenant:a/workspace:p", False),
        ("tenant:a/**", "tenant:a/workspace:p", False),
        ("tenant:a/**", "tenant:a/*x", True),
    ],
)
def test_scope_filters(wanted: str | None, scope: str, matching: bool) -> None:
    assert matches({"scope_filter": wanted}, scope) == matching


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        json.dumps(BASE | {"delivery_mode": "batch"}).encode(),
        json.dumps(BASE | {"status": "active"}).encode(),
        json.dumps(BASE | {"event_types": ["reservation.released_via_tenant_cascade"]}).encode(),
        json.dumps(BASE | {"event_categories": ["webhook"]}).encode(),
        json.dumps(BASE | {"retry_policy": {"retries": 3}}).encode(),
        json.dumps(BASE | {"created_at": "yesterday"}).encode(),
    ],
)
def test_records_that_the_runtime_cannot_read(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(record)
