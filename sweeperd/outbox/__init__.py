"""Stores events, consumer groups, retries and dead letters in Redis: the outbox, without threads and HTTP."""

from sweeperd.outbox.announcements import Announcements
from sweeperd.outbox.backlog import BacklogMemory, GroupBacklog, read_backlogs
from sweeperd.outbox.circuits import CircuitNote, CircuitState, CircuitStateStore
from sweeperd.outbox.delivery_rate import DeliveryRate
from sweeperd.outbox.endpoint_state import EndpointState, EndpointStateStore
from sweeperd.outbox.event import Message, OutboxEntry, message
from sweeperd.outbox.filters import Filters
from sweeperd.outbox.groups import PARKED, PARKED_ALONE, ConsumerGroups, is_waiting
from sweeperd.outbox.moments import correct_moments
from sweeperd.outbox.request import EventEncoder, WebhookRequest, webhook_request
from sweeperd.outbox.stream import PAGE, Outbox, Pending, Replication
from sweeperd.outbox.subscription import EventFilter, Subscription
