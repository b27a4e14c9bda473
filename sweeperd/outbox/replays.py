"""
A replay: one endpoint gets the events of a span of time again.

It is a consumer group of its own on the stream, which begins at the first of these events, and a note of what it is
about. So a replay copies no event, each of its events is handed out once over all processes, and it goes on where it
was after every kill. The group and the note are removed together when the replay has ended.
"""

import bisect
from dataclasses import dataclass
from typing import cast

import pydantic
import redis

from sweeperd.config import EndpointSettings
from sweeperd.outbox.endpoint_state import CircuitStateStore, EndpointStateStore
from sweeperd.outbox.event import ONLY_FOR, Fields, category, event_type
from sweeperd.outbox.stream import WAITING, Outbox
from sweeperd.outbox.subscription import EventFilter, Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId, milliseconds
from sweeperd.text import decode, rfc3339, whole

#: What the name of a replay's group begins with. The name of no endpoint does.
GROUP_PREFIX = "_replay."
#: Between how many events, as even as it goes, a note holds the places of; up to twice as many.
MARKS = 50
#: The id of an event holds the time when it was added, which is the moment of its expiry. But ids never go back. Where
#: Redis's clock was set back, or a fail-over went to a host whose clock is slow, ids are ahead of the clock, ms.
AHEAD_MS = 60_000
#: Redis 6.2 takes the two readings of its clock one after the other, ms.
BEHIND_MS = 1_000


def replay_group(endpoint: str) -> str:
    """The name of the consumer group of a replay to this endpoint. There is at most one at a time."""
    return GROUP_PREFIX + endpoint


@dataclass(frozen=True, slots=True)
class ReplaySpan:
    """Which events are meant: those with `since_ms` <= their time < `until_ms`, of a tenant, of a type or category."""

    since_ms: int
    until_ms: int
    #: As `decode` makes it of the bytes in Redis.
    tenant: str | None = None
    event_type: str | None = None

    @property
    def first(self) -> bytes:
        """No event of the span has a smaller id."""
        return str(max(0, self.since_ms - BEHIND_MS)).encode()

    @property
    def last(self) -> bytes:
        """No event of the span has a greater id."""
        return str(self.until_ms + AHEAD_MS).encode()

    def matches(self, entry: bytes, fields: Fields) -> bool:
        """Whether the event is one of them. A copy of an event, from the replay of a dead letter, is none."""
        if ONLY_FOR in fields:
            return False
        if self.tenant is not None and decode(fields.get(b"tenant", b"")) != self.tenant:
            return False
        if self.event_type is not None and self.event_type not in (event_type(fields), category(fields)):
            return False
        return self.since_ms <= _time_ms(entry, fields) < self.until_ms


class ReplayNote(pydantic.BaseModel):
    """
    The note of a replay, a field of `sweeperd:groups`. Ids are those of the stream, times are ms on Redis's clock.
    Fields that a later version adds are ignored.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: When it began: the age of older events counts from then.
    made_at: int = 0
    endpoint: str
    since_ms: int
    until_ms: int
    tenant: str | None = None
    event_type: str | None = None
    #: The first and the last of its events, and how many there are.
    first: str
    last: str
    events: int
    #: The ids of the first event and of each `every`-th after it.
    marks: tuple[str, ...] = ()
    every: int = 1
    #: An operator has ended it.
    cancelled: bool = False

    @property
    def group(self) -> str:
        """The name of its consumer group."""
        return replay_group(self.endpoint)

    @property
    def span(self) -> ReplaySpan:
        """Which events it is about."""
        return ReplaySpan(self.since_ms, self.until_ms, self.tenant, self.event_type)

    @property
    def start(self) -> StreamId:
        """The position of its group at first."""
        return StreamId.parse(self.first).before

    def left(self, position: StreamId) -> int:
        """How many events its group has not been given, as exactly as the marks say. `position`: its last event."""
        if position >= StreamId.parse(self.last):
            return 0
        passed = bisect.bisect_right([StreamId.parse(mark) for mark in self.marks], position)
        return self.events - max(0, (passed - 1) * self.every + 1) if passed else self.events


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far a replay is."""

    #: Whether it has ended.
    ended: bool = True
    #: How many events are not delivered, about.
    left: int = 0
    #: How many of them wait for their next attempt.
    waiting: int = 0

    @property
    def only_waits(self) -> bool:
        """Whether all of its events were sent, and each one that is left waits for its next attempt."""
        return not self.ended and self.left == self.waiting


class ReplayCount:
    """Counts the events of a replay as they are read, in the order of the stream, and takes their marks."""

    def __init__(self) -> None:
        self.events = 0
        self.first = self.last = b""
        self.marks: list[bytes] = []
        self.every = 1

    def add(self, entry: bytes) -> None:
        """The next event has this id."""
        if self.events % self.every == 0:
            self.marks.append(entry)
        if len(self.marks) > 2 * MARKS:
            self.marks, self.every = self.marks[::2], 2 * self.every
        self.first = self.first or entry
        self.last = entry
        self.events += 1

    def note(self, endpoint: str, span: ReplaySpan) -> ReplayNote:
        """The note of a replay of these events; `made_at` is missing until it begins."""
        return ReplayNote(
            endpoint=endpoint,
            since_ms=span.since_ms,
            until_ms=span.until_ms,
            tenant=span.tenant,
            event_type=span.event_type,
            first=self.first.decode(),
            last=self.last.decode(),
            events=self.events,
            marks=tuple(mark.decode() for mark in self.marks),
            every=self.every,
        )


class ReplayFilter:
    """The events of a span that one endpoint asks for by its settings."""

    def __init__(self, endpoint: EndpointSettings, span: ReplaySpan) -> None:
        self._span = span
        self._filter = EventFilter(endpoint)

    def matches(self, entry: bytes, fields: Fields) -> bool:
        """Whether the event is one of them."""
        return self._span.matches(entry, fields) and self._filter.matches(fields)


class ReplaySubscription(Subscription):
    """What one replay hands out. All other events of the stream are acknowledged in its group without a request."""

    def __init__(self, endpoint: EndpointSettings, note: ReplayNote) -> None:
        super().__init__(endpoint)
        self.group = note.group
        self.start = note.start
        self._last = StreamId.parse(note.last)
        self._replayed = ReplayFilter(endpoint, note.span)
        self._gets_all = False

    def takes(self, stream_id: bytes, fields: Fields, /) -> bool:
        """Whether the endpoint gets this event again."""
        return StreamId.parse(stream_id) <= self._last and self._replayed.matches(stream_id, fields)


def _time_ms(entry: bytes, fields: Fields) -> int:
    """The time of an event: of its expiry, or of what it is about."""
    for name in (b"expired_at", b"at"):
        time_ms = whole(fields.get(name, b""))
        if time_ms is not None:
            return time_ms
    return milliseconds(entry)


class ReplayStore:
    """Every method raises redis.RedisError."""

    def __init__(self, shard: Shard) -> None:
        self._client = shard.client
        self._keys = [shard.keys.events, shard.keys.groups]
        self._begin = Script("delivery/begin_replay")
        self._end = Script("delivery/end_replay")
        self._cancel = Script("delivery/cancel_replay")

    def read(self, endpoint: str) -> ReplayNote | None:
        """The replay to this endpoint; None: there is none."""
        found = self._client.hget(self._keys[1].decode(), replay_group(endpoint))
        return _parse(found) if isinstance(found, bytes) else None

    def all(self) -> dict[str, ReplayNote]:
        """Each replay by its endpoint."""
        fields = cast(dict[bytes, bytes], self._client.hgetall(self._keys[1].decode()))
        notes = [_parse(value) for group, value in fields.items() if group.startswith(GROUP_PREFIX.encode())]
        return {note.endpoint: note for note in notes if note is not None}

    def begin(self, note: ReplayNote) -> str:
        """
        Begin it, at maxmemory too. Returns `begun`; `running`: another one to this endpoint has not ended; `gone`: its
        first event is in the stream no more.
        """
        args = [note.group, str(note.start), note.first, note.model_dump_json()]
        return cast(bytes, self._begin.run(self._client, Call(self._keys, args))).decode()

    def end(self, note: ReplayNote, *, by_force: bool = False) -> bool:
        """
        Remove its group and its note. False where it has ended already, or has pending events and not `by_force`. Call
        it once its group has been given all of its events.
        """
        call = Call(self._keys, [note.group, note.made_at, int(by_force)])
        return bool(self._end.run(self._client, call))

    def cancel(self, note: ReplayNote) -> bool:
        """Have all processes leave it alone. False where it has ended already."""
        cancelled = note.model_copy(update={"cancelled": True}).model_dump_json()
        return bool(self._cancel.run(self._client, Call(self._keys[1:], [note.group, note.made_at, cancelled])))

    def position(self, note: ReplayNote) -> StreamId | None:
        """The last event that its group has been given; None: the group is not there."""
        info = streams.groups(self._client, self._keys[0]).get(note.group.encode())
        return None if info is None else StreamId.parse(info["last-delivered-id"])

    def exhausted(self, note: ReplayNote) -> bool:
        """Whether its group has been given all of its events."""
        position = self.position(note)
        if position is None:
            return False
        last = bytes(StreamId.parse(note.last))
        return not self._client.xrange(self._keys[0], streams.after(bytes(position)), last, 1)

    def progress(self, note: ReplayNote) -> ReplayProgress:
        """How far it is. One whose group is lost has all of its events left: with a new group it begins anew."""
        position, found = self.position(note), self.read(note.endpoint)
        if found is None or found.made_at != note.made_at:
            return ReplayProgress()
        if position is None:
            return ReplayProgress(False, note.events)
        untaken = 0 if self.exhausted(note) else max(1, note.left(position))
        try:
            summary = self._client.xpending(self._keys[0], note.group)
        except redis.ResponseError as error:
            if is_missing_group(error):
                return ReplayProgress()  # it has ended since its note was read
            raise
        waiting = sum(row["pending"] for row in summary["consumers"] if row["name"] in WAITING)
        left = min(note.events, untaken + summary["pending"])  # what is not taken is an estimate
        return ReplayProgress(False, left, waiting)


def _parse(value: bytes) -> ReplayNote | None:
    try:
        return ReplayNote.model_validate_json(value)
    except ValueError:
        return None  # written by hand, and wrongly


def count_events(shard: Shard, endpoint: EndpointSettings, span: ReplaySpan) -> ReplayNote:
    """Count the events of the span that the endpoint asks for by its settings. Raises redis.RedisError."""
    wanted, count = ReplayFilter(endpoint, span), ReplayCount()
    for entry, fields in streams.read(shard, shard.keys.events, span.first, span.last):
        if wanted.matches(entry, fields):
            count.add(entry)
    return count.note(endpoint.name, span)


def begin(shard: Shard, counted: ReplayNote) -> tuple[str, ReplayNote]:
    """
    Begin the replay of the counted events: `begun`, `running` where another one to this endpoint has not ended, `gone`
    where its first event was trimmed since. Returns that and its note. Raises redis.RedisError.
    """
    note = counted.model_copy(update={"made_at": shard.read_clock()})
    return ReplayStore(shard).begin(note), note


def running(shard: Shard, endpoint: str) -> ReplayNote | None:
    """The replay to this endpoint that has begun and not ended. Raises redis.RedisError."""
    return ReplayStore(shard).read(endpoint)


def cancel(shard: Shard, note: ReplayNote) -> bool:
    """
    End a replay before its end: no more of its events are sent, within seconds. False where it has ended already.
    Raises redis.RedisError.
    """
    store = ReplayStore(shard)
    if not store.cancel(note):
        return False
    end_cancelled(store, Outbox(shard, "operator"), note)
    return True


def progress(shard: Shard, note: ReplayNote) -> ReplayProgress:
    """How far this replay is. Raises redis.RedisError."""
    return ReplayStore(shard).progress(note)


def end_cancelled(store: ReplayStore, outbox: Outbox, note: ReplayNote) -> bool:
    """
    End a cancelled replay, unless a process that lives has events of it in hand. Returns whether it has ended. Raises
    redis.RedisError.
    """
    try:
        in_hand = outbox.in_hand(note.group)
    except redis.ResponseError as error:
        if not is_missing_group(error):
            raise
        in_hand = False
    if in_hand:
        return False
    store.end(note, by_force=True)
    return True


def obstacle(shard: Shard, endpoint: str) -> str:
    """Why nothing of it is sent at this moment; empty where it is sent. Raises redis.RedisError."""
    if EndpointStateStore(shard).read(endpoint).paused:
        return f"{endpoint} is paused: its events wait until `sweeperd endpoints resume {endpoint}`"
    if not CircuitStateStore(shard).read(endpoint).processes:
        return f"no process delivers to {endpoint} at this moment: its events wait for one"
    return ""


def described(note: ReplayNote) -> str:
    """Which events a replay is about, for people: the options that name the same ones."""
    options = [f"--since {rfc3339(note.since_ms)} --until {rfc3339(note.until_ms)}"]
    if note.tenant is not None:
        options.append(f"--tenant {note.tenant}")
    if note.event_type is not None:
        options.append(f"--event-type {note.event_type}")
    return " ".join(options)
