"""The body of a webhook, for its schema. What is sent is written as bytes, and the tests hold it to the schema."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from sweeperd.document import Count, Document, Moment, Seconds

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

    event_id: str = Field(
        pattern="^evt_",
        description="The same for every attempt, endpoint and replica; derived from the entry and its expiry.",
    )
    event_type: str = Field(description="Such as `reservation.expired`, or `<kind>.expired` for a configured kind.")
    category: str = Field(description="`reservation`, `budget`, `webhook`, `system`, or the name of the kind.")
    timestamp: Moment = Field(description="The moment of the expiry or the change, on Redis's clock.")
    tenant_id: str | None = Field(
        None, description="The tenant. `__system__` in an operational event that concerns no tenant."
    )
    scope: str | None = Field(
        None, description="The `scope_path` of the reservation; of crossed thresholds the innermost scope."
    )
    actor: Actor | None = Field(None, description='`{"type": "system"}`.')
    source: Literal["sweeperd"]
    data: dict[str, Any] = Field(description="By event type, below.")
    trace_id: str | None = Field(
        None, pattern="^[0-9a-f]{32}$", description="One for each sweep; of a crossing only if it came with an expiry."
    )


class Balance(Document):
    """A budget after the expiry."""

    remaining: Int64
    reserved: Amount


class ReservationExpired(Document):
    """A reservation has expired, and its amount is back in every budget."""

    reservation_id: str = Field(description="The bare id.")
    scope: str | None = Field(None, description="The `scope_path`.")
    unit: str = Field(description="The unit of the amount.")
    estimated_amount: Amount = Field(
        description="What was released, exact up to 2^63-1: use a parser that keeps large integers."
    )
    created_at: Moment | None = Field(None, description="When it was made.")
    expires_at: Moment = Field(description="Its deadline.")
    expired_at: Moment = Field(description="The same as `timestamp`.")
    ttl_ms: int | None = Field(None, description="Deadline minus creation, extensions included.")
    grace_ms: Count | None = Field(None, description="The grace that counted.")
    extensions_used: Count | None = Field(None, description="How many times the deadline was moved.")
    missing_budgets: list[str] | None = Field(
        None, description="Scopes whose budget no longer existed; nothing was given back there."
    )
    closed_budgets: list[str] | None = Field(
        None, description="Scopes whose budget was closed and had less reserved than the amount; it was left as it is."
    )
    balances: dict[str, Balance] | None = Field(
        None,
        description="Scope to budget right after the release, without the scopes of the two lists. Needs `balances` of "
        "the endpoint and `events.balances`; absent in older events and after a late `settle`.",
    )


class KindExpired(Document):
    """
    An entry of a configured kind has expired. `data` also has each field that `event` of the kind names, as a string,
    as it stood in the hash.
    """

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="The id in the kind's index.")
    expires_at: Moment = Field(description="The deadline.")
    expired_at: Moment = Field(description="The same as `timestamp`.")
    missing: list[str] | None = Field(
        None, description="Keys that the expiry should have changed and that do not exist."
    )


class ExpiryRateSpike(Document):
    """
    A tenant's expiries of one `cycles.spike_window` rose above `cycles.spike_factor` times its usual number. Sent once
    for each episode, and needs more rights in Redis: run `sweeperd acl` again.
    """

    metric: Literal["expiry_rate"]
    current_rate: Rate
    threshold_rate: Rate
    window_seconds: Count = Field(description="`cycles.spike_window`.")
    sample_count: Count = Field(description="The expiries in this window.")


class Crossing(Document):
    """One threshold of one budget, and the budget after the change."""

    scope: str = Field(description="The budget's scope.")
    unit: str = Field(description="The budget's unit.")
    threshold: float = Field(ge=0.01, le=10, description="A fraction of allocated: 80 % is 0.8.")
    direction: Literal["rising", "falling"] = Field(
        description="`rising` if the utilization was below the threshold before the change, else `falling`."
    )
    utilization: float = Field(description="(allocated - remaining) / allocated, rounded down to 4 decimals.")
    allocated: Amount = Field(description="After the change.")
    remaining: Int64 = Field(description="After the change.")


class ThresholdCrossed(Document):
    """
    A change took budgets across thresholds: one event for all that one call crosses, in the same atomic step. To alert
    on the level and not on each crossing, keep the last direction of each scope, unit and threshold in the order of
    `X-Sweeperd-Sequence`.
    """

    operation: Literal["reserve", "commit", "release", "settle", "event", "expire", "repair"] = Field(
        description="What changed the budget: a call of the ledger, the sweep, or `reconcile --repair-budget`."
    )
    crossings: Annotated[list[Crossing], Field(min_length=1)] = Field(description="`scope`, `unit` and so on, below.")


class WebhookDisabled(Document):
    """An endpoint is paused, by a 410 or by an operator."""

    subscription_id: str = Field(description="The endpoint.")
    tenant_id: str = Field(description="`__system__`.")
    previous_status: Literal["ACTIVE"]
    new_status: Literal["DISABLED"]
    changed_fields: Annotated[list[str], WithJsonSchema({"const": []})]
    disable_reason: str | None = Field(None, description="Why, if anybody said so.")


class WebhookFailing(Document):
    """
    Deliveries to another endpoint fail: an event waits and the circuit of every delivering process is open, or its
    oldest undelivered event is older than 5 minutes.
    """

    endpoint: str = Field(description="The endpoint that fails.")
    failure: str = Field(description="Why the last delivery failed; empty if no circuit is open.")
    pending: Count = Field(description="Undelivered events.")
    oldest_pending_seconds: Seconds = Field(description="The age of the oldest.")


class WebhookRecovered(WebhookFailing):
    """Deliveries to that endpoint work again."""

    endpoint: str = Field(description="The endpoint that failed.")
    failing_seconds: Seconds = Field(description="How long it has failed.")


class System(Document):
    """
    A delivery was given up (`system.webhook_delivery_failed`, never about itself or `webhook.disabled`), or an operator
    tests an endpoint (`system.webhook_test`).
    """

    component: Literal["sweeperd"]
    message: str
    severity: Literal["info", "warning", "critical"] | None = None
    details: dict[str, Any] | None = Field(
        None,
        description="Of a delivery that was given up: `endpoint`, `event_type`, `reason`, and `attempts`, its "
        "hand-overs of up to `webhooks.attempts` requests each.",
    )


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
