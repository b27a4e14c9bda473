"""Builds the events that announce what happened to deliveries."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from sweeperd.config import DELIVERY_FAILED, WEBHOOK_DISABLED
from sweeperd.outbox.event import Fields, event_type
from sweeperd.store.shard import Clock

#: The tenant of an event without a tenant.
NO_TENANT = "__system__"

#: The fields of a stream entry, name and value in turn; empty: no event.
Entry = list[str | int]


class Announcements:
    """
    Events about deliveries: an endpoint was paused, a delivery was given up on. These events go into the stream like
    expiries, if an endpoint names the type in `events`. The forms of `data` come from the Cycles protocol
    (EventDataSystem, EventDataWebhookLifecycle).

    `wanted`: the types to make. `clock`: Redis's clock, read before.
    """

    def __init__(self, clock: Clock, wanted: Collection[str] = ()) -> None:
        self._clock = clock
        self._wanted = frozenset(wanted)

    def delivery_failed(self, endpoint: str, event: Fields, deliveries: int, reason: str) -> Entry:
        """A dead letter was written. Empty if the event is an announcement: else announcements might never end."""
        if event_type(event) in (DELIVERY_FAILED, WEBHOOK_DISABLED):
            return []
        details = {"endpoint": endpoint, "event_type": event_type(event), "attempts": deliveries, "reason": reason}
        message = f"an event for {endpoint} was given up on"
        data = {"component": "sweeperd", "message": message, "severity": "warning", "details": details}
        return self._entry(DELIVERY_FAILED, endpoint, data)

    def disabled(self, endpoint: str, reason: str) -> Entry:
        """An endpoint was paused."""
        data = {
            "subscription_id": endpoint,
            "tenant_id": NO_TENANT,
            "previous_status": "ACTIVE",
            "new_status": "DISABLED",
            "changed_fields": [],
            "disable_reason": reason,
        }
        return self._entry(WEBHOOK_DISABLED, endpoint, data)

    def _entry(self, name: str, endpoint: str, data: Mapping[str, Any]) -> Entry:
        if name not in self._wanted:
            return []
        return ["type", name, "tenant", NO_TENANT, "id", endpoint, "at", self._clock.now_ms(), "data", json.dumps(data)]
