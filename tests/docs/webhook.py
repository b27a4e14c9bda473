"""The body of a webhook, for its schema. What is sent is written as bytes, and the tests hold it to the schema."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from sweeperd.document import Count, Document, Moment

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Amount = Annotated[int, Field(ge=0, le=2**63 - 1)]
#: Events per minute.
Rate = Annotated[float, Field(ge=0, description="Events per minute.")]


class Actor(Document):
    model_config = ConfigDict(extra="forbid")

    type: str


class Body(Document):
    """
    One event. Fields may be added to data in later versions; the top level has no other field. Times are RFC 3339, UTC,
    with milliseconds.
    """

    model_config = ConfigDict(title="The body of a webhook", extra="forbid")

    event_id: str = Field(pattern="^evt_")
    event_type: str
    category: str
    timestamp: Moment
    tenant_id: str | None = None
    scope: str | None = None
    actor: Actor | None = None
    source: Literal["sweeperd"]
    data: dict[str, Any]
    trace_id: str | None = Field(None, pattern="^[0-9a-f]{32}$")


class Balance(Document):
    """A budget after the expiry."""

    remaining: Int64
    reserved: Amount


class ReservationExpired(Document):
    reservation_id: str
    scope: str | None = None
    unit: str
    estimated_amount: Amount
    created_at: Moment | None = None
    expires_at: Moment
    expired_at: Moment
    ttl_ms: int | None = None
    grace_ms: Count | None = None
    extensions_used: Count | None = None
    missing_budgets: list[str] | None = None
    closed_budgets: list[str] | None = None
    balances: dict[str, Balance] | None = None


class ExpiryRateSpike(Document):
    metric: Literal["expiry_rate"]
    current_rate: Rate
    threshold_rate: Rate
    window_seconds: Count
    sample_count: Count


class Crossing(Document):
    """One threshold of one budget, and the budget after the change."""

    scope: str
    unit: str
    threshold: float = Field(ge=0.01, le=10, description="A fraction of allocated.")
    direction: Literal["rising", "falling"]
    utilization: float = Field(description="(allocated - remaining) / allocated, rounded down to 4 decimals.")
    allocated: Amount
    remaining: Int64


class ThresholdCrossed(Document):
    operation: Literal["reserve", "commit", "release", "settle", "event", "expire", "repair"]
    crossings: Annotated[list[Crossing], Field(min_length=1)]


class WebhookDisabled(Document):
    subscription_id: str
    tenant_id: str
    previous_status: Literal["ACTIVE"]
    new_status: Literal["DISABLED"]
    changed_fields: Annotated[list[str], WithJsonSchema({"const": []})]
    disable_reason: str | None = None


class WebhookFailing(Document):
    endpoint: str
    failure: str = Field(description="Why the last delivery failed; empty if no circuit is open.")
    pending: Count = Field(description="Undelivered events.")
    oldest_pending_seconds: Rate


class WebhookRecovered(WebhookFailing):
    failing_seconds: Rate = Field(description="How long it has failed.")


class System(Document):
    component: Literal["sweeperd"]
    message: str
    severity: Literal["info", "warning", "critical"] | None = None
    details: dict[str, Any] | None = None


#: Type of event -> its category, and its data. The events of configured kinds have data of their own.
EVENTS: dict[str, tuple[str, type[Document]]] = {
    "reservation.expired": ("reservation", ReservationExpired),
    "reservation.expiry_rate_spike": ("reservation", ExpiryRateSpike),
    "budget.threshold_crossed": ("budget", ThresholdCrossed),
    "webhook.disabled": ("webhook", WebhookDisabled),
    "webhook.failing": ("webhook", WebhookFailing),
    "webhook.recovered": ("webhook", WebhookRecovered),
    "system.webhook_delivery_failed": ("system", System),
    "system.webhook_test": ("system", System),
}
