"""Decides which events an endpoint receives."""

from typing import Protocol

from sweeperd.config import EndpointSettings, Start
from sweeperd.outbox.event import ONLY_FOR, Fields, OutboxEntry, category, event_type, is_expiry
from sweeperd.store.streams import StreamId
from sweeperd.text import decode


class Selection(Protocol):
    """The settings of an endpoint, or the note of a process about them. None selects everything."""

    @property
    def tenants(self) -> list[str] | None: ...

    @property
    def events(self) -> list[str] | None: ...

    @property
    def scopes(self) -> list[str] | None: ...


class EventFilter:
    """
    Selects events by the settings of an endpoint: tenants, types or categories, and scopes.

    A category stands for the expiries of a kind only. An event about the sweep or about deliveries must be named by
    type.
    """

    def __init__(self, endpoint: Selection) -> None:
        self._tenants = None if endpoint.tenants is None else {tenant.encode() for tenant in endpoint.tenants}
        self._events = None if endpoint.events is None else set(endpoint.events)
        self._scopes = None if endpoint.scopes is None else [scope.encode() for scope in endpoint.scopes]
        #: Whether every expiry matches.
        self.open = endpoint.tenants is None and endpoint.events is None and endpoint.scopes is None

    def matches(self, fields: Fields) -> bool:
        """Whether the endpoint asks for an event with these fields."""
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
    The consumer group and the filter of one endpoint. Unwanted events are acknowledged without a request.
    """

    def __init__(self, endpoint: EndpointSettings) -> None:
        self.endpoint = self.group = endpoint.name
        #: The start of the group, if the group is new.
        self.start: Start | StreamId = endpoint.start
        #: Whether the group reads no more, because a replay is at the end.
        self.exhausted = False
        self._filter = EventFilter(endpoint)
        #: Whether the endpoint gets every plain expiry: then nobody has to look into the fields.
        self.gets_all = self._filter.open

    def wants(self, entry: OutboxEntry) -> bool:
        """Whether the endpoint receives this event."""
        return (self.gets_all and entry.is_plain_expiry) or self.takes(entry.id, entry.fields)

    def takes(self, _stream_id: bytes, fields: Fields, by: EventFilter | None = None, /) -> bool:
        """
        Whether the endpoint receives the event with this id in the stream and these fields. `by`: the filter of another
        process, instead of the subscription's own.
        """
        if ONLY_FOR in fields:
            # A replayed event was wanted once. If dropped now, the event would be lost without a trace.
            return decode(fields[ONLY_FOR]) == self.group
        return (by or self._filter).matches(fields)
