"""
The event stream of one shard: the consumer groups, the events that a process takes, the announcements of deliveries.

Each endpoint is a group. When a group has taken an event and not acknowledged it, the event is pending and has an
owner: the process with the event in hand, `PARKED` while the event waits for the next delivery, or
`(released:<digest>)` while it waits for a process with another filter. A process sends a heartbeat every few seconds.
If a process sends none for `Timing.take_over_after`, the process is dead and any other process takes the event.
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
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis

from sweeperd.config import DELIVERY_FAILED, WEBHOOK_DISABLED, Start
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.outbox.event import Fields, OutboxEntry, event_type
from sweeperd.outbox.filters import RELEASED, Filters
from sweeperd.outbox.subscription import Subscription
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group, is_missing_key
from sweeperd.store.scripts import Call, Script, batches
from sweeperd.store.shard import Clock, Shard
from sweeperd.store.streams import FIRST, LAST, START, StreamId, StreamRow, after, milliseconds
from sweeperd.text import decode

if TYPE_CHECKING:
    from prometheus_client import Counter

log = logging.getLogger(__name__)


#: The owner of events that wait for their next delivery.
PARKED = b"(parked)"
#: The same for events that were refused alone: no other event shares their request.
PARKED_ALONE = b"(parked alone)"
#: How many events are acknowledged in one command: 0.3 ms on Redis 7.0.
ACKNOWLEDGE_COUNT = 1000
#: How many pending events change their owner in one command, while other clients wait: 0.8 ms on Redis 7.0.
CLAIM_COUNT = 100
#: The idle time of an event that any process may take at once, ms: longer than every wait.
LONG_IDLE_MS = 10**10
#: How many groups one call of the script looks at, while other clients wait.
GROUPS_COUNT = 100
#: By default, if only the note knows the position of a group: how far back the group begins at most, ms.
MAX_AGE_MS = 72 * 3_600_000
#: How many pending events are listed in one round trip.
PAGE = 250
#: The tenant of an event without a tenant.
NO_TENANT = "__system__"

#: The fields of a stream entry, name and value in turn; empty: no event.
Entry = list[str | int]


def is_waiting(owner: bytes) -> bool:
    """Whether the owner of a pending event is not a process: the event is parked or released."""
    return owner in (PARKED, PARKED_ALONE) or owner.startswith(RELEASED)


class Announcements:
    """
    Events about deliveries: an endpoint was paused, a delivery was given up on. These events go into the stream like
    expiries, if an endpoint names the type in `events`. The forms of `data` come from the Cycles protocol
    (EventDataSystem, EventDataWebhookLifecycle).

    `wanted`: the types to make. `clock`: Redis's clock, read before.
    """

    def __init__(self, clock: Clock, wanted: Collection[str] = ()) -> None:
        self._clock = clock
        self._wanted = frozenset(wanted)

    def delivery_failed(self, endpoint: str, event: Fields, deliveries: int, reason: str) -> Entry:
        """A dead letter was written. Empty if the event is an announcement: else announcements might never end."""
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
            "tenant_id": NO_TENANT,
            "previous_status": "ACTIVE",
            "new_status": "DISABLED",
            "changed_fields": [],
            "disable_reason": reason,
        }
        return self._entry(WEBHOOK_DISABLED, endpoint, data)

    def _entry(self, name: str, endpoint: str, data: Mapping[str, Any]) -> Entry:
        if name not in self._wanted:
            return []
        return ["type", name, "tenant", NO_TENANT, "id", endpoint, "at", self._clock.now_ms(), "data", json.dumps(data)]


#: What is wrong with a group, by the outcome of keep_groups.lua.
_TOLD = {
    b"remade": "a consumer group was lost and is made again",
    b"rewound": "parked events were removed from a consumer group; it reads again from its position",
    b"lost": "parked events were removed from a consumer group and are lost to it; grant XGROUP SETID, or replay them",
}


class Trimmed(NamedTuple):
    removed: int
    #: For each named group about how many of the removed events the group had not acknowledged.
    unread: dict[str, int]


class ConsumerGroups:
    """
    The groups of one shard's event stream: makes groups, removes the consumers of dead processes, and trims the stream
    to the events that a group still needs. `consumer`: the name of this process in the groups. `max_age_ms`: how far
    back a group begins at most, if only the note knows the position. `remade`: counts the groups that were lost and
    made again. All methods raise redis.RedisError.
    """

    def __init__(
        self,
        shard: Shard,
        consumer: str,
        max_age_ms: int = MAX_AGE_MS,
        remade: "Counter | None" = None,
        timing: Timing = DEFAULT_TIMING,
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
        #: Up to here each group has acknowledged every event. If a group is made again, the group starts here.
        self.positions: dict[str, StreamId] = {}
        #: The groups known to exist. If a call to make a group fails, the group has a position, but is not seen.
        self._seen: set[str] = set()
        #: Held while groups are made. Else a second thread might take a new group for an old one, and make the group
        #: without the note about a begin in the past.
        self._making = threading.Lock()

    def keep(self, wanted: Mapping[str, Start | StreamId]) -> dict[str, int]:
        """
        If a group is missing, make the group, at maxmemory too. If a position has moved, renew the note. `wanted`:
        group -> the start of the group if there is no note.

        If a group is lost, the group starts again at the first event not acknowledged: some events are delivered again,
        and no event is passed over. If this process has not seen the group, the note has the position, but `max_age_ms`
        back at most, and the age of events counts from now.

        If an operator has removed the owner of parked events (XGROUP DELCONSUMER), the group reads again from the last
        noted position.

        If the start is an id, the group belongs to a replay: when the replay has ended, no group is made.

        Returns for each group when the group was made, ms, if the group began in the past; else 0.
        """
        with self._making:
            asked, made_at, names = self._asked(wanted), dict[str, int](), list(wanted)
            for some in batches(names, GROUPS_COUNT):
                args: list[str | int] = [self._max_age_ms, *(part for name in some for part in asked[name])]
                call = Call([self._key, self._notes], args)
                reply = cast(list[bytes], self._keep_groups.run(self._client, call))
                for name, position, at, outcome in zip(some, reply[::3], reply[1::3], reply[2::3], strict=True):
                    made_at[name] = int(at)
                    self.positions[name] = StreamId.parse(position)
                    self._seen.add(name)
                    if told := _TOLD.get(outcome):
                        if self._remade is not None:
                            self._remade.inc()
                        fields = {"shard": self._shard.name, "group": name, "position": decode(position)}
                        log.warning(told, extra=fields)
        return made_at

    def ensure(self, group: str, start: Start | StreamId = "now") -> int:
        """`keep` for a single group."""
        return self.keep({group: start})[group]

    def adopt(self, before: "ConsumerGroups", groups: Collection[str]) -> None:
        """Take over the positions of these groups from another object of this shard."""
        self.positions |= {group: position for group, position in before.positions.items() if group in groups}
        self._seen |= before._seen.intersection(groups)

    def forget(self, group: str) -> None:
        """Forget a group that is not needed any more."""
        self.positions.pop(group, None)
        self._seen.discard(group)

    def held_elsewhere(self, group: str) -> bool:
        """Whether another process, alive or dead, has events in hand."""
        summary = self._client.xpending(self._key, group)
        return any(row["name"] != self._consumer and not is_waiting(row["name"]) for row in summary["consumers"])

    def untaken(self, group: str, before_ms: int, count: int) -> int:
        """How many events, up to `count`, were added before `before_ms` and not taken by the group."""
        info = streams.groups(self._client, self._key).get(group.encode())
        if info is None:
            return 0
        last = str(before_ms - 1).encode()
        rows = self._client.xrange(self._key, after(info["last-delivered-id"]), last, count=count)
        return len(cast(list[StreamRow], rows))

    def make_due(self, group: str) -> int:
        """End the waits of all events without a process. Returns how many there are; 0 if the group is missing."""
        if group.encode() not in streams.groups(self._client, self._key):
            return 0
        consumers = self._client.xpending(self._key, group)["consumers"]
        return sum(self._make_owners_due(group, row["name"]) for row in consumers if is_waiting(row["name"]))

    def trim(
        self,
        configured: Iterable[str],
        retention_ms: int,
        max_age_ms: int,
        named: Collection[str] = (),
        named_age_ms: int = 0,
    ) -> Trimmed:
        """
        Remove events older than the retention, if every configured group has acknowledged them. The groups of other
        programs hold events too: a `named` group for `named_age_ms` at most, each other group for `max_age_ms`. Redis
        removes whole nodes of the stream, so a few older events stay. After `Timing.trim_for` the rest is left to the
        next call.
        """
        now = self._shard.read_clock()
        keep_from = StreamId.at(now - retention_ms)
        wanted, read = set(configured), dict[str, StreamId]()
        groups = {decode(name): info for name, info in streams.groups(self._client, self._key).items()}
        for name, info in groups.items():
            first = self._first_needed(name, info)
            if name in wanted:
                self.positions[name] = first
                self._seen.add(name)
                keep_from = min(keep_from, first)
                continue
            longest = named_age_ms if name in named else max_age_ms
            keep_from = min(keep_from, max(first, StreamId.at(now - longest)))
            if name in named:
                read[name] = first
        for unmade in wanted - groups.keys():
            # The group could not be made yet. When made, the group takes all events after its position.
            keep_from = min(keep_from, self.positions.get(unmade, START))
        # Up to the position of each group that is left behind, then up to the end: if a step removes events beyond the
        # position of a group, the group will never read them.
        removed, unread, until = 0, dict.fromkeys(read, 0), time.monotonic() + self._timing.trim_for
        for step in sorted({first for first in read.values() if first < keep_from} | {keep_from}):
            gone = self._trim_to(step, until)
            removed += gone
            for group, first in read.items():
                unread[group] += gone if first < step else 0
        return Trimmed(removed, unread)

    def _trim_to(self, keep_from: StreamId, until: float) -> int:
        """XTRIM with `~` removes 10,000 entries at most, so a call never holds the server for long."""
        removed = 0
        while count := int(self._client.xtrim(self._key, minid=str(keep_from), approximate=True)):
            removed += count
            if time.monotonic() > until:
                break
        return removed

    def oldest_unread_ms(self, group: str) -> int | None:
        """When the oldest event was added that the group has not acknowledged, ms; None: no such event, or no group."""
        info = streams.groups(self._client, self._key).get(group.encode())
        if info is None:
            return None
        first = after(str(self._first_needed(group, info)).encode())
        rows = cast(list[StreamRow], self._client.xrange(self._key, first, count=1))
        return milliseconds(rows[0][0]) if rows else None

    def leave(self, group: str, consumer: bytes | None = None) -> bool:
        """
        Remove a consumer (by default this process) from the group, unless the consumer still holds events. Returns
        whether the consumer was removed; False if the group has gone.
        """
        try:
            return bool(self._leave.run(self._client, Call([self._key], [group, consumer or self._consumer])))
        except redis.ResponseError as error:
            if is_missing_group(error):
                return False
            raise

    def remove_silent(self, group: str) -> int:
        """Remove the consumers of dead processes without events. Returns how many."""
        try:
            consumers = self._client.xinfo_consumers(self._key, group)
        except redis.ResponseError as error:
            if is_missing_group(error) or is_missing_key(error):
                return 0
            raise
        return sum(
            self.leave(group, consumer["name"])
            for consumer in consumers
            if consumer["name"] not in (PARKED, PARKED_ALONE, self._consumer)
            and consumer["pending"] == 0
            and consumer["idle"] > self._timing.take_over_after * 1000
        )

    def _asked(self, wanted: Mapping[str, Start | StreamId]) -> dict[str, tuple[str, str, str]]:
        """The arguments of keep_groups.lua about each group."""
        unknown = [group for group in wanted if group not in self.positions]
        last = StreamId.parse(streams.last_id(self._client, self._key)) if unknown else START
        for group in unknown:
            # Kept: if the group cannot be made now, a later call makes the group at this position.
            self.positions[group] = self._first_position(wanted[group], last)
        return {
            group: (group, str(self.positions[group]), _kind_of_group(start, seen=group in self._seen))
            for group, start in wanted.items()
        }

    def _first_position(self, start: Start | StreamId, last: StreamId) -> StreamId:
        """A new group gets the events after this id. `last`: the last id of the stream."""
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

    def _first_needed(self, group: str, info: dict[str, Any]) -> StreamId:
        """The group has acknowledged every event up to this id."""
        try:
            if info["pending"] and (first := self._client.xpending(self._key, group)["min"]):
                return StreamId.parse(first).before
        except redis.ResponseError as error:
            if not is_missing_group(error):
                raise
        return StreamId.parse(info["last-delivered-id"])


def _kind_of_group(start: Start | StreamId, *, seen: bool) -> str:
    """The sort of group, for keep_groups.lua."""
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
        """When the event was added, ms on Redis's clock."""
        return milliseconds(self.id)


@dataclass(frozen=True, slots=True)
class Replication:
    """How many replicas must have an expiry before the event is delivered, and how long to wait for them."""

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
        timing: Timing = DEFAULT_TIMING,
        filters: Filters | None = None,
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
        self._acknowledge_unwanted = Script("delivery/acknowledge_unwanted")
        #: The filters of all living processes.
        self.filters = filters or Filters(shard, consumer)
        #: The groups of the endpoints.
        self.groups = groups or ConsumerGroups(shard, consumer, timing=timing)

    def read(self, group: str, count: int, block_ms: int = 0) -> list[OutboxEntry]:
        """Take new events; if there are none, wait up to `block_ms` (0: not at all)."""
        block = block_ms or None
        entries: Any = self._client.xreadgroup(group, self.consumer, {self._key: ">"}, count=count, block=block)
        return cast(list[OutboxEntry], entries)

    def pending(
        self, group: str, previous: bytes | None = None, owner: bytes | None = None, idle_ms: int | None = None
    ) -> list[Pending]:
        """
        A page of the events that a group has not acknowledged, by id: PAGE events at most, after `previous`, of one
        owner or of all, idle for so long. If there are less than PAGE, the page is the last.
        """
        first = FIRST if previous is None else after(previous)
        rows = self._client.xpending_range(self._key, group, first, LAST, PAGE, owner, idle_ms)
        return [
            Pending(row["message_id"], row["consumer"], row["time_since_delivered"], row["times_delivered"])
            for row in cast(list[dict[str, Any]], rows)
        ]

    def parked(self, group: str, previous: bytes | None = None) -> list[Pending]:
        """A page of the events that wait for the next delivery; events that travel alone come last."""
        return self.pending(group, previous, PARKED) or self.pending(group, previous, PARKED_ALONE)

    def orphaned(self, subscription: Subscription, in_hand: Container[bytes], count: int) -> list[Pending]:
        """
        Events of dead processes, released events that this process may take, and events of this process that are not
        `in_hand`: `count` at most. Each call reads a page for each owner.
        """
        found: list[Pending] = []
        for owner in self._owners(subscription.group):
            if is_waiting(owner) and not self.may_take(subscription, owner):
                continue
            if len(found) < count:
                idle_ms = int(self._timing.take_over_after * 1000)
                page = self.pending(subscription.group, owner=owner, idle_ms=idle_ms)
                found += [pending for pending in page if pending.id not in in_hand]
        return found[:count]

    def may_take(self, subscription: Subscription, owner: bytes) -> bool:
        """Whether this process may take the released events of the owner."""
        return owner.startswith(RELEASED) and self.filters.may_take(subscription.endpoint, owner)

    def in_hand(self, group: str) -> bool:
        """Whether a living process has events in hand."""
        pages = (self.pending(group, owner=owner) for owner in self._owners(group) if not is_waiting(owner))
        return any(pending.idle_ms < self._timing.take_over_after * 1000 for page in pages for pending in page)

    def look_up(self, listed: Sequence[Pending]) -> list[OutboxEntry]:
        """These events, without a claim. If an event is in the stream no more, its entry has no fields."""
        rows_of = streams.exactly(self._client, self._key, (pending.id for pending in listed))
        return [
            OutboxEntry.of(pending.id, pending.deliveries, rows[0][1] if rows else {}, pending.owner == PARKED_ALONE)
            for pending, rows in zip(listed, rows_of, strict=True)
        ]

    def claim(self, group: str, wanted: Sequence[Pending], min_idle_ms: int) -> list[OutboxEntry]:
        """
        Take these events for another delivery, except events that changed their owner since listed in `wanted`. If an
        event is in the stream no more, return the event without fields and without a claim, because a claim would make
        Redis 7 forget the pending event.
        """
        if not wanted:
            return []
        rows_of = streams.exactly(self._client, self._key, (pending.id for pending in wanted))
        found = list(zip(wanted, rows_of, strict=True))
        gone = [OutboxEntry(pending.id, pending.deliveries, []) for pending, rows in found if not rows]
        claimed: set[bytes] = set()
        listed = operator.attrgetter("owner", "deliveries")
        there = sorted((pending for pending, rows in found if rows), key=listed)
        for (owner, deliveries), some in itertools.groupby(there, listed):
            ids = [pending.id for pending in some]
            claimed.update(self._own(self._owning(group, owner, self._consumer, ids, 0, deliveries + 1, min_idle_ms)))
        return gone + [
            OutboxEntry.of(pending.id, pending.deliveries + 1, rows[0][1], pending.owner == PARKED_ALONE)
            for pending, rows in found
            if pending.id in claimed
        ]

    def confirmed(self, group: str, entries: Sequence[OutboxEntry]) -> bool:
        """
        Whether as many replicas as configured have these events, and so the expiries. Waits for the replicas; True at
        once if the settings ask for none.
        """
        wanted = self._replication.replicas
        if not wanted or not (ids := [entry.id for entry in entries if entry.pairs]):
            return True
        # The answer has to come before the socket gives up.
        timeout = min(self._replication.timeout_seconds, self._shard.socket_timeout / 2)
        pipeline: Any = self._client.pipeline(transaction=False)
        # WAIT covers only writes of the same connection. Other connections wrote the expiries, but a replica applies
        # all writes in the same order: if a replica has this XCLAIM, the replica has the expiries. XREADGROUP would
        # not do, because a read may begin before the expiries.
        for call in self._owning(group, self._consumer, self._consumer, ids, 0):
            # The whole script: if the server did not know a hash, a pipeline could not send the script again.
            pipeline.eval(self._change_owner.source, len(call.keys), *call.keys, *call.args)
        pipeline.wait(wanted, int(timeout * 1000))
        *changed, having = pipeline.execute()
        return sum(map(len, changed)) == len(ids) and int(having) >= wanted

    def heartbeat(self, group: str, ids: Sequence[bytes]) -> None:
        """
        Tell other processes that these events are in hand. If an event was parked since the ids were listed, or taken
        by another process while this process was stopped, the event is left alone.
        """
        self._own(self._owning(group, self._consumer, self._consumer, ids, 0))

    def nack(self, group: str, entries: Sequence[OutboxEntry]) -> None:
        """If this process still has these events, sent in vain, park them; the wait begins now."""
        for owner in (PARKED, PARKED_ALONE):
            ids = [entry.id for entry in entries if entry.alone == (owner == PARKED_ALONE)]
            self._own(self._owning(group, self._consumer, owner, ids, 0))

    def release(self, group: str, entries: Sequence[OutboxEntry]) -> None:
        """Park events that were taken, but not sent, for any process to take at once."""
        by_deliveries: dict[int, list[bytes]] = {}
        for entry in entries:
            by_deliveries.setdefault(entry.deliveries, []).append(entry.id)
        for deliveries, ids in by_deliveries.items():
            self._own(self._owning(group, self._consumer, PARKED, ids, LONG_IDLE_MS, deliveries - 1))

    def end_waits(self, group: str) -> None:
        """
        For a clock that was set back: Redis takes idle times for 0 until the clock has caught up, so no wait would end,
        and no process would look dead. Make parked events due, and count the idle time of all others from now on.
        """
        self.groups.make_due(group)
        for owner in self._owners(group):
            page = [] if is_waiting(owner) else self.pending(group, owner=owner)
            while page:
                self._own(self._owning(group, owner, owner, [pending.id for pending in page], 0))
                page = self.pending(group, page[-1].id, owner)

    def acknowledge(self, group: str, ids: Sequence[bytes]) -> int:
        """The group needs these events no more. Returns how many of the events were pending."""
        return int(self._client.xack(self._key, group, *ids)) if ids else 0

    def acknowledge_unwanted(
        self, subscription: Subscription, entries: Sequence[OutboxEntry], owner: bytes | None = None
    ) -> None:
        """
        Acknowledge events that the subscription does not want. If the filter of another living process wants an event,
        release it for that process. If a filter has been noted since the events were judged, judge them anew. If the
        call fails, the events stay pending, and are judged again after `Timing.take_over_after`. `owner`: of events
        that were looked up; by default this process has taken them.
        """
        before, taken = owner or self._consumer, int(owner is None)
        left = list(entries)
        while left:
            version, others = self.filters.known.version, self.filters.others(subscription.endpoint)
            nobodys, released = list[bytes](), dict[tuple[bytes, int], list[bytes]]()
            for entry in left:
                if others and (other := self.filters.owner_for(subscription, entry)):
                    # Nothing was sent, so a claim or a read of this process counts for no delivery.
                    released.setdefault((other, max(0, entry.deliveries - taken)), []).append(entry.id)
                else:
                    nobodys.append(entry.id)
            done = 0
            for part in batches(nobodys, ACKNOWLEDGE_COUNT):
                call = Call([self._key, self._shard.keys.filters], [subscription.group, version, *part])
                if self._acknowledge_unwanted.run(self._client, call) < 0:
                    self.filters.refresh()
                    break
                done += len(part)
            for (other, deliveries), ids in released.items():
                self._own(self._owning(subscription.group, before, other, ids, LONG_IDLE_MS, deliveries))
            unjudged = set(nobodys[done:])
            left = [entry for entry in left if entry.id in unjudged]

    def dead_letter(
        self, group: str, entry: OutboxEntry, reason: str, endpoint: str = "", *, in_hand: bool = True
    ) -> bool:
        """`give_up` for one event. `in_hand`: only if this process still has the event. False if it was left out."""
        return bool(self.give_up(group, [entry], reason, endpoint, None if in_hand else b""))

    def give_up(
        self, group: str, entries: Sequence[OutboxEntry], reason: str, endpoint: str = "", owner: bytes | None = None
    ) -> list[OutboxEntry]:
        """
        Replace pending events by dead letters, a page in each script. `endpoint`: if the group has another name.
        `owner`: who must have the events, by default this process; empty: anyone. If an event is in the stream no more,
        nobody can take it, so anyone may have it. Returns the entries given up; the others are pending no more, or have
        another owner.
        """
        needed, endpoint = self._consumer if owner is None else owner, endpoint or group
        done: set[bytes] = set()
        for page in batches(entries, CLAIM_COUNT):
            args: list[bytes | str | int] = [group, reason, endpoint]
            for entry in page:
                event = self.announcements.delivery_failed(endpoint, entry.fields, entry.deliveries, reason)
                args += [entry.id, entry.deliveries, needed if entry.pairs else b"", len(event), *event]
            done.update(self._dead_letter.run(self._client, Call([self._key, self._dead_letters], args)))
        return [entry for entry in entries if entry.id in done]

    def _owners(self, group: str) -> list[bytes]:
        """The owners of pending events: processes, alive or dead, and those that are no processes."""
        return [row["name"] for row in self._client.xpending(self._key, group)["consumers"]]

    def _own(self, calls: Iterable[Call]) -> list[bytes]:
        """Change owners by the calls of `_owning`. Returns the ids of the events that were changed."""
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
    ) -> Iterator[Call]:
        """
        The calls that change the owner of the events that `before` still owns, CLAIM_COUNT events in a call: other
        clients wait during a call, and come in between.
        """
        how: list[Any] = [group, before, owner, least_idle_ms, idle_ms, "" if deliveries is None else deliveries]
        for part in batches(ids, CLAIM_COUNT):
            yield Call([self._key], [*how, *part])


def _entries(reply: Any, **_options: Any) -> list[OutboxEntry]:
    """The entries of a raw reply to XREADGROUP; parsing takes most of the time of a read."""
    rows = reply[0][1] if reply else []
    return [OutboxEntry(entry, 1, pairs, False, len(b"".join(pairs))) for entry, pairs in rows]
