"""Decides which events an endpoint receives."""

from typing import Protocol

from sweeperd.config import WEBHOOK_FAILING, WEBHOOK_RECOVERED, EndpointSettings, Start
from sweeperd.outbox.event import ONLY_FOR, Fields, OutboxEntry, category, event_type, is_expiry, scopes
from sweeperd.store.streams import StreamId
from sweeperd.text import decode

#: The types that an endpoint does not receive about itself.
_ABOUT_ONE = frozenset({WEBHOOK_FAILING, WEBHOOK_RECOVERED})


class Selection(Protocol):
    """The filter in the settings of an endpoint, or in a process's note about them. None selects everything."""

    @property
    def tenants(self) -> list[str] | None: ...

    @property
    def events(self) -> list[str] | None: ...

    @property
    def scopes(self) -> list[str] | None: ...


class EventFilter:
    """Selects events by tenant, type, category and scope. Only a type selects operational events."""

    def __init__(self, endpoint: Selection) -> None:
        self.tenants = None if endpoint.tenants is None else {tenant.encode() for tenant in endpoint.tenants}
        self._events = None if endpoint.events is None else set(endpoint.events)
        self._scopes = None if endpoint.scopes is None else [scope.encode() for scope in endpoint.scopes]
        #: Whether every expiry matches.
        self.open = endpoint.tenants is None and endpoint.events is None and endpoint.scopes is None

    def matches(self, fields: Fields) -> bool:
        return (
            (self.tenants is None or fields.get(b"tenant", b"") in self.tenants)
            and self._wants_type(fields)
            and (self._scopes is None or any(map(self._wants_scope, scopes(fields))))
        )

    def _wants_type(self, fields: Fields) -> bool:
        if self._events is None:
            return b"type" not in fields or is_expiry(fields)  # an expired reservation has no type field
        expired = is_expiry(fields)
        return event_type(fields) in self._events or (expired and category(event_type(fields)) in self._events)

    def _wants_scope(self, scope: bytes) -> bool:
        return any(
            len(scope) >= len(wanted) and scope.startswith(wanted[:-1]) if wanted.endswith(b"*") else scope == wanted
            for wanted in self._scopes or ()
        )


class Subscription:
    """The consumer group and the filter of one endpoint. Unwanted events are acknowledged without a request."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        self.endpoint = self.group = endpoint.name
        #: Where a new group starts.
        self.start: Start | StreamId = endpoint.start
        #: Whether the group has read every event of its replay.
        self.exhausted = False
        self._filter = EventFilter(endpoint)
        #: Whether the endpoint receives every plain expiry, so that its fields need not be parsed.
        self.gets_all = self._filter.open
        #: All events that the endpoint receives are of these, or for one endpoint only. None: of any tenant.
        self.tenants = self._filter.tenants
        #: Equal for endpoints that receive the same events, apart from events for one endpoint only. None: unique.
        self.selects: tuple[object, ...] | None = tuple(
            names and tuple(names) for names in (endpoint.tenants, endpoint.events, endpoint.scopes)
        )
        if _ABOUT_ONE.intersection(endpoint.events or ()):
            self.selects = None

    def wants(self, entry: OutboxEntry) -> bool:
        return (self.gets_all and entry.is_plain_expiry) or self.takes(entry.id, entry.fields)

    def takes(self, _stream_id: bytes, fields: Fields, by: EventFilter | None = None, /) -> bool:
        """Whether the endpoint receives this event. `by`: the filter of another process instead of this one's."""
        if ONLY_FOR in fields:
            # The endpoint wanted this replayed event before. Dropping it now would lose it silently.
            return decode(fields[ONLY_FOR]) == self.group
        return not self.is_subject(fields) and (by or self._filter).matches(fields)

    def is_subject(self, fields: Fields) -> bool:
        """Whether the event says that this very endpoint fails or has recovered: it is not sent to the endpoint."""
        return fields.get(b"id") == self.endpoint.encode() and event_type(fields) in _ABOUT_ONE
