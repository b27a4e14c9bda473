"""
The event stream and its consumer groups: read, claim, acknowledge, trim, dead-letter.

Each endpoint is a group. An event that a group has taken and not acknowledged is pending. A pending event has an owner:
the process that has it in hand and sends a heartbeat every few seconds, or `PARKED` while the event waits for its next
delivery. Where the owner has sent no heartbeat for TAKE_OVER_AFTER, its process is dead and any other takes the event.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from sweeperd.config import Start
from sweeperd.delivery.announcements import Announcements
from sweeperd.delivery.group_note import made_at
from sweeperd.store import streams
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.store.streams import FIRST, LAST, START, StreamId, StreamRow, after, milliseconds
from sweeperd.text import decode

#: The owner of events that wait for their next delivery.
PARKED = b"(parked)"
#: The same, of events that were refused alone: they share a request with no other event.
PARKED_ALONE = b"(parked alone)"
#: Both are no processes.
WAITING = frozenset({PARKED, PARKED_ALONE})
#: The field of a replayed event: the one endpoint that receives it. Such an entry is no expiry.
ONLY_FOR = b"only_for"
#: An owner that has sent no heartbeat for so long is dead, seconds.
TAKE_OVER_AFTER = 15.0
#: How many pending events are listed in one round trip.
PAGE = 250
#: How many pending events change their owner in one command. On Redis 7.0, 200 of them take 0.5 ms.
CLAIM_SLICE = 200
#: The idle time of an event that any process may take at once, ms: longer than every wait.
LONG_IDLE_MS = 10**10
#: Up to how many a group's undelivered events are counted where the server does not count them itself (Redis 6.2).
COUNT_LIMIT = 10_000

#: How long the stream is trimmed without a pause, seconds.
TRIM_SECONDS = 1.0

#: The greatest second half of an id.
_GREATEST = 2**64 - 1


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One event that a group has taken."""

    id: bytes
    #: How many times it was taken for delivery, this time included.
    deliveries: int
    fields: dict[bytes, bytes]
    #: Whether it was refused alone, and so travels alone from then on.
    alone: bool = False

    @property
    def size(self) -> int:
        """The length of its names and values, bytes."""
        return sum(map(len, self.fields)) + sum(map(len, self.fields.values()))

    @property
    def added_ms(self) -> int:
        """When it was added, ms on Redis's clock: the first half of its id."""
        return milliseconds(self.id)

    @property
    def only_for(self) -> str | None:
        """The one endpoint that receives it, because an operator has replayed it; None: every endpoint."""
        name = self.fields.get(ONLY_FOR)
        return None if name is None else decode(name)


@dataclass(frozen=True, slots=True)
class Pending:
    """One event that a group has not acknowledged."""

    id: bytes
    owner: bytes
    idle_ms: int
    deliveries: int

    @property
    def added_ms(self) -> int:
        """When it was added, ms on Redis's clock."""
        return milliseconds(self.id)


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """The events that a group has not acknowledged: pending ones and ones not taken yet."""

    events: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class Replication:
    """How many replicas must have an expiry before its event is delivered, and how long they may take."""

    replicas: int = 0
    timeout_seconds: float = 1.0


class Outbox:
    """The event stream of one shard. Every method raises redis.RedisError."""

    def __init__(
        self,
        shard: Shard,
        consumer: str,
        replication: Replication | None = None,
        announcements: Announcements | None = None,
    ) -> None:
        self._shard = shard
        self._replication = replication or Replication()
        self._announcements = announcements or Announcements(shard.clock)
        self._client = shard.client
        self._key = shard.keys.events
        self._dead_letters = shard.keys.dead_letters
        self._notes = shard.keys.groups
        #: The name of this process in the groups.
        self.consumer = consumer
        self._consumer = consumer.encode()
        self._dead_letter = Script("delivery/dead_letter")
        self._leave = Script("delivery/leave")
        self._make_due = Script("delivery/make_due")
        self._make_group = Script("delivery/make_group")
        #: Up to here each group has acknowledged every event. A group that is made again starts here.
        self.positions: dict[str, StreamId] = {}

    def ensure_group(self, group: str, start: Start = "now") -> int:
        """
        Make the group where it is missing, at maxmemory too. A group that this process has not seen begins at `start`.
        A group that it has seen starts again at the first event that it had not acknowledged: some events are delivered
        again, and none is lost. Returns when the group was made where it began in the past, ms; else 0.
        """
        info = self._groups().get(group.encode())
        if info is None:
            seen, past = group in self.positions, start != "now"
            position = self.positions.setdefault(group, self._first_position(start))
            note = "" if seen else "backfill" if past else "new"
            self._make_group.run(self._client, Call([self._key, self._notes], [group, str(position), note]))
        else:
            self.positions[group] = self._first_needed(group, info)
        return made_at(self._shard, group)

    def _first_position(self, start: Start) -> StreamId:
        """A group that is made here gets the events after this id."""
        if start == "now":
            return StreamId.parse(streams.last_id(self._client, self._key))
        if start == "beginning":
            return START
        return _before(StreamId.at(self._shard.read_clock() - start // timedelta(milliseconds=1)))

    def read(self, group: str, count: int, block_ms: int = 0) -> list[OutboxEntry]:
        """Take new events, waiting up to `block_ms` for one (0: not at all)."""
        block = block_ms or None
        reply = self._client.xreadgroup(group, self.consumer, {self._key: ">"}, count=count, block=block)
        return [OutboxEntry(entry, 1, fields) for entry, fields in _first_stream(reply)]

    def pending(self, group: str, previous: bytes | None = None, owner: bytes | None = None) -> list[Pending]:
        """
        A page of the events that a group has not acknowledged, by id: PAGE of them at most, from the first one after
        `previous` on, of one owner or of all. Less than PAGE: it is the last page.
        """
        first = FIRST if previous is None else after(previous)
        rows = self._client.xpending_range(self._key, group, first, LAST, PAGE, owner)
        return [
            Pending(row["message_id"], row["consumer"], row["time_since_delivered"], row["times_delivered"])
            for row in cast(list[dict[str, Any]], rows)
        ]

    def parked(self, group: str, previous: bytes | None = None) -> list[Pending]:
        """The same, of the events that wait for their next delivery; events that travel alone come last."""
        return self.pending(group, previous, PARKED) or self.pending(group, previous, PARKED_ALONE)

    def held_elsewhere(self, group: str) -> bool:
        """Whether another process has events in hand, or had when it died."""
        summary = self._client.xpending(self._key, group)
        return any(row["name"] not in (*WAITING, self._consumer) for row in summary["consumers"])

    def claim(self, group: str, wanted: Sequence[Pending], min_idle_ms: int) -> list[OutboxEntry]:
        """
        Take these for another delivery, except events that another replica has taken since: a claim resets the idle
        time. An event that is not in the stream any more is returned without fields and is not claimed, because Redis 7
        would forget that it is pending.
        """
        if not wanted:
            return []
        look = self._client.pipeline(transaction=False)
        for pending in wanted:
            look.xrange(self._key, pending.id, pending.id)
        there = [pending for pending, found in zip(wanted, look.execute(), strict=True) if found]
        gone = [OutboxEntry(pending.id, pending.deliveries, {}) for pending in wanted if pending not in there]
        if not there:
            return gone
        claimed: dict[bytes, dict[bytes, bytes]] = {}
        for part in _slices([pending.id for pending in there]):
            reply = self._client.xclaim(self._key, group, self._consumer, min_idle_ms, part)
            claimed |= {entry: fields for entry, fields in cast(list[StreamRow], reply) if entry}
        return gone + [
            OutboxEntry(pending.id, pending.deliveries + 1, claimed[pending.id], pending.owner == PARKED_ALONE)
            for pending in there
            if pending.id in claimed
        ]

    def confirmed(self, group: str, entries: Sequence[OutboxEntry]) -> bool:
        """
        Whether as many replicas as the settings ask for have these events, and with them the expiries. Waits for the
        replicas; true at once where none are asked for.
        """
        wanted = self._replication.replicas
        ids: list[Any] = [entry.id for entry in entries if entry.fields]
        if not wanted or not ids:
            return True
        # The answer has to come before the socket gives up.
        timeout = min(self._replication.timeout_seconds, self._shard.socket_timeout / 2)
        pipeline = self._client.pipeline(transaction=False)
        # WAIT is about the writes of its own connection. Other connections wrote the expiries, but a replica applies
        # all writes in one order: one that has this XCLAIM has the expiries. XREADGROUP may have begun before them.
        pipeline.xclaim(self._key, group, self._consumer, 0, ids, idle=0, justid=True)
        pipeline.wait(wanted, int(timeout * 1000))
        _, having = pipeline.execute()
        return int(having) >= wanted

    def heartbeat(self, group: str, ids: Sequence[bytes]) -> None:
        """These are in hand, so no other process may take them. In several commands: other clients come in between."""
        self._own(group, self._consumer, ids, idle_ms=0)

    def nack(self, group: str, entries: Sequence[OutboxEntry]) -> None:
        """Park events that were sent in vain; their wait begins now."""
        for owner in (PARKED, PARKED_ALONE):
            ids = [entry.id for entry in entries if entry.alone == (owner == PARKED_ALONE)]
            self._own(group, owner, ids, idle_ms=0)

    def release(self, group: str, entries: Sequence[OutboxEntry]) -> None:
        """Park events that were taken and not sent, for any process to take at once."""
        by_deliveries: dict[int, list[bytes]] = {}
        for entry in entries:
            by_deliveries.setdefault(entry.deliveries, []).append(entry.id)
        for deliveries, ids in by_deliveries.items():
            self._own(group, PARKED, ids, idle_ms=LONG_IDLE_MS, deliveries=deliveries - 1)

    def make_due(self, group: str) -> int:
        """End the waits of all parked events. Returns how many there are. A group that is missing has none."""
        if group.encode() not in self._groups():
            return 0
        return sum(self._make_owners_due(group, owner) for owner in (PARKED, PARKED_ALONE))

    def _make_owners_due(self, group: str, owner: bytes) -> int:
        count, first = 0, FIRST
        while True:
            call = Call([self._key], [group, owner, first, CLAIM_SLICE, LONG_IDLE_MS])
            made, *last = cast(list[Any], self._make_due.run(self._client, call))
            count += int(made)
            if made < CLAIM_SLICE:
                return count
            first = after(last[0])

    def acknowledge(self, group: str, ids: Sequence[bytes]) -> None:
        """The group does not need these any more."""
        if ids:
            self._client.xack(self._key, group, *ids)

    def dead_letter(self, group: str, entry: OutboxEntry, reason: str) -> bool:
        """Replace a pending event by a dead letter. False where it was not pending any more."""
        event = self._announcements.delivery_failed(group, entry.fields, entry.deliveries, reason)
        call = Call([self._key, self._dead_letters], [group, entry.id, reason, entry.deliveries, *event])
        return bool(self._dead_letter.run(self._client, call))

    def untaken(self, group: str, before_ms: int, count: int) -> int:
        """How many events, up to `count`, were added before then and have not been taken by the group."""
        info = self._groups().get(group.encode())
        if info is None:
            return 0
        last = str(before_ms - 1).encode()
        return len(self._range(after(info["last-delivered-id"]), last, count))

    def backlog(self, group: str, limit: int | None = COUNT_LIMIT) -> GroupBacklog:
        """
        How many events a group has not acknowledged and how old the oldest is. Redis 6.2 does not count what has not
        been taken: there it is counted up to `limit` (None: to the end).
        """
        info = self._groups().get(group.encode())
        if info is None:
            return GroupBacklog(0, 0.0)
        untaken, first = self._count_untaken(info, limit)
        oldest = first
        if info["pending"]:
            summary = self._client.xpending(self._key, group)
            oldest = summary["min"] or first
        if oldest is None:
            return GroupBacklog(info["pending"], 0.0)
        age = self._shard.clock.now_ms() - milliseconds(oldest)
        return GroupBacklog(info["pending"] + untaken, max(0.0, age / 1000))

    def trim(self, configured: Iterable[str], retention_ms: int, max_age_ms: int) -> int:
        """
        Remove events that are older than the retention and that every configured group has acknowledged; a group that
        is not configured holds them for `max_age_ms` at most. Returns how many were removed. Whole nodes of the stream
        are removed at once, so a few older ones stay. What takes longer than TRIM_SECONDS is left to the next call.
        """
        now = self._shard.read_clock()
        keep_from = StreamId.at(now - retention_ms)
        wanted = set(configured)
        groups = self._groups()
        for name, info in groups.items():
            first = self._first_needed(decode(name), info)
            if decode(name) in wanted:
                self.positions[decode(name)] = first
            keep_from = min(keep_from, first if decode(name) in wanted else max(first, StreamId.at(now - max_age_ms)))
        for unmade in wanted - {decode(name) for name in groups}:
            # It could not be made yet. Once it is made it takes everything from its position on.
            keep_from = min(keep_from, self.positions.get(unmade, START))
        return self._trim(str(keep_from))

    def _trim(self, keep_from: str) -> int:
        # One XTRIM with `~` removes 10,000 entries at most, so that it does not hold the server for long.
        removed, until = 0, time.monotonic() + TRIM_SECONDS
        while count := int(self._client.xtrim(self._key, minid=keep_from, approximate=True)):
            removed += count
            if time.monotonic() > until:
                break
        return removed

    def leave(self, group: str, consumer: bytes | None = None) -> bool:
        """Remove a consumer (by default this process) from the group, unless it still holds events."""
        return bool(self._leave.run(self._client, Call([self._key], [group, consumer or self._consumer])))

    def remove_silent_consumers(self, group: str) -> int:
        """Remove the consumers of processes that are gone and hold nothing. Returns how many."""
        if group.encode() not in self._groups():
            return 0
        consumers = self._client.xinfo_consumers(self._key, group)
        return sum(
            self.leave(group, consumer["name"])
            for consumer in consumers
            if consumer["name"] not in (*WAITING, self._consumer)
            and consumer["pending"] == 0
            and consumer["idle"] > TAKE_OVER_AFTER * 1000
        )

    def _groups(self) -> dict[bytes, dict[str, Any]]:
        return streams.groups(self._client, self._key)

    def _own(self, group: str, owner: bytes, ids: Sequence[bytes], idle_ms: int, deliveries: int | None = None) -> None:
        for part in _slices(ids):
            self._client.xclaim(self._key, group, owner, 0, part, idle=idle_ms, retrycount=deliveries, justid=True)

    def _range(self, first: bytes, last: bytes, count: int) -> list[StreamRow]:
        return cast(list[Any], self._client.xrange(self._key, first, last, count=count))

    def _count_untaken(self, info: dict[str, Any], limit: int | None) -> tuple[int, bytes | None]:
        """How many events a group has not taken, and the first of them."""
        position = cast(bytes, info["last-delivered-id"])
        rows = self._range(after(position), LAST, 1)
        if not rows:
            return 0, None
        first = rows[0][0]
        if info.get("lag") is not None:
            return cast(int, info["lag"]), first
        count = 0
        while limit is None or count < limit:
            rows = self._range(after(position), LAST, 1000)
            if not rows:
                break
            count, position = count + len(rows), rows[-1][0]
        return count, first

    def _first_needed(self, group: str, info: dict[str, Any]) -> StreamId:
        """The group has acknowledged every event up to this id."""
        if info["pending"]:
            summary = self._client.xpending(self._key, group)
            if summary["min"]:
                return _before(StreamId.parse(summary["min"]))
        return StreamId.parse(info["last-delivered-id"])


def _before(entry: StreamId) -> StreamId:
    """The greatest id that is smaller."""
    if entry.sequence:
        return StreamId(entry.milliseconds, entry.sequence - 1)
    return StreamId(entry.milliseconds - 1, _GREATEST) if entry.milliseconds else START


def _slices(ids: Sequence[bytes]) -> Iterator[list[Any]]:
    for start in range(0, len(ids), CLAIM_SLICE):
        yield list(ids[start : start + CLAIM_SLICE])


def _first_stream(reply: Any) -> list[StreamRow]:
    return reply[0][1] if reply else []
