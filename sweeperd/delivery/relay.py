"""
Writes the records of a Cycles installation for each expiry: an event, and a pending delivery for each matching
subscription. Cycles' own dispatcher sends the deliveries; the event API and the delivery lists go on as before.

Formats, keys and the rule of the delivery id come from cycles-server and cycles-server-admin.
"""

import hashlib
import json
import logging
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis

from sweeperd import progress
from sweeperd.config import RELAY, CyclesSettings
from sweeperd.config.types import milliseconds
from sweeperd.delivery.batches import Batch
from sweeperd.delivery.http import DeliveryResult, Result
from sweeperd.delivery.lane import Lane
from sweeperd.delivery.senders import Pace, Sender, Sent
from sweeperd.delivery.settler import Disposition, Settlement
from sweeperd.errors import RedisUnavailable
from sweeperd.outbox import Message, OutboxEntry, cycles_subscription, message
from sweeperd.outbox.cycles_subscription import SYSTEM, CyclesSubscription
from sweeperd.outbox.event import EVENT_TYPE, Fields, category, event_type, moment
from sweeperd.store import Shard
from sweeperd.store.errors import describe
from sweeperd.store.scripts import Call, Script, evaluate, micros_of, server_clock
from sweeperd.text import decode, rfc3339, whole

log = logging.getLogger(__name__)

#: How long Redis may take for a call, µs, so that few calls take 2 ms; other clients wait. The estimate for a record is
#: the median, and follows the calls by steps of this factor: a single long call is more likely the machine's.
CALL_MICROS, STEP = 1500.0, 1.15
#: The time of a record before the first call, µs, and how many records a call writes at most. Each event and each
#: delivery is one.
FIRST_ESTIMATE, LARGEST_SIZE = 15.0, 1000.0
#: An event as old as this does not wait for a dispatcher of Cycles that takes nothing, ms.
LONGEST_WAIT_MS = 3_600_000
#: How many unreadable records are remembered, to log each record once.
REMEMBERED = 1000
#: How many parsed records are kept. A record is read again for each call, and has changed if its bytes have.
PARSED = 4000


@dataclass(slots=True)
class Written:
    """What one call did with the first entries that it got."""

    #: How many of the entries.
    taken: int = 0
    #: All records of these exist, and they are acknowledged.
    written: list[OutboxEntry] = field(default_factory=list)
    #: These get no records, and are pending.
    without: list[OutboxEntry] = field(default_factory=list)
    #: These have no records, and why: another key of their tenant or of a subscription is in the way.
    failed: list[tuple[OutboxEntry, str]] = field(default_factory=list)
    #: These wait for the dispatcher of Cycles, and have no records.
    held: list[OutboxEntry] = field(default_factory=list)
    #: Whether any event has deliveries.
    matched: bool = False
    #: How many deliveries are new.
    deliveries: int = 0


class _Event(NamedTuple):
    entry: OutboxEntry
    message: Message
    tenant: bytes
    #: The ids of the subscriptions that get the event.
    subscriptions: tuple[str, ...]
    at_ms: int


class CyclesRecords:
    """
    Writes the records of many events in one call of the script, which acknowledges the events in `group`. To write an
    event again has no effect. Threads may share the object.
    """

    def __init__(
        self,
        shard: Shard,
        settings: CyclesSettings = CyclesSettings(),  # noqa: B008 - frozen
        group: str = RELAY.name,
    ) -> None:
        self._shard, self._group = shard, group
        self._backlog, self._wait_ms = settings.dispatch_backlog, milliseconds(settings.dispatch_wait)
        #: Of events and of deliveries, seconds.
        self._ttls = [int(ttl.total_seconds()) for ttl in (settings.event_ttl, settings.delivery_ttl)]
        self._keys = shard.keys.cycles
        self._script, self._reading = Script("delivery/relay"), Script("delivery/subscriptions")
        #: How long Redis takes for a record, µs, and how many records the events of the last call had each.
        self._micros, self._each = FIRST_ESTIMATE, 1.0
        #: Subscription id -> hash of the last unreadable record.
        self._unreadable: dict[bytes, int] = {}
        self._parsed: dict[bytes, CyclesSubscription] = {}

    def write(self, entries: Sequence[OutboxEntry]) -> Written:
        """
        Write the records of the first entries, as many as Redis takes in CALL_MICROS; of one at least. If an event has
        no tenant, or if the type is not `reservation.expired`, there are no records. Raises redis.RedisError if Redis
        refuses all (full, or a key of all tenants has another type).
        """
        done = Written()
        events = self._first(entries, done)
        if events:
            self._run(events, done)
        return done

    def _first(self, entries: Sequence[OutboxEntry], done: Written) -> list[_Event]:
        """The events to write now. An entry without records is done."""
        first = entries[: max(1, int(self._size / self._each))]
        fields = [entry.fields for entry in first]
        # Bodies are encoded before the subscriptions are read: until then Redis works on the call of another thread.
        messages = [message(self._shard.origin, each) if _has_records(each) else None for each in fields]
        tenants = [_tenant(each) if encoded else b"" for each, encoded in zip(fields, messages, strict=True)]
        matches = _Matches(self._subscriptions({tenant for tenant in tenants if tenant}))
        events: dict[str, _Event] = {}
        records = 0
        for entry, each, encoded, tenant in zip(first, fields, messages, tenants, strict=True):
            if encoded is None:
                done.without.append(entry)
            else:
                at_ms, wanted = whole(each.get(b"expired_at", b"")), matches.of(tenant, each)
                if isinstance(wanted, str):
                    done.failed.append((entry, wanted))
                elif at_ms is None or moment(each[b"expired_at"]) is None:
                    done.failed.append((entry, "the time of the expiry is unreadable"))
                else:
                    if events and (records + 1 + len(wanted) > self._size or encoded.event_id in events):
                        break  # in the next call the records of the same event exist
                    records += 1 + len(wanted)
                    events[encoded.event_id] = _Event(entry, encoded, tenant, wanted, at_ms)
            done.taken += 1
        if events:
            self._each = records / len(events)
        return list(events.values())

    def _run(self, events: Sequence[_Event], done: Written) -> None:
        groups: dict[tuple[bytes, tuple[str, ...], str], list[_Event]] = {}
        for event in events:
            groups.setdefault((event.tenant, event.subscriptions, event.message.trace_id), []).append(event)
        in_order = [event for group in groups.values() for event in group]
        call = self._call(groups)
        clock = server_clock(self._shard.client)
        _, *replies, ended = evaluate(self._shard.client, "EVALSHA", self._script.sha, [call], around=clock)
        known = isinstance(replies[0], list)
        (reply,) = self._script.run_unknown(self._shard.client, [call], replies)
        if isinstance(reply, Exception):
            raise reply
        deliveries, *began, failed, held = reply
        if known and (until := micros_of(ended)) is not None and (since := micros_of(began)) is not None:
            self._learn(sum(1 + len(event.subscriptions) for event in events), until - since)
        done.deliveries += deliveries
        done.matched = any(event.subscriptions for event in events)
        reasons = {number: decode(reason) for number, reason in zip(failed[::2], failed[1::2], strict=True)}
        waiting = frozenset(held)
        for number, event in enumerate(in_order, 1):
            if number in reasons:
                done.failed.append((event.entry, reasons[number]))
            elif number in waiting:
                done.held.append(event.entry)
            else:
                done.written.append(event.entry)

    @property
    def _size(self) -> float:
        """How many records a call may write."""
        return min(CALL_MICROS / self._micros, LARGEST_SIZE)

    def _learn(self, records: int, micros: int) -> None:
        """Note how long Redis took for a call, and how many records it had."""
        if micros > 0:
            self._micros *= STEP if micros > self._micros * records else 1 / STEP

    def _call(self, groups: dict[tuple[bytes, tuple[str, ...], str], list[_Event]]) -> Call:
        now = self._shard.clock.now_ms()
        event_stem, delivery_stem = self._keys.event(""), self._keys.delivery("")
        keys = [self._keys.all_events, self._keys.dispatch, self._shard.keys.relay, self._shard.keys.events]
        args: list[bytes | str | int] = [
            len(event_stem),
            len(delivery_stem),
            *self._ttls,
            now,
            self._backlog,
            now - LONGEST_WAIT_MS,
            self._wait_ms,
            self._keys.dispatch_lock,
            self._group,
        ]
        ends = {trace: number for number, trace in enumerate({trace for _, _, trace in groups}, 1)}
        args += [len(ends), *(_delivery_end(now, trace) for trace in ends)]
        for (tenant, subscriptions, trace), events in groups.items():
            keys.append(self._keys.events(tenant))
            keys += map(self._keys.deliveries, subscriptions)
            args += [len(subscriptions), len(events), ends[trace], *map(json.dumps, subscriptions)]
            endings = [f"|{subscription}".encode() for subscription in subscriptions]
            for event in events:
                event_id = event.message.event_id.encode()
                keys.append(event_stem + event_id)
                keys += [delivery_stem + _hashed_id(event_id + ending) for ending in endings]
                args += (event.at_ms, event.message.body, event.entry.id)
        return Call(keys, args)

    def _subscriptions(self, tenants: set[bytes]) -> "dict[bytes, list[CyclesSubscription] | str]":
        """Each tenant's subscriptions, those of every tenant with them; or why they cannot be read."""
        if not tenants:
            return {}
        keys = [self._keys.subscriptions(name) for name in (SYSTEM, *tenants)]
        call = Call(keys, [self._keys.subscription(b"")])
        of_all, *of_tenants, records = self._reading.run(self._shard.client, call)
        if not isinstance(of_all, list):
            raise redis.ResponseError(f"{decode(of_all)} {decode(keys[0])}")
        pairs = zip(records[::2], records[1::2], strict=True)
        read = dict(self._read(sorted(pairs, key=operator.itemgetter(0))))
        found: dict[bytes, list[CyclesSubscription] | str] = {}
        for tenant, key, ids in zip(tenants, keys[1:], of_tenants, strict=True):
            if isinstance(ids, list):
                own = [read[each] for each in sorted({*ids, *of_all}) if each in read]
                # By the id in the record: two names may have the same record.
                found[tenant] = list({each.subscription_id: each for each in own}.values())
            else:
                found[tenant] = f"WRONGTYPE {decode(key)}"
        return found

    def _read(self, records: Iterable[tuple[bytes, Any]]) -> Iterable[tuple[bytes, CyclesSubscription]]:
        for subscription, record in records:
            if isinstance(record, list):
                self._warn(subscription, record, decode(record[0]))
            elif record is not None:
                try:
                    yield subscription, self._parse(record)
                except ValueError as error:
                    self._warn(subscription, record, str(error))

    def _parse(self, record: bytes) -> CyclesSubscription:
        parsed = self._parsed.get(record)
        if parsed is None:
            parsed = cycles_subscription.parse(record)
            if len(self._parsed) >= PARSED:
                self._parsed.clear()
            self._parsed[record] = parsed
        return parsed

    def _warn(self, subscription: bytes, record: object, error: str) -> None:
        seen = hash(record if isinstance(record, bytes) else error)
        if self._unreadable.get(subscription) == seen:
            return
        if len(self._unreadable) >= REMEMBERED:
            self._unreadable.clear()
        self._unreadable[subscription] = seen
        reason = error.splitlines()[0]
        fields = {"shard": self._shard.name, "subscription": decode(subscription), "error": reason}
        log.warning("a subscription record cannot be read, so the subscription gets no events", extra=fields)


class _Matches:
    """Which subscriptions get an event; asked once for each tenant and scope."""

    def __init__(self, subscriptions: "dict[bytes, list[CyclesSubscription] | str]") -> None:
        self._subscriptions = subscriptions
        self._known: dict[tuple[bytes, bytes], tuple[str, ...]] = {}

    def of(self, tenant: bytes, fields: Fields) -> tuple[str, ...] | str:
        """The ids of the subscriptions, or why they cannot be read."""
        subscriptions, scope = self._subscriptions[tenant], fields.get(b"scope", b"")
        if isinstance(subscriptions, str):
            return subscriptions
        known = self._known.get((tenant, scope))
        if known is None:
            wanted = event_type(fields), category(event_type(fields)), decode(scope)
            known = tuple(each.subscription_id for each in subscriptions if each.matches(*wanted))
            self._known[tenant, scope] = known
        return known


class Relay(Sender):
    """
    The sender of the relay: each batch goes into the shard's Redis. `observe` gets the result of every call, for the
    metrics. Threads may share a relay.
    """

    def __init__(
        self,
        lane: Lane,
        observe: Callable[[DeliveryResult], None],
        settings: CyclesSettings = CyclesSettings(),  # noqa: B008 - frozen
        pace: Pace = Pace(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(lane, pace)
        self._records = CyclesRecords(lane.shard, settings, lane.group)
        self._observe = observe

    def close(self) -> None:
        """Nothing to close: the connections are the shard's."""

    def _deliver(self, batch: Batch) -> Sent:
        # One attempt says all: Redis has refused, or has not.
        settlements: list[Settlement] = []
        left: Sequence[OutboxEntry] = batch.entries
        while left:
            if self._held_back(batch.probe):
                return Sent([*settlements, Settlement(Disposition.RELEASE, left)])
            started = time.monotonic()
            progress.allow(self._lane.shard.patience)
            try:
                with self._lane.shard.reaching():
                    done = self._records.write(left)
            except (RedisUnavailable, redis.RedisError) as error:
                result = DeliveryResult(Result.FAILED, describe(error), seconds=time.monotonic() - started)
                return Sent(settlements + self._refused(left, result, batch.probe))
            settlements += self._settlements(done, time.monotonic() - started)
            left = left[done.taken :]
        return Sent(settlements)

    def _settlements(self, done: Written, seconds: float) -> list[Settlement]:
        if self._lane.circuit.succeeded():
            log.warning("the endpoint answers again", extra=self._lane.log_fields)
            self._publish()
        settlements = []
        if delivered := done.written + done.without:
            reason = f"{done.deliveries} deliveries"
            self._count(delivered, DeliveryResult(Result.DELIVERED, reason, seconds=seconds))
        if done.written:
            settlements.append(Settlement(Disposition.ACKNOWLEDGE, done.written, acknowledged=True))
        if done.without:
            settlements.append(Settlement(Disposition.ACKNOWLEDGE, done.without))
        if done.held:
            settlements.append(Settlement(Disposition.RELEASE, done.held))
        if done.held or done.matched:
            self._brake(waiting=bool(done.held), room=done.deliveries > 0)
        if done.failed:
            failed, reason = [entry for entry, _ in done.failed], done.failed[0][1]
            fields = {"stream_id": decode(failed[0].id), "events": len(failed), "reason": reason}
            log.warning("not delivered", extra=self._lane.log_fields | fields)
            self._count(failed, DeliveryResult(Result.FAILED, reason, seconds=seconds))
            for entry, why in done.failed:
                settlements += self._nack([entry], why)
        return settlements

    def _brake(self, *, waiting: bool, room: bool) -> None:
        if waiting != self._lane.brake.waiting:
            words = "events wait for the dispatcher of Cycles" if waiting else "the dispatcher of Cycles has room again"
            log.warning(words, extra=self._lane.log_fields)
        if waiting:
            self._lane.brake.hold(room=room)
        else:
            self._lane.brake.release()
        self._lane.metrics.webhooks.relay_waiting.labels(self._lane.shard.name).set(waiting)

    def _refused(self, entries: Sequence[OutboxEntry], result: DeliveryResult, probe: bool) -> list[Settlement]:
        """Redis has refused a call as a whole."""
        self._count(entries, result)
        fields = self._lane.log_fields | {"reason": result.reason}
        log.warning("not delivered", extra=fields | {"stream_id": decode(entries[0].id), "events": len(entries)})
        opened = self._lane.circuit.failed(entries[0].id, result.reason, probe=probe)
        if opened:
            log.error("the endpoint fails; its events wait", extra=fields)
        if opened or probe:
            self._publish()
        return self._nack(entries, result.reason)

    def _count(self, entries: Sequence[OutboxEntry], result: DeliveryResult) -> None:
        self._events[result.result].inc(len(entries))
        self._observe(result)


def _has_records(fields: Fields) -> bool:
    return event_type(fields) == EVENT_TYPE and bool(fields.get(b"tenant"))


def _tenant(fields: Fields) -> bytes:
    """The tenant as in the body of the event."""
    return decode(fields[b"tenant"]).encode()


def _delivery_end(now_ms: int, trace: str) -> str:
    """
    The JSON of a delivery after the event id: the delivery waits for Cycles' dispatcher. `attempted_at` is the present:
    if the time is long past, the dispatcher drops the delivery as stale.
    """
    rest: dict[str, Any] = {
        "event_type": EVENT_TYPE,
        "status": "PENDING",
        "attempted_at": rfc3339(now_ms),
        "attempts": 0,
        **({"trace_id": trace} if trace else {}),
        "trace_flags": "01",
        "traceparent_inbound_valid": False,
    }
    return '",' + json.dumps(rest, separators=(",", ":"))[1:]


def _hashed_id(name: bytes) -> bytes:
    """The same for each try: Java's UUID.nameUUIDFromBytes (MD5, version 3), cut to 16 digits."""
    digits = hashlib.md5(name, usedforsecurity=False).hexdigest()
    return f"del_{digits[:12]}3{digits[13:16]}".encode()
