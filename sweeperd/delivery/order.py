"""Delivers the events of one key one after the other, in the order of the stream."""

import bisect
import heapq
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from sweeperd.delivery.batches import Batch, BatchLimits, BatchQueue
from sweeperd.outbox import OutboxEntry
from sweeperd.store.lease import Lease
from sweeperd.store.streams import StreamId

#: How many pending events all ordered lanes of a shard know, and one lane at least. Each takes about 300 bytes.
KNOWN, LEAST_KNOWN = 200_000, 1000
#: When a key is looked at after one of its events failed: the settlement is written by then, seconds.
SETTLED_AFTER = 0.05


class OrderedQueue(BatchQueue):
    """
    The queue of a lane with `order = "key"`, and the ids of all pending events of its group by their keys. An event is
    queued only if the earlier ones of its key are queued or being sent, and taken only if none of them is being sent.
    An event that fails holds back the later ones of its key: they are released, and queued again after it.

    One process at a time works on the lane: the one with the `lease`. `field`: of the event, that holds its key.
    `bound`: how many pending events may be known. `waits` is called for each event that finds an earlier one pending.
    Threads may share the queue.
    """

    def __init__(
        self,
        limits: BatchLimits,
        clock: Callable[[], float],
        lease: Lease,
        field: str,
        bound: int,
        waits: Callable[[], None],
    ) -> None:
        super().__init__(limits, clock)
        self.lease = lease
        #: Until when the lease is held for certain (monotonic).
        self.owned_until = -math.inf
        #: Whether every pending event is known, so that new ones may be read.
        self.complete = False
        self._field = field.encode()
        self._bound = bound
        self._waits = waits
        #: How many events of a key are in hand at most.
        self._each = 2 * limits.events
        self._pending: dict[bytes, list[bytes]] = {}
        self._keys: dict[bytes, bytes] = {}
        #: The ids that are queued or being sent.
        self._in_hand: set[bytes] = set()
        self._queued: dict[bytes, deque[OutboxEntry]] = {}
        #: The keys with queued events of which none is being sent, how many events they have, and the other keys.
        self._free: dict[bytes, None] = {}
        self._ready = 0
        self._busy: set[bytes] = set()
        #: When the next events of a key may be due (monotonic).
        self._look_at: dict[bytes, float] = {}
        self._looks: list[tuple[float, bytes]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many pending events are known."""
        return len(self._keys)

    def __contains__(self, entry: object) -> bool:
        return entry in self._keys

    @property
    def owned(self) -> bool:
        """Whether this process holds the lease."""
        return self._clock() < self.owned_until

    @property
    def full(self) -> bool:
        """Whether so many pending events are known that nothing more is read."""
        return len(self._keys) >= self._bound

    @property
    def reads(self) -> bool:
        """Whether new events may be read."""
        return self.owned and self.complete and not self.full

    # ---- what is pending

    def add(self, entries: Iterable[OutboxEntry]) -> None:
        """These events are pending."""
        with self._lock:
            for entry in entries:
                self._add(self._key(entry), entry.id)

    def forget(self, entry: bytes) -> None:
        """This event is no longer pending."""
        with self._lock:
            self._forget(entry)

    def lose(self) -> None:
        """Another process works on the lane: what is pending changes unseen."""
        with self._lock:
            self.complete = False
            for known in (self._pending, self._keys, self._look_at, self._looks):
                known.clear()

    def leads(self, entry: OutboxEntry) -> bool:
        """Whether no event of the same key is pending."""
        return self._key(entry) not in self._pending

    def heads(self, count: int) -> list[bytes]:
        """The oldest event of each of the next keys, in rotation."""
        with self._lock:
            keys = list(self._pending)[:count]
            for key in keys:
                self._pending[key] = self._pending.pop(key)
            return [self._pending[key][0] for key in keys]

    def look(self, entries: Iterable[OutboxEntry], seconds: float = 0.0) -> None:
        """In `seconds`, look whether the next events of these events' keys are due."""
        with self._lock:
            for entry in entries:
                self._look(self._key(entry), self._clock() + seconds)

    def look_at(self, key: bytes, seconds: float) -> None:
        """In `seconds`, look whether the next events of the key are due."""
        with self._lock:
            self._look(key, self._clock() + seconds)

    def look_everywhere(self) -> None:
        """Look at every key at once."""
        with self._lock:
            now = self._clock()
            for key in self._pending:
                self._look(key, now)

    @property
    def next_look(self) -> float:
        """When the next events of some key may be due (monotonic); inf: not until something changes."""
        with self._lock:
            while self._looks and self._look_at.get(self._looks[0][1]) != self._looks[0][0]:
                heapq.heappop(self._looks)
            return self._looks[0][0] if self._looks else math.inf

    def runs(self, count: int) -> list[tuple[bytes, list[bytes]]]:
        """The keys that may have due events now, with the next events of each; about `count` events together."""
        found: list[tuple[bytes, list[bytes]]] = []
        while count > 0 and self.next_look <= self._clock():
            with self._lock:
                _, key = heapq.heappop(self._looks)
                self._look_at.pop(key, None)
                run = [entry for entry in self._pending.get(key, ())[: self._each] if entry not in self._in_hand]
            if run:
                found.append((key, run))
                count -= len(run)
        return found

    # ---- what is in hand

    def put(
        self,
        entries: Sequence[OutboxEntry],
        *,
        in_order: bool = False,  # noqa: ARG002 - the events of a key have their order
        probe: bool = False,
    ) -> Sequence[OutboxEntry]:
        """Queue these events; as a probe the first that leads its key. Returns those that an earlier one holds back."""
        held: list[OutboxEntry] = []
        with self._lock:
            for entry in entries:
                key = self._key(entry)
                self._add(key, entry.id)
                if not self._follows(key, entry.id) or (probe and self._complete):
                    held.append(entry)
                    continue
                self._in_hand.add(entry.id)
                if probe:
                    self._busy.add(key)
                    self._complete.append(Batch((entry,), probe))
                    continue
                self._queued.setdefault(key, deque()).append(entry)
                if key not in self._busy:
                    self._since = self._since if self._ready else self._clock()
                    self._free[key] = None
                    self._count(1, entry.size)
        return held

    def put_halves(self, halves: Sequence[Batch]) -> None:
        """Queue the parts of a batch. What shares a key with the first part waits for the first part's result."""
        with self._lock:
            keys = {self._key(entry) for entry in halves[0].entries} if halves else set()
            for half in halves[1:]:
                for entry in reversed(half.entries):
                    if (key := self._key(entry)) in keys:
                        self._queued.setdefault(key, deque()).appendleft(entry)
                apart = tuple(entry for entry in half.entries if self._key(entry) not in keys)
                if apart:
                    self.put_back(Batch(apart, attempts=half.attempts))
        for half in halves[:1]:
            self.put_back(half)

    def ids(self) -> set[bytes]:
        with self._lock:
            return super().ids() | {entry.id for queued in self._queued.values() for entry in queued}

    def conclude(self, delivered: Sequence[OutboxEntry], failed: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """
        A batch has its result. Returns the queued events that a failed one holds back: the caller releases them.
        """
        released: list[OutboxEntry] = []
        with self._lock:
            now, blocked = self._clock(), dict.fromkeys(map(self._key, failed))
            for entry in (*delivered, *failed):
                self._in_hand.discard(entry.id)
            for entry in delivered:
                self._forget(entry.id)
            for key in blocked:
                self._busy.discard(key)
                released += self._queued.pop(key, ())
                self._look(key, now + SETTLED_AFTER)
            self._in_hand.difference_update(entry.id for entry in released)
            for key in map(self._key, delivered):
                if key in blocked:
                    continue
                self._busy.discard(key)
                queued = self._queued.get(key, ())
                if queued and key not in self._free:
                    self._since = self._since if self._ready else now
                    self._free[key] = None
                    self._count(len(queued), sum(entry.size for entry in queued))
                if len(self._pending.get(key, ())) > len(queued):
                    self._look(key, now)
        return released

    @property
    def _waiting_events(self) -> int:
        return self._ready

    def _next(self) -> Batch:
        entries: list[OutboxEntry] = []
        size, keys = 0, list[bytes]()
        with self._lock:
            for key in self._free:
                queued = self._queued[key]
                before, left = len(entries), sum(entry.size for entry in queued)
                while queued and (not entries or self._fits(entries, size, queued[0])):
                    entries.append(queued.popleft())
                    size += entries[-1].size
                if len(entries) == before:
                    break
                keys.append(key)
                self._count(-(len(entries) - before) - len(queued), -left)
                if not queued:
                    del self._queued[key]
            for key in keys:
                del self._free[key]
            self._busy.update(keys)
            self._since = self._clock()
        return Batch(tuple(sorted(entries, key=lambda entry: StreamId.parse(entry.id))))

    def _fits(self, entries: Sequence[OutboxEntry], size: int, entry: OutboxEntry) -> bool:
        alone = entry.alone or entries[-1].alone
        return not alone and len(entries) < self._limits.events and size + entry.size <= self._limits.bytes

    def _count(self, events: int, size: int) -> None:
        self._ready += events
        self._bytes += size

    def _key(self, entry: OutboxEntry) -> bytes:
        """Two kinds may use the same entry id. What has no key shares the empty one."""
        if (known := self._keys.get(entry.id)) is not None:
            return known
        fields = entry.fields
        key = fields.get(self._field, b"")
        return fields.get(b"kind", b"") + b"\0" + key if self._field == b"id" else key

    def _add(self, key: bytes, entry: bytes) -> None:
        if entry in self._keys:
            return
        self._keys[entry] = key
        pending = self._pending.setdefault(key, [])
        if pending:
            self._waits()
        if pending and StreamId.parse(pending[-1]) > StreamId.parse(entry):
            bisect.insort(pending, entry, key=StreamId.parse)
        else:
            pending.append(entry)

    def _forget(self, entry: bytes) -> None:
        key = self._keys.pop(entry, None)
        if key is None:
            return
        pending = self._pending[key]
        pending.remove(entry)
        if not pending:
            del self._pending[key]

    def _follows(self, key: bytes, entry: bytes) -> bool:
        """Whether all earlier events of the key are in hand, and few enough."""
        for each in self._pending[key][: self._each]:
            if each == entry:
                return True
            if each not in self._in_hand:
                return False
        return False

    def _look(self, key: bytes, at: float) -> None:
        if key in self._pending and at < self._look_at.get(key, math.inf):
            self._look_at[key] = at
            heapq.heappush(self._looks, (at, key))
