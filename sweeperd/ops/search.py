"""Finds events by the ids that receivers know."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import Field

from sweeperd.config import Settings
from sweeperd.document import Count, Document, Moment, ShardsDocument, Text
from sweeperd.ops.show import (
    AttemptDocument,
    EventDocument,
    Fields,
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

#: Up to how many stream entries a search reads, and how many of them may be recorded attempts.
SEARCH, ATTEMPTS = 20_000, 10_000
#: Entries read in one round trip, so that other clients wait for less than a millisecond.
PAGE = 250
#: Up to how many events of a batch are listed.
MEMBERS = 1000
#: The ids by which receivers know events and batches, and stream ids.
WEBHOOK_ID, STREAM_ID = re.compile("(evt|batch)_[0-9a-f]{32}"), re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)


class LookBackDocument(Document):
    """How far back a search went. `before` continues the list; empty at its end."""

    read: Count = Field(description="Entries that were read.")
    back_to: Moment | None
    complete: bool
    before: str

    @classmethod
    def of(cls, read: int = 0, oldest: bytes | None = None, *, complete: bool = True) -> "LookBackDocument":
        """`oldest`: the last id that was read. `complete`: the stream has no older entry."""
        back_to = None if oldest is None else streams.milliseconds(oldest)
        before = "" if complete or oldest is None else decode(oldest)
        return cls(read=read, back_to=back_to, complete=complete, before=before)


class MemberDocument(Document):
    """An event in the stream."""

    shard: str
    stream_id: Text
    event_id: str
    event_type: str
    kind: str | None = Field(description="The kind of the expired entry; null for other events.")
    id: Text = Field(description="What has expired; empty for other events.")
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
    events: list[MemberDocument] = Field(description="Those that the event stream still has.")
    exact: bool = Field(description="If false, events are what the endpoint wants between its first and last.")
    attempts: list[AttemptDocument] = Field(description="Newest first.")


class LooseEvent(EventDocument):
    """An operational event, or an event of a kind that is not configured."""

    shard: str


@dataclass(frozen=True, slots=True)
class EventMatches:
    entries: tuple[InspectionDocument, ...]
    events: tuple[LooseEvent, ...]
    batches: tuple[BatchDocument, ...]
    looked: LookBackDocument


def is_event_id(text: str) -> bool:
    """Whether the text looks like the id of an event, a batch or a stream entry."""
    return bool(WEBHOOK_ID.fullmatch(text) or STREAM_ID.fullmatch(text))


def find_by_event_id(settings: Settings, shard: Shard, text: str) -> EventMatches:
    """
    Finds an event or a batch by webhook id, or an event by stream id: in the recorded attempts, and an event also in
    the stream. Reads up to SEARCH entries.
    """
    looked, batches = LookBackDocument.of(), tuple[BatchDocument, ...]()
    if WEBHOOK_ID.fullmatch(text):
        rows, batches, read = find_sent(settings, shard, text)
        if not rows and text.startswith("evt_"):
            left = SEARCH - read
            rows, looked = search(
                shard, shard.keys.events, lambda fields: event_id(shard.origin, fields) == text, 1, left
            )
    else:
        (rows,) = streams.exactly(shard.client, shard.keys.events, [text])
    entries, events = list[InspectionDocument](), list[LooseEvent]()
    for row in rows:
        kind = kinds_of(settings, shard).get(kind_of_event(row[1])) if is_expiry(row[1]) else None
        inspection = inspect(settings, shard, kind, row[1].get(b"id", b""), row) if kind else None
        if inspection:
            entries.append(inspection)
        else:
            events.append(LooseEvent.made_of(read_event(settings, shard, row), shard=shard.name))
    return EventMatches(tuple(entries), tuple(events), batches, looked)


def search(
    shard: Shard, key: bytes, wanted: Callable[[Fields], bool], most: int, limit: int = SEARCH, before: str = ""
) -> tuple[list[StreamRow], LookBackDocument]:
    """
    Up to `most` of the newest entries of a stream that are `wanted`, newest first, and older than the stream id
    `before` if there is one. Reads up to `limit` entries.
    """
    found, read, oldest = list[StreamRow](), 0, None
    last = streams.after(before.encode()) if before else streams.LAST
    for oldest, fields in islice(streams.read(shard, key, last=last, backwards=True, page=PAGE), limit):
        read += 1
        if wanted(fields):
            found.append((oldest, fields))
            if len(found) == most:
                break
    older = oldest is not None and shard.client.xrevrange(key, streams.after(oldest), count=1)
    return found, LookBackDocument.of(read, oldest, complete=not older)


def find_sent(settings: Settings, shard: Shard, text: str) -> tuple[list[StreamRow], tuple[BatchDocument, ...], int]:
    """
    What the recorded attempts know of a webhook id: the event, if it was sent first or alone, or the batch at each
    endpoint; and how many attempts were read.
    """
    recorded, read = attempts_as(shard, [endpoint.name for endpoint in settings.consumers], text, ATTEMPTS)
    if text.startswith("batch_"):
        return [], tuple(_at_endpoints(settings, shard, text, recorded)), read
    places = {each.attempt.first for each in recorded if each.attempt.event_id == text}
    return [row for found in streams.exactly(shard.client, shard.keys.events, places) for row in found], (), read


def _at_endpoints(
    settings: Settings, shard: Shard, webhook_id: str, recorded: Sequence[RecordedAttempt]
) -> Iterator[BatchDocument]:
    filters = {endpoint.name: EventFilter(endpoint) for endpoint in settings.consumers}
    for name in dict.fromkeys(each.endpoint for each in recorded):
        attempts = [each for each in recorded if each.endpoint == name]
        batch = attempts[0].attempt
        between = islice(streams.read(shard, shard.keys.events, batch.first, batch.last), SEARCH - ATTEMPTS)
        rows = list(islice((row for row in between if filters[name].matches(row[1])), MEMBERS))
        hashed = hashlib.sha256(",".join(event_id(shard.origin, fields) for _, fields in rows).encode()).hexdigest()
        yield BatchDocument(
            shard=shard.name,
            webhook_id=webhook_id,
            endpoint=name,
            count=batch.events,
            events=[MemberDocument.of(shard, row) for row in rows],
            exact=webhook_id == f"batch_{hashed[:32]}",
            attempts=list(map(AttemptDocument.model_validate, attempts)),
        )


class ShowDocument(ShardsDocument, title="sweeperd show ID --json"):
    """An entry, on each shard that knows it; otherwise the event or the batch with this id."""

    shards: list[InspectionDocument]
    events: list[LooseEvent] = Field(description="Events with this id that belong to no entry.")
    batches: list[BatchDocument] = Field(description="Requests with this webhook id.")

    @classmethod
    def of(cls, entries: Sequence[InspectionDocument], sent: Sequence[EventMatches], down: Any) -> "ShowDocument":
        return cls(
            shards=[*entries, *(entry for known in sent for entry in known.entries)],
            events=[event for known in sent for event in known.events],
            batches=[batch for known in sent for batch in known.batches],
            down=down,
        )
