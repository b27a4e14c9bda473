"""
The consumer groups of the event stream, one for each endpoint: make them, remove the consumers of dead processes, and
trim the stream to the events that a group still needs.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import redis
from prometheus_client import Counter

from sweeperd.config import Start
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group, is_missing_key
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.store.streams import FIRST, START, StreamId, StreamRow, after
from sweeperd.text import decode

log = logging.getLogger(__name__)

#: The owner of events that wait for their next delivery.
PARKED = b"(parked)"
#: The same, of events that were refused alone: they share a request with no other event.
PARKED_ALONE = b"(parked alone)"
#: Both are no processes.
WAITING = frozenset({PARKED, PARKED_ALONE})
#: An owner that has sent no heartbeat for so long is dead, seconds.
TAKE_OVER_AFTER = 15.0
#: How many pending events change their owner in one command, while other clients wait. 200 of them took 0.8 ms on
#: average and 1.1 ms at most, on Redis 7.0.
CLAIM_COUNT = 100
#: The idle time of an event that any process may take at once, ms: longer than every wait.
LONG_IDLE_MS = 10**10
#: How long the stream is trimmed without a pause, seconds.
TRIM_SECONDS = 1.0
#: How many groups one call of the script looks at, while other clients wait.
GROUPS_COUNT = 100
#: How far back a group begins whose position is known from its note only, where nothing else is said, ms.
MAX_AGE_MS = 72 * 3_600_000


class ConsumerGroups:
    """
    The groups of one shard's event stream. `consumer`: the name of this process in them. `max_age_ms`: how far back a
    group begins whose position is known from its note only. `remade`: counts the groups that were lost and are made
    again. Raises redis.RedisError.
    """

    def __init__(
        self, shard: Shard, consumer: str, max_age_ms: int = MAX_AGE_MS, remade: Counter | None = None
    ) -> None:
        self._shard = shard
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
            and consumer["idle"] > TAKE_OVER_AFTER * 1000
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
        removed, until = 0, time.monotonic() + TRIM_SECONDS
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
