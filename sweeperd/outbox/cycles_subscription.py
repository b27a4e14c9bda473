"""Decides which webhook subscriptions of a Cycles installation match an event."""

import json
from datetime import datetime
from typing import Any, Literal

import pydantic
from pydantic_core import ErrorDetails

#: The tenant of subscriptions to the events of all tenants.
SYSTEM = b"__system__"
#: Fields whose values may be secrets.
_PRIVATE = ("headers", "metadata", "url")
#: How many characters of a value to show.
_SHOWN = 100


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore", frozen=True)


class _RetryPolicy(_Record):
    max_retries: int | None = None
    initial_delay_ms: int | None = None
    backoff_multiplier: float | None = None
    max_delay_ms: int | None = None


class _Thresholds(_Record):
    budget_utilization: list[float] | None = None
    burn_rate_multiplier: float | None = None
    burn_rate_window_seconds: int | None = None
    denial_rate_threshold: float | None = None
    expiry_rate_threshold: float | None = None
    auth_failure_rate_threshold: float | None = None
    rate_window_seconds: int | None = None


class CyclesSubscription(_Record):
    """
    A record `webhook:<id>` of Cycles. The first block of fields decides about matches. The rest is only validated,
    because Cycles' dispatcher would lose a delivery for a record that it cannot parse. Event types, categories and
    fields of newer Cycles versions match nothing.
    """

    subscription_id: str
    status: Literal["ACTIVE", "PAUSED", "DISABLED"] | None = None
    event_types: list[str | None] | None = None
    event_categories: list[str | None] | None = None
    scope_filter: str | None = None

    tenant_id: str | None = None
    name: str | None = None
    description: str | None = None
    url: str | None = None
    thresholds: _Thresholds | None = None
    headers: dict[str, str | None] | None = None
    retry_policy: _RetryPolicy | None = None
    disable_after_failures: int | None = None
    consecutive_failures: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    last_triggered_at: datetime | None = None
    last_success_at: datetime | None = None
    last_failure_at: datetime | None = None
    metadata: dict[str, Any] | None = None

    def matches(self, event_type: str, category: str, scope: str) -> bool:
        """Whether the subscription receives an event of this type, category and scope (empty for none)."""
        return self.status == "ACTIVE" and self._wants_type(event_type, category) and self._wants_scope(scope)

    def _wants_type(self, event_type: str, category: str) -> bool:
        if not self.event_types and not self.event_categories:
            return True
        return event_type in (self.event_types or ()) or category in (self.event_categories or ())

    def _wants_scope(self, scope: str) -> bool:
        wanted = self.scope_filter
        if wanted is None or not wanted.strip():
            return True
        if not scope.strip():
            return False
        if not wanted.endswith("*"):
            return scope == wanted
        # Only a trailing star is a wildcard, for one or more characters.
        prefix = wanted[:-1]
        return scope.startswith(prefix) and len(scope) > len(prefix)


def parse(record: bytes) -> CyclesSubscription:
    """Raises ValueError if Cycles cannot parse the record. The error names each invalid field and its value."""
    try:
        return CyclesSubscription.model_validate_json(record)
    except pydantic.ValidationError as error:
        faults = {".".join(map(str, fault["loc"][:2])): fault for fault in error.errors(include_url=False)}
    raise ValueError(", ".join(_describe(field, fault) for field, fault in faults.items()))


def _describe(field: str, fault: ErrorDetails) -> str:
    if not field:
        return "the record is not a JSON object"
    if fault["type"] == "missing":
        return f"{field} is missing"
    if fault["loc"][0] in _PRIVATE:
        return f"{field} has the wrong type"
    value = json.dumps(fault["input"])
    return f"{field} is {value if len(value) <= _SHOWN else value[:_SHOWN] + '…'}"
