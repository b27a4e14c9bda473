"""Checks what must hold at every moment, and after the faults have ended."""

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from proof.simulation import cycles
from proof.simulation import kernel as kernels
from proof.simulation.kernel import Failure
from proof.simulation.plan import STEP, Plan, ShardPlan
from proof.simulation.receivers import Acceptance, Receiver
from proof.simulation.redis_gate import SimulatedServer
from sweeperd.config import RELAY, EndpointSettings, Settings
from sweeperd.context import Timing
from sweeperd.ops.endpoints import DROPPED, SKIPPED
from sweeperd.outbox import EventFilter, Subscription, is_waiting
from sweeperd.outbox.filters import LivingFilters
from sweeperd.outbox.replays import ReplayNote
from sweeperd.store.streams import StreamId
from tests.support.streams import delivery_id

#: How long after its end a disturbance may explain a duplicate, seconds.
AFTERMATH = 5.0
#: A process may be dead after a silence of this many ms.
LEAST_SILENCE = Timing().take_over_after * 1000


@dataclass(frozen=True)
class Disturbance:
    """A fault that may explain a duplicate: from when to when, and of which endpoint or process (empty: any)."""

    what: str
    start: float
    end: float
    endpoint: str
    host: str


@dataclass
class Expiry:
    """One event in the stream."""

    key: str
    id: tuple[int, int]
    fields: dict[bytes, bytes]
    at: float


@dataclass(frozen=True)
class Replayed:
    """A replay that has begun at this time, and the entries of its events."""

    endpoint: str
    at: float
    keys: set[str]


@dataclass
class ShardBook:
    """What the observer has seen of one shard."""

    shard: ShardPlan
    server: SimulatedServer
    last: tuple[int, int] = (0, 0)
    #: Entry -> the event of its expiry.
    expired: dict[str, Expiry] = field(default_factory=dict)
    #: Endpoint -> the position at which its group was first seen, or the last event that was trimmed before, or that
    #: came while the group was gone and no living process had the endpoint.
    since: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Budget -> how much `reserved` may be too high, because a hand has changed it; and how much it is, as last seen.
    shifted: dict[bytes, int] = field(default_factory=dict)
    excess: dict[bytes, int] = field(default_factory=dict)
    #: Whether a fail-over may have given an entry a second event.
    rewound: bool = False
    #: The version of the notes about filters; the endpoints of all living processes; endpoint -> entries that the
    #: filter of a living process has wanted at any moment since the expiry.
    version: bytes = b""
    wanted: set[str] = field(default_factory=set)
    kept: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: Group and pending event -> owner, last heartbeat (ms) and deliveries, as fakeredis keeps them.
    pending: dict[tuple[bytes, Any], Any] = field(default_factory=dict)
    #: Group, event and owner -> the deliveries when this owner had it last.
    owned: dict[tuple[tuple[bytes, Any], bytes], int] = field(default_factory=dict)

    def key(self, name: str) -> bytes:
        """A key with the shard's prefix."""
        return (self.shard.prefix + name).encode()


class Book:
    """All shards, all receivers."""

    def __init__(self, plan: Plan, servers: dict[int, SimulatedServer], receivers: dict[str, Receiver]) -> None:
        self.plan = plan
        self.receivers = receivers
        self.shards = [ShardBook(shard, servers[shard.port]) for shard in plan.shards]
        self.disturbances: list[Disturbance] = []
        #: Endpoint, entry: what an operator has skipped.
        self.skipped: set[tuple[str, str]] = set()
        self.checks = 0
        self._replays: list[Replayed] = []
        #: Endpoints whose replay an operator may have cancelled, or made shorter.
        self.doubted: set[str] = set()
        for book in self.shards:
            book.server.observers.append(lambda _server, book=book: self.observe(book))  # type: ignore[misc]

    def disturb(self, what: str, seconds: float, *, endpoint: str = "", host: str = "") -> None:
        """Note a fault that lasts this long from now on."""
        now = kernels.KERNEL.now
        self.disturbances.append(Disturbance(what, now, now + seconds, endpoint, host))

    def observe(self, book: ShardBook) -> None:
        """Take in the new events. Raises Failure if an event and the state of its entry differ."""
        stream = book.server.value(book.key("sweeperd:events"))
        if stream is None:
            return
        self._check_owners(book, stream)
        self._keep(book)
        # A new group may begin before the oldest event of the stream: what was trimmed by then is not owed to it.
        gone = (stream._ids[0][0], stream._ids[0][1] - 1) if stream._ids else tuple(stream.last_id)
        for name in stream._groups:
            book.since.setdefault(name.decode(), max(gone, tuple(stream._groups[name].last_delivered_key)))
        # A hand removed the group, and no process had its endpoint any more to make it again.
        for former in book.since.keys() - book.wanted - {name.decode() for name in stream._groups}:
            book.since[former] = tuple(stream.last_id)
        if tuple(stream.last_id) <= book.last:
            return
        for id_ in reversed(stream._ids):
            if tuple(id_) <= book.last:
                break
            row = stream._values_dict[id_]
            self._take(book, tuple(id_), dict(zip(row[::2], row[1::2], strict=True)))
        book.last = tuple(stream.last_id)

    def _check_owners(self, book: ShardBook, stream: Any) -> None:
        """
        An event in hand stays with its process while the heartbeat of the process is young, and a process that takes
        back what it has had begins another delivery. Raises Failure.
        """
        pending = {(name, id_): entry for name, group in stream._groups.items() for id_, entry in group.pel.items()}
        heard = kernels.KERNEL.server_time() * 1000 - LEAST_SILENCE
        for place in pending.keys() & book.pending.keys():
            before, after = book.pending[place], pending[place]
            if after.consumer_name == before.consumer_name or is_waiting(after.consumer_name):
                continue
            if not is_waiting(before.consumer_name) and before.time_read > heard and "clock" not in self.plan.faults:
                raise Failure("what a process has in hand stays there", f"{place}: {before}, then {after}")
            # Another process may have tried it between the listing and this claim, which counts from the listing.
            had = book.owned.get((place, after.consumer_name), 0)
            if after.times_delivered <= min(before.times_delivered, had):
                raise Failure("who takes an event back delivers it", f"{place}: {before}, then {after}")
        book.pending = pending
        book.owned.update({(place, each.consumer_name): each.times_delivered for place, each in pending.items()})

    def _living(self, book: ShardBook) -> LivingFilters:
        """The filters that processes have noted."""
        notes = book.server.value(book.key("sweeperd:filters"))
        return LivingFilters() if notes is None else LivingFilters.parse(notes.getall())

    def _keep(self, book: ShardBook) -> None:
        """If filters have changed: forget the entries that no living process wants any more."""
        notes = book.server.value(book.key("sweeperd:filters"))
        version = b"" if notes is None else notes.get(b"version")
        if version == book.version:
            return
        book.version, living = version, self._living(book)
        book.wanted = set(living.by_endpoint)
        for endpoint, keys in book.kept.items():
            filters = living.by_endpoint.get(endpoint, {}).values()
            keys &= {key for key in keys if any(each.matches(book.expired[key].fields) for each in filters)}

    def _take(self, book: ShardBook, id_: tuple[int, int], fields: dict[bytes, bytes]) -> None:
        if b"only_for" in fields or fields.get(b"type", b"").startswith((b"system", b"webhook")):
            return
        key = fields[b"id"].decode()
        if key in book.expired and not book.rewound:
            raise Failure("an entry expires once", f"{key}: {book.expired[key].id} and {id_}")
        book.expired[key] = Expiry(key, id_, fields, kernels.KERNEL.now)
        for endpoint, filters in self._living(book).by_endpoint.items():
            if any(each.matches(fields) for each in filters.values()):
                book.kept[endpoint].add(key)
        name = "seats:hold:" if key.startswith("s-") else "reservation:res_"
        entry = book.server.value(book.key(name + key))
        if entry is None or entry.get(b"state") != b"EXPIRED":
            raise Failure("no event without its expiry", f"{key}: the entry is {entry and entry.getall()}")
        grace = int(entry.get(b"grace_ms") or 0)
        if int(entry.get(b"expired_at")) <= int(entry.get(b"expires_at")) + grace:
            raise Failure("nothing expires early", f"{key}: {entry.getall()}")
        if book.server.value(book.key(f"seats:paying:{key}")) is not None:
            raise Failure("nothing protected expires", f"{key}: {entry.getall()}")
        index = book.server.value(book.key("seats:ttl" if key.startswith("s-") else "reservation:ttl"))
        if index is not None and fields[b"id"] in index:
            raise Failure("an expired entry leaves the index", key)

    def rewind(self, book: ShardBook) -> None:
        """After a fail-over: forget the events that were lost."""
        stream = book.server.value(book.key("sweeperd:events"))
        there = set() if stream is None else {tuple(id_) for id_ in stream._ids}
        last = (0, 0) if stream is None else tuple(stream.last_id)
        book.expired = {key: expiry for key, expiry in book.expired.items() if expiry.id in there or expiry.id <= last}
        book.last, book.rewound, book.pending, book.owned = last, True, {}, {}
        book.kept.clear()

    def check(self) -> None:
        """What must hold at every moment. Raises Failure."""
        self.checks += 1
        for book in self.shards:
            self._check_budgets(book)

    def _check_budgets(self, book: ShardBook) -> None:
        reserved: dict[bytes, int] = defaultdict(int)
        active: set[bytes] = set()
        held: dict[bytes, int] = defaultdict(int)
        hold, shows = book.key("seats:hold:"), (book.key("seats:hamlet"), book.key("seats:othello"))
        start, budget_start = book.key("reservation:res_"), book.key("budget:")
        budgets: dict[bytes, dict[bytes, bytes]] = {}
        for key, item in book.server.data.items():
            if key.startswith(start):
                row = item.value.getall()
                state = row.get(b"state")
                if state == b"EXPIRED" and b"expired_by" in row:
                    if key[len(start) :].decode() in book.expired and not book.rewound:
                        raise Failure("an entry expires once", f"{key!r}, by a rival too: {row}")
                elif state == b"EXPIRED":
                    known = book.expired.get(key[len(start) :].decode())
                    if known is None or (b"%d-%d" % known.id) != row.get(b"expired_event"):
                        raise Failure("no expiry without its event", f"{key!r}: {row}")
                if state == b"ACTIVE":
                    if b"quarantined_at" not in row:
                        active.add(key[len(start) :])
                    for scope in json.loads(row.get(b"budgeted_scopes") or row[b"affected_scopes"]):
                        name = budget_start + scope.encode() + b":" + row[b"estimate_unit"]
                        reserved[name] += int(row[b"estimate_amount"])
            elif key.startswith(hold):
                row = item.value.getall()
                if row[b"state"] == b"HELD":
                    held[book.key(f"seats:{row[b'show'].decode()}")] += int(row[b"qty"])
            elif key.startswith(budget_start):
                budgets[key] = item.value.getall()
        for key, row in budgets.items():
            amounts = {name: int(row.get(name, b"0")) for name in (b"allocated", b"reserved", b"spent", b"debt")}
            remaining = int(row[b"remaining"])
            if min(amounts.values()) < 0 or remaining < 0:
                raise Failure("no amount is negative", f"{key!r}: {row}")
            if amounts[b"allocated"] - amounts[b"reserved"] - amounts[b"spent"] - amounts[b"debt"] != remaining:
                raise Failure("each budget adds up", f"{key!r}: {row}")
            held_now = 0 if row[b"status"] == b"CLOSED" else reserved[key]
            book.excess[key] = amounts[b"reserved"] - held_now
            if not 0 <= book.excess[key] <= book.shifted.get(key, 0):
                raise Failure("what is reserved is held", f"{key!r}: {row}, held by reservations: {reserved[key]}")
        for key in shows:
            if (show := book.server.value(key)) is not None:
                free, taken = int(show.get(b"free")), int(show.get(b"held"))
                if free + taken != 0 or taken != held[key]:
                    raise Failure("seats add up", f"{key!r}: {show.getall()}, held: {held[key]}")
        index = book.server.value(book.key("reservation:ttl"))
        indexed = set() if index is None else {member for member, _ in index.items()}
        if "quarantine" in self.plan.operations:
            # The ledger may settle an entry that was set aside. If it is put back after that, the next sweep drops it.
            indexed -= {member for member in indexed if self._has_expired(book, member)}
        if active != indexed:
            raise Failure("index and hashes are one to one", f"{sorted(active ^ indexed)[:5]}")

    @staticmethod
    def _has_expired(book: ShardBook, member: bytes) -> bool:
        row = book.server.value(book.key("reservation:res_") + member)
        return row is not None and row.get(b"state") == b"EXPIRED"

    def may_drift(self, shard: str, budget: bytes, amount: int) -> None:
        """A hand moves so much to `reserved` of this budget; whether it has, is seen in the budget."""
        for book in self.shards:
            if book.shard.name == shard:
                book.shifted[budget] = book.shifted.get(budget, 0) + amount

    def drifting(self, shard: str) -> list[bytes]:
        """The budgets of this shard whose `reserved` is too high now."""
        for book in self.shards:
            self._check_budgets(book)
        return [budget for book in self.shards if book.shard.name == shard for budget, by in book.excess.items() if by]

    def overdue(self) -> list[str]:
        """The entries that should have expired by now, for more than a tick."""
        found = []
        for book in self.shards:
            for name in ("reservation:ttl", "seats:ttl"):
                index = book.server.value(book.key(name))
                for member, score in index.items() if index is not None else ():
                    if score < kernels.KERNEL.wall() * 1000 - 30_000 and not self._is_held(book, member):
                        found.append(f"{member.decode()} is overdue")
        return found

    @staticmethod
    def _is_held(book: ShardBook, member: bytes) -> bool:
        """Whether an unproven kind leaves this entry in the index until an operator acts."""
        if book.server.value(book.key("sweeperd:proofs")) or not member.startswith(b"s-"):
            return False
        fields = book.server.value(book.key(f"seats:hold:{member.decode()}"))
        return fields is None or fields.get(b"state") not in (b"HELD", b"EXPIRED")

    def filters(self, endpoint: str) -> list[EventFilter]:
        """What an endpoint asks for, before and after a reload."""
        return [
            EventFilter(each)
            for settings in (self.plan.settings, self.plan.reloaded)
            for each in settings.webhooks.endpoints
            if each.name == endpoint
        ]

    def _names(self) -> list[set[str]]:
        """The endpoints before and after a reload."""
        both = self.plan.settings, self.plan.reloaded
        return [{endpoint.name for endpoint in settings.webhooks.endpoints} for settings in both]

    def waiting(self, settings: Settings) -> list[str]:
        """What has not come to its end: entries that are held or set aside, replays."""
        found = []
        for book in self.shards:
            for name in ("reservation:ttl", "seats:ttl", "sweeperd:quarantine", "sweeperd:quarantine:seat-hold"):
                index = book.server.value(book.key(name))
                entries = [member for member, _ in index.items() if not self._is_held(book, member)] if index else []
                if entries:
                    found.append(f"{name} has {len(entries)} entries")
            found += [f"{budget!r} drifts by {by}" for budget, by in book.excess.items() if by]
            notes = book.server.value(book.key("sweeperd:groups"))
            for endpoint in settings.webhooks.endpoints:
                if notes is not None and notes.get(f"_replay.{endpoint.name}".encode()):
                    found.append(f"a replay to {endpoint.name} runs")
        return found

    def undelivered(self, settings: Settings) -> list[str]:
        """The events that an endpoint should have accepted, and has neither accepted nor got as a dead letter."""
        found = []
        # If a group is made again, or no living process had its endpoint for a while, what is older than `max_age` may
        # be lost.
        left_out = any(each.what in ("reload", "canary") for each in self.disturbances)
        forgets = left_out or "failover" in self.plan.faults or "destroy" in self.plan.operations
        oldest = kernels.KERNEL.now - settings.webhooks.max_age.total_seconds()
        for book in self.shards:
            letters = self._letters(book)
            for endpoint in settings.webhooks.endpoints:
                receiver = self.receivers[endpoint.name]
                filters = self.filters(endpoint.name)
                since = book.since.get(endpoint.name, (0, 0))
                for key, expiry in book.expired.items():
                    always = all(each.matches(expiry.fields) for each in filters) or key in book.kept[endpoint.name]
                    if expiry.id <= since or not always:
                        continue
                    if forgets and expiry.at < oldest:
                        continue
                    known = receiver.accepted.get(key)
                    if known or (endpoint.name, key) in self.skipped:
                        continue
                    if (endpoint.name, b"%d-%d" % expiry.id) not in letters:
                        found.append(f"{endpoint.name} has not got {key}, event {expiry.id}")
            if settings.cycles.enabled:
                found += self._unrecorded(book, letters, oldest if forgets else 0)
        return found

    def _unrecorded(self, book: ShardBook, letters: set[tuple[str, bytes]], oldest: float) -> list[str]:
        """The expiries without a record of Cycles, or without a delivery to each of its subscriptions."""
        records, deliveries = self.records(book)
        found = []
        since = book.since.get(RELAY.name, (0, 0))
        for key, expiry in book.expired.items():
            tenant, scope = (expiry.fields.get(name, b"").decode() for name in (b"tenant", b"scope"))
            if key.startswith("s-") or expiry.id <= since or expiry.at < oldest:
                continue
            if (RELAY.name, b"%d-%d" % expiry.id) in letters or (RELAY.name, key) in self.skipped:
                continue
            got = {subscription for event in records[key] for subscription, _ in deliveries[event]}
            if not records[key] or got != cycles.wanted(tenant, scope):
                found.append(f"Cycles has not got {key}, event {expiry.id}: {records[key]}, {got}")
        return found

    def records(self, book: ShardBook) -> tuple[dict[str, list[str]], dict[str, list[tuple[str, str]]]]:
        """Reservation -> the ids of its events in Cycles; event -> subscription and id of its deliveries."""
        records, deliveries = defaultdict(list), defaultdict(list)
        index = book.server.value(book.key("events:_all"))
        for event, _ in index.items() if index is not None else ():
            record = json.loads(book.server.value(book.key(f"event:{event.decode()}")))
            records[record["data"]["reservation_id"]].append(event.decode())
        for name in cycles.SUBSCRIPTIONS:
            index = book.server.value(book.key(f"deliveries:{name}"))
            for delivery, _ in index.items() if index is not None else ():
                record = json.loads(book.server.value(book.key(f"delivery:{delivery.decode()}")))
                deliveries[record["event_id"]].append((record["subscription_id"], record["delivery_id"]))
        return records, deliveries

    def check_cycles(self) -> None:
        """
        Each expiry has one record and one delivery for each subscription, and no other has any. Each delivery has the
        id that a second try would give it. Raises Failure.
        """
        for book in self.shards:
            records, deliveries = self.records(book)
            for key, events in records.items():
                if (len(events) > 1 or key not in book.expired) and not book.rewound:
                    raise Failure("an expiry has one record of Cycles", f"{key}: {events}")
                for event in events:
                    if len(deliveries[event]) > len({subscription for subscription, _ in deliveries[event]}):
                        raise Failure("a subscription gets one delivery", f"{key}, {event}: {deliveries[event]}")
                    for subscription, delivery in deliveries[event]:
                        if delivery != delivery_id(event, subscription):
                            raise Failure("a delivery has the same id at each try", f"{key}, {event}: {delivery}")

    def replayed(self, shard: str, endpoint: EndpointSettings, note: ReplayNote, at: float) -> None:
        """An operator has begun a replay, and knows that it has begun. Older events have left the stream by then."""
        wanted, first = EventFilter(endpoint), StreamId.parse(note.first)
        for book in self.shards:
            if book.shard.name == shard:
                keys = {
                    key
                    for key, expiry in book.expired.items()
                    if StreamId(*expiry.id) >= first
                    and note.span.matches(b"%d-%d" % expiry.id, expiry.fields)
                    and wanted.matches(expiry.fields)
                }
                self._replays.append(Replayed(endpoint.name, at, keys))

    def check_replays(self) -> None:
        """Each event of each replay came again, unless something may have ended the replay. Raises Failure."""
        if "failover" in self.plan.faults:
            return
        letters = {
            (endpoint, expiry.key)
            for book in self.shards
            for endpoint, id_ in self._letters(book)
            for expiry in book.expired.values()
            if b"%d-%d" % expiry.id == id_
        }
        for replay in self._replays:
            kept = all(replay.endpoint in names for names in self._names())
            if replay.endpoint in self.doubted or not kept:
                continue
            wanted = self.filters(replay.endpoint)
            for key in sorted(replay.keys):
                (expiry,) = [book.expired[key] for book in self.shards if key in book.expired]
                if not all(each.matches(expiry.fields) for each in wanted):
                    continue
                again = any(each.at >= replay.at for each in self.receivers[replay.endpoint].accepted.get(key, ()))
                if not again and (replay.endpoint, key) not in letters:
                    raise Failure("a replay brings each event", f"{replay.endpoint}: {key}, replay at {replay.at:.3f}")

    def check_order(self) -> None:
        """
        An endpoint with an order gets the events of a tenant in the order of the stream: when it first accepts one, it
        has accepted all earlier ones. Not promised: replays, other filters, a server that loses writes or whose clock
        is set. Raises Failure.
        """
        if self.plan.faults & {"failover", "clock"}:
            return
        replayed = self.doubted | {replay.endpoint for replay in self._replays}
        replayed |= {each.endpoint for each in self.disturbances if each.what == "dead letters replayed"}
        both = [*self.plan.settings.webhooks.endpoints, *self.plan.reloaded.webhooks.endpoints]
        for name in {each.name for each in both if each.order} - replayed:
            if len({Subscription(each).selects for each in both if each.name == name}) == 1:
                for book in self.shards:
                    self._check_order(book, name)

    def _check_order(self, book: ShardBook, endpoint: str) -> None:
        letters, accepted = self._letters(book), self.receivers[endpoint].accepted
        latest: dict[bytes, tuple[float, str]] = {}
        for expiry in sorted(book.expired.values(), key=lambda each: each.id):
            if expiry.key not in accepted or (endpoint, b"%d-%d" % expiry.id) in letters:
                continue
            tenant, at = expiry.fields.get(b"tenant", b""), accepted[expiry.key][0].at
            before, earlier = latest.get(tenant, (0.0, ""))
            if at < before:
                raise Failure("the events of a key come in order", f"{endpoint}: {expiry.key} came before {earlier}")
            latest[tenant] = at, expiry.key

    def check_letters(self) -> None:
        """No event is given up on before its time. Raises Failure."""
        max_age = self.plan.settings.webhooks.max_age.total_seconds()
        for book in self.shards:
            stream = book.server.value(book.key("sweeperd:dead-letters"))
            for id_, row in stream._values_dict.items() if stream is not None else ():
                letter = dict(zip(row[::2], row[1::2], strict=True))
                if letter[b"reason"] in (DROPPED.encode(), SKIPPED.encode()):
                    continue
                age = (id_[0] - int(letter[b"event"].partition(b"-")[0])) / 1000
                if age < max_age - 2 - (2 * STEP if "clock" in self.plan.faults else 0):
                    raise Failure("nothing is given up on early", f"after {age} s: {letter}")

    def _letters(self, book: ShardBook) -> set[tuple[str, bytes]]:
        stream = book.server.value(book.key("sweeperd:dead-letters"))
        rows = [] if stream is None else stream._values_dict.values()
        letters = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        found = {(letter[b"endpoint"].decode(), letter[b"event"]) for letter in letters}
        for letter in letters:
            # A letter that was replayed, and became one again, names the event of the replay.
            if b"only_for" in letter and (expiry := book.expired.get(letter[b"id"].decode())):
                found.add((letter[b"endpoint"].decode(), b"%d-%d" % expiry.id))
        return found

    def check_duplicates(self) -> None:
        """Each event came once, under one id, unless a fault explains more. Raises Failure."""
        rewound = any(book.rewound for book in self.shards)
        known = {key for book in self.shards for key in book.expired}
        for name, receiver in self.receivers.items():
            for key, acceptances in receiver.accepted.items():
                if key not in known and not rewound:
                    raise Failure("no delivery without an expiry", f"{name} has got {key}")
                for book in self.shards:
                    if key in book.expired and not any(
                        each.matches(book.expired[key].fields) for each in self.filters(name)
                    ):
                        raise Failure("an endpoint gets what it asks for", f"{name} has got {key}")
                if len({each.event_id for each in acceptances}) > 1 and not rewound:
                    raise Failure("one event has one id", f"{name}: {key}: {acceptances}")
                for first, second in itertools.pairwise(acceptances):
                    if first.answered and not rewound and not self._explained(name, first, second):
                        raise Failure(
                            "no duplicate without a fault",
                            f"{name} has got {key} at {first.at:.3f} from {first.host} and at {second.at:.3f} from "
                            f"{second.host}",
                        )

    def _explained(self, endpoint: str, first: Acceptance, second: Acceptance) -> bool:
        return any(
            each.start <= second.at
            and each.end + AFTERMATH >= first.at
            and each.endpoint in ("", endpoint)
            and each.host in ("", first.host, second.host)
            for each in self.disturbances
        )

    def counted(self, metrics: list[Any]) -> int:
        """How many expiries the processes have counted together."""
        return int(
            sum(
                sample.value
                for each in metrics
                for metric in each.registry.collect()
                for sample in metric.samples
                if sample.name == "sweeperd_candidates_total" and sample.labels.get("outcome") == "expired"
            )
        )
