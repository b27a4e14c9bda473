"""
Reads the events of one shard's stream, and settles their deliveries.

Each endpoint is a consumer group. An event that the group has read and not acknowledged is pending and has an owner:
the process that has it in hand, `PARKED` while it waits for a retry, or `(released:<digest>)` while it waits for a
process with another filter. Every process sends a heartbeat every few seconds. After `Timing.take_over_after` without a
heartbeat a process counts as dead, and any other process claims its events.
"""

import itertools
import operator
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.outbox.announcements import Announcements
from sweeperd.outbox.event import OutboxEntry
from sweeperd.outbox.filters import RELEASED, Filters
from sweeperd.outbox.groups import CLAIM_COUNT, LONG_IDLE_MS, PARKED, PARKED_ALONE, ConsumerGroups, is_waiting
from sweeperd.outbox.subscription import Subscription
from sweeperd.store.operations import Operation, Request, ask, operation, run, run_scripts
from sweeperd.store.scripts import Call, Script, accepted, batches
from sweeperd.store.shard import Shard
from sweeperd.store.streams import FIRST, LAST, StreamRow, after, milliseconds

#: How many events one command acknowledges, in 0.3 ms on Redis 7.0.
ACKNOWLEDGE_COUNT = 1000
#: How many pending events to list per round trip.
PAGE = 250


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending event of a group."""

    id: bytes
    owner: bytes
    idle_ms: int
    deliveries: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Pending":
        return cls(row["message_id"], row["consumer"], row["time_since_delivered"], row["times_delivered"])

    @property
    def added_ms(self) -> int:
        return milliseconds(self.id)


@dataclass(frozen=True, slots=True)
class Replication:
    """How many replicas must have an expiry before its event is delivered, and how long to wait for them."""

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
        self.client = shard.client
        self.client.set_response_callback("XREADGROUP", _entries)
        self._key = shard.keys.events
        self._dead_letters = shard.keys.dead_letters
        #: The name of this process in the consumer groups.
        self.consumer = consumer
        self._consumer = consumer.encode()
        self._dead_letter = Script("delivery/dead_letter")
        self._change_owner = Script("delivery/change_owner")
        self._acknowledge_unwanted = Script("delivery/acknowledge_unwanted")
        self._pass_unwanted = Script("delivery/pass_unwanted")
        #: The filters of all living processes.
        self.filters = filters or Filters(shard, consumer)
        #: The consumer groups of the endpoints.
        self.groups = groups or ConsumerGroups(shard, consumer, timing=timing)

    @operation
    def read(self, group: str, count: int) -> Operation[list[OutboxEntry]]:
        entries: list[OutboxEntry] = yield from ask(
            "XREADGROUP", "GROUP", group, self.consumer, "COUNT", count, "STREAMS", self._key, ">"
        )
        return entries

    @operation
    def peek(self, position: bytes, count: int) -> Operation[list[OutboxEntry]]:
        """The events after `position`, without reading them for a group."""
        rows: list[StreamRow] = yield from ask("XRANGE", self._key, after(position), LAST, "COUNT", count)
        return [OutboxEntry.of(entry, 1, fields) for entry, fields in rows]

    @operation
    def untaken(self, position: bytes, before_ms: int, count: int) -> Operation[int]:
        """How many events after `position`, up to `count`, were added before `before_ms`."""
        last = str(before_ms - 1).encode()
        return len((yield from ask("XRANGE", self._key, after(position), last, "COUNT", count)))

    @operation
    def pending(
        self, group: str, previous: bytes | None = None, owner: bytes | None = None, idle_ms: int | None = None
    ) -> Operation[list[Pending]]:
        """A page of up to PAGE pending events after `previous`, idle for `idle_ms`. A shorter page is the last."""
        first = FIRST if previous is None else after(previous)
        idle = () if idle_ms is None else ("IDLE", idle_ms)
        owners = () if owner is None else (owner,)
        rows: list[dict[str, Any]] = yield from ask(
            "XPENDING", self._key, group, *idle, first, LAST, PAGE, *owners, parse_detail=True
        )
        return list(map(Pending.of, rows))

    @operation
    def states(self, group: str, ids: Sequence[bytes]) -> Operation[dict[bytes, Pending]]:
        """Those of these events that are pending, by id."""
        asked = [Request(("XPENDING", self._key, group, entry, entry, 1), {"parse_detail": True}) for entry in ids]
        replies = accepted((yield asked)) if asked else []
        return {row["message_id"]: Pending.of(row) for rows in replies for row in rows}

    @operation
    def parked(self, group: str, previous: bytes | None = None) -> Operation[list[Pending]]:
        """A page of the events that wait for a retry; those that no batch may include come last."""
        together = yield from self.pending.part(group, previous, PARKED)
        return together or (yield from self.pending.part(group, previous, PARKED_ALONE))

    @operation
    def orphaned(self, subscription: Subscription, in_hand: Container[bytes], count: int) -> Operation[list[Pending]]:
        """Up to `count` events of dead processes, released ones for this process, and its own but `in_hand`."""
        found: list[Pending] = []
        for owner in (yield from self._owners(subscription.group)):
            if is_waiting(owner) and not self.may_take(subscription, owner):
                continue
            if len(found) < count:
                idle_ms = int(self._timing.take_over_after * 1000)
                page = yield from self.pending.part(subscription.group, owner=owner, idle_ms=idle_ms)
                found += [pending for pending in page if pending.id not in in_hand]
        return found[:count]

    def may_take(self, subscription: Subscription, owner: bytes) -> bool:
        """Whether this process may claim the released events of the owner."""
        return owner.startswith(RELEASED) and self.filters.may_take(subscription.endpoint, owner)

    def in_hand(self, group: str) -> bool:
        """Whether a living process has events of the group in hand."""
        owners = run(self.client, self._owners(group))
        pages = (self.pending(group, owner=owner) for owner in owners if not is_waiting(owner))
        return any(pending.idle_ms < self._timing.take_over_after * 1000 for page in pages for pending in page)

    @operation
    def look_up(self, listed: Sequence[Pending]) -> Operation[list[OutboxEntry]]:
        """Read these events without claiming them. An event that was trimmed has no fields."""
        rows_of = yield from self._exactly(listed)
        return [
            OutboxEntry.of(pending.id, pending.deliveries, rows[0][1] if rows else {}, pending.owner == PARKED_ALONE)
            for pending, rows in zip(listed, rows_of, strict=True)
        ]

    @operation
    def claim(self, group: str, wanted: Sequence[Pending], min_idle_ms: int) -> Operation[list[OutboxEntry]]:
        """
        Claim these events for another delivery, except those that have changed their owner since. An event that was
        trimmed is returned without fields and is not claimed, because a claim would make Redis 7 drop it from the
        pending list.
        """
        if not wanted:
            return []
        rows_of = yield from self._exactly(wanted)
        found = list(zip(wanted, rows_of, strict=True))
        gone = [OutboxEntry(pending.id, pending.deliveries, []) for pending, rows in found if not rows]
        calls: list[Call] = []
        listed = operator.attrgetter("owner", "deliveries")
        there = sorted((pending for pending, rows in found if rows), key=listed)
        for (owner, deliveries), some in itertools.groupby(there, listed):
            ids = [pending.id for pending in some]
            calls += self._owning(group, owner, self._consumer, ids, 0, deliveries + 1, min_idle_ms)
        claimed = set((yield from self._own(calls)))
        return gone + [
            OutboxEntry.of(pending.id, pending.deliveries + 1, rows[0][1], pending.owner == PARKED_ALONE)
            for pending, rows in found
            if pending.id in claimed
        ]

    @operation
    def confirmed(self, group: str, entries: Sequence[OutboxEntry]) -> Operation[bool]:
        """Wait until enough replicas have these events, and so their expiries. Returns whether they do."""
        wanted = self._replication.replicas
        if not wanted or not (ids := [entry.id for entry in entries if entry.pairs]):
            return True
        # The reply must arrive before the socket times out.
        timeout = min(self._replication.timeout_seconds, self._shard.socket_timeout / 2)
        # WAIT covers only writes of its own connection, and other connections wrote the expiries. A replica applies all
        # writes in order, so one that has this XCLAIM has the expiries too. XREADGROUP is not enough, because it may
        # have run before the expiries.
        requests = [
            # EVAL, because after NOSCRIPT the script would be sent again behind the WAIT.
            Request(("EVAL", self._change_owner.source, len(call.keys), *call.keys, *call.args))
            for call in self._owning(group, self._consumer, self._consumer, ids, 0)
        ]
        *changed, having = accepted((yield [*requests, Request(("WAIT", wanted, int(timeout * 1000)))]))
        return sum(map(len, changed)) == len(ids) and int(having) >= wanted

    @operation
    def heartbeat(self, group: str, ids: Sequence[bytes]) -> Operation[None]:
        """Reset the idle time of those events that this process still owns, so that no other process claims them."""
        yield from self._own(self._owning(group, self._consumer, self._consumer, ids, 0))

    @operation
    def nack(self, group: str, entries: Sequence[OutboxEntry]) -> Operation[None]:
        """Park the events of a failed delivery that this process still owns. The back-off starts now."""
        calls: list[Call] = []
        for owner in (PARKED, PARKED_ALONE):
            ids = [entry.id for entry in entries if entry.alone == (owner == PARKED_ALONE)]
            calls += self._owning(group, self._consumer, owner, ids, 0)
        yield from self._own(calls)

    @operation
    def release(self, group: str, entries: Sequence[OutboxEntry]) -> Operation[None]:
        """Park events that were read but not sent, so that any process may claim them at once."""
        by_deliveries: dict[int, list[bytes]] = {}
        for entry in entries:
            by_deliveries.setdefault(entry.deliveries, []).append(entry.id)
        calls: list[Call] = []
        for deliveries, ids in by_deliveries.items():
            calls += self._owning(group, self._consumer, PARKED, ids, LONG_IDLE_MS, deliveries - 1)
        yield from self._own(calls)

    def end_waits(self, group: str) -> None:
        """
        Make parked events due and restart all other idle times, after the clock was set back. Until the clock has
        caught up, Redis reports idle times of 0, so that no back-off would end and no process would look dead.
        """
        self.groups.make_due(group)
        for owner in run(self.client, self._owners(group)):
            page = [] if is_waiting(owner) else self.pending(group, owner=owner)
            while page:
                calls = self._owning(group, owner, owner, [pending.id for pending in page], 0)
                run(self.client, self._own(calls))
                page = self.pending(group, page[-1].id, owner)

    @operation
    def acknowledge(self, group: str, ids: Sequence[bytes]) -> Operation[int]:
        """Acknowledge these events. Returns how many of them were pending."""
        return int((yield from ask("XACK", self._key, group, *ids))) if ids else 0

    @operation
    def acknowledge_unwanted(
        self, subscription: Subscription, entries: Sequence[OutboxEntry], owner: bytes | None = None
    ) -> Operation[None]:
        """
        Acknowledge events that the subscription does not want, or release those that another living process wants. If
        any filter has changed since, decide again. If the call fails, the events stay pending and are retried after
        `Timing.take_over_after`. `owner`: the owner of events from `look_up`; by default this process has read them.
        """
        before, taken = owner or self._consumer, int(owner is None)
        left = list(entries)
        while left:
            version, others = self.filters.known.version, self.filters.others(subscription.endpoint)
            nobodys, released = list[bytes](), dict[tuple[bytes, int], list[bytes]]()
            for entry in left:
                if others and (other := self.filters.owner_for(subscription, entry)):
                    # Nothing was sent, so this process's read or claim is not a delivery.
                    released.setdefault((other, max(0, entry.deliveries - taken)), []).append(entry.id)
                else:
                    nobodys.append(entry.id)
            done = 0
            for part in batches(nobodys, ACKNOWLEDGE_COUNT):
                call = Call([self._key, self._shard.keys.filters], [subscription.group, version, *part])
                (outdated,) = yield from run_scripts(self._acknowledge_unwanted, [call])
                if outdated < 0:
                    self.filters.refresh()
                    break
                done += len(part)
            for (other, deliveries), ids in released.items():
                yield from self._own(self._owning(subscription.group, before, other, ids, LONG_IDLE_MS, deliveries))
            unjudged = set(nobodys[done:])
            left = [entry for entry in left if entry.id in unjudged]

    @operation
    def pass_unwanted(
        self, subscription: Subscription, first: bytes, last: bytes
    ) -> Operation[tuple[bool, list[OutboxEntry]]]:
        """
        Move the group past the events from `first` to `last`, which the subscription does not want. Returns whether the
        group was moved. It is not if another living process has another filter, if `last` is gone, or if the group was
        not at `first`; then also returns the event that was read instead, if any.
        """
        version = self.filters.known.version  # before the filters: another thread may learn of a change meanwhile
        if self.filters.others(subscription.endpoint):
            return False, []
        args: list[bytes | str | int] = [subscription.group, self.consumer, version, first, last]
        (reply,) = yield from run_scripts(self._pass_unwanted, [Call([self._key, self._shard.keys.filters], args)])
        if isinstance(reply, int):
            if reply < 0:
                self.filters.refresh()
            return reply > 0, []
        return False, _entries([(self._key, reply)])

    def dead_letter(
        self, group: str, entry: OutboxEntry, reason: str, endpoint: str = "", *, in_hand: bool = True
    ) -> bool:
        """`give_up` for one event. `in_hand`: only if this process still owns it. False if it was skipped."""
        return bool(self.give_up(group, [entry], reason, endpoint, None if in_hand else b""))

    @operation
    def give_up(
        self, group: str, entries: Sequence[OutboxEntry], reason: str, endpoint: str = "", owner: bytes | None = None
    ) -> Operation[list[OutboxEntry]]:
        """
        Replace pending events by dead letters, one page per script. `endpoint`: if it differs from the group's name.
        `owner`: the required owner of the events, by default this process; empty for any. A trimmed event may have any
        owner, because it cannot be claimed. Returns the replaced entries. The others are no longer pending, or have
        another owner.
        """
        needed, endpoint = self._consumer if owner is None else owner, endpoint or group
        done: set[bytes] = set()
        for page in batches(entries, CLAIM_COUNT):
            args: list[bytes | str | int] = [group, reason, endpoint]
            for entry in page:
                event = self.announcements.delivery_failed(endpoint, entry.fields, entry.deliveries, reason)
                args += [entry.id, entry.deliveries, needed if entry.pairs else b"", len(event), *event]
            (written,) = yield from run_scripts(self._dead_letter, [Call([self._key, self._dead_letters], args)])
            done.update(written)
        return [entry for entry in entries if entry.id in done]

    def _owners(self, group: str) -> Operation[list[bytes]]:
        """The owners of pending events: processes, living or dead, and the owners of waiting events."""
        summary = yield from ask("XPENDING", self._key, group)
        return [row["name"] for row in summary["consumers"]]

    def _exactly(self, listed: Sequence[Pending]) -> Operation[list[list[StreamRow]]]:
        """A list with the entry of each event, empty if it was trimmed."""
        return accepted((yield [Request(("XRANGE", self._key, pending.id, pending.id)) for pending in listed]))

    def _own(self, calls: Iterable[Call]) -> Operation[list[bytes]]:
        """Run the calls of `_owning`. Returns the ids of the changed events."""
        return [entry for reply in (yield from run_scripts(self._change_owner, calls)) for entry in reply]

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
        """The calls that change the owner of the events that `before` still owns, up to CLAIM_COUNT events each."""
        how: list[Any] = [group, before, owner, least_idle_ms, idle_ms, "" if deliveries is None else deliveries]
        for part in batches(ids, CLAIM_COUNT):
            yield Call([self._key], [*how, *part])


def _entries(reply: Any, **_options: Any) -> list[OutboxEntry]:
    """The entries of a raw reply to XREADGROUP. Parsing takes most of the time of a read."""
    rows = reply[0][1] if reply else []
    return [OutboxEntry(entry, 1, pairs, False, len(b"".join(pairs))) for entry, pairs in rows]
