"""The brake of the relay: room for the deliveries of others in the list of the dispatcher of Cycles."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from sweeperd.config import CyclesSettings
from sweeperd.delivery import relay as relay_module
from sweeperd.delivery.relay import CyclesRecords
from sweeperd.outbox import OutboxEntry
from sweeperd.store import Shard
from sweeperd.store.shard import Clock
from tests.integration.delivery.test_relay import entries, entry, subscribe

NOW = 1_800_000_000_000
LATE = b"9999999999999"  # an expiry that is never an hour old
PENDING, PROCESSING, LOCK, NOTES = "dispatch:pending", "dispatch:processing", "dispatch:ordering:lock", "sweeperd:relay"
LIMIT = 3
HOUR = 3_600_000
WAIT = 10_000


class Moments(Clock):
    """A clock that only the test sets."""

    now = NOW

    def now_ms(self) -> int:
        return self.now


@pytest.fixture
def clock(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moments]:
    """Calls keep their first size, whatever time Redis takes for them."""
    monkeypatch.setattr(relay_module, "STEP", 1.0)
    before, shard.clock = shard.clock, Moments()
    yield shard.clock
    shard.clock = before


def limited(shard: Shard, limit: int = LIMIT) -> CyclesRecords:
    """A relay that knows the dispatcher, so that the limit decides."""
    learnt: dict[Any, Any] = {"admit": 1000, "at": shard.clock.now_ms(), "taken": 0, "behind": 0, "mark": ""}
    shard.client.hset(NOTES, mapping=learnt)
    return CyclesRecords(shard, CyclesSettings(dispatch_backlog=limit))


def young(count: int, **changes: bytes) -> list[OutboxEntry]:
    return entries(count, expired_at=LATE, **changes)


def test_as_many_deliveries_as_fit_below_the_limit(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    """The later events wait, in order. An event without a subscription never waits."""
    subscribe(client, "whsub_1")
    subscribe(client, "whsub_2")
    client.lpush(PENDING, "of somebody else")
    taken, unmatched = young(4), entry(8, tenant=b"other", expired_at=LATE)
    done = limited(shard, 5).write([*taken, unmatched])
    assert (done.taken, done.deliveries, done.failed) == (5, 4, [])
    assert sorted(done.written) == sorted([*taken[:2], unmatched])
    assert done.held == taken[2:]
    assert client.llen(PENDING) == 5
    assert client.zcard("events:_all") == 3
    assert abs(int(client.hget(NOTES, "waiting") or 0) - shard.read_clock()) < 5000
    assert client.hget(NOTES, "last") == b"of somebody else"


def test_the_events_that_wait_get_the_room_of_sent_deliveries(
    shard: Shard, client: redis.Redis, clock: Moments
) -> None:
    subscribe(client, "whsub_1")
    records, taken = limited(shard), young(5)
    assert records.write(taken).held == taken[3:]
    assert records.write(taken[3:]).held == taken[3:]
    assert records.write([entry(9, tenant=b"other", expired_at=LATE)]).held == []
    assert client.hget(NOTES, "waiting"), "an event without deliveries says nothing about the room"
    client.rpop(PENDING)
    done = records.write(taken[3:])
    assert (done.written, done.held) == (taken[3:4], taken[4:])
    client.delete(PENDING)
    assert records.write(taken[4:]).held == []
    assert client.hget(NOTES, "waiting") == b""
    assert client.zcard("events:acme") == client.zcard("deliveries:whsub_1") == 5


def test_an_event_with_records_does_not_wait(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    subscribe(client, "whsub_1")
    records, taken = limited(shard), young(4)
    records.write(taken)
    done = records.write(taken)
    assert (sorted(done.written), done.held, done.deliveries) == (taken[:3], taken[3:], 0)


def test_an_event_with_more_deliveries_than_the_limit_needs_an_empty_list(
    shard: Shard, client: redis.Redis, clock: Moments
) -> None:
    for number in range(LIMIT + 1):
        subscribe(client, f"whsub_{number}")
    client.lpush(PENDING, "x")
    records, taken = limited(shard), young(2)
    assert records.write(taken).held == taken
    client.delete(PENDING)
    done = records.write(taken)
    assert (done.deliveries, done.held) == (LIMIT + 1, taken[1:])


@pytest.mark.parametrize(
    ("still_ms", "lock_ms", "held"),
    [
        (179_999, None, True),
        (180_000, None, False),
        (181_000, 60_000, True),  # a replica has died with the lock, which will end
        (181_000, -1, False),  # a lock without a TTL is no sign of life
        (-60_000, None, True),  # the clock was set back
    ],
)
def test_without_a_living_dispatcher_everything_is_written(
    shard: Shard, client: redis.Redis, clock: Moments, still_ms: int, lock_ms: int | None, held: bool
) -> None:
    """The dispatcher takes from the right: if the right end stays for 3 minutes, it does not live."""
    subscribe(client, "whsub_1")
    taken = young(4)
    assert limited(shard).write(taken).held == taken[3:]
    assert limited(shard).write(taken[3:]).held == taken[3:]
    assert client.hget(NOTES, "since") == b"%d" % NOW
    if lock_ms:
        client.set(LOCK, "a replica", px=lock_ms if lock_ms > 0 else None)
    clock.now += still_ms
    # What a recovery pushes to the left end is nothing that the dispatcher has taken.
    client.lpush(PENDING, "recovered 1", "recovered 2")
    assert bool(CyclesRecords(shard, CyclesSettings(dispatch_backlog=LIMIT)).write(taken[3:]).held) == held
    assert bool(client.hget(NOTES, "waiting")) == held


def test_only_where_nothing_is_taken_an_old_event_does_not_wait(
    shard: Shard, client: redis.Redis, clock: Moments
) -> None:
    subscribe(client, "whsub_1")
    records = limited(shard)
    records.write(young(3))
    old = entry(8, id=b"old", expired_at=b"%d" % (NOW - HOUR + 181_000))
    recent = entry(9, id=b"recent", expired_at=b"%d" % (NOW - HOUR + 1000 + 181_000))
    assert records.write([old]).held == [old]
    client.set(LOCK, "a replica", px=600_000)
    clock.now += 181_000
    done = records.write([old, recent])
    assert (done.written, done.held) == ([old], [recent])
    client.rpop(PENDING)
    older = entry(10, id=b"older", expired_at=b"1000")
    assert records.write([older]).held == [older]


def test_a_dispatcher_that_takes_again_lives(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    subscribe(client, "whsub_1")
    taken, records = young(9), limited(shard)
    records.write(taken[:4])
    records.write(taken[3:4])
    clock.now += 181_000
    assert records.write(taken[3:7]).held == []
    client.rpop(PENDING)
    assert records.write(taken[7:]).held == taken[7:]


def test_an_empty_list_is_the_work_of_a_living_dispatcher(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    """Also after hours without an expiry."""
    subscribe(client, "whsub_1")
    records = limited(shard)
    client.hset(NOTES, mapping={"last": "", "since": 1})
    assert len(records.write(young(5)).held) == 2


def test_without_a_limit_nothing_waits_and_nothing_is_noted(shard: Shard, client: redis.Redis) -> None:
    subscribe(client, "whsub_1")
    client.lpush(PENDING, *range(2000))
    shard.read_clock()
    records = CyclesRecords(shard, CyclesSettings(dispatch_backlog=0))
    assert records.write(young(30)).held == []
    assert not client.exists(NOTES)


# ---- the brake in time, in a time that the tests make


class Dispatchers:
    """As `count` dispatchers of Cycles, each of which needs `takes` ms for a delivery."""

    def __init__(self, client: redis.Redis, takes: float | Callable[[], float], count: int = 1) -> None:
        self._client, self._takes = client, takes if callable(takes) else lambda: takes
        self._free_at = [float(NOW)] * count
        #: When each delivery was taken.
        self.taken: dict[bytes, float] = {}

    def begin(self, now: float) -> None:
        self._free_at = [now] * len(self._free_at)

    def until(self, now: float) -> None:
        """Take what they take by then. They look at the list when they are called, and when they are free."""
        while (at := min(self._free_at, default=math.inf)) <= now:
            taken: Any = self._client.lmove(PENDING, PROCESSING, "RIGHT", "LEFT")
            if taken is None:
                self._free_at = [max(at, now) if each <= now else each for each in self._free_at]
                return
            self.taken[taken] = at
            self._free_at[self._free_at.index(at)] = at + self._takes()


class World:
    """A relay with more events than can be sent, beside another tenant."""

    def __init__(self, shard: Shard, clock: Moments, dispatchers: Dispatchers, events: int = 10_000) -> None:
        subscribe(shard.client, "whsub_1")
        self.client, self.clock, self.dispatchers = shard.client, clock, dispatchers
        self.records = CyclesRecords(shard)
        self.left = young(events)
        self.asked: dict[bytes, int] = {}

    def step(self, pause: int = 250, some: int = 400) -> int:
        """Write what fits, then let a pause pass, ms. Returns how many were written."""
        before, held = len(self.left), False
        while not held:
            done = self.records.write(self.left[:some])
            self.left, held = [*done.held, *self.left[done.taken :]], bool(done.held)
        self.clock.now += pause
        self.dispatchers.until(self.clock.now)
        return before - len(self.left)

    def go(self, seconds: float, ask_every: float = 1000, pause: int = 250) -> None:
        """The other tenant's webhooks come right behind the relay's."""
        until, ask_at = self.clock.now + seconds * 1000, self.clock.now + ask_every
        while self.clock.now < until:
            self.step(pause, some=5)
            if self.clock.now >= ask_at:
                ask_at += ask_every
                other = b"other %d" % self.clock.now
                self.asked[other] = self.clock.now
                self.client.lpush(PENDING, other)
                self.dispatchers.until(self.clock.now)

    @property
    def waits(self) -> list[float]:
        """How long each of the others waited, seconds."""
        taken = self.dispatchers.taken
        return [(taken.get(each, self.clock.now) - at) / 1000 for each, at in self.asked.items()]


@pytest.mark.parametrize(
    ("rate", "count", "seconds"),
    [(100, 1, 15), (0.2, 3, 150), (0.02, 1, 1000)],
)
def test_another_tenants_delivery_waits_twenty_seconds_at_most(
    shard: Shard, client: redis.Redis, clock: Moments, rate: float, count: int, seconds: int
) -> None:
    """Or behind one of ours, if a single delivery takes longer; and the dispatcher always has something to send."""
    world = World(shard, clock, Dispatchers(client, 1000 / rate, count))
    world.go(seconds, ask_every=max(1000, 3333 / rate), pause=max(250, int(50 / rate)))
    assert len(world.asked) > 5
    assert max(world.waits) <= max(20, 2 / rate)
    assert len(world.dispatchers.taken) >= 0.9 * min(1000, rate * count * (seconds - 3))
    assert client.hget(NOTES, "last")


def test_deliveries_of_different_lengths(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    """A moment in which the dispatcher is quick does not admit what it cannot keep up with."""
    chance = random.Random(0)
    world = World(shard, clock, Dispatchers(client, lambda: chance.expovariate(1 / 100)))
    world.go(60)
    assert max(world.waits) <= 20
    assert len(world.dispatchers.taken) > 400


def test_a_fast_dispatcher_soon_gets_as_many_as_the_limit(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    """Few at a time at first and after silence, then twice as many whenever the list is found empty."""
    world = World(shard, clock, Dispatchers(client, 0.2))
    assert [world.step() for _ in range(11)] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]
    clock.now += 30_000
    assert world.step() == 2


@pytest.mark.parametrize(
    ("since", "taken", "mark", "after"),
    [
        (2 * WAIT, 0, "", (0, 0, 10)),
        (2 * WAIT + 1, 0, "", (0, 0, 2)),
        (-WAIT, 0, "", (-WAIT, 0, 10)),
        (-WAIT - 1, 0, "", (0, 0, 2)),
        (WAIT // 2, 6, "", (WAIT // 2, 6, 10)),
        (WAIT // 2, 7, "", (0, 0, 12)),
        (WAIT - 1, 100, "left", (WAIT - 1, 100, 10)),
        (WAIT, 100, "left", (0, 0, 20)),
        (WAIT, 10, "left", (0, 0, 10)),
    ],
    ids=[
        "nearly silent",
        "silent",
        "a clock a little behind",
        "a clock set back",
        "empty and no faster",
        "empty and faster",
        "too short to tell",
        "never empty and faster",
        "never empty and no faster",
    ],
)
def test_for_how_long_takings_are_counted(
    shard: Shard, client: redis.Redis, clock: Moments, since: int, taken: int, mark: str, after: tuple[int, int, int]
) -> None:
    """Since when they are counted, ms ago, how many there were, and how many deliveries may be pending."""
    notes: Any = {"at": NOW - since, "taken": taken, "mark": mark, "behind": len(mark) and 1, "admit": 10}
    client.hset(NOTES, mapping=notes)
    if mark:
        client.lpush(PENDING, mark)
    CyclesRecords(shard).write([entry(1, tenant=b"other", expired_at=LATE)])
    noted: Any = client.hmget(NOTES, "at", "taken", "admit")
    assert (NOW - int(noted[0]), *map(int, noted[1:])) == after


@pytest.mark.parametrize("name", ["since", "admit"])
def test_a_note_that_cannot_be_read_stops_nothing(shard: Shard, client: redis.Redis, clock: Moments, name: str) -> None:
    world = World(shard, clock, Dispatchers(client, 1000))
    assert world.step() == 2
    world.records.write(young(9))
    client.hset(NOTES, name, "?")
    world.go(3)
    assert len(world.dispatchers.taken) >= 3
    assert str(client.hget(NOTES, name)).strip("b'").isdigit()


def test_a_note_that_is_gone_stops_nothing(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    world = World(shard, clock, Dispatchers(client, 1000))
    assert world.step() == 2
    world.records.write(young(9))
    assert client.hdel(NOTES, "mark")
    world.go(3)
    assert len(world.dispatchers.taken) >= 3


def test_what_a_recovery_pushes_is_not_taken_for_new_work(shard: Shard, client: redis.Redis, clock: Moments) -> None:
    """A replica dies with the lock. The next one recovers what the first has not finished, and takes again."""
    world = World(shard, clock, Dispatchers(client, 100))
    world.go(20, ask_every=math.inf)
    admitted = int(client.hget(NOTES, "admit") or 0)
    assert 80 <= admitted <= 110
    dispatcher, world.dispatchers = world.dispatchers, Dispatchers(client, 0, count=0)
    for left in range(119, 0, -2):
        client.set(LOCK, "dead", px=left * 1000)
        world.step(2000)
        assert client.llen(PENDING) <= admitted + 1, "nothing is written behind a dispatcher that takes nothing"
    client.delete(LOCK)
    recovered = client.lrange(PROCESSING, 0, 400)
    client.lpush(PENDING, *recovered)
    world.go(5, ask_every=math.inf)
    assert client.llen(PENDING) <= admitted + 1 + len(recovered)
    assert client.hget(NOTES, "admit") == b"1"
    dispatcher.taken.clear()
    world.dispatchers = dispatcher
    dispatcher.begin(clock.now)
    world.go(30, ask_every=math.inf)
    assert len(dispatcher.taken) > 250, "and the rate is found again"
