"""
Events about deliveries: an endpoint was paused, a delivery was given up on. They go into the outbox like expiries, and
only where an endpoint names their type in its `events`. The forms of `data` are the Cycles protocol's (EventDataSystem,
EventDataWebhookLifecycle).
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from sweeperd.config import DELIVERY_FAILED, WEBHOOK_DISABLED
from sweeperd.delivery.payload import Fields, event_type
from sweeperd.store.clock import Clock

#: The tenant of an event that belongs to none.
NO_TENANT = "__system__"

#: The fields of a stream entry, name and value in turn; empty where there is no event.
Entry = list[str | int]


class Announcements:
    """`wanted`: the types that are made. `clock`: Redis's, which has been read."""

    def __init__(self, clock: Clock, wanted: Collection[str] = ()) -> None:
        self._clock = clock
        self._wanted = frozenset(wanted)

    def delivery_failed(self, endpoint: str, event: Fields, deliveries: int, reason: str) -> Entry:
        """A dead letter was written. None is made about an event of this module's own kind, or it might never end."""
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
            "previous_status": "ACTIVE",
            "new_status": "PAUSED",
            "changed_fields": ["status"],
            "disable_reason": reason,
        }
        return self._entry(WEBHOOK_DISABLED, endpoint, data)

    def _entry(self, name: str, endpoint: str, data: Mapping[str, Any]) -> Entry:
        if name not in self._wanted:
            return []
        return ["type", name, "tenant", NO_TENANT, "id", endpoint, "at", self._clock.now_ms(), "data", json.dumps(data)]
