"""
The event stream of one shard: what is written about deliveries, the consumer groups, and the events that one process
takes.

Each endpoint is a group. An event that a group has taken and not acknowledged is pending. A pending event has an owner:
the process that has the event in hand and sends a heartbeat every few seconds, or `PARKED` while the event waits for
the next delivery. If the owner has sent no heartbeat for `Timing.take_over_after`, the process is dead and any other
process takes the event.
"""

import itertools
import json
import logging
import operator
import threading
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import redis
from prometheus_client import Counter

from sweeperd.config import DELIVERY_FAILED, WEBHOOK_DISABLED, Start
from sweeperd.context import USUAL, Timing
from sweeperd.outbox.event import Fields, OutboxEntry, event_type
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group, is_missing_key
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Clock, Shard
from sweeperd.store.streams import FIRST, LAST, START, StreamId, StreamRow, after, milliseconds
from sweeperd.text import decode

log = logging.getLogger(__name__)


#: The owner of events that wait for their next delivery.
PARKED = b"(parked)"
#: The same, of events that were refused alone: they share a request with no other event.
PARKED_ALONE = b"(parked alone)"
#: Both are no processes.
WAITING = frozenset({PARKED, PARKED_ALONE})
#: How many pending events change their owner in one command, while other clients wait. 200 of them took 0.8 ms on
#: average and 1.1 ms at most, on Redis 7.0.
CLAIM_COUNT = 100
#: The idle time of an event that any process may take at once, ms: longer than every wait.
LONG_IDLE_MS = 10**10
#: How many groups one call of the script looks at, while other clients wait.
GROUPS_COUNT = 100
#: How far back a group begins whose position is known from its note only, where nothing else is said, ms.
MAX_AGE_MS = 72 * 3_600_000
#: How many pending events are listed in one round trip.
PAGE = 250
#: The tenant of an event that belongs to none.
NO_TENANT = "__system__"

#: The fields of a stream entry, name and value in turn; empty where there is no event.
Entry = list[str | int]


class Announcements:
    """
    Events about deliveries: an endpoint was paused, a delivery was given up on. They go into the stream like expiries,
    and only if an endpoint names their type in `events`. The forms of `data` are the Cycles protocol's
    (EventDataSystem, EventDataWebhookLifecycle).

    `wanted`: the types that are made. `clock`: Redis's, which has been read.
    """

    def __init__(self, clock: Clock, wanted: Collection[str] = ()) -> None:
        self._clock = clock
        self._wanted = frozenset(wanted)

    def delivery_failed(self, endpoint: str, event: Fields, deliveries: int, reason: str) -> Entry:
        """A dead letter was written. None is made about an event of this module's own kind, or it might never end."""
        if event_type(event) in (DELIVERY_FAILED, WEBHOOK_DISABLED):
            return []
        details = {"endpoint": endpoint, "event_type": event_type(event), "attempts": deliveries, "reason": reason}
        message = f"an event for {endpoint} was given up on"
        data = {"component": "sweeperd", "message": message, "severity": "warning", "details": details}
        return self._entry(DELIVERY_FAILED, endpoint, data)

    def disabled(self, endpoint: str, reason: str) -> Entry:
        """An endpoint was paused."""
        data = {
            "subscription_id": endpoint,
            "previous_status": "ACTIVE",
            "new_status": "PAUSED",
            "changed_fields": ["status"],
            "disable_reason": reason,
        }
        return self._entry(WEBHOOK_DISABLED, endpoint, data)

    def _entry(self, name: str, endpoint: str, data: Mapping[str, Any]) -> Entry:
        if name not in self._wanted:
            return []
        return ["type", name, "tenant", NO_TENANT, "id", endpoint, "at", self._clock.now_ms(), "data", json.dumps(data)]


class ConsumerGroups:
    """
    The groups of one shard's event stream: makes them, removes the consumers of dead processes, and trims the stream to
    the events that a group still needs. `consumer`: the name of this process in them. `max_age_ms`: how far back a
    group begins whose position is known from its note only. `remade`: counts the groups that were lost and are made
    again. Raises redis.RedisError.
    """

    def __init__(
        self,
        shard: Shard,
        consumer: str,
        max_age_ms: int = MAX_AGE_MS,
        remade: Counter | None = None,
        timing: Timing = USUAL,
    ) -> None:
        self._shard = shard
        self._timing = timing
        self._client = shard.client
        self._key = shard.keys.events
        self._notes = shard.keys.groups
        self._consumer = consumer.encode()
        self._max_age_ms = max_age_ms
        self._remade = remade
        self._leave = Script("delivery/leave")
        self._make_due = Script("delivery/make_due")
        self._keep_groups = Script("delivery/keep_groups")
        #: Up to here each group has acknowledged every event. A group that is made again starts here.
        self.positions: dict[str, StreamId] = {}
        #: The groups that have been there. Where a call to make one fails, it has a position and is not among them.
        self._seen: set[str] = set()
        #: Held while groups are made. A second thread would take the group for one that was there before, and make it
        #: without the note that it begins in the past.
        self._making = threading.Lock()

    def keep(self, wanted: Mapping[str, Start | StreamId]) -> dict[str, int]:
        """
        Make each of these groups where it is missing, at maxmemory too, and renew its note where its position has
        moved. `wanted`: group -> where it begins if it is new, so without a note.

        A group that is lost starts again at the first event that it had not acknowledged: some events are delivered
        again, and none is passed over. Where this process has not seen the group, its position is that of its note,
        but `max_age_ms` back at most, and the age of its events counts from now.

        Where the start is an id the group is that of a replay: once that has ended no group is made.

        Returns for each group when it was made, ms, where it began in the past; else 0.
        """
        with self._making:
            asked, made_at, names = self._asked(wanted), dict[str, int](), list(wanted)
            for first in range(0, len(names), GROUPS_COUNT):
                some = names[first : first + GROUPS_COUNT]
                args: list[str | int] = [self._max_age_ms, *(part for name in some for part in asked[name])]
                call = Call([self._key, self._notes], args)
                reply = cast(list[bytes], self._keep_groups.run(self._client, call))
                for name, position, at, outcome in zip(some, reply[::3], reply[1::3], reply[2::3], strict=True):
                    made_at[name] = int(at)
                    self.positions[name] = StreamId.parse(position)
                    self._seen.add(name)
                    if outcome == b"remade":
                        self._report(name, position)
        return made_at

    def ensure(self, group: str, start: Start | StreamId = "now") -> int:
        """The same for one group."""
        return self.keep({group: start})[group]

    def adopt(self, before: "ConsumerGroups", groups: Collection[str]) -> None:
        """Take over what another object knows of these groups of this shard."""
        self.positions |= {group: position for group, position in before.positions.items() if group in groups}
        self._seen |= before._seen.intersection(groups)

    def forget(self, group: str) -> None:
        """The group is not needed any more."""
        self.positions.pop(group, None)
        self._seen.discard(group)

    def held_elsewhere(self, group: str) -> bool:
        """Whether another process has events in hand, or had when it died."""
        summary = self._client.xpending(self._key, group)
        return any(row["name"] not in (*WAITING, self._consumer) for row in summary["consumers"])

    def untaken(self, group: str, before_ms: int, count: int) -> int:
        """How many events, up to `count`, were added before then and have not been taken by the group."""
        info = self._groups().get(group.encode())
        if info is None:
            return 0
        last = str(before_ms - 1).encode()
        return len(self._range(after(info["last-delivered-id"]), last, count))

    def make_due(self, group: str) -> int:
        """End the waits of all parked events. Returns how many there are. A group that is missing has none."""
        if group.encode() not in self._groups():
            return 0
        return sum(self._make_owners_due(group, owner) for owner in (PARKED, PARKED_ALONE))

    def trim(self, configured: Iterable[str], retention_ms: int, max_age_ms: int) -> int:
        """
        Remove events that are older than the retention and that every configured group has acknowledged; a group that
        is not configured holds them for `max_age_ms` at most. Returns how many were removed. Whole nodes of the stream
        are removed at once, so a few older ones stay. After `Timing.trim_for` the rest is left to the next call.
        """
        now = self._shard.read_clock()
        keep_from = StreamId.at(now - retention_ms)
        wanted = set(configured)
        groups = self._groups()
        for name, info in groups.items():
            first = self._first_needed(decode(name), info)
            if decode(name) in wanted:
                self.positions[decode(name)] = first
                self._seen.add(decode(name))
            keep_from = min(keep_from, first if decode(name) in wanted else max(first, StreamId.at(now - max_age_ms)))
        for unmade in wanted - {decode(name) for name in groups}:
            # It could not be made yet. Once it is made it takes everything from its position on.
            keep_from = min(keep_from, self.positions.get(unmade, START))
        return self._trim(str(keep_from))

    def leave(self, group: str, consumer: bytes | None = None) -> bool:
        """
        Remove a consumer (by default this process) from the group, unless it still holds events. Returns whether it is
        removed; a group that has gone has none.
        """
        try:
            return bool(self._leave.run(self._client, Call([self._key], [group, consumer or self._consumer])))
        except redis.ResponseError as error:
            if is_missing_group(error):
                return False
            raise

    def remove_silent(self, group: str) -> int:
        """Remove the consumers of processes that are gone and hold nothing. Returns how many."""
        try:
            consumers = self._client.xinfo_consumers(self._key, group)
        except redis.ResponseError as error:
            if is_missing_group(error) or is_missing_key(error):
                return 0
            raise
        return sum(
            self.leave(group, consumer["name"])
            for consumer in consumers
            if consumer["name"] not in (*WAITING, self._consumer)
            and consumer["pending"] == 0
            and consumer["idle"] > self._timing.take_over_after * 1000
        )

    def _asked(self, wanted: Mapping[str, Start | StreamId]) -> dict[str, tuple[str, str, str]]:
        """Each group as keep_groups.lua takes it."""
        unknown = [group for group in wanted if group not in self.positions]
        last = StreamId.parse(streams.last_id(self._client, self._key)) if unknown else START
        for group in unknown:
            # Kept: if the group cannot be made now, it is made at this position later.
            self.positions[group] = self._first_position(wanted[group], last)
        return {
            group: (group, str(self.positions[group]), _kind_of_group(start, seen=group in self._seen))
            for group, start in wanted.items()
        }

    def _report(self, group: str, position: bytes) -> None:
        if self._remade is not None:
            self._remade.inc()
        fields = {"shard": self._shard.name, "group": group, "position": decode(position)}
        log.warning("a consumer group was lost and is made again", extra=fields)

    def _first_position(self, start: Start | StreamId, last: StreamId) -> StreamId:
        """A group that is made here gets the events after this id. `last`: the last id of the stream."""
        if isinstance(start, StreamId):
            return start
        if start == "now":
            return last
        if start == "beginning":
            return START
        return StreamId.at(self._shard.read_clock() - start // timedelta(milliseconds=1)).before

    def _make_owners_due(self, group: str, owner: bytes) -> int:
        count, first = 0, FIRST
        while True:
            call = Call([self._key], [group, owner, first, CLAIM_COUNT, LONG_IDLE_MS])
            made, *last = cast(list[Any], self._make_due.run(self._client, call))
            count += int(made)
            if made < CLAIM_COUNT:
                return count
            first = after(last[0])

    def _trim(self, keep_from: str) -> int:
        # One XTRIM with `~` removes 10,000 entries at most, so that it does not hold the server for long.
        removed, until = 0, time.monotonic() + self._timing.trim_for
        while count := int(self._client.xtrim(self._key, minid=keep_from, approximate=True)):
            removed += count
            if time.monotonic() > until:
                break
        return removed

    def _groups(self) -> dict[bytes, dict[str, Any]]:
        return streams.groups(self._client, self._key)

    def _range(self, first: bytes, last: bytes, count: int) -> list[StreamRow]:
        return cast(list[Any], self._client.xrange(self._key, first, last, count=count))

    def _first_needed(self, group: str, info: dict[str, Any]) -> StreamId:
        """The group has acknowledged every event up to this id."""
        if info["pending"] and (first := self._summary(group)["min"]):
            return StreamId.parse(first).before
        return StreamId.parse(info["last-delivered-id"])

    def _summary(self, group: str) -> dict[str, Any]:
        """What XPENDING says; a group that is missing has nothing pending."""
        try:
            return self._client.xpending(self._key, group)
        except redis.ResponseError as error:
            if is_missing_group(error):
                return {"pending": 0, "min": None, "max": None, "consumers": []}
            raise


def _kind_of_group(start: Start | StreamId, *, seen: bool) -> str:
    """As keep_groups.lua takes it."""
    if isinstance(start, StreamId):
        return "replay"
    if seen:
        return "seen"
    return "new" if start == "now" else "backfill"


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
        timing: Timing = USUAL,
    ) -> None:
        self._shard = shard
        self._replication = replication or Replication()
        self._timing = timing
        self.announcements = announcements or Announcements(shard.clock)
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
        self.groups = groups or ConsumerGroups(shard, consumer, timing=timing)

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
                page = self.pending(group, owner=owner, idle_ms=int(self._timing.take_over_after * 1000))
                found += [pending for pending in page if pending.id not in in_hand]
        return found[:count]

    def in_hand(self, group: str) -> bool:
        """Whether a process that lives has events in hand."""
        pages = (self.pending(group, owner=owner) for owner in self._processes(group))
        return any(pending.idle_ms < self._timing.take_over_after * 1000 for page in pages for pending in page)

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

    def dead_letter(
        self, group: str, entry: OutboxEntry, reason: str, endpoint: str = "", *, in_hand: bool = True
    ) -> bool:
        """
        Replace a pending event by a dead letter. `endpoint`: if the group has another name. `in_hand`: only if this
        process still has the event, unless the event is in the stream no more, since nobody can take it then. False if
        it was not pending any more, or another process has taken or parked it.
        """
        owner = self._consumer if in_hand and entry.pairs else b""
        endpoint = endpoint or group
        event = self.announcements.delivery_failed(endpoint, entry.fields, entry.deliveries, reason)
        letter: list[bytes | str | int] = [group, entry.id, reason, entry.deliveries, endpoint, owner]
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
