"""Keeps the consumer groups of a shard's event stream."""

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import redis

from sweeperd.config import RELAY, Start
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.outbox.filters import RELEASED
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group, is_missing_key
from sweeperd.store.scripts import Call, Script, batches, run_commands
from sweeperd.store.shard import Shard
from sweeperd.store.streams import FIRST, START, StreamId, StreamRow, after, milliseconds
from sweeperd.text import decode

if TYPE_CHECKING:
    from prometheus_client import Counter

log = logging.getLogger(__name__)

#: The owner of events that wait for a retry.
PARKED = b"(parked)"
#: The owner of events that wait for a retry outside of a batch, because they were rejected on their own.
PARKED_ALONE = b"(parked alone)"
#: The name prefix of replays' groups. No endpoint's name starts with it.
REPLAY_PREFIX = "_replay."
#: How many pending events one command claims. It blocks other clients for 0.8 ms on Redis 7.0.
CLAIM_COUNT = 100
#: The idle time of an event that any process may claim at once, ms. It exceeds every back-off.
LONG_IDLE_MS = 10**10
#: How many groups one call of the script checks while it blocks other clients.
GROUPS_COUNT = 100
#: How far back a lost group starts by default if only its note has the position, ms.
MAX_AGE_MS = 72 * 3_600_000


def is_waiting(owner: bytes) -> bool:
    """Whether an event with this owner is parked or released, so that no process has it in hand."""
    return owner in (PARKED, PARKED_ALONE) or owner.startswith(RELEASED)


#: The warning for each outcome of keep_groups.lua.
_TOLD = {
    b"remade": "a consumer group was lost and is made again",
    b"rewound": "parked events were removed from a consumer group; it reads again from its position",
    b"lost": "parked events were removed from a consumer group and are lost to it; grant XGROUP SETID, or replay them",
}


class Trimmed(NamedTuple):
    removed: int
    #: Named group -> roughly how many of the removed events it had not acknowledged.
    unread: dict[str, int]


class ConsumerGroups:
    """The consumer groups of one shard's event stream. `remade`: counts recreated ones. Raises redis.RedisError."""

    def __init__(
        self, shard: Shard, consumer: str, remade: "Counter | None" = None, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self._shard = shard
        self._timing = timing
        self._client = shard.client
        self._key = shard.keys.events
        self._notes = shard.keys.groups
        self._consumer = consumer.encode()
        self._remade = remade
        self._leave = Script("delivery/leave")
        self._make_due = Script("delivery/make_due")
        self._keep_groups = Script("delivery/keep_groups")
        self._trim = Script("delivery/trim")
        #: Group -> the id up to which it has acknowledged every event, where it starts if it is recreated.
        self.positions: dict[str, StreamId] = {}
        #: The groups known to exist. A group that could not be created has a position but is not seen.
        self._seen: set[str] = set()
        #: Held while groups are created. Otherwise a second thread might take a new group for an existing one, and
        #: create it without the note that it starts in the past.
        self._making = threading.Lock()

    def keep(self, wanted: Mapping[str, Start | StreamId], max_ages_ms: Mapping[str, int] = {}) -> dict[str, int]:
        """
        Create the missing groups, even at maxmemory, and update the notes of positions that have moved. `wanted`: group
        -> where it starts if there is no note.

        A lost group restarts at the first unacknowledged event, or at the noted position if that is earlier, as in an
        older copy after a fail-over. So some events are delivered twice, and none is lost. If this process has not seen
        the group, it restarts at the noted position, up to its `max_ages_ms` back, and the age of its events counts
        from now.

        If an operator has removed the owner of parked events (XGROUP DELCONSUMER), the group rewinds to the last noted
        position.

        A start that is an id belongs to a replay. Its group is not created again after the replay has ended.

        Returns for each group when it was created, ms, if it started in the past, else 0.
        """
        with self._making:
            asked, made_at, names = self._asked(wanted, max_ages_ms), dict[str, int](), list(wanted)
            for some in batches(names, GROUPS_COUNT):
                call = Call([self._key, self._notes], [part for name in some for part in asked[name]])
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

    def ensure(self, group: str, start: Start | StreamId = "now", max_age_ms: int = MAX_AGE_MS) -> int:
        """`keep` for a single group."""
        return self.keep({group: start}, {group: max_age_ms})[group]

    def adopt(self, before: "ConsumerGroups", groups: Collection[str]) -> None:
        """Copy the positions of these groups from the object used before a reload."""
        self.positions |= {group: position for group, position in before.positions.items() if group in groups}
        self._seen |= before._seen.intersection(groups)

    def forget(self, group: str) -> None:
        self.positions.pop(group, None)
        self._seen.discard(group)

    def held_elsewhere(self, group: str) -> bool:
        """Whether another process, living or dead, has events in hand. A lost group has none."""
        try:
            summary = self._client.xpending(self._key, group)
        except redis.ResponseError as error:
            if not is_missing_group(error):
                raise
            return False
        return any(row["name"] != self._consumer and not is_waiting(row["name"]) for row in summary["consumers"])

    def lost(self, wanted: Mapping[str, Start | StreamId]) -> list[str]:
        """
        The groups that do not exist although events wait for them: after the noted position, or, without a note, after
        their start. `wanted`: as for `keep`.
        """
        found, last = streams.groups(self._client, self._key), StreamId.parse(streams.last_id(self._client, self._key))
        unmade = [group for group in wanted if group.encode() not in found]
        notes = cast(dict[bytes, bytes], self._client.hgetall(self._notes) if unmade else {})
        starts = {
            group: _position(note) if (note := notes.get(group.encode())) else self._first_position(wanted[group], last)
            for group in unmade
        }
        # A position beyond the end belongs to a stream that was lost or replaced. keep_groups.lua begins anew there.
        later = {group: after(str(start if start <= last else START).encode()) for group, start in starts.items()}
        return [group for group, first in later.items() if self._client.xrange(self._key, first, count=1)]

    def untaken(self, group: str, end: StreamId, count: int) -> int:
        """How many events with ids before `end` the group has not read, up to `count`."""
        info = streams.groups(self._client, self._key).get(group.encode())
        if info is None:
            return 0
        rows = self._client.xrange(self._key, after(info["last-delivered-id"]), bytes(end.before), count=count)
        return len(cast(list[StreamRow], rows))

    def make_due(self, group: str) -> int:
        """Make all parked and released events due now. Returns how many there are; 0 if the group is missing."""
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
        elsewhere: Collection[str] = (),
    ) -> Trimmed:
        """
        Remove events that are older than the retention and acknowledged by every configured group, and by every replay.
        `elsewhere`: the groups that are configured for other processes. A replay to an endpoint that nobody has holds
        events until `max_age_ms` after its begin. The groups of other programs hold events too: a `named` group for up
        to `named_age_ms`, any other for up to `max_age_ms`. Redis removes whole nodes of the stream, so a few older
        events stay. After `Timing.trim_for`, or if a group is made meanwhile, the next call continues.
        """
        now = self._shard.read_clock()
        keep_from = StreamId.at(now - retention_ms)
        wanted, read = set(configured), dict[str, StreamId]()
        found = streams.groups(self._client, self._key)
        groups = {decode(name): info for name, info in found.items()}
        lost = set(elsewhere) - wanted - groups.keys()
        replays = {name for name in groups if name.startswith(REPLAY_PREFIX)}
        notes = cast(dict[bytes, bytes], self._client.hgetall(self._notes) if lost or replays else {})
        # A replay that has begun may not be known to this process yet, nor may its endpoint.
        since = now - max_age_ms
        holding = {*elsewhere, *(name for name in replays if _holds(name, notes, since, wanted.union(elsewhere)))}
        for name, info in groups.items():
            first = self._first_needed(name, info)
            if name in wanted:
                self.positions[name] = first
                self._seen.add(name)
            if name in wanted or name in holding:
                keep_from = min(keep_from, first)
                continue
            longest = named_age_ms if name in named else max_age_ms
            keep_from = min(keep_from, max(first, StreamId.at(now - longest)))
            if name in named:
                read[name] = first
        for unmade in wanted - groups.keys():
            # Once it can be created, this group reads all events after its position.
            keep_from = min(keep_from, self.positions.get(unmade, START))
        for name in lost:
            # The processes that have its endpoint make it again, at the noted position.
            keep_from = min(keep_from, _position(notes.get(name.encode())))
        # One step for each group that is left behind, up to its position, then up to the end: a group never reads the
        # events that a step removes beyond its position.
        removed, unread, until = 0, dict.fromkeys(read, 0), time.monotonic() + self._timing.trim_for
        for step in sorted({first for first in read.values() if first < keep_from} | {keep_from}):
            gone = self._trim_to(step, found, until)
            removed += gone
            for group, first in read.items():
                unread[group] += gone if first < step else 0
        return Trimmed(removed, unread)

    def _trim_to(self, keep_from: StreamId, groups: Collection[bytes], until: float) -> int:
        """A call removes up to 10,000 entries, so none blocks the server for long; none if there is another group."""
        removed = 0
        while count := int(self._trim.run(self._client, Call([self._key], [str(keep_from), *groups]))):
            removed += count
            if time.monotonic() > until:
                break
        return removed

    def oldest_unread_ms(self, group: str) -> int | None:
        """When the oldest unacknowledged event was added, ms; None without such an event or without the group."""
        info = streams.groups(self._client, self._key).get(group.encode())
        if info is None:
            return None
        first = after(str(self._first_needed(group, info)).encode())
        rows = cast(list[StreamRow], self._client.xrange(self._key, first, count=1))
        return milliseconds(rows[0][0]) if rows else None

    def leave(self, group: str, consumer: bytes | None = None) -> bool:
        """Remove a consumer, by default this process, unless it has pending events. Returns whether it was removed."""
        try:
            return bool(self._leave.run(self._client, Call([self._key], [group, consumer or self._consumer])))
        except redis.ResponseError as error:
            if is_missing_group(error):
                return False
            raise

    def remove_silent(self, *groups: str) -> int:
        """Remove the consumers of dead processes that have no pending events. Returns how many."""
        removed = 0
        for some in batches(groups, GROUPS_COUNT):
            replies = run_commands(self._client, (("XINFO CONSUMERS", self._key, group) for group in some))
            for group, consumers in zip(some, replies, strict=True):
                if isinstance(consumers, redis.ResponseError):
                    if is_missing_group(consumers) or is_missing_key(consumers):
                        continue
                    raise consumers
                removed += sum(
                    self.leave(group, consumer["name"])
                    for consumer in consumers
                    if consumer["name"] not in (PARKED, PARKED_ALONE, self._consumer)
                    and consumer["pending"] == 0
                    and consumer["idle"] > self._timing.take_over_after * 1000
                )
        return removed

    def _asked(
        self, wanted: Mapping[str, Start | StreamId], ages: Mapping[str, int]
    ) -> dict[str, tuple[str, str, str, int]]:
        """The arguments of keep_groups.lua for each group."""
        unknown = [group for group in wanted if group not in self.positions]
        last = StreamId.parse(streams.last_id(self._client, self._key)) if unknown else START
        for group in unknown:
            # Remembered, so that a later call creates the group here if it cannot be created now.
            self.positions[group] = self._first_position(wanted[group], last)
        asked = dict[str, tuple[str, str, str, int]]()
        for group, start in wanted.items():
            position, kind = self.positions[group], _kind_of_group(start, seen=group in self._seen)
            if kind == "seen" and group == RELAY.name and isinstance(start, timedelta):
                # After a fail-over, the records of what this process has seen acknowledged may be missing.
                position, kind = _before(self._shard.clock.now_ms(), start), "kept"
            asked[group] = (group, str(position), kind, ages.get(group, MAX_AGE_MS))
        return asked

    def _first_position(self, start: Start | StreamId, last: StreamId) -> StreamId:
        """The id after which a new group reads. `last`: the last id of the stream."""
        if isinstance(start, StreamId):
            return start
        if start == "now":
            return last
        if start == "beginning":
            return START
        # Not beyond the end: keep_groups.lua takes such a position for that of a lost stream, and begins further back.
        return min(_before(self._shard.read_clock(), start), last)

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
        """The id up to which the group has acknowledged every event."""
        try:
            if info["pending"] and (first := self._client.xpending(self._key, group)["min"]):
                return StreamId.parse(first).before
        except redis.ResponseError as error:
            if not is_missing_group(error):
                raise
        return StreamId.parse(info["last-delivered-id"])


def _holds(replay: str, notes: Mapping[bytes, bytes], since_ms: int, endpoints: Collection[str]) -> bool:
    """Whether a replay has not ended, and is to one of these endpoints or has not begun before `since_ms`."""
    note = notes.get(replay.encode())
    if note is None or replay.removeprefix(REPLAY_PREFIX) in endpoints:
        return note is not None
    try:
        return int(json.loads(note)["made_at"]) >= since_ms
    except (ValueError, KeyError, TypeError):
        return True  # an operator is told to remove it


def _position(note: bytes | None) -> StreamId:
    """The position in the note of a group; the start of the stream if there is none."""
    try:
        return StreamId.parse(str(json.loads(note or b"{}")["position"]))
    except (ValueError, KeyError, TypeError):
        return START


def _before(now_ms: int, age: timedelta) -> StreamId:
    return StreamId.at(now_ms - age // timedelta(milliseconds=1)).before


def _kind_of_group(start: Start | StreamId, *, seen: bool) -> str:
    """What keep_groups.lua has to know about the group."""
    if isinstance(start, StreamId):
        return "replay"
    if seen:
        return "seen"
    return "new" if start == "now" else "backfill"
