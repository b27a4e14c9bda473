"""Which subscriptions of a Cycles installation match an event, and what is said of a record that cannot be read."""

import json

import pytest

from sweeperd.outbox.cycles_subscription import parse

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


#: In the EventType and EventCategory of cycles-governance-admin-v0.1.25.yaml, and not in those of the runtime.
NEWER_TYPE, NEWER_CATEGORY = "reservation.released_via_tenant_cascade", "webhook"


@pytest.mark.parametrize(
    ("fields", "matching"),
    [
        ({"event_types": [NEWER_TYPE, "reservation.expired"]}, True),
        ({"event_types": ["budget.exhausted", NEWER_TYPE]}, False),
        ({"event_types": [NEWER_TYPE]}, False),
        ({"event_categories": [NEWER_CATEGORY, "reservation"]}, True),
        ({"event_categories": [NEWER_CATEGORY]}, False),
        ({"event_types": ["reservation.expired"], "event_categories": [NEWER_CATEGORY]}, True),
        ({"event_types": [NEWER_TYPE], "event_categories": [NEWER_CATEGORY]}, False),
        ({"event_types": [None]}, False),
        ({"delivery_mode": "batch"}, True),
        ({"created_at": 1795507205.123456789, "updated_at": "2026-11-24T08:00:05.123456789Z"}, True),
        ({"retry_policy": {"max_retries": 3, "jitter": True}, "thresholds": {"newer": 1}}, True),
    ],
)
def test_newer_types_categories_and_fields_match_nothing_and_spoil_nothing(
    fields: dict[str, object], matching: bool
) -> None:
    """A list is empty, and so matches everything, only if the list was empty before unknown names are set aside."""
    assert matches(fields) == matching


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"", "the record is not a JSON object"),
        (b"{", "the record is not a JSON object"),
        (b"[]", "the record is not a JSON object"),
        (b'"text"', "the record is not a JSON object"),
        (b'{"status": "ACTIVE"}', "subscription_id is missing"),
        (json.dumps(BASE | {"status": "active"}).encode(), 'status is "active"'),
        (json.dumps(BASE | {"event_types": "reservation.expired"}).encode(), 'event_types is "reservation.expired"'),
        (json.dumps(BASE | {"event_types": [1]}).encode(), "event_types.0 is 1"),
        (json.dumps(BASE | {"retry_policy": {"max_retries": "many"}}).encode(), 'retry_policy.max_retries is "many"'),
        (json.dumps(BASE | {"created_at": "yesterday"}).encode(), 'created_at is "yesterday"'),
        (json.dumps(BASE | {"scope_filter": 5, "status": "x" * 500}).encode(), 'status is "' + "x" * 99 + "…"),
        (json.dumps(BASE | {"status": "x" * 99}).encode(), 'status is "' + "x" * 99 + "…"),
        (json.dumps(BASE | {"status": "x" * 98}).encode(), 'status is "' + "x" * 98 + '"'),
    ],
)
def test_what_cannot_be_read_is_named_with_its_field_and_value(record: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse(record)
    assert says in str(refused.value)
    assert ("…" in str(refused.value)) is ("…" in says)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields", [{"headers": {"Authorization": ["s3cret"]}}, {"url": ["https://a:s3cret@b"]}, {"metadata": "s3cret"}]
)
def test_what_may_be_a_secret_is_named_without_its_value(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f", {next(iter(fields))}") as refused:
        parse(json.dumps(BASE | fields | {"subscription_id": None}).encode())
    assert "s3cret" not in f"{refused.value} {refused.value.__cause__} {refused.value.__context__}"
