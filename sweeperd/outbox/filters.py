"""
Shares the filters of the endpoints among all delivering processes.

During a rolling update, processes with the same consumer group may have different filters. An event that no living
process wants is acknowledged. An event that only another living process wants gets the owner `(released:<digest>)`, and
only a process with that filter claims it.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, cast

import pydantic

from sweeperd.config import EndpointSettings
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.document import Note
from sweeperd.outbox.event import OutboxEntry
from sweeperd.outbox.subscription import EventFilter, Selection, Subscription
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode, span

#: The prefix of the owner of released events.
RELEASED = b"(released:"
#: How long filters may differ before they are reported, seconds. A rolling update of one process takes less.
LONG = 60.0
#: If more than this part of `Timing.take_over_after` passes between two calls, Redis may have been unavailable.
PAUSE = 0.4


class FilterNote(Note):
    """The filter of one endpoint as noted in Redis. None selects everything."""

    #: Identifies the filter, even if a later version notes more than these three fields.
    digest: str
    tenants: list[str] | None = None
    events: list[str] | None = None
    scopes: list[str] | None = None

    @classmethod
    def of(cls, endpoint: Selection) -> Self:
        """The note for these settings. The order of names does not matter."""
        names = {"tenants": endpoint.tenants, "events": endpoint.events, "scopes": endpoint.scopes}
        filters = {name: sorted(set(some)) for name, some in names.items() if some is not None}
        text = json.dumps(filters, sort_keys=True)
        return cls(digest=hashlib.sha256(text.encode()).hexdigest()[:12], **filters)

    @property
    def owner(self) -> bytes:
        """The owner of events released for a process with this filter."""
        return RELEASED + self.digest.encode() + b")"


_NOTES = pydantic.TypeAdapter(dict[str, FilterNote])


@dataclass(frozen=True, slots=True)
class ProcessFilters:
    """The filters of one process by endpoint."""

    process: str
    #: When the filters last changed, ms on Redis's clock.
    since_ms: int
    filters: Mapping[str, FilterNote]


@dataclass(frozen=True, slots=True)
class LivingFilters:
    """The filters of all living processes."""

    #: `<number>@<ms>`, see note_filters.lua; empty without any notes.
    version: bytes = b""
    processes: tuple[ProcessFilters, ...] = ()
    #: Endpoint -> owner of released events -> filter.
    by_endpoint: Mapping[str, Mapping[bytes, EventFilter]] = field(default_factory=dict)
    #: When a process last noted its filters, ms on Redis's clock.
    noted_ms: int = 0

    @classmethod
    def parse(cls, fields: Mapping[bytes, bytes]) -> Self:
        """From the fields of `sweeperd:filters`. An unreadable note is skipped."""
        processes, by_endpoint = [], dict[str, dict[bytes, EventFilter]]()
        for name, text in sorted(fields.items()):
            kind, _, process = name.partition(b":")
            if kind != b"filters":
                continue
            try:
                notes = _NOTES.validate_json(text)
            except ValueError:
                continue
            _, _, since = fields.get(b"heard:" + process, b"").partition(b" ")
            processes.append(ProcessFilters(decode(process), int(since) if since.isdigit() else 0, notes))
            for endpoint, note in notes.items():
                by_endpoint.setdefault(endpoint, {}).setdefault(note.owner, EventFilter(note))
        _, _, noted = fields.get(b"answered", b"").partition(b" ")
        return cls(fields.get(b"version", b""), tuple(processes), by_endpoint, int(noted) if noted.isdigit() else 0)

    @property
    def number(self) -> int:
        """Increases with each change. A lower number than before means that Redis has lost notes."""
        number = self.version.partition(b"@")[0]
        return int(number) if number.isdigit() else 0

    def difference(self, endpoint: str, now_ms: int) -> str:
        """For how long which processes have had different filters for this endpoint; empty if not for LONG."""
        found = dict[str, list[ProcessFilters]]()
        for each in sorted(self.processes, key=lambda each: each.since_ms):
            if note := each.filters.get(endpoint):
                found.setdefault(note.digest, []).append(each)
        if len(found) < 2:
            return ""
        _, second, *_ = found.values()
        seconds = (now_ms - second[0].since_ms) / 1000
        sides = " | ".join(", ".join(each.process for each in some) for some in found.values())
        return f"has had different filters for {span(seconds)}: {sides}" if seconds > LONG else ""


def read_filters(shard: Shard) -> LivingFilters:
    return LivingFilters.parse(cast(dict[bytes, bytes], shard.client.hgetall(shard.keys.filters)))


class Filters:
    """
    Publishes the filters of one process, and caches those of all living processes. Thread-safe.

    `endpoints`: empty for a process that does not deliver, and so publishes nothing.
    """

    def __init__(
        self, shard: Shard, process: str, endpoints: Iterable[EndpointSettings] = (), timing: Timing = DEFAULT_TIMING
    ) -> None:
        self._shard = shard
        self._process = process
        self._timing = timing
        self._note = Script("delivery/note_filters")
        self._updating = threading.Lock()
        self._next_at = 0.0
        #: The filters of all living processes, as last read.
        self.known = LivingFilters()
        #: The filters known before Redis lost notes, and until when to use them (monotonic).
        self._lost, self._lost_until = LivingFilters(), 0.0
        self.change(endpoints)

    def change(self, endpoints: Iterable[EndpointSettings]) -> None:
        """These are the endpoints from now on; the next `update` notes them."""
        with self._updating:
            self._own = {endpoint.name: FilterNote.of(endpoint) for endpoint in endpoints}
            self._text = _NOTES.dump_json(self._own, exclude_none=True)
            self._next_at = 0.0

    def update(self) -> None:
        """Publish the filters if due: before the first read, then every few seconds. Raises redis.RedisError."""
        if not self._own or self._timing.clock() < self._next_at:
            return
        with self._updating:
            if self._timing.clock() < self._next_at:
                return  # another thread was faster
            noted = bool(self._next_at)
            if self._run(self._text) != self.known.version:
                self._read(noted=noted)
            self._next_at = self._timing.clock() + self._timing.heartbeat_every

    def refresh(self) -> LivingFilters:
        """Read the filters of all processes. Raises redis.RedisError."""
        with self._updating:
            self._read(noted=bool(self._next_at))
        return self.known

    def leave(self) -> None:
        """Remove this process's filters when it stops reading. Raises redis.RedisError."""
        if self._own and self._next_at:
            self._run("")

    def others(self, endpoint: str) -> dict[bytes, EventFilter]:
        """The different filters of other living processes, by the owner of their released events."""
        own = self._own.get(endpoint)
        return {owner: each for owner, each in self._living(endpoint).items() if own is None or owner != own.owner}

    def endpoints(self, silence_ms: int) -> set[str]:
        """
        The endpoints of all living processes. A process without endpoints of its own removes no notes of dead ones: it
        reads them, and takes them for dead if nothing was noted for `silence_ms`. Raises redis.RedisError.
        """
        known = self.known if self._own else self.refresh()
        if not self._own and self._shard.clock.now_ms() - known.noted_ms > silence_ms:
            return set()
        return {each for each in (*known.by_endpoint, *self._lost.by_endpoint) if self._living(each)}

    def owner_for(self, subscription: Subscription, entry: OutboxEntry) -> bytes | None:
        """The new owner of an event that only another living process wants; None if none does."""
        for owner, other in self.others(subscription.endpoint).items():
            if subscription.takes(entry.id, entry.fields, other):
                return owner
        return None

    def wanted(self, subscription: Subscription, entry: OutboxEntry) -> bool:
        """Whether the endpoint wants an event, by its settings here or by the filter of another living process."""
        return subscription.wants(entry) or self.owner_for(subscription, entry) is not None

    def may_take(self, endpoint: str, owner: bytes) -> bool:
        """Whether a released event is for this process, or for a filter that no living process has any more."""
        own = self._own.get(endpoint)
        return (own is not None and owner == own.owner) or owner not in self._living(endpoint)

    def _living(self, endpoint: str) -> Mapping[bytes, EventFilter]:
        known = self.known.by_endpoint.get(endpoint, {})
        if self._timing.clock() < self._lost_until:
            return {**self._lost.by_endpoint.get(endpoint, {}), **known}
        return known

    def _run(self, text: bytes | str) -> bytes:
        silence = self._timing.take_over_after * 1000
        args: list[bytes | str | int] = [self._process, text, int(silence), int(PAUSE * silence)]
        return cast(bytes, self._note.run(self._shard.client, Call([self._shard.keys.filters], args)))

    def _read(self, *, noted: bool) -> None:
        found = read_filters(self._shard)
        missing = noted and all(each.process != self._process for each in found.processes)
        if found.number < self.known.number or missing:
            # After a failover or a flush, every process publishes its filters again within seconds.
            self._lost, self._lost_until = self.known, self._timing.clock() + self._timing.take_over_after
        self.known = found
