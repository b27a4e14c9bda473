"""Search in the event stream, by the ids that receivers know, for `sweeperd show` and the status page."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from pydantic import Field

from sweeperd.config import Settings
from sweeperd.document import CommandDocument, Count, Document, Down, Moment, Text
from sweeperd.ops.show import (
    AttemptDocument,
    Event,
    EventDocument,
    Fields,
    Inspection,
    InspectionDocument,
    inspect,
    read_event,
)
from sweeperd.outbox.attempts import RecordedAttempt, attempts_as
from sweeperd.outbox.event import event_id, event_type, is_expiry
from sweeperd.outbox.subscription import EventFilter
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamRow
from sweeperd.sweep.configured import kinds_of
from sweeperd.sweep.reservations import kind_of_event
from sweeperd.text import decode, whole

#: The most entries of the event stream that one search reads.
SEARCH = 20_000
#: How many events of a batch are named.
MEMBERS = 1000

#: The ids by which receivers know events and batches, and the id of an entry of a stream.
_WEBHOOK_ID, _STREAM_ID = re.compile("(evt|batch)_[0-9a-f]{32}"), re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Batch:
    """A request with several events, as an attempt recorded the request."""

    webhook_id: str
    endpoint: str
    #: How many events the request had.
    count: int
    #: The events, with the stream ids; at most MEMBERS.
    events: tuple[StreamRow, ...]
    #: Whether these are the events of the request. False: the events between the first and the last event.
    exact: bool
    #: The newest first.
    attempts: tuple[RecordedAttempt, ...]


@dataclass(frozen=True, slots=True)
class LookBack:
    """How far a search went back in the event stream of a shard."""

    #: How many entries were read.
    read: int = 0
    #: When the oldest of these was added, ms on Redis's clock, and the stream id; None if no entry was read.
    oldest_ms: int | None = None
    oldest: bytes | None = None
    #: Whether the stream has no older entry.
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Sent:
    """What one shard knows of a webhook id."""

    entries: tuple[Inspection, ...] = ()
    #: Events that are of no entry, or of a kind that is not configured.
    events: tuple[Event, ...] = ()
    batches: tuple[Batch, ...] = ()
    looked: LookBack = LookBack()


def is_sent_id(text: str) -> bool:
    """Whether the text has the form of an id for `find_sent`."""
    return bool(_WEBHOOK_ID.fullmatch(text) or _STREAM_ID.fullmatch(text))


def find_sent(settings: Settings, shard: Shard, text: str) -> Sent:
    """
    Find the event or the batch with this webhook id, or the event with this stream id. Of the event stream the last
    SEARCH entries are read; a batch is known only by the recorded attempts. Raises redis.RedisError.
    """
    names, looked = [endpoint.name for endpoint in settings.consumers], LookBack()
    if text.startswith("batch_"):
        return Sent(batches=tuple(_batches(settings, shard, text, attempts_as(shard, names, text, SEARCH))))
    if text.startswith("evt_"):
        rows, looked = search(shard, lambda fields: event_id(shard.origin, fields) == text, 1)
        if not rows:
            older = {each.attempt.first for each in attempts_as(shard, names, text, SEARCH)}
            rows = [row for first in older for row in _exactly(shard, first)]
    else:
        rows = _exactly(shard, text.encode())
    entries, events = list[Inspection](), list[Event]()
    for row in rows:
        kind = kinds_of(settings, shard).get(kind_of_event(row[1])) if is_expiry(row[1]) else None
        inspection = inspect(settings, shard, kind, row[1].get(b"id", b""), row) if kind else None
        if inspection:
            entries.append(inspection)
        else:
            events.append(read_event(settings, shard, row))
    return Sent(tuple(entries), tuple(events), (), looked)


def search(
    shard: Shard, wanted: Callable[[Fields], bool], most: int, before: bytes | None = None
) -> tuple[list[StreamRow], LookBack]:
    """
    The newest events that are `wanted`, at most `most`, the newest first; `before`: only older entries than this stream
    id. At most SEARCH entries are read. Raises redis.RedisError.
    """
    found, read, oldest = list[StreamRow](), 0, None
    last = streams.LAST if before is None else streams.after(before)
    for oldest, fields in islice(streams.read(shard, shard.keys.events, last=last, backwards=True), SEARCH):
        read += 1
        if wanted(fields):
            found.append((oldest, fields))
            if len(found) == most:
                break
    if oldest is None:
        return found, LookBack()
    older = shard.client.xrevrange(shard.keys.events, streams.after(oldest), count=1)
    return found, LookBack(read, streams.milliseconds(oldest), oldest, not older)


def _exactly(shard: Shard, entry: bytes) -> list[StreamRow]:
    return cast(list[StreamRow], shard.client.xrange(shard.keys.events, entry, entry))


def _batches(settings: Settings, shard: Shard, webhook_id: str, recorded: Sequence[RecordedAttempt]) -> Iterator[Batch]:
    filters = {endpoint.name: EventFilter(endpoint) for endpoint in settings.consumers}
    for name in dict.fromkeys(each.endpoint for each in recorded):
        attempts = tuple(each for each in recorded if each.endpoint == name)
        batch = attempts[0].attempt
        between = islice(streams.read(shard, shard.keys.events, batch.first, batch.last), SEARCH)
        rows = list(islice((row for row in between if filters[name].matches(row[1])), MEMBERS))
        hashed = hashlib.sha256(",".join(event_id(shard.origin, fields) for _, fields in rows).encode()).hexdigest()
        yield Batch(webhook_id, name, batch.events, tuple(rows), webhook_id == f"batch_{hashed[:32]}", attempts)


class LooseEvent(EventDocument):
    """An event that is of no entry: about the sweep or about deliveries, or of a kind that is not configured."""

    shard: str

    @classmethod
    def of(cls, shard: Shard, event: Event) -> "LooseEvent":
        return cls(shard=shard.name, **dict(EventDocument.model_validate(event)))


class MemberDocument(Document):
    """An event in the stream."""

    shard: str
    stream_id: Text
    event_id: str
    event_type: str
    kind: str | None = Field(description="Of the entry that has expired; null: the event is about something else.")
    id: Text = Field(description="What has expired; empty if nothing has.")
    tenant: Text
    at: Moment

    @classmethod
    def of(cls, shard: Shard, row: StreamRow) -> "MemberDocument":
        entry, fields = row
        at = whole(fields.get(b"expired_at", b""))
        return cls(
            shard=shard.name,
            stream_id=decode(entry),
            event_id=event_id(shard.origin, fields),
            event_type=event_type(fields),
            kind=kind_of_event(fields) if is_expiry(fields) else None,
            id=decode(fields.get(b"id", b"")),
            tenant=decode(fields.get(b"tenant", b"")),
            at=streams.milliseconds(entry) if at is None else at,
        )


class BatchDocument(Document):
    """A request with several events, as an attempt recorded it."""

    shard: str
    webhook_id: str
    endpoint: str
    count: Count = Field(description="How many events the request had.")
    events: list[MemberDocument] = Field(description="What the event stream still has of them.")
    exact: bool = Field(
        description="Whether events are those of the request. False: those that the endpoint asks for, between its "
        "first and its last event."
    )
    attempts: list[AttemptDocument] = Field(description="The newest first.")

    @classmethod
    def of(cls, shard: Shard, batch: Batch) -> "BatchDocument":
        return cls.model_validate(
            {
                "shard": shard.name,
                **{name: getattr(batch, name) for name in ("webhook_id", "endpoint", "count", "exact", "attempts")},
                "events": [MemberDocument.of(shard, row) for row in batch.events],
            }
        )


class ShowDocument(CommandDocument, title="sweeperd show ID --json"):
    """One entry, on each shard that knows it; or the event or the batch of this id, if no shard knows an entry."""

    shards: list[InspectionDocument]
    events: list[LooseEvent] = Field(description="Events of this id that are of no entry.")
    batches: list[BatchDocument] = Field(description="Requests of this webhook id.")
    down: Down

    @classmethod
    def of(
        cls, entries: Sequence[tuple[Shard, Inspection]], sent: Sequence[tuple[Shard, Sent]], down: Any
    ) -> "ShowDocument":
        """`down`: the shards that could not be read."""
        found = [*entries, *((shard, each) for shard, known in sent for each in known.entries)]
        events = [LooseEvent.of(shard, event) for shard, known in sent for event in known.events]
        batches = [BatchDocument.of(shard, batch) for shard, known in sent for batch in known.batches]
        return cls(
            shards=[InspectionDocument.of(*each) for each in found],
            events=events,
            batches=batches,
            down=down,
        )
