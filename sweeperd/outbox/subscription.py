"""Decides which events an endpoint or a Cycles subscription gets, and counts the events that wait."""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

import pydantic
import redis
from pydantic_core import ErrorDetails

from sweeperd.config import EndpointSettings, Start
from sweeperd.outbox.event import ONLY_FOR, Fields, OutboxEntry, category, event_type, is_expiry
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, StreamRow
from sweeperd.text import decode

#: So many events not taken yet are counted singly; if there are more, the share of wanted events is extrapolated.
EXACT = 10_000
#: So many bytes of these events are read at most, unless the count has to be complete: a megabyte takes 30 ms of CPU
#: time, and the events of every endpoint are counted every few seconds while the page is open.
SAMPLE_BYTES = 512 * 1024
#: So many events are read in a round trip; and so many in all, if Redis knows how many there are and nothing filters.
SAMPLE_PAGE = 100
#: How long such a share is remembered if the endpoint takes no event, seconds.
REMEMBERED = 60.0
#: The tenant of subscriptions to the events of every tenant.
SYSTEM = b"__system__"


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


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """How many events are to be sent to an endpoint, unwanted events left out."""

    events: int = 0
    #: False: an estimate.
    exact: bool = True
    #: Age of the oldest event, seconds.
    oldest_seconds: float = 0.0


class _Share(NamedTuple):
    """
    Of the first events not taken by a group: how many, how many are wanted, the first wanted id, and whether there may
    be more events.
    """

    seen: int
    wanted: int
    first: bytes | None
    more: bool


class BacklogMemory:
    """
    The shares of the groups of one shard: if an endpoint takes nothing, a long backlog is not read again and again.
    """

    def __init__(self, exact: int = EXACT, clock: Callable[[], float] = time.monotonic) -> None:
        """`exact`: how many events are counted one by one. `clock`: monotonic, seconds."""
        self.exact = exact
        self._clock = clock
        #: Group -> position, time of the read (monotonic), and the share after the position.
        self._shares: dict[bytes, tuple[bytes, float, _Share]] = {}

    def find(self, group: dict[str, Any]) -> _Share | None:
        """The remembered share for this row of XINFO GROUPS, if the share still holds."""
        known, lag = self._shares.get(group["name"]), group.get("lag")
        if known is None:
            return None
        position, read_at, share = known
        if lag is not None and lag < share.seen:
            return None
        holds = position == group["last-delivered-id"] and self._clock() <= read_at + REMEMBERED
        return share if holds else None

    def keep(self, group: dict[str, Any], share: _Share) -> None:
        """Remember the share, if later events cannot change the share."""
        self._shares.pop(group["name"], None)
        if share.more:
            self._shares[group["name"]] = group["last-delivered-id"], self._clock(), share


def read_backlog(
    shard: Shard,
    group: dict[str, Any] | None,
    subscription: Subscription | None,
    now_ms: int,
    *,
    to_the_end: bool = False,
    memory: BacklogMemory | None = None,
) -> GroupBacklog | None:
    """
    Count the events that the group has taken and not acknowledged, and the wanted events not taken yet. None: there is
    no group, so nobody knows.

    `group`: the row of XINFO GROUPS, if there is one. `subscription`: None wants every event. `now_ms`: the shard's
    clock. Redis 6.2 counts no events that a group has not taken: there more than EXACT events, or SAMPLE_BYTES, are
    counted only with `to_the_end`, else the count is at least so many. Redis 7 counts them, so only a filter has to
    look at a sample. `memory`: of earlier calls; if the group has not moved since, the
    events are not read again. Raises redis.RedisError.
    """
    if group is None:
        return None
    memory = memory or BacklogMemory()
    taken, lag = int(group["pending"]), group.get("lag")
    events = streams.read(shard, shard.keys.events, streams.after(group["last-delivered-id"]), page=SAMPLE_PAGE)
    counted = lag is not None and lag > 10 * SAMPLE_PAGE and (subscription is None or subscription.gets_all)
    share = None if to_the_end else memory.find(group)
    if share is None:
        most = SAMPLE_PAGE if counted else memory.exact
        share = _share(events, subscription, most, math.inf if to_the_end else SAMPLE_BYTES)
        memory.keep(group, share)
    seen, wanted, first, more = share
    if taken:
        try:
            first = shard.client.xpending(shard.keys.events, group["name"])["min"] or first
        except redis.ResponseError as error:
            if is_missing_group(error):
                return None  # the group has gone since
            raise
    oldest = 0.0 if first is None else max(0.0, (now_ms - streams.milliseconds(first)) / 1000)
    if not more:
        return GroupBacklog(taken + wanted, True, oldest)
    exact = lag is not None and (subscription is None or lag == seen)
    if lag is None:
        lag = seen + (sum(1 for _ in events) if to_the_end else 0)
    return GroupBacklog(taken + wanted * int(lag) // seen, exact, oldest)


def _share(events: Iterator[StreamRow], subscription: Subscription | None, most: int, most_bytes: float) -> _Share:
    """Of so many events and bytes at most."""
    seen = wanted = size = 0
    first = None
    for entry, fields in events:
        seen += 1
        size += len(b"".join(fields.values()))
        if subscription is None or subscription.takes(entry, fields):
            wanted += 1
            first = first or entry
        if seen == most or size >= most_bytes:
            return _Share(seen, wanted, first, True)
    return _Share(seen, wanted, first, False)


#: The values of these fields may be secrets.
_PRIVATE = ("headers", "metadata", "url")
#: So much of a value is shown.
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
    A record `webhook:<id>` of Cycles. The first block of fields decides about matches. The rest is only checked: if
    the dispatcher of Cycles could not read the record, a delivery would be lost there. Event types, categories and
    fields of a newer Cycles match nothing.
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
        """Whether the subscription gets an event of this type, category and scope (empty: no scope)."""
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
        # Only the last star is a wildcard, for 1 character or more.
        prefix = wanted[:-1]
        return scope.startswith(prefix) and len(scope) > len(prefix)


def parse(record: bytes) -> CyclesSubscription:
    """Raises ValueError if Cycles could not read the record. The error names each field at fault and its value."""
    try:
        return CyclesSubscription.model_validate_json(record)
    except pydantic.ValidationError as error:
        faults = {".".join(map(str, fault["loc"][:2])): fault for fault in error.errors(include_url=False)}
    raise ValueError(", ".join(_describe(field, fault) for field, fault in faults.items()))


def _describe(field: str, fault: ErrorDetails) -> str:
    if not field:
        return "the record is no JSON object"
    if fault["type"] == "missing":
        return f"{field} is missing"
    if fault["loc"][0] in _PRIVATE:
        return f"{field} is not of its type"
    value = json.dumps(fault["input"])
    return f"{field} is {value if len(value) <= _SHOWN else value[:_SHOWN] + '…'}"
