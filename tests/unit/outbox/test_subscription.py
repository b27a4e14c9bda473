"""Which events an endpoint receives, by its tenants, events and scopes."""

from typing import Any

import pytest

from sweeperd.config import EndpointSettings
from sweeperd.outbox import EventFilter, OutboxEntry, Subscription
from sweeperd.outbox.event import EXPIRY_FIELDS, Fields

EXPIRED = {b"id": b"r", b"tenant": b"acme", b"scope": b"tenant:acme/workspace:prod"}
SEAT = {b"id": b"s", b"kind": b"seat-hold", b"type": b"seat-hold.expired"}
SPIKE = {b"id": b"x", b"tenant": b"acme", b"type": b"reservation.expiry_rate_spike"}


def endpoint(**settings: Any) -> EndpointSettings:
    return EndpointSettings.model_validate({"name": "hook", "url": "http://hook/"} | settings)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, [EXPIRED, SEAT]),
        ({"tenants": ["acme"]}, [EXPIRED]),
        ({"tenants": ["other"]}, []),
        ({"events": ["reservation.expired"]}, [EXPIRED]),
        ({"events": ["reservation"]}, [EXPIRED]),
        ({"events": ["seat-hold"]}, [SEAT]),
        ({"events": ["reservation", "reservation.expiry_rate_spike"]}, [EXPIRED, SPIKE]),
        ({"events": ["reservation.expiry_rate_spike"]}, [SPIKE]),
        ({"scopes": ["tenant:acme/workspace:prod"]}, [EXPIRED]),
        ({"scopes": ["tenant:acme"]}, []),
        ({"scopes": ["tenant:acme/*"]}, [EXPIRED]),
        ({"scopes": ["tenant:acme/workspace:pro*"]}, [EXPIRED]),
        ({"scopes": ["tenant:acme/workspace:prod*"]}, []),
        ({"scopes": ["tenant:other/*", "tenant:acme/workspace:p*"]}, [EXPIRED]),
        ({"scopes": ["*"]}, [EXPIRED]),
    ],
)
def test_events_that_match(settings: dict[str, Any], wanted: list[Fields]) -> None:
    selected = EventFilter(endpoint(**settings))
    assert [event for event in (EXPIRED, SEAT, SPIKE) if selected.matches(event)] == wanted


@pytest.mark.parametrize(
    "settings",
    [{}, {"tenants": ["acme"]}, {"tenants": ["other"]}, {"events": ["seat-hold"]}, {"scopes": ["tenant:other"]}],
)
def test_an_event_of_the_script_is_judged_by_its_fields(settings: dict[str, Any]) -> None:
    """The reader does not look into it where every expiry is wanted; that must say the same."""
    fields = {name: EXPIRED.get(name, b"") for name in EXPIRY_FIELDS}
    entry = OutboxEntry.of(b"1-0", 1, fields)
    assert entry.is_plain_expiry
    assert Subscription(endpoint(**settings)).wants(entry) == EventFilter(endpoint(**settings)).matches(fields)


def test_an_endpoint_hears_of_the_failures_of_others_only() -> None:
    failing = {b"id": b"hook", b"type": b"webhook.failing"}
    subscription = Subscription(endpoint(events=["webhook.failing", "webhook.disabled"]))
    for fields, wanted in (
        (failing, False),
        (failing | {b"id": b"other"}, True),
        (failing | {b"type": b"webhook.disabled"}, True),
    ):
        assert subscription.wants(OutboxEntry.of(b"1-0", 1, fields)) is wanted


@pytest.mark.parametrize("own", [{b"kind": b"seat-hold"}, {b"only_for": b"audit"}])
def test_an_event_with_other_fields_is_no_plain_expiry(own: Fields) -> None:
    fields = dict.fromkeys(EXPIRY_FIELDS, b"")
    assert not OutboxEntry.of(b"1-0", 1, fields | own).is_plain_expiry
    assert not OutboxEntry.of(b"1-0", 1, dict.fromkeys(EXPIRY_FIELDS[1:], b"")).is_plain_expiry


def test_a_replayed_event_goes_to_its_endpoint_whatever_the_filter_says() -> None:
    subscription = Subscription(endpoint(tenants=["other"]))
    assert subscription.wants(OutboxEntry.of(b"1-0", 1, EXPIRED | {b"only_for": b"hook"}))
    assert not subscription.wants(OutboxEntry.of(b"1-0", 1, EXPIRED | {b"only_for": b"audit"}))
    assert not subscription.wants(OutboxEntry.of(b"1-0", 1, EXPIRED))


def test_an_endpoint_that_gets_every_expiry_gets_no_other_event_unasked() -> None:
    subscription = Subscription(endpoint())
    assert subscription.wants(OutboxEntry.of(b"1-0", 1, SEAT))
    assert not subscription.wants(OutboxEntry.of(b"1-0", 1, SPIKE))
    assert not subscription.wants(OutboxEntry.of(b"1-0", 1, EXPIRED | {b"only_for": b"audit"}))
