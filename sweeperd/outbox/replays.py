"""
Replays the events of a time span to one endpoint.

A replay is a separate consumer group, which starts at the first of these events, with a note about the span. It copies
no events, delivers each event once over all processes, and continues after a crash. When it ends, group and note are
removed together.
"""

import bisect
import contextlib
import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import redis

from sweeperd.config import EndpointSettings
from sweeperd.document import Note
from sweeperd.logs import LogThrottle
from sweeperd.outbox.circuits import CircuitStateStore
from sweeperd.outbox.endpoint_state import EndpointStateStore
from sweeperd.outbox.event import ONLY_FOR, Fields, category, event_type
from sweeperd.outbox.filters import FilterNote, read_filters
from sweeperd.outbox.groups import REPLAY_PREFIX, is_waiting
from sweeperd.outbox.stream import Outbox
from sweeperd.outbox.subscription import EventFilter, Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, milliseconds
from sweeperd.text import decode, rfc3339, whole

log = logging.getLogger(__name__)

_PREFIX = REPLAY_PREFIX.encode()
#: A note has between this number of marks, evenly spread over the events, and twice as many.
MARKS = 50
#: An event's id has the time of its expiry. Ids never go back, so they are ahead of the clock after it was set back or
#: after a failover to a host with a slow clock. How far ahead they may be, ms.
AHEAD_MS = 60_000
#: Redis 6.2 reads the clock separately for the id and for the expiry, so an id may be this far behind, ms.
BEHIND_MS = 1_000


def first_searched(since_ms: int) -> bytes:
    """A lower bound of the ids of the events from this time on."""
    return str(max(0, since_ms - BEHIND_MS)).encode()


def last_searched(shard: Shard, until_ms: int) -> bytes:
    """An upper bound of the ids of the events before this time: the stream's end while Redis's clock is behind it."""
    newest = streams.last_id(shard.client, shard.keys.events)
    behind = milliseconds(newest) > shard.read_clock() + AHEAD_MS
    return streams.LAST if behind else str(until_ms + AHEAD_MS).encode()


def end_if_ahead(shard: Shard) -> int | None:
    """Where a span that has the newest event ends, ms, if Redis's clock was set back and is behind it; else None."""
    newest = milliseconds(streams.last_id(shard.client, shard.keys.events))
    # The clock is read last: an event of this very moment is not ahead.
    return newest + 1 if newest > shard.read_clock() else None


def replay_group(endpoint: str) -> str:
    """The name of the consumer group of the replay to this endpoint. Only one replay runs at a time."""
    return REPLAY_PREFIX + endpoint


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """Selects events with `since_ms` <= time < `until_ms`, optionally of one tenant, and of one type or category."""

    since_ms: int
    until_ms: int
    #: As `decode` returns it.
    tenant: str | None = None
    event_type: str | None = None

    def matches(self, entry: bytes, fields: Fields) -> bool:
        """Whether the event is selected. A replayed dead letter never is."""
        if ONLY_FOR in fields:
            return False
        if self.tenant is not None and decode(fields.get(b"tenant", b"")) != self.tenant:
            return False
        if self.event_type is not None and self.event_type not in (event_type(fields), category(event_type(fields))):
            return False
        return self.since_ms <= time_of(entry, fields) < self.until_ms


class ReplayNote(Note):
    """The note of a replay, a field of `sweeperd:groups`. Times are ms on Redis's clock."""

    #: When the replay began. The age of older events counts from then.
    made_at: int = 0
    endpoint: str
    since_ms: int
    until_ms: int
    tenant: str | None = None
    event_type: str | None = None
    #: The stream ids of the first and the last event, and the number of events.
    first: str
    last: str
    events: int
    #: The ids of the first event and of every `every`-th after it.
    marks: tuple[str, ...] = ()
    every: int = 1
    #: Whether an operator has cancelled the replay.
    cancelled: bool = False

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Like every note; also None if an id is malformed."""
        with contextlib.suppress(ValueError):
            if note := super().parse(text):
                for entry in (note.first, note.last, *note.marks):
                    StreamId.parse(entry)
                return note
        return None

    @property
    def group(self) -> str:
        return replay_group(self.endpoint)

    @property
    def span(self) -> ReplaySpan:
        return ReplaySpan(self.since_ms, self.until_ms, self.tenant, self.event_type)

    @property
    def start(self) -> StreamId:
        return StreamId.parse(self.first).before

    def left(self, position: StreamId) -> int:
        """Roughly how many events the group has not read, if its last one is `position`."""
        if position >= StreamId.parse(self.last):
            return 0
        passed = bisect.bisect_right([StreamId.parse(mark) for mark in self.marks], position)
        return self.events - max(0, (passed - 1) * self.every + 1) if passed else self.events


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    #: Whether the replay has ended.
    ended: bool = True
    #: Roughly how many events are not delivered yet.
    left: int = 0
    #: How many events wait for a retry.
    waiting: int = 0
    #: Whether the note was lost before the end: no process sends the events that are left.
    lost: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether processes still send its events."""
        return not self.ended and not self.lost

    @property
    def only_waits(self) -> bool:
        """Whether every event that is left waits for a retry."""
        return self.goes_on and self.left == self.waiting


class ReplayCount:
    """Counts and marks the events of a replay."""

    def __init__(self) -> None:
        self.events = 0
        self.first = self.last = b""
        self.marks: list[bytes] = []
        self.every = 1

    def add(self, entry: bytes) -> None:
        """Count the next event of the stream."""
        if self.events % self.every == 0:
            self.marks.append(entry)
        if len(self.marks) > 2 * MARKS:
            self.marks, self.every = self.marks[::2], 2 * self.every
        self.first = self.first or entry
        self.last = entry
        self.events += 1

    def note(self, endpoint: str, span: ReplaySpan) -> ReplayNote:
        """The note of a replay of these events. `made_at` is set when the replay begins."""
        return ReplayNote(
            **asdict(span),
            endpoint=endpoint,
            first=self.first.decode(),
            last=self.last.decode(),
            events=self.events,
            marks=tuple(mark.decode() for mark in self.marks),
            every=self.every,
        )


class ReplaySubscription(Subscription):
    """Selects the events of one replay."""

    def __init__(self, endpoint: EndpointSettings, note: ReplayNote) -> None:
        super().__init__(endpoint)
        self.group = note.group
        self.start = note.start
        self._last = StreamId.parse(note.last)
        self._span = note.span
        self._made_at = note.made_at
        self.gets_all, self.selects = False, None  # the span selects each event

    def takes(self, stream_id: bytes, fields: Fields, by: EventFilter | None = None, /) -> bool:
        in_span = StreamId.parse(stream_id) <= self._last and self._span.matches(stream_id, fields)
        return in_span and not self.is_subject(fields) and (by or self._filter).matches(fields)

    def goes_on(self, noted: bytes | None) -> bool:
        """
        Whether the group is still that of this replay. `noted`: the note of the group as read from Redis. The next
        replay to this endpoint has a group of the same name.
        """
        note = ReplayNote.parse(noted) if noted else None
        return note is not None and note.made_at == self._made_at


def time_of(entry: bytes, fields: Fields) -> int:
    """The time of the expiry, or of the operational event."""
    for name in (b"expired_at", b"at"):
        time_ms = whole(fields.get(name, b""))
        if time_ms is not None:
            return time_ms
    return milliseconds(entry)


class ReplayStore:
    """The running replays of one shard. Every method raises redis.RedisError."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._client = shard.client
        self._log_due = LogThrottle()
        self._keys = [shard.keys.events, shard.keys.groups]
        self._begin = Script("delivery/begin_replay")
        self._end = Script("delivery/end_replay")
        self._cancel = Script("delivery/cancel_replay")

    def read(self, endpoint: str) -> ReplayNote | None:
        """The note of the replay; None if there is none, or if it is unreadable."""
        found = self._text(endpoint)
        return None if found is None else ReplayNote.parse(found)

    def is_unreadable(self, endpoint: str) -> bool:
        """Whether there is a note that cannot be read."""
        found = self._text(endpoint)
        return found is not None and ReplayNote.parse(found) is None

    def _text(self, endpoint: str) -> bytes | None:
        return cast(bytes | None, self._client.hget(self._keys[1].decode(), replay_group(endpoint)))

    def all(self) -> dict[str, ReplayNote]:
        """All replays by endpoint. An unreadable note is skipped, and logged once a minute."""
        fields = cast(dict[bytes, bytes], self._client.hgetall(self._keys[1].decode()))
        found = {group: ReplayNote.parse(note) for group, note in fields.items() if group.startswith(_PREFIX)}
        unread = sorted(decode(group) for group, note in found.items() if note is None)
        if unread and self._log_due():
            log_fields = {"shard": self._shard.name, "key": decode(self._keys[1]), "fields": unread}
            told = "the note of a replay cannot be read; `sweeperd replay --cancel` removes it"
            log.warning(told, extra=log_fields)
        return {note.endpoint: note for note in found.values() if note is not None}

    def begin(self, note: ReplayNote) -> str:
        """Begin a replay, even at maxmemory. Returns `begun`, `running` (another is), `gone` (the first event is)."""
        args = [note.group, str(note.start), note.first, note.model_dump_json()]
        return cast(bytes, self._begin.run(self._client, Call(self._keys, args))).decode()

    def remove_unreadable(self, endpoint: str) -> bool:
        """Remove a note that cannot be read, and the replay's group. False if there is no such note."""
        if not self.is_unreadable(endpoint):
            return False
        # While the note exists, no other replay can begin.
        if replay_group(endpoint).encode() in self.groups():
            self._client.xgroup_destroy(self._keys[0], replay_group(endpoint))
        return bool(self._client.hdel(self._keys[1].decode(), replay_group(endpoint)))

    def end(self, note: ReplayNote, *, by_force: bool = False) -> bool:
        """Remove group and note. False if the replay has ended already, or has events left and not `by_force`."""
        call = Call(self._keys, [note.group, note.made_at, int(by_force)])
        return bool(self._end.run(self._client, call))

    def cancel(self, note: ReplayNote) -> bool:
        """Stop all processes from sending the replay's events. False if the replay has already ended."""
        cancelled = note.model_copy(update={"cancelled": True}).model_dump_json()
        return bool(self._cancel.run(self._client, Call(self._keys[1:], [note.group, note.made_at, cancelled])))

    def groups(self) -> dict[bytes, dict[str, Any]]:
        """The groups of the stream, to look at many replays."""
        return streams.groups(self._client, self._keys[0])

    def position(self, note: ReplayNote, groups: Mapping[bytes, Any] | None = None) -> StreamId | None:
        """The last event that the group has read; None if the group is missing. `groups`: those of the stream."""
        info = (self.groups() if groups is None else groups).get(note.group.encode())
        return None if info is None else StreamId.parse(info["last-delivered-id"])

    def exhausted(self, note: ReplayNote, groups: Mapping[bytes, Any] | None = None) -> bool:
        position = self.position(note, groups)
        return position is not None and self._has_read_all(note, position)

    def _has_read_all(self, note: ReplayNote, position: StreamId) -> bool:
        last = bytes(StreamId.parse(note.last))
        return not self._client.xrange(self._keys[0], streams.after(bytes(position)), last, 1)

    def progress(self, note: ReplayNote, groups: Mapping[bytes, Any] | None = None) -> ReplayProgress:
        """How far the replay is; all events are left if its group was lost. `groups`: those of the stream."""
        position, found = self.position(note, groups), self.read(note.endpoint)
        lost = found is None
        if lost:
            # Note and group are removed together at the end. Read again, because another replay may have begun.
            position, found = self.position(note), self.read(note.endpoint)
            if position is None:
                return ReplayProgress()
        if found is not None and (lost or found.made_at != note.made_at):
            return ReplayProgress()
        if position is None:
            return ReplayProgress(False, note.events)
        untaken = 0 if self._has_read_all(note, position) else max(1, note.left(position))
        try:
            summary = self._client.xpending(self._keys[0], note.group)
        except redis.ResponseError as error:
            if is_missing_group(error):
                return ReplayProgress()  # the replay has ended since the note was read
            raise
        waiting = sum(row["pending"] for row in summary["consumers"] if is_waiting(row["name"]))
        left = min(note.events, untaken + summary["pending"])  # `untaken` is an estimate
        return ReplayProgress() if lost and not left else ReplayProgress(False, left, waiting, lost)


def count_events(shard: Shard, endpoint: EndpointSettings, span: ReplaySpan) -> ReplayNote:
    """Count the events of the span that the endpoint's filter selects. Raises redis.RedisError."""
    wanted, count = EventFilter(endpoint), ReplayCount()
    first, last = first_searched(span.since_ms), last_searched(shard, span.until_ms)
    for entry, fields in streams.read(shard, shard.keys.events, first, last):
        if span.matches(entry, fields) and wanted.matches(fields):
            count.add(entry)
    return count.note(endpoint.name, span)


def begin(shard: Shard, counted: ReplayNote) -> tuple[str, ReplayNote]:
    """Begin the replay. Returns the outcome of `ReplayStore.begin` and the note. Raises redis.RedisError."""
    note = counted.model_copy(update={"made_at": shard.read_clock()})
    return ReplayStore(shard).begin(note), note


def dead_letters(shard: Shard, note: ReplayNote) -> int:
    """How many of the replay's events have become dead letters since it began. Raises redis.RedisError."""
    first, last, endpoint = StreamId.parse(note.first), StreamId.parse(note.last), note.endpoint.encode()
    count = 0
    for _, letter in streams.read(shard, shard.keys.dead_letters, b"%d" % note.made_at):
        with contextlib.suppress(KeyError, ValueError):  # somebody else's entry
            event = letter[b"event"]
            if letter[b"endpoint"] == endpoint and first <= StreamId.parse(event) <= last:
                count += note.span.matches(event, letter)
    return count


def cancel(shard: Shard, note: ReplayNote) -> bool:
    """Cancel a replay: sending stops within seconds. False if it has already ended. Raises redis.RedisError."""
    store = ReplayStore(shard)
    if not store.cancel(note):
        return False
    end_cancelled(store, Outbox(shard, "operator"), note)
    return True


def cancel_unreadable(shard: Shard, endpoint: str) -> bool:
    """
    End a replay whose note cannot be read: no process begins to send its events. False if a living process still has
    events of it in hand. Raises redis.RedisError.
    """
    if _in_hand(Outbox(shard, "operator"), replay_group(endpoint)):
        return False
    ReplayStore(shard).remove_unreadable(endpoint)
    return True


def end_cancelled(store: ReplayStore, outbox: Outbox, note: ReplayNote) -> bool:
    """End a cancelled replay unless a living process has events of it in hand. Returns whether it ended."""
    if _in_hand(outbox, note.group):
        return False
    store.end(note, by_force=True)
    return True


def _in_hand(outbox: Outbox, group: str) -> bool:
    try:
        return outbox.in_hand(group)
    except redis.ResponseError as error:
        if not is_missing_group(error):
            raise
        return False


def obstacle(shard: Shard, endpoint: str) -> str:
    """Why a replay sends no events now; empty if it does. Raises redis.RedisError."""
    if EndpointStateStore(shard).read(endpoint).paused:
        return f"{endpoint} is paused: its events wait until `sweeperd endpoints resume {endpoint}`"
    circuit = CircuitStateStore(shard).read(endpoint)
    if not circuit.processes:
        return f"no process delivers to {endpoint} now: its events wait for one"
    why = circuit.reason or circuit.stalled
    return f"deliveries to {endpoint} fail: {why}" if why else ""


def filter_gap(shard: Shard, endpoint: EndpointSettings) -> str:
    """Why the processes may skip events that these settings select; empty if one has this filter, or none has any."""
    living = read_filters(shard).by_endpoint.get(endpoint.name, {})
    if not living or FilterNote.of(endpoint).owner in living:
        return ""
    name = endpoint.name
    return f"no process has the filter that these settings give {name}, so it may skip events: reload the daemons first"


def described(note: ReplayNote) -> str:
    """The command-line options that select the events of a replay, as a shell takes them."""
    options = [f"--since {rfc3339(note.since_ms)} --until {rfc3339(note.until_ms)}"]
    if note.tenant is not None:
        options.append(f"--tenant {shlex.quote(note.tenant)}")
    if note.event_type is not None:
        options.append(f"--event-type {shlex.quote(note.event_type)}")
    return " ".join(options)
