"""Which events of the stream an endpoint receives."""

from sweeperd.config import EndpointSettings, Start
from sweeperd.delivery.outbox import ONLY_FOR, OutboxEntry
from sweeperd.delivery.payload import Fields, category, event_type, is_expiry
from sweeperd.store.streams import StreamId
from sweeperd.text import decode


class EventFilter:
    """
    The events that the settings of an endpoint ask for: of its tenants, its types or categories, and its scopes.

    A category stands for the expiries of that kind only. An event about the sweep or about deliveries has to be named
    by its type.
    """

    def __init__(self, endpoint: EndpointSettings) -> None:
        self._tenants = None if endpoint.tenants is None else {tenant.encode() for tenant in endpoint.tenants}
        self._events = None if endpoint.events is None else set(endpoint.events)
        self._scopes = None if endpoint.scopes is None else [scope.encode() for scope in endpoint.scopes]
        #: Whether every expiry is one of them.
        self.open = endpoint.tenants is None and endpoint.events is None and endpoint.scopes is None

    def matches(self, fields: Fields) -> bool:
        """Whether the event with these fields is one of them."""
        return (
            (self._tenants is None or fields.get(b"tenant", b"") in self._tenants)
            and self._wants_type(fields)
            and (self._scopes is None or self._wants_scope(fields.get(b"scope", b"")))
        )

    def _wants_type(self, fields: Fields) -> bool:
        if self._events is None:
            return b"type" not in fields or is_expiry(fields)  # a reservation's event, the usual one, names no type
        expired = is_expiry(fields)
        return event_type(fields) in self._events or (expired and category(fields) in self._events)

    def _wants_scope(self, scope: bytes) -> bool:
        return any(
            len(scope) >= len(wanted) and scope.startswith(wanted[:-1]) if wanted.endswith(b"*") else scope == wanted
            for wanted in self._scopes or ()
        )


class Subscription:
    """
    The consumer group and the filter of one endpoint. An event that it does not want is acknowledged without a request.
    """

    def __init__(self, endpoint: EndpointSettings) -> None:
        self.group = endpoint.name
        #: Where its group begins, if it is new.
        self.start: Start | StreamId = endpoint.start
        #: Whether its group reads no more. Only that of a replay ends.
        self.exhausted = False
        self._filter = EventFilter(endpoint)
        #: Whether it gets every ordinary expiry: then nobody has to look into one.
        self._gets_all = self._filter.open

    def wants(self, entry: OutboxEntry) -> bool:
        """Whether the endpoint receives this event."""
        return (self._gets_all and entry.expiry is not None) or self.takes(entry.id, entry.fields)

    def takes(self, _stream_id: bytes, fields: Fields, /) -> bool:
        """Whether the endpoint receives the event with this id in the stream and these fields."""
        if ONLY_FOR in fields:
            # A replayed event was wanted when it became a dead letter. To drop it now would lose it without a trace.
            return decode(fields[ONLY_FOR]) == self.group
        return self._filter.matches(fields)
