"""What is in Redis about events and deliveries: without threads, without HTTP."""

from sweeperd.outbox.endpoint_state import (
    CircuitNote,
    CircuitState,
    CircuitStateStore,
    DeliveryRate,
    EndpointState,
    EndpointStateStore,
    correct_moments,
)
from sweeperd.outbox.event import (
    EventEncoder,
    Message,
    OutboxEntry,
    WebhookRequest,
    message,
    webhook_request,
)
from sweeperd.outbox.filters import Filters
from sweeperd.outbox.stream import (
    PAGE,
    PARKED,
    PARKED_ALONE,
    Announcements,
    ConsumerGroups,
    Outbox,
    Pending,
    Replication,
    is_waiting,
)
from sweeperd.outbox.subscription import BacklogMemory, EventFilter, GroupBacklog, Subscription, read_backlog

__all__ = [
    "PAGE",
    "PARKED",
    "PARKED_ALONE",
    "Announcements",
    "BacklogMemory",
    "CircuitNote",
    "CircuitState",
    "CircuitStateStore",
    "ConsumerGroups",
    "DeliveryRate",
    "EndpointState",
    "EndpointStateStore",
    "EventEncoder",
    "EventFilter",
    "Filters",
    "GroupBacklog",
    "Message",
    "Outbox",
    "OutboxEntry",
    "Pending",
    "Replication",
    "Subscription",
    "WebhookRequest",
    "correct_moments",
    "is_waiting",
    "message",
    "read_backlog",
    "webhook_request",
]
