"""Which events of the stream an endpoint receives."""

from sweeperd.config import EndpointSettings
from sweeperd.delivery.outbox import OutboxEntry


class Subscription:
    """The filter of one endpoint. An event that it does not want is acknowledged without a request."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        self.endpoint = endpoint.name
        self._tenants = None if endpoint.tenants is None else {tenant.encode() for tenant in endpoint.tenants}

    def wants(self, entry: OutboxEntry) -> bool:
        """Whether the endpoint receives this event."""
        if entry.only_for is not None:
            # A replayed event was wanted when it became a dead letter. To drop it now would lose it without a trace.
            return entry.only_for == self.endpoint
        return self._tenants is None or entry.fields.get(b"tenant", b"") in self._tenants
