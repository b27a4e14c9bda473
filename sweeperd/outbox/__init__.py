"""What is in Redis about events and deliveries: without threads, without HTTP."""

from sweeperd.outbox.endpoint_state import EndpointStateStore
from sweeperd.outbox.event import Message, OutboxEntry, WebhookRequest, webhook_request
from sweeperd.outbox.stream import Outbox
from sweeperd.outbox.subscription import Subscription

__all__ = [
    "EndpointStateStore",
    "Message",
    "Outbox",
    "OutboxEntry",
    "Subscription",
    "WebhookRequest",
    "webhook_request",
]
