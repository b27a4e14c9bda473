"""
The event stream, as one process takes events from it: read, claim, acknowledge, park, dead-letter.

Each endpoint is a group. An event that a group has taken and not acknowledged is pending. A pending event has an owner:
the process that has it in hand and sends a heartbeat every few seconds, or `PARKED` while the event waits for its next
delivery. Where the owner has sent no heartbeat for TAKE_OVER_AFTER, its process is dead and any other takes the event.
"""

import itertools
import operator
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from sweeperd.delivery.announcements import Announcements
from sweeperd.delivery.groups import (
    CLAIM_COUNT,
    LONG_IDLE_MS,
    PARKED,
    PARKED_ALONE,
    TAKE_OVER_AFTER,
    WAITING,
    ConsumerGroups,
)
from sweeperd.delivery.payload import EXPIRY_FIELDS, Fields
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.store.streams import FIRST, LAST, StreamRow, after, milliseconds
from sweeperd.text import decode

#: The field of a replayed event: the one endpoint that receives it. Such an entry is no expiry.
ONLY_FOR = b"only_for"
#: How many pending events are listed in one round trip.
PAGE = 250


class OutboxEntry(NamedTuple):
    """One event that a group has taken. A plain tuple: there are millions of them after an outage."""

    id: bytes
    #: How many times it was taken for delivery, this time included.
    deliveries: int
    #: The names of its fields and their values in turn, as Redis replies them; empty where the stream has it no more.
    pairs: Sequence[bytes]
    #: Whether it was refused alone, and so travels alone from then on.
    alone: bool = False
    #: The length of its names and values, bytes.
    size: int = 0

    @classmethod
    def of(cls, entry: bytes, deliveries: int, fields: Fields, alone: bool = False) -> "OutboxEntry":
        """The entry with this id and these fields."""
        pairs = [part for pair in fields.items() for part in pair]
        return cls(entry, deliveries, pairs, alone, len(b"".join(pairs)))

    @property
    def fields(self) -> Fields:
        """A dict of its fields. It is made at each call, and costs as much as the rest of a read."""
        return dict(zip(*[iter(self.pairs)] * 2, strict=True))

    @property
    def expiry(self) -> Sequence[bytes] | None:
        """Its values in the order of EXPIRY_FIELDS, where it has exactly these fields, as nearly all events do."""
        return self.pairs[1::2] if self.pairs[::2] == EXPIRY_FIELDS else None

    @property
    def added_ms(self) -> int:
        """When it was added, ms on Redis's clock: the first half of its id."""
        return milliseconds(self.id)

    @property
    def only_for(self) -> str | None:
        """The one endpoint that receives it, because an operator has replayed it; None: every endpoint."""
        names = self.pairs[::2]
        return decode(self.pairs[2 * names.index(ONLY_FOR) + 1]) if ONLY_FOR in names else None


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
        groups: ConsumerGroups | None = None,
    ) -> None:
        self._shard = shard
        self._replication = replication or Replication()
        self._announcements = announcements or Announcements(shard.clock)
        self._client = shard.client
        self._client.set_response_callback("XREADGROUP", _entries)
        self._key = shard.keys.events
        self._dead_letters = shard.keys.dead_letters
        #: The name of this process in the groups.
        self.consumer = consumer
        self._consumer = consumer.encode()
        self._dead_letter = Script("delivery/dead_letter")
        self._change_owner = Script("delivery/change_owner")
        #: The group of each endpoint, as a whole.
        self.groups = groups or ConsumerGroups(shard, consumer)

    def read(self, group: str, count: int, block_ms: int = 0) -> list[OutboxEntry]:
        """Take new events, waiting up to `block_ms` for one (0: not at all)."""
        block = block_ms or None
        entries: Any = self._client.xreadgroup(group, self.consumer, {self._key: ">"}, count=count, block=block)
        return cast(list[OutboxEntry], entries)

    def pending(
        self, group: str, previous: bytes | None = None, owner: bytes | None = None, idle_ms: int | None = None
    ) -> list[Pending]:
        """
        A page of the events that a group has not acknowledged, by id: PAGE of them at most, from the first one after
        `previous` on, of one owner or of all, that have been idle for so long. Less than PAGE: it is the last page.
        """
        first = FIRST if previous is None else after(previous)
        rows = self._client.xpending_range(self._key, group, first, LAST, PAGE, owner, idle_ms)
        return [
            Pending(row["message_id"], row["consumer"], row["time_since_delivered"], row["times_delivered"])
            for row in cast(list[dict[str, Any]], rows)
        ]

    def parked(self, group: str, previous: bytes | None = None) -> list[Pending]:
        """The same, of the events that wait for their next delivery; events that travel alone come last."""
        return self.pending(group, previous, PARKED) or self.pending(group, previous, PARKED_ALONE)

    def orphaned(self, group: str, in_hand: Container[bytes], count: int) -> list[Pending]:
        """
        Events whose process is dead, and those of this process that are not `in_hand`: `count` of them at most. Each
        call reads a page of each process.
        """
        found: list[Pending] = []
        for owner in self._processes(group):
            if len(found) < count:
                page = self.pending(group, owner=owner, idle_ms=int(TAKE_OVER_AFTER * 1000))
                found += [pending for pending in page if pending.id not in in_hand]
        return found[:count]

    def in_hand(self, group: str) -> bool:
        """Whether a process that lives has events in hand."""
        pages = (self.pending(group, owner=owner) for owner in self._processes(group))
        return any(pending.idle_ms < TAKE_OVER_AFTER * 1000 for page in pages for pending in page)

    def claim(self, group: str, wanted: Sequence[Pending], min_idle_ms: int) -> list[OutboxEntry]:
        """
        Take these for another delivery, except events that another process has taken since they were listed: `wanted`
        says whose they were. An event that is not in the stream any more is returned without fields and is not claimed,
        because Redis 7 would forget that it is pending.
        """
        if not wanted:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for pending in wanted:
            pipeline.xrange(self._key, pending.id, pending.id)
        found = list(zip(wanted, cast(list[list[StreamRow]], pipeline.execute()), strict=True))
        gone = [OutboxEntry(pending.id, pending.deliveries, []) for pending, rows in found if not rows]
        claimed: set[bytes] = set()
        listed = operator.attrgetter("owner", "deliveries")
        there = sorted((pending for pending, rows in found if rows), key=listed)
        for (owner, deliveries), some in itertools.groupby(there, listed):
            ids = [pending.id for pending in some]
            claimed.update(self._own(group, owner, self._consumer, ids, 0, deliveries + 1, min_idle_ms))
        return gone + [
            OutboxEntry.of(pending.id, pending.deliveries + 1, rows[0][1], pending.owner == PARKED_ALONE)
            for pending, rows in found
            if pending.id in claimed
        ]

    def confirmed(self, group: str, entries: Sequence[OutboxEntry]) -> bool:
        """
        Whether as many replicas as the settings ask for have these events, and with them the expiries. Waits for the
        replicas; true at once where none are asked for.
        """
        wanted = self._replication.replicas
        if not wanted or not (ids := [entry.id for entry in entries if entry.pairs]):
            return True
        # The answer has to come before the socket gives up.
        timeout = min(self._replication.timeout_seconds, self._shard.socket_timeout / 2)
        pipeline: Any = self._client.pipeline(transaction=False)
        # WAIT is about the writes of its own connection. Other connections wrote the expiries, but a replica applies
        # all writes in one order: one that has this XCLAIM has the expiries. XREADGROUP may have begun before them.
        for some in _ranges(ids):
            call = self._owning(group, self._consumer, self._consumer, some, 0)
            # Whole, because a pipeline cannot send again what the server does not know.
            pipeline.eval(self._change_owner.source, len(call.keys), *call.keys, *call.args)
        pipeline.wait(wanted, int(timeout * 1000))
        *changed, having = pipeline.execute()
        return sum(map(len, changed)) == len(ids) and int(having) >= wanted

    def heartbeat(self, group: str, ids: Sequence[bytes]) -> None:
        """
        These are in hand, so no other process may take them. What has been parked since the ids were listed, or taken
        by another process while this one was stopped, is left alone.
        """
        self._own(group, self._consumer, self._consumer, ids, 0)

    def nack(self, group: str, entries: Sequence[OutboxEntry]) -> None:
        """Park events that were sent in vain, as far as this process still has them; their wait begins now."""
        for owner in (PARKED, PARKED_ALONE):
            ids = [entry.id for entry in entries if entry.alone == (owner == PARKED_ALONE)]
            self._own(group, self._consumer, owner, ids, 0)

    def release(self, group: str, entries: Sequence[OutboxEntry]) -> None:
        """Park events that this process has taken and not sent, for any process to take at once."""
        by_deliveries: dict[int, list[bytes]] = {}
        for entry in entries:
            by_deliveries.setdefault(entry.deliveries, []).append(entry.id)
        for deliveries, ids in by_deliveries.items():
            self._own(group, self._consumer, PARKED, ids, LONG_IDLE_MS, deliveries - 1)

    def acknowledge(self, group: str, ids: Sequence[bytes]) -> None:
        """The group does not need these any more."""
        if ids:
            self._client.xack(self._key, group, *ids)

    def dead_letter(self, group: str, entry: OutboxEntry, reason: str, endpoint: str = "") -> bool:
        """
        Replace a pending event by a dead letter. `endpoint`: where the group has another name. False where the event
        was not pending any more.
        """
        endpoint = endpoint or group
        event = self._announcements.delivery_failed(endpoint, entry.fields, entry.deliveries, reason)
        letter: list[bytes | str | int] = [group, entry.id, reason, entry.deliveries, endpoint]
        call = Call([self._key, self._dead_letters], [*letter, *event])
        return bool(self._dead_letter.run(self._client, call))

    def _processes(self, group: str) -> list[bytes]:
        """The processes that have events of the group in hand, or had when they died."""
        return [
            row["name"] for row in self._client.xpending(self._key, group)["consumers"] if row["name"] not in WAITING
        ]

    def _own(
        self,
        group: str,
        before: bytes,
        owner: bytes,
        ids: Sequence[bytes],
        idle_ms: int,
        deliveries: int | None = None,
        least_idle_ms: int = 0,
    ) -> list[bytes]:
        """Change the owner of those that are still the ones of `before`. Returns their ids."""
        calls = (self._owning(group, before, owner, some, idle_ms, deliveries, least_idle_ms) for some in _ranges(ids))
        return [entry for call in calls for entry in self._change_owner.run(self._client, call)]

    def _owning(
        self,
        group: str,
        before: bytes,
        owner: bytes,
        ids: Sequence[bytes],
        idle_ms: int,
        deliveries: int | None = None,
        least_idle_ms: int = 0,
    ) -> Call:
        counted = "" if deliveries is None else deliveries
        return Call([self._key], [group, before, owner, least_idle_ms, idle_ms, counted, *ids])


def _ranges(ids: Sequence[bytes]) -> Iterator[list[Any]]:
    """The ids in ranges of CLAIM_COUNT, because other clients wait while their owner changes, and come in between."""
    for start in range(0, len(ids), CLAIM_COUNT):
        yield list(ids[start : start + CLAIM_COUNT])


def _entries(reply: Any, **_options: Any) -> list[OutboxEntry]:
    """The entries in a reply to XREADGROUP. Made of the raw reply, because most of the time of a read goes into it."""
    rows = reply[0][1] if reply else []
    return [OutboxEntry(entry, 1, pairs, False, len(b"".join(pairs))) for entry, pairs in rows]
