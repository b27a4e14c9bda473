"""Builds the events that announce what happened to deliveries."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from sweeperd.config import DELIVERY_FAILED, NO_TENANT, WEBHOOK_DISABLED, WEBHOOK_FAILING, WEBHOOK_RECOVERED
from sweeperd.outbox.event import Fields, category, event_type
from sweeperd.store.shard import Clock

#: Field names and values of a stream entry in turn; empty for no event.
Entry = list[str | int]


class Announcements:
    """
    Operational events about deliveries, added to the stream like expiries if an endpoint names their type in `events`.
    The schemas of `data` come from the Cycles protocol (EventDataSystem, EventDataWebhookLifecycle).

    `wanted`: the types to build. `clock`: Redis's clock, already read.
    """

    def __init__(self, clock: Clock, wanted: Collection[str] = ()) -> None:
        self._clock = clock
        self._wanted = frozenset(wanted)

    def delivery_failed(self, endpoint: str, event: Fields, deliveries: int, reason: str) -> Entry:
        """For a dead letter. Empty if the event is itself an announcement, so that announcements cannot cause more."""
        if category(event_type(event)) in ("system", "webhook"):
            return []
        details = {"endpoint": endpoint, "event_type": event_type(event), "attempts": deliveries, "reason": reason}
        message = f"an event for {endpoint} was given up on"
        data = {"component": "sweeperd", "message": message, "severity": "warning", "details": details}
        return self._entry(DELIVERY_FAILED, endpoint, data)

    def disabled(self, endpoint: str, reason: str) -> Entry:
        data = {
            "subscription_id": endpoint,
            "tenant_id": NO_TENANT,
            "previous_status": "ACTIVE",
            "new_status": "DISABLED",
            "changed_fields": [],
            "disable_reason": reason,
        }
        return self._entry(WEBHOOK_DISABLED, endpoint, data)

    @property
    def about_failures(self) -> bool:
        """Whether an endpoint wants to know when deliveries to another one fail or work again."""
        return bool(self._wanted & {WEBHOOK_FAILING, WEBHOOK_RECOVERED})

    def turned(self, endpoint: str, data: Mapping[str, Any], *, failing: bool) -> Entry:
        return self._entry(WEBHOOK_FAILING if failing else WEBHOOK_RECOVERED, endpoint, {"endpoint": endpoint, **data})

    def _entry(self, name: str, endpoint: str, data: Mapping[str, Any]) -> Entry:
        if name not in self._wanted:
            return []
        return ["type", name, "tenant", NO_TENANT, "id", endpoint, "at", self._clock.now_ms(), "data", json.dumps(data)]
