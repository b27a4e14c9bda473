"""
The reader, round by round: what it takes for a lane, what it waits for and for how long, and what it settles itself.

No thread runs here. The reader's clock is the test's own, and its waits are noted instead of waiting.
"""

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from sweeperd import progress
from sweeperd.config import EndpointSettings, Settings
from sweeperd.context import DEFAULT_TIMING, ShardContext, Timing
from sweeperd.delivery import reader
from sweeperd.delivery.ahead import FEW, Page
from sweeperd.delivery.batches import Batch, BatchLimits, BatchQueue
from sweeperd.delivery.circuit import FAILURES_TO_OPEN, CircuitBreaker, Redelivery
from sweeperd.delivery.in_flight import InFlight, Room
from sweeperd.delivery.order import OrderedQueue
from sweeperd.delivery.pool import Pool
from sweeperd.delivery.scan import PAGES_PER_STEP, OrderedScan
from sweeperd.delivery.settler import Settler
from sweeperd.delivery.watcher import Watcher
from sweeperd.metrics import Metrics
from sweeperd.outbox import (
    PAGE,
    PARKED,
    PARKED_ALONE,
    CircuitStateStore,
    EndpointStateStore,
    Outbox,
    OutboxEntry,
    Replication,
)
from sweeperd.outbox.replays import ReplayNote, ReplaySubscription
from sweeperd.store import Shard
from sweeperd.store.lease import Lease
from sweeperd.store.operations import Bound, Operation, run
from sweeperd.store.streams import StreamId
from tests.support.builders import StillClock, batch_limits, make_lane
from tests.support.deliveries import EVENTS, expire
from tests.support.harness import eventually, server_time
from tests.support.streams import entries

HOUR_MS = 3_600_000
DEAD_LETTERS = "sweeperd:dead-letters"
HOOK = EndpointSettings.model_validate({"name": "hook", "url": "http://hook.example.com/"})


class Turns(threading.Event):
    """A stop that comes after so many looks at it, and notes the waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.waits: list[float | None] = []
        self.during_wait: Callable[[], object] = lambda: None

    def is_set(self) -> bool:
        self.left -= 1
        return super().is_set() or self.left < 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.during_wait()
        return False


class Senders(Pool):
    """A pool without threads."""

    def _start(self) -> bool:
        return False


class Rounds(reader.Reader):
    """A reader that goes on after its end."""

    def _end(self) -> None:
        pass


class Reader:
    """The reader of `hook`, whose group is there, and what it works on."""

    def __init__(
        self,
        shard: Shard,
        capacity: int = 100,
        initial: float = 20.0,
        max_age_ms: int = HOUR_MS,
        replication: Replication | None = None,
        limits: BatchLimits = batch_limits(),  # noqa: B008 - frozen
        until_idle: bool = False,
        ordered: bool = False,
        known: int = 1000,
        **endpoint: Any,
    ) -> None:
        self.now = 1000.0
        self.shard = shard
        self.metrics = Metrics()
        self.stop = Turns()
        #: Its waits between two rounds.
        self.pauses = Turns()
        self.room = Room(capacity, capacity)
        self.in_flight = InFlight(self.room)
        self.outbox = Outbox(shard, "us", replication)
        self.redelivery = Redelivery(initial, 3600.0, max_age_ms, 0)
        self.circuit = CircuitBreaker(30.0, 3600.0, self.clock)
        timing = Timing(clock=self.clock)
        lease = Lease(shard, "order:hook", timedelta(seconds=timing.take_over_after))
        order = OrderedQueue(limits, self.clock, lease, "tenant", known, lambda: None) if ordered else None
        self.lane = make_lane(
            shard,
            endpoint=endpoint,
            outbox=self.outbox,
            circuit=self.circuit,
            redelivery=self.redelivery,
            in_flight=self.in_flight,
            limits=limits,
            queue=BatchQueue(limits, self.clock) if order is None else order,
            order=order,
            metrics=self.metrics,
            timing=timing,
        )
        self.subscription, self.state = self.lane.subscription, self.lane.state
        self.settler = Settler(shard, timing, 1, lambda _: None)
        pool = Senders("test", capacity, self.settler, timing)
        waits = {"redelivery_initial": f"{round(initial * 1000)}ms", "redelivery_max": "1h"}
        context = ShardContext(
            Settings.model_validate({"webhooks": waits}),
            shard,
            self.metrics,
            threading.Event(),
            capacity,
            timing=timing,
            until_idle=until_idle,
        )
        self.reader = Rounds(context, self.outbox, pool, self.settler, self.room)
        self.reader._wake = self.pauses
        self.reader.touch([self.lane])

    def clock(self) -> float:
        return self.now

    def steps(self, count: int = 1) -> bool:
        """Make up to so many rounds, each after news. Returns whether the reader has ended by itself before that."""
        self.reader.touch([self.lane])
        self.reader.news()
        self.stop.left = count
        self.reader.run(self.stop)
        return self.stop.left >= 0

    def queued(self) -> Batch | None:
        """What is queued for the senders."""
        return self.lane.queue.take(self.now) if self.lane.queue else None

    def open_circuit(self, *events: bytes) -> None:
        """These events fail in turn until the circuit is open."""
        for number in range(FAILURES_TO_OPEN):
            self.circuit.failed(events[number % len(events)], "HTTP 500")

    @property
    def pending(self) -> dict[bytes, tuple[bytes, int]]:
        """The pending events: id -> owner, deliveries."""
        rows: Any = self.shard.client.xpending_range(EVENTS, "hook", "-", "+", 100)
        return {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}

    @property
    def given_up(self) -> list[tuple[bytes, bytes]]:
        """Name and reason of each dead letter."""
        letters = entries(self.shard.client, DEAD_LETTERS)
        return [(fields[b"id"], fields[b"reason"]) for _, fields in letters]


#: The same arguments as Reader has, without the shard.
MakeReader = Callable[..., Reader]


@pytest.fixture
def make_reader(shard: Shard) -> MakeReader:
    """A reader on this shard, by default the test's."""

    def make(on: Shard = shard, /, **settings: Any) -> Reader:
        made = Reader(on, **settings)
        reader.ensure_group(made.lane)
        return made

    return make


def parked(client: redis.Redis, *ids: bytes, idle_ms: int = 0, deliveries: int = 1) -> None:
    """These events of the group wait for their next delivery."""
    client.xreadgroup("hook", "dead", {EVENTS: ">"}, count=len(ids))
    wanted: Any = ids
    client.xclaim(EVENTS, "hook", PARKED.decode(), 0, wanted, idle=idle_ms, retrycount=deliveries, justid=True)


def add(client: redis.Redis, at_ms: int, *names: str, tenant: str = "acme") -> list[bytes]:
    """Add an event for each name as if it had been then."""
    return [
        client.xadd(EVENTS, {"id": name, "tenant": tenant}, id=f"{at_ms}-{number}")  # type: ignore[misc]
        for number, name in enumerate(names, 1)
    ]


# ---- what one step takes


@pytest.mark.parametrize(("capacity", "due", "new"), [(1, 1, 0), (4, 2, 2), (5, 3, 2)])
def test_a_step_takes_no_more_than_there_is_room_for(
    client: redis.Redis, make_reader: MakeReader, capacity: int, due: int, new: int
) -> None:
    """Half of the room is for parked events. Where these fill it, no new event is read."""
    reader = make_reader(capacity=capacity)
    waiting = expire(client, *map(str, range(10)))
    parked(client, *waiting, idle_ms=10**8)
    fresh = expire(client, *map(str, range(10, 30)))
    reader.steps()
    assert set(reader.in_flight.ids()) == {*waiting[:due], *fresh[:new]}


@pytest.mark.parametrize(("capacity", "due", "new"), [(1, 1, 0), (4, 2, 2), (5, 2, 3)])
def test_a_step_of_a_lane_with_an_order_leaves_half_of_the_room_to_new_events(
    client: redis.Redis, make_reader: MakeReader, capacity: int, due: int, new: int
) -> None:
    reader = make_reader(capacity=capacity, ordered=True)
    waiting = [expire(client, "waits", tenant=f"waiting {number}")[0] for number in range(10)]
    parked(client, *waiting, idle_ms=10**8)
    reader.steps()
    assert len(reader.in_flight) == 0, "it has learnt what is pending"
    fresh = [expire(client, "new", tenant=f"new {number}")[0] for number in range(10)]
    reader.steps()
    assert set(reader.in_flight.ids()) == {*waiting[:due], *fresh[:new]}


def test_the_reader_takes_the_rest_of_the_room_as_soon_as_that_is_worth_a_round_trip(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    reader = make_reader(capacity=8)
    expire(client, *map(str, range(6)))
    reader.steps()
    assert len(reader.in_flight) == 6
    expire(client, *map(str, range(6, 20)))
    reader.steps()
    assert len(reader.in_flight) == 8


def test_the_reader_waits_until_there_is_room_for_events_together(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader(capacity=16)
    expire(client, *map(str, range(13)))
    reader.steps()
    expire(client, *map(str, range(13, 20)))
    reader.steps()
    assert (len(reader.in_flight), reader.lane.awaits_room) == (13, True)
    reader.in_flight.remove(reader.in_flight.ids()[:1])
    reader.steps()
    assert len(reader.in_flight) == 16, "with twelve in hand there is room for a quarter"


@pytest.mark.parametrize("fresh", [True, False])
def test_a_lane_that_has_lost_its_room_keeps_no_reader_busy(
    client: redis.Redis, make_reader: MakeReader, fresh: bool
) -> None:
    """More lanes are at work by now, and nothing of this one is settled yet."""
    reader = make_reader(capacity=16)
    expire(client, *map(str, range(4)))
    reader.steps()
    assert len(reader.in_flight) == 4
    (intake,) = reader.reader._intakes.values()
    intake.behind, reader.lane.parked = fresh, not fresh
    intake.scan._next_at = intake._read_at = reader.now + 0.5
    reader.reader._reckon([intake])
    reader.room.lanes = 8
    reader.now += 0.6
    assert reader.reader.round()[1] > 0.1


def test_an_event_that_the_endpoint_does_not_want_is_acknowledged(client: redis.Redis, make_reader: MakeReader) -> None:
    """By the reader itself: such an event is never in hand, and waits for no other thread."""
    reader = make_reader(tenants=["acme"])
    expire(client, "other", tenant="another")
    reader.steps()
    assert (reader.pending, len(reader.in_flight)) == ({}, 0)
    assert reader.queued() is None
    assert reader.lane.counts() == {}


def test_unwanted_events_pass_however_little_room_there_is(client: redis.Redis, make_reader: MakeReader) -> None:
    """Reads grow while the endpoint is behind; the wanted events among them take the room, and the order stays."""
    reader = make_reader(capacity=2, tenants=["acme"], limits=batch_limits(events=2))
    for number in range(4):
        expire(client, *map(str, range(600)), tenant="another")
        if number:
            expire(client, f"mine {number}")
    reader.steps(14)
    assert not reader.pending.keys() - set(reader.in_flight.ids()), "what nobody wants is acknowledged"
    batch = reader.queued()
    assert batch is not None
    assert [entry.fields[b"id"] for entry in batch.entries] == [b"mine 1", b"mine 2"]
    reader.in_flight.remove(entry.id for entry in batch.entries)
    reader.steps(3)
    batch = reader.queued()
    assert batch is not None
    assert [entry.fields[b"id"] for entry in batch.entries] == [b"mine 3"]


def test_a_large_read_gives_back_what_there_is_no_room_for(client: redis.Redis, make_reader: MakeReader) -> None:
    """At once and undelivered, so another process may send these; then reads are small again."""
    reader = make_reader(capacity=4, tenants=["acme"])
    expire(client, *map(str, range(1020)), tenant="another")
    reader.steps(8)
    mine = expire(client, *map(str, range(900)))
    reader.steps()
    assert reader.in_flight.ids() == mine[:4]
    waiting: Any = client.xpending_range(EVENTS, "hook", "-", "+", 1000, PARKED.decode())
    assert {(row["times_delivered"], row["time_since_delivered"] > 10**9) for row in waiting} == {(0, True)}
    read = 4 + len(waiting)
    assert 4 < read <= 900
    reader.in_flight.remove(mine[:4])
    reader.steps()
    assert reader.in_flight.ids() == [*mine[4:6], *mine[read : read + 2]], "half of the room is for new events"


def test_a_read_is_bounded_in_bytes_whether_the_events_are_wanted_or_not(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    reader = make_reader(capacity=4, tenants=["acme"])
    for number in range(60):
        client.xadd(EVENTS, {"id": str(number), "tenant": "another", "data.note": "x" * 200_000})
    taken: list[int] = []
    for _ in range(15):
        before = sum(taken)
        reader.steps()
        row: Any = client.xinfo_groups(EVENTS)[0]
        left: Any = client.xrange(EVENTS, b"(" + row["last-delivered-id"])
        taken.append(60 - len(left) - before)
    assert (sum(taken), reader.pending) == (60, {})
    assert 8 < max(taken) <= 10, taken


def test_unwanted_events_that_could_not_be_acknowledged_are_judged_again(
    client: redis.Redis, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wanted events beside them are queued all the same."""
    reader = make_reader(tenants=["acme"])
    (other,), (mine,) = expire(client, "other", tenant="another"), expire(client, "mine")

    def refuse(*_: object) -> None:
        raise redis.ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(reader.outbox, "acknowledge_unwanted", refuse)
        reader.steps()
    assert reader.in_flight.ids() == [mine]
    assert reader.pending == {other: (b"us", 1), mine: (b"us", 1)}
    client.xclaim(EVENTS, "hook", "us", 0, [other], idle=int(DEFAULT_TIMING.take_over_after * 1000), justid=True)
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert reader.pending == {mine: (b"us", 1)}


@pytest.mark.parametrize(
    ("how", "filtered"),
    [({}, False), ({"tenants": ["acme"]}, True), ({"tenants": ["acme"], "ordered": True}, False)],
    ids=["all", "some", "in order"],
)
def test_only_a_lane_with_a_filter_shares_what_is_read_ahead(
    client: redis.Redis, make_reader: MakeReader, how: dict[str, Any], filtered: bool
) -> None:
    reader = make_reader(**how)
    reader.steps()
    (intake,) = reader.reader._intakes.values()
    assert intake.filtered is filtered


@pytest.mark.parametrize(
    ("tenants", "asked", "more", "passed", "read", "behind"),
    [
        ("", 5, False, 0, 0, False),
        ("xxx", 5, False, 3, 0, False),
        ("xxx", 5, True, 3, 0, True),
        ("x" * (FEW + 1) + "aax", 5, False, FEW + 1, 2, True),
        ("x" * FEW + "aax", 20, False, 0, FEW + 2, True),
        ("a" * 9, 5, True, 0, 5, True),
        ("a" * 5 + "x" * 20, 9, True, 0, 5, True),
    ],
    ids=["nothing", "none", "none yet", "many before", "few before", "enough", "many behind"],
)
def test_a_read_goes_past_what_a_page_says_is_unwanted(
    client: redis.Redis,
    make_reader: MakeReader,
    tenants: str,
    asked: int,
    more: bool,
    passed: int,
    read: int,
    behind: bool,
) -> None:
    reader = make_reader(tenants=["acme"])
    reader.steps()
    (intake,) = reader.reader._intakes.values()
    events = [expire(client, "r", tenant={"a": "acme"}.get(each, "other"))[0] for each in tenants]
    page = Page(intake.position, reader.outbox.peek(intake.position, 100), more=more)
    client.config_resetstat()
    assert run(reader.shard.client, intake.read(asked, page)) is bool(passed or read)
    assert (intake.position, intake.behind) == (events[passed + read - 1] if events else b"0-0", behind)
    wanted = [event for event, each in zip(events, tenants, strict=True) if each == "a"]
    assert reader.in_flight.ids() == wanted[:read]
    assert reader.pending.keys() == set(reader.in_flight.ids())
    reads = client.info("commandstats").get("cmdstat_xreadgroup", {"calls": 0})["calls"]
    assert reads == bool(passed) + bool(read), "one to pass, and one to read"


def test_what_another_process_has_read_of_a_page_is_not_passed(client: redis.Redis, make_reader: MakeReader) -> None:
    """The first event after that is read instead, and counts as a whole read."""
    reader = make_reader(tenants=["acme"])
    reader.steps()
    (intake,) = reader.reader._intakes.values()
    expire(client, *map(str, range(FEW + 1)), tenant="other")
    (mine, _) = expire(client, "mine", "later")
    page = Page(intake.position, reader.outbox.peek(intake.position, 100), more=False)
    client.xreadgroup("hook", "another", {EVENTS: ">"}, count=FEW + 1, noack=True)
    assert run(reader.shard.client, intake.read(5, page))
    assert (reader.in_flight.ids(), intake.position, intake.behind) == ([mine], mine, True)


@pytest.mark.parametrize(("free", "half", "asked"), [(8, False, 8), (8, True, 4), (1, True, 1), (200, False, 100)])
def test_a_lane_with_a_chore_to_do_reads_into_half_of_its_room(
    make_reader: MakeReader, free: int, half: bool, asked: int
) -> None:
    reader = make_reader(capacity=free)
    reader.steps()
    (intake,) = reader.reader._intakes.values()
    assert intake.asks(100, half=half) == asked


# ---- how long it waits


def test_a_reader_without_news_waits_and_reads_nothing(client: redis.Redis, make_reader: MakeReader) -> None:
    """The watcher wakes it, and every few seconds it looks whether a group is behind."""
    reader = make_reader()
    reader.steps()
    client.config_resetstat()
    reader.stop.left = 3
    reader.reader.run(reader.stop)
    assert reader.pauses.waits[-3:] == [DEFAULT_TIMING.block] * 3
    assert "cmdstat_xreadgroup" not in client.info("commandstats")
    (event,) = expire(client, "a")
    reader.now += DEFAULT_TIMING.refresh_every
    reader.stop.left = 1
    reader.reader.run(reader.stop)
    assert reader.in_flight.ids() == [event]


def test_what_ends_the_wait_between_two_rounds(make_reader: MakeReader) -> None:
    made = make_reader()
    reader, lanes, changed = made.reader, [made.lane], list[bool]()
    whats: list[tuple[Callable[[], None], bool]] = [
        (lambda: reader.touch(lanes, wake=False), False),
        (lambda: reader.touch(lanes), True),
        (lambda: reader.change(lambda: changed.append(True)), True),
        (reader.wake, True),
        (reader.news, True),
    ]
    for what, wakes in whats:
        made.pauses.left = 1
        made.pauses.clear()
        what()
        assert made.pauses.is_set() is wakes
    made.stop.left = made.pauses.left = 1
    reader.run(made.stop)
    assert changed
    assert not made.pauses.is_set(), "the next wait is whole"


def test_a_run_until_idle_does_not_wait_for_new_events(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader(until_idle=True)
    assert reader.steps(50)
    assert (reader.stop.waits, reader.pauses.waits) == ([], [])


@pytest.mark.parametrize(
    ("in_hand", "new", "waits"),
    [
        (1, 1, [DEFAULT_TIMING.gather_events]),
        (1, 2, [DEFAULT_TIMING.gather_events]),
        (1, 3, []),
        (1, 0, []),
        (0, 1, []),
    ],
    ids=["few", "nearly a batch", "a full batch", "none", "idle senders"],
)
def test_too_few_events_for_a_batch_are_given_time_to_gather_while_senders_are_busy(
    client: redis.Redis, make_reader: MakeReader, in_hand: int, new: int, waits: list[float]
) -> None:
    reader = make_reader(limits=batch_limits(events=3))
    expire(client, *map(str, range(in_hand)))
    reader.steps()
    assert len(reader.in_flight) == in_hand
    expire(client, *map(str, range(in_hand, in_hand + new)))
    reader.steps()
    assert len(reader.in_flight) == in_hand + new
    expire(client, "later")
    reader.pauses.waits.clear()
    reader.steps()
    assert len(reader.in_flight) == in_hand + new + (not waits)
    assert reader.pauses.waits == pytest.approx(waits or [DEFAULT_TIMING.block])
    reader.now += DEFAULT_TIMING.gather_events
    reader.steps()
    assert len(reader.in_flight) == in_hand + new + 1


def test_a_reader_whose_group_reads_no_more_pauses(client: redis.Redis, make_reader: MakeReader) -> None:
    """That of a replay which has handed out its last event."""
    reader = make_reader()
    reader.subscription.exhausted = True
    expire(client, "a")
    reader.steps()
    assert len(reader.in_flight) == 0
    assert reader.pauses.waits == [DEFAULT_TIMING.block]


def test_a_reader_rests_while_the_endpoint_does(client: redis.Redis, shard: Shard, make_reader: MakeReader) -> None:
    reader = make_reader(initial=2.0)
    EndpointStateStore(shard).pause("hook", "moving house")
    expire(client, "a")
    reader.steps()
    assert reader.pauses.waits == [0.5], "until it is time to look again"
    assert len(reader.in_flight) == 0


@pytest.mark.parametrize("why", ["paused", "open circuit"])
def test_a_run_until_idle_ends_at_once_where_the_endpoint_rests(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, why: str
) -> None:
    """Also where another process has an event in hand: what it gives back would wait all the same."""
    reader = make_reader(until_idle=True)
    expire(client, "a", "b")
    client.xreadgroup("hook", "another", {EVENTS: ">"}, count=1)
    if why == "paused":
        EndpointStateStore(shard).pause("hook", "moving house")
    else:
        reader.open_circuit(b"1-1")
    assert reader.steps(50)
    assert (reader.pauses.waits, reader.stop.waits) == ([], [])


def test_a_reader_waits_while_nothing_can_be_done(client: redis.Redis, make_reader: MakeReader) -> None:
    """There is no room for what is parked; then the circuit is open, and no probe is due."""
    reader = make_reader(capacity=1)
    reader.steps()
    waits, due = expire(client, "in hand", "parked")
    client.xreadgroup("hook", "us", {EVENTS: ">"}, count=1)
    parked(client, due, idle_ms=10**8)
    reader.in_flight.add([OutboxEntry(waits, 1, [b"id", b"r"])])
    reader.now += DEFAULT_TIMING.refresh_every
    client.config_resetstat()
    reader.steps(3)
    assert client.info("commandstats")["cmdstat_xpending"]["calls"] == 1, "by the heartbeat"
    reader.in_flight.remove([waits])
    reader.open_circuit(b"1-1")
    reader.steps(2)
    assert reader.reader.round() == (False, DEFAULT_TIMING.block)


def test_a_long_round_of_reads_leaves_as_much_time_to_others(
    client: redis.Redis, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader()
    reader.steps()
    together = reader.reader._run

    def slow(*how: Any) -> bool:
        reader.now += 0.25
        return together(*how)

    monkeypatch.setattr(reader.reader, "_run", slow)
    (first,) = expire(client, "a")
    reader.reader.news()
    reader.reader.round()
    (second,) = expire(client, "b")
    reader.reader.news()
    assert (reader.reader.round(), reader.in_flight.ids()) == ((False, 0.25), [first])
    reader.now += 0.25
    reader.reader.round()
    assert reader.in_flight.ids() == [first, second]


def test_a_lane_that_has_stopped_is_left_with_its_last_event(client: redis.Redis, make_reader: MakeReader) -> None:
    reader, sender = make_reader(), SimpleNamespace(close=lambda: None)
    reader.lane.sender = cast(Any, sender)
    expire(client, "a")
    reader.steps()
    reader.lane.stop.set()
    for in_hand in (1, 0):
        reader.in_flight.remove(reader.in_flight.ids()[in_hand:])
        reader.steps()
        assert (len(reader.reader._intakes), len(reader.reader._at)) == (in_hand, in_hand)
        assert reader.lane.ended.is_set() is not bool(in_hand)


# ---- the end of a run until idle


def test_a_run_until_idle_waits_for_what_is_in_hand(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader(until_idle=True)
    expire(client, "a")

    def delivered() -> None:
        ids = reader.in_flight.ids()
        reader.outbox.acknowledge("hook", ids)
        reader.in_flight.remove(ids)

    reader.pauses.during_wait = delivered
    assert reader.steps(50)
    assert reader.pauses.waits == [DEFAULT_TIMING.block]
    assert reader.stop.waits == []


def test_a_run_until_idle_goes_through_all_that_is_parked(client: redis.Redis, make_reader: MakeReader) -> None:
    """A step looks at a part of it."""
    reader, count = make_reader(until_idle=True), 2 * PAGE * PAGES_PER_STEP
    *waiting, due = expire(client, *map(str, range(count + 1)))
    parked(client, *waiting)
    parked(client, due, idle_ms=10**8)

    def a_second() -> None:
        reader.now += 1

    reader.pauses.during_wait = a_second
    reader.steps(20)
    assert reader.in_flight.ids() == [due]


def test_a_run_until_idle_looks_at_everything_once_more(
    client: redis.Redis, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event has become due since the round before."""
    reader = make_reader(until_idle=True)
    ids: Any = expire(client, "a")
    parked(client, *ids)
    last_round = reader.reader._last_round

    def later() -> bool:
        client.xclaim(EVENTS, "hook", PARKED.decode(), 0, ids, idle=10**8, justid=True)
        return last_round()

    monkeypatch.setattr(reader.reader, "_last_round", later)
    reader.steps()
    assert reader.in_flight.ids() == ids


def test_a_run_until_idle_waits_until_a_dead_process_would_be_noticed(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    """Another process has an event in hand, and may have died with it."""
    reader = make_reader(until_idle=True)
    expire(client, "a")
    client.xreadgroup("hook", "another", {EVENTS: ">"})

    def five_seconds() -> None:
        reader.now += 5

    reader.pauses.during_wait = five_seconds
    assert reader.steps(50)
    assert DEFAULT_TIMING.take_over_after + DEFAULT_TIMING.refresh_every == 20
    assert reader.pauses.waits == [0.2] * 5


@pytest.mark.parametrize("unread", [False, True])
def test_a_run_until_idle_waits_for_the_process_that_has_an_ordered_lane(
    client: redis.Redis, make_reader: MakeReader, unread: bool
) -> None:
    reader = make_reader(until_idle=True, ordered=True)
    client.set("sweeperd:lease:order:hook", "another-process-0123456789abcdef:15000", px=60_000)
    expire(client, "a") if unread else left_behind(client, "a")

    def five_seconds() -> None:
        reader.now += 5

    reader.pauses.during_wait = five_seconds
    assert reader.steps(50)
    assert reader.pauses.waits == [0.2] * 5


def test_the_end_stops_every_lane_and_waits_for_requests_in_flight(
    make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeats go on meanwhile, and the thread does not hang."""
    made, silent = make_reader(), list[float]()
    made.lane.sender = cast(Any, SimpleNamespace(close=lambda: None))
    made.steps()

    def join(seconds: float) -> None:
        made.now += seconds

    threads = [[SimpleNamespace(join=join)]] * 3
    monkeypatch.setattr(Senders, "threads", property(lambda _: threads.pop() if threads else []))
    with progress.working(progress.Progress(made.clock)) as work:
        monkeypatch.setattr(made.reader, "heartbeat", lambda: silent.append(work.silent_for))
        reader.Reader._end(made.reader)
    assert (silent, made.now, made.reader._pool._closed) == ([0.0] * 3, 1003.0, True)
    assert (made.lane.stop.is_set(), made.lane.ended.is_set(), made.settler._ended) == (True, True, True)


def test_a_run_until_idle_goes_on_with_what_another_process_gives_back(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    reader = make_reader(until_idle=True)
    (event,) = expire(client, "a")
    client.xreadgroup("hook", "another", {EVENTS: ">"})
    ids: Any = [event]
    reader.pauses.during_wait = lambda: client.xclaim(EVENTS, "hook", PARKED.decode(), 0, ids, idle=10**8, justid=True)
    reader.steps(3)
    assert reader.in_flight.ids() == [event]


# ---- trouble


def test_an_outage_of_redis_and_its_end_are_told(
    own_shard: Shard, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sweeperd")
    reader = make_reader(own_shard)
    own_shard.client.config_set("min-replicas-to-write", 1)
    assert not reader.steps(3)
    assert reader.stop.waits == [DEFAULT_TIMING.recovery_pause] * 3
    own_shard.client.config_set("min-replicas-to-write", 0)
    reader.steps(2)
    assert list(dict.fromkeys(caplog.messages)) == ["delivery waits for redis", "delivery goes on"]
    assert caplog.messages.count("delivery goes on") == 1
    assert reader.stop.waits == [DEFAULT_TIMING.recovery_pause] * 3


class Watching(Watcher):
    """A watcher that only counts."""

    def __init__(self) -> None:
        self.reconnects, self.watched = 0, list[bytes]()

    def reconnect(self) -> None:
        self.reconnects += 1

    def watch_from(self, position: bytes) -> None:
        self.watched.append(position)


def fail(*_: object) -> None:
    raise redis.ConnectionError


def test_what_is_added_after_a_round_of_reads_is_news(client: redis.Redis, make_reader: MakeReader) -> None:
    reader, watcher = make_reader(), Watching()
    reader.reader.watcher = watcher
    reader.steps()
    (event,) = expire(client, "a")
    reader.steps()
    assert watcher.watched == [b"0-0", event]


def test_after_an_outage_everything_is_looked_at_again(
    client: redis.Redis, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be another one, and nobody has told what happened meanwhile."""
    reader, watcher, beats = make_reader(), Watching(), itertools.count()
    reader.steps()
    reader.reader.watcher, heartbeat = watcher, reader.reader.heartbeat
    monkeypatch.setattr(reader.reader, "heartbeat", lambda: fail() if next(beats) < 2 else heartbeat())
    events, ahead = list[bytes](), reader.reader._ahead
    ahead._pages = [Page(b"0-0", [OutboxEntry(b"1-0", 1, [b"id", b"r"])], more=False)]
    reader.stop.during_wait = lambda: events.extend(expire(client, "a"))
    reader.stop.left = 5
    reader.reader.run(reader.stop)
    assert (len(events), reader.in_flight.ids()) == (2, events)
    assert (watcher.reconnects, watcher.watched, ahead.page(b"0-0")) == (1, [], None)


def test_a_reader_that_waits_for_redis_does_not_hang(make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make_reader()

    def a_minute() -> None:
        reader.now += 60

    reader.stop.during_wait = a_minute
    monkeypatch.setattr(reader.reader, "heartbeat", fail)
    with progress.working(progress.Progress(reader.clock)) as work:
        reader.stop.left = 3
        reader.reader.run(reader.stop)
        assert work.silent_for == 60


def test_a_run_until_idle_ends_where_redis_is_out(own_shard: Shard, make_reader: MakeReader) -> None:
    reader = make_reader(own_shard, until_idle=True)
    own_shard.client.config_set("min-replicas-to-write", 1)
    assert reader.steps(50)
    assert reader.stop.waits == []


@pytest.mark.parametrize("until_idle", [False, True])
def test_a_fault_is_logged_and_tried_again_after_a_pause(
    client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture, until_idle: bool
) -> None:
    """The stream is of another type: that is no missing group. A run until idle ends with it."""
    reader = make_reader(until_idle=until_idle)
    client.delete(EVENTS)
    client.set(EVENTS, "no stream")
    assert reader.steps(2) is until_idle
    assert caplog.messages == ["delivery failed"]
    assert reader.stop.waits == ([] if until_idle else [DEFAULT_TIMING.recovery_pause] * 2)


def test_a_group_that_was_lost_is_made_again(
    client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    reader = make_reader()
    client.xgroup_destroy(EVENTS, "hook")
    (event,) = expire(client, "a")
    reader.steps(4)
    assert "a consumer group was lost and is made again" in caplog.messages
    assert reader.in_flight.ids() == [event]
    assert reader.stop.waits == []


def test_a_group_that_cannot_be_made_is_tried_again_after_a_pause(
    client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    reader = make_reader()
    client.xgroup_destroy(EVENTS, "hook")
    client.set("sweeperd:groups", "no hash")
    reader.steps()
    assert "the group could not be made" in caplog.messages
    assert reader.pauses.waits == [DEFAULT_TIMING.recovery_pause], "the others go on"


def test_the_reader_of_a_replay_that_has_ended_stops(
    client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    """Its group is gone for good, so it is not made, and nobody is told that it was."""
    reader = make_reader()
    reader.subscription.start = StreamId.parse(b"5-0")
    client.xgroup_destroy(EVENTS, "hook")
    client.hdel("sweeperd:groups", "hook")
    reader.steps(2)
    assert reader.lane.stop.is_set()
    assert client.xinfo_groups(EVENTS) == []
    assert caplog.messages == []


def test_events_that_too_few_replicas_have_are_released(own_shard: Shard, make_reader: MakeReader) -> None:
    """They are not in hand and count no delivery, so any process may take them."""
    reader = make_reader(own_shard, replication=Replication(1, 0.02))
    ids = expire(own_shard.client, "a", "b")
    reader.steps()
    assert reader.pending == dict.fromkeys(ids, (PARKED, 0))
    assert len(reader.in_flight) == 0
    assert reader.pauses.waits == [DEFAULT_TIMING.recovery_pause]


def test_a_run_until_idle_leaves_a_lane_that_fails(
    own_shard: Shard, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    reader = make_reader(own_shard, replication=Replication(1, 0.02), until_idle=True)
    reader.lane.sender = cast(Any, SimpleNamespace(close=lambda: None))
    expire(own_shard.client, "a")
    assert reader.steps(50)
    assert reader.lane.ended.is_set()
    assert "delivery waits for redis" in caplog.messages


# ---- heartbeats and refreshes


def test_two_heartbeats_may_be_lost_before_a_process_counts_as_dead() -> None:
    assert 3 * DEFAULT_TIMING.heartbeat_every <= DEFAULT_TIMING.take_over_after


def test_a_heartbeat_names_the_events_in_hand_when_it_is_time(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader()
    ids: Any = expire(client, "a")
    reader.steps()

    def beats() -> bool:
        """Whether the heartbeat makes an event anew that seems to be in hand for long."""
        client.xclaim(EVENTS, "hook", "us", 0, ids, idle=10**6, justid=True)
        reader.reader.heartbeat()
        rows: Any = client.xpending_range(EVENTS, "hook", "-", "+", 1)
        return bool(rows[0]["time_since_delivered"] < 10**6)

    assert not beats(), "the step has done it"
    reader.now += DEFAULT_TIMING.heartbeat_every - 1
    assert not beats()
    reader.now += 1
    assert beats()
    assert not beats()


@pytest.mark.parametrize(("initial", "every"), [(2.0, 0.5), (3600.0, DEFAULT_TIMING.refresh_every)])
def test_an_operator_is_obeyed_at_the_next_refresh(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, initial: float, every: float
) -> None:
    reader = make_reader(initial=initial)
    reader.steps()
    EndpointStateStore(shard).pause("hook", "moving house")
    reader.now += every - 0.25
    expire(client, "a")
    reader.steps()
    assert len(reader.in_flight) == 1, "it knows nothing of the pause yet"
    reader.now += 0.25
    expire(client, "b")
    reader.steps()
    assert len(reader.in_flight) == 1


@pytest.mark.parametrize("open_circuit", [False, True])
def test_what_is_being_parked_is_not_taken_before_it_is_in_hand_no_more(
    client: redis.Redis, make_reader: MakeReader, at_noon: int, open_circuit: bool
) -> None:
    """Else it would count as settled while it is in hand again: another process would take it and send it too."""
    reader = make_reader()
    (event,) = add(client, at_noon - 2 * HOUR_MS, "a")
    reader.steps()
    reader.outbox.release("hook", [OutboxEntry(event, 2, [])])
    if open_circuit:
        reader.open_circuit(b"1-1", b"1-2")
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert reader.pending == {event: (PARKED, 1)}
    reader.in_flight.remove([event])
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert reader.in_flight.ids() == ([] if open_circuit else [event])
    assert reader.given_up == ([(b"a", b"HTTP 500")] if open_circuit else [])


def test_an_event_in_hand_that_is_given_anew_is_queued_once(client: redis.Redis, make_reader: MakeReader) -> None:
    """The group was lost and begins anew before it."""
    reader = make_reader()
    (event,) = expire(client, "a")
    reader.steps()
    client.xgroup_destroy(EVENTS, "hook")
    client.xgroup_create(EVENTS, "hook", "0")
    reader.steps()
    assert reader.pending == {event: (b"us", 1)}
    batch = reader.queued()
    assert batch is not None
    assert [entry.id for entry in batch.entries] == [event]
    assert reader.queued() is None


def test_a_refresh_reads_the_clock_of_redis(client: redis.Redis, shard: Shard, make_reader: MakeReader) -> None:
    """It may have been set since, or be another server's."""
    reader = make_reader()
    shard.clock.set(0)
    reader.steps()
    assert abs(shard.clock.now_ms() - server_time(client)) < HOUR_MS


def test_a_clock_that_was_set_back_makes_no_event_wait(
    client: redis.Redis,
    shard: Shard,
    make_reader: MakeReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Redis takes an idle time that is below zero for zero, until the clock has caught up."""
    reader = make_reader()
    waits, of_another = expire(client, "a", "b")
    parked(client, waits, deliveries=20)
    client.xreadgroup("hook", "them", {EVENTS: ">"})
    client.xclaim(EVENTS, "hook", "them", 0, [of_another], idle=10_000, justid=True)
    told = "the clock of redis was set back: no event waits any longer"
    for _ in range(3):
        reader.now += DEFAULT_TIMING.refresh_every
        reader.steps()
    reader.lane.park(2)
    reader.now += 2
    reader.steps()  # it has looked, and would look again after the next refresh
    assert (reader.in_flight.ids(), told in caplog.messages) == ([], False)
    now = shard.read_clock() - 3000
    monkeypatch.setattr("sweeperd.delivery.reader.micros_of", lambda _: now * 1000)
    reader.now += DEFAULT_TIMING.refresh_every - 2
    reader.steps()
    (record,) = (record for record in caplog.records if record.message == told)
    assert 2 <= record.__dict__["seconds"] <= 60
    assert reader.in_flight.ids() == [waits]
    row: Any = client.xpending_range(EVENTS, "hook", of_another, of_another, 1)[0]
    assert (row["consumer"], row["times_delivered"]) == (b"them", 1)
    assert row["time_since_delivered"] < 10_000, "if its process is dead, the time begins anew"


def test_a_clock_that_was_set_back_while_a_group_is_missing_stops_nothing(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader()
    reader.steps()
    client.xgroup_destroy(EVENTS, "hook")
    (event,) = expire(client, "a")
    now = shard.read_clock() - HOUR_MS
    monkeypatch.setattr("sweeperd.delivery.reader.micros_of", lambda _: now * 1000)
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps(3)
    assert (reader.stop.waits, reader.in_flight.ids()) == ([], [event])


@pytest.mark.parametrize("paused", [False, True])
def test_a_clock_that_was_set_back_ends_a_mute_and_no_pause(
    shard: Shard, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """The end of a mute is a moment of Redis's clock."""
    reader, state = make_reader(), EndpointStateStore(shard)
    shard.read_clock()
    state.mute("hook", 60)
    reader.steps()
    if paused:
        state.pause("hook", "moving house")
    now = shard.read_clock() - HOUR_MS
    monkeypatch.setattr("sweeperd.delivery.reader.micros_of", lambda _: now * 1000)
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    found = state.read("hook")
    assert (found.paused, found.resting(now)) == (paused, paused)
    assert reader.state.resting is paused


@pytest.mark.parametrize("told_by", ["stream", "process"])
def test_a_clock_that_was_set_back_while_no_process_ran(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, caplog: pytest.LogCaptureFixture, told_by: str
) -> None:
    """Nobody has counted the time, but what is stored lies ahead."""
    reader = make_reader()
    waits, of_another = expire(client, "a", "b")
    parked(client, waits, deliveries=20)
    client.xreadgroup("hook", "them", {EVENTS: ">"})
    client.xclaim(EVENTS, "hook", "them", 0, [of_another], idle=10_000, justid=True)
    ahead = server_time(client) + HOUR_MS
    if told_by == "stream":
        client.xadd(EVENTS, {"id": "r1"}, id=f"{ahead}-1")
    else:
        client.hset("sweeperd:processes", "dead", f'{{"at":{ahead}}}')
    client.hset("sweeperd:endpoints", "hook", f'{{"muted_until":{ahead},"mute_ms":1000}}')
    reader.steps()
    told = "the clock of redis was set back: no event waits any longer"
    assert [record.__dict__["seconds"] for record in caplog.records if record.message == told] == [
        pytest.approx(3600, abs=60)
    ]
    left = EndpointStateStore(shard).read("hook").muted_until - server_time(client)
    assert left <= 1000, "it lasts for its length, since it may be younger than the step of the clock"
    eventually(lambda: not reader.state.resting)
    reader.steps()
    assert waits in reader.in_flight.ids()
    row: Any = client.xpending_range(EVENTS, "hook", of_another, of_another, 1)[0]
    assert row["time_since_delivered"] < 10_000
    caplog.clear()
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert told not in caplog.messages


def test_an_operator_who_closes_the_circuit_ends_the_waits(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    reader = make_reader(initial=0.2)
    (event,) = expire(client, "a")
    parked(client, event, idle_ms=20_000, deliveries=20)
    told = "an operator has closed the circuit"
    reader.steps()
    assert told not in caplog.messages
    assert len(reader.in_flight) == 0, "it waits for an hour"
    CircuitStateStore(shard).close("hook")
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert caplog.messages.count(told) == 1
    assert reader.in_flight.ids() == [event]


def test_a_state_that_redis_does_not_take_is_told_until_an_operator_closes_the_circuit(
    own_shard: Shard, client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sweeperd")
    reader = make_reader(own_shard)
    reader.steps()
    reader.state.pause("gone")
    own_shard.client.acl_setuser("default", commands=["-hset"])
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert "HSET" in reader.lane.trouble
    assert "delivery waits for redis" in caplog.messages
    assert reader.state.state.paused
    own_shard.client.acl_setuser("default", commands=["+hset"])
    CircuitStateStore(own_shard).close("hook")
    own_shard.client.acl_setuser("default", commands=["-hset"])
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps()
    assert not reader.state.state.paused


# ---- with an order


def left_behind(client: redis.Redis, *tenants: str) -> list[bytes]:
    """An event of each tenant that another process has taken and parked."""
    ids = [expire(client, "left", tenant=tenant)[0] for tenant in tenants]
    if ids:
        parked(client, *ids)
    return ids


def test_what_is_pending_is_learnt_anew_if_the_group_has_more_of_it(
    client: redis.Redis, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has just lost the lease may leave some. It costs a scan, so it is not done too often."""
    reader, doubts = make_reader(ordered=True), list[float]()
    doubt = OrderedScan.doubt
    monkeypatch.setattr(OrderedScan, "doubt", lambda scan: doubts.append(reader.now) or doubt(scan))
    left_behind(client, "a", "b")
    reader.steps(2)
    expire(client, "in hand", tenant="c")
    reader.steps()
    assert (len(reader.lane.order or ()), len(reader.in_flight), len(doubts)) == (3, 1, 1)
    doubts.clear()
    first = reader.now + 10
    for seconds, tenants, known in [(5, "", 3), (5, "de", 5), (5, "fg", 5), (5, "", 5), (5, "", 7), (5, "", 7)]:
        left_behind(client, *tenants)
        reader.now += seconds
        reader.steps()
        assert len(reader.lane.order or ()) == known
    assert doubts == [first, first + DEFAULT_TIMING.take_over_after]


def test_what_was_taken_although_the_reply_was_lost_holds_back_its_key(
    client: redis.Redis, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another event is skipped meanwhile, so the number of pending events does not tell."""
    reader = make_reader(ordered=True)
    (skipped,) = left_behind(client, "other")
    reader.steps(2)
    (lost,) = expire(client, "lost")

    def read(group: str, count: int) -> Operation[list[OutboxEntry]]:
        yield from Outbox.read.__get__(reader.outbox, Outbox).part(group, count)
        raise redis.ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(reader.outbox, "read", Bound(client, read), raising=False)
        reader.steps()
    client.xack(EVENTS, "hook", skipped)
    (later,) = expire(client, "later")
    reader.steps(2)
    assert (reader.pending, reader.in_flight.ids()) == ({lost: (b"us", 1), later: (PARKED, 0)}, [])
    client.xclaim(EVENTS, "hook", "us", 0, [lost], idle=int(DEFAULT_TIMING.take_over_after * 1000), justid=True)
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps(2)
    assert reader.in_flight.ids() == [lost, later]


def test_what_a_read_gives_back_for_want_of_room_comes_next(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader(capacity=2, ordered=True)
    reader.steps()
    (intake,) = reader.reader._intakes.values()
    ids = [expire(client, "r", tenant=tenant)[0] for tenant in "abcd"]
    run(reader.shard.client, intake._queue(reader.outbox.read("hook", 4)))
    assert reader.in_flight.ids() == ids[:2]
    reader.in_flight.remove(ids[:2])
    reader.steps(2)
    assert reader.in_flight.ids() == ids[2:]


def test_nothing_is_known_any_more_when_the_lease_was_lost_for_a_while(
    client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process may have worked meanwhile; if there are too many events, the first ones are learnt."""
    reader = make_reader(ordered=True, known=PAGE)
    order = reader.lane.order
    assert order is not None
    caplog.set_level("INFO", logger="sweeperd")
    before = left_behind(client, *map(str, range(PAGE + 10)))
    reader.steps(2)
    assert (len(order), before[0] in order, order.complete) == (PAGE, True, False)
    client.xack(EVENTS, "hook", *before[:2])
    left_behind(client, "x", "y")
    told = "this process delivers to the endpoint, in order"
    for seconds, times in [(DEFAULT_TIMING.heartbeat_every, 1), (DEFAULT_TIMING.take_over_after, 2)]:
        reader.now += seconds
        reader.steps()
        assert caplog.messages.count(told) == times
    assert (len(order), before[0] in order, before[PAGE + 1] in order, order.owned) == (PAGE, False, True, True)


# ---- while the circuit is open


def test_a_probe_that_finds_no_event_is_due_again(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader()
    reader.open_circuit(b"1-1")
    reader.now += 30
    reader.steps(2)
    assert reader.circuit.probe_due
    assert reader.reader.round() == (False, DEFAULT_TIMING.block)
    (event,) = expire(client, "a")
    reader.steps(2)
    assert reader.in_flight.ids() == [event]
    assert not reader.circuit.probe_due, "it is under way"
    batch = reader.queued()
    assert batch is not None
    assert batch.probe


def test_no_probe_is_sent_before_its_time_or_beside_other_events(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader()
    first = expire(client, "a")
    reader.steps()
    reader.open_circuit(b"1-1")
    expire(client, "b")
    reader.now += 30
    reader.steps()
    assert reader.in_flight.ids() == first
    assert reader.circuit.probe_due
    reader.in_flight.remove(first)
    reader.circuit.failed(b"1-1", "HTTP 500", probe=True)
    reader.steps()
    assert len(reader.in_flight) == 0


@pytest.fixture
def at_noon(shard: Shard) -> int:
    """The time on Redis's clock, ms, which does not go on."""
    noon = 1_795_000_000_000
    shard.clock = StillClock(noon)
    return noon


@pytest.mark.parametrize("taken", [True, False], ids=["parked", "never taken"])
def test_what_is_too_old_is_given_up_on_while_the_circuit_is_open(
    client: redis.Redis, make_reader: MakeReader, at_noon: int, taken: bool
) -> None:
    """Exactly max_age is not too old. What the endpoint does not want is acknowledged."""
    reader = make_reader(tenants=["acme"])
    old = add(client, at_noon - HOUR_MS - 2, "old 1", "old 2")
    other = add(client, at_noon - HOUR_MS - 1, "other", tenant="another")
    young = add(client, at_noon - HOUR_MS, "young 1", "young 2")
    if taken:
        parked(client, *old, *other, *young, deliveries=2)
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(3)
    assert len(reader.in_flight) == 0
    assert reader.given_up == [(b"old 1", b"HTTP 500"), (b"old 2", b"HTTP 500")]
    assert reader.lane.counts() == {"dead_lettered": 2}
    letters = [fields[b"attempts"] for _, fields in entries(client, DEAD_LETTERS)]
    assert letters == [b"2" if taken else b"0"] * 2, "no delivery is counted that was none"
    assert list(reader.pending) == (young if taken else [])


def test_nothing_of_the_next_replay_is_given_up_on(client: redis.Redis, make_reader: MakeReader, at_noon: int) -> None:
    """The age of its events counts from its own begin."""
    reader = make_reader()
    old = add(client, at_noon - HOUR_MS - 2, "old")
    parked(client, *old)
    replay = ReplayNote(endpoint="hook", since_ms=0, until_ms=at_noon, first="1-0", last=old[0].decode(), events=1)
    reader.lane.subscription = ReplaySubscription(HOOK, replay)
    reader.lane.subscription.group = "hook"
    client.hset("sweeperd:groups", "hook", replay.model_copy(update={"made_at": at_noon}).model_dump_json())
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(3)
    assert reader.lane.stop.is_set()
    assert reader.given_up == []
    assert list(reader.pending) == old


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_read_beside_old_events_is_sent_when_the_circuit_closes(
    client: redis.Redis, make_reader: MakeReader, at_noon: int, ordered: bool
) -> None:
    """Another process has taken an old event since the reader has looked at the group, so it reads a young one."""
    reader = make_reader(ordered=ordered)
    reader.steps()
    add(client, at_noon - HOUR_MS - 2, "old 1", "old 2", tenant="old")
    client.xreadgroup("hook", "another", {EVENTS: ">"}, count=1, noack=True)
    (young,) = add(client, at_noon - HOUR_MS, "young")
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(2)
    assert reader.given_up == [(b"old 2", b"HTTP 500")]
    assert reader.pending == {young: (PARKED, 0)}
    reader.circuit.succeeded()
    reader.steps()
    assert reader.in_flight.ids() == [young]


def test_what_was_never_tried_is_kept_while_the_circuit_rests_on_one_event(
    client: redis.Redis, make_reader: MakeReader, at_noon: int
) -> None:
    reader = make_reader()
    tried = add(client, at_noon - HOUR_MS - 3, "tried")
    released = add(client, at_noon - HOUR_MS - 2, "released")
    parked(client, *tried, deliveries=1)
    reader.outbox.release("hook", reader.outbox.read("hook", 1))
    add(client, at_noon - HOUR_MS - 1, "never taken")
    reader.open_circuit(*tried)
    reader.steps()
    assert reader.given_up == [(b"tried", b"HTTP 500")]
    assert reader.pending == {released[0]: (PARKED, 0)}


@pytest.mark.parametrize("owner", ["dead", "us"])
def test_what_a_dead_process_had_is_the_next_probe_of_an_open_circuit(
    client: redis.Redis, make_reader: MakeReader, caplog: pytest.LogCaptureFixture, owner: str
) -> None:
    """`us`: an event that this process has taken and not settled, and has in hand no more."""
    reader = make_reader()
    (event,) = expire(client, "a")
    client.xreadgroup("hook", owner, {EVENTS: ">"})
    wanted: Any = [event]
    client.xclaim(EVENTS, "hook", owner, 0, wanted, idle=int(DEFAULT_TIMING.take_over_after * 1000) - 500, justid=True)
    reader.open_circuit(b"1-1", b"1-2")
    reader.now += 30
    reader.steps()
    assert reader.pending == {event: (owner.encode(), 1)}, "it may be in hand still"
    client.xclaim(EVENTS, "hook", owner, 0, wanted, idle=int(DEFAULT_TIMING.take_over_after * 1000), justid=True)
    reader.steps()
    assert len(reader.in_flight) == 0, "it is not the time to look again"
    reader.now += DEFAULT_TIMING.refresh_every
    reader.steps(2)
    assert reader.in_flight.ids() == [event]
    assert reader.pending == {event: (b"us", 2)}
    assert "events that no process has in hand are taken back" in caplog.messages
    batch = reader.queued()
    assert batch is not None
    assert batch.probe


def test_what_is_in_hand_when_the_circuit_opens_is_not_taken_back(client: redis.Redis, make_reader: MakeReader) -> None:
    """Not even where no heartbeat came through."""
    reader = make_reader()
    ids: Any = expire(client, "a", "b")
    reader.steps()
    client.xclaim(EVENTS, "hook", "us", 0, ids, idle=10**6, justid=True)
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(3)
    assert reader.pending == dict.fromkeys(ids, (b"us", 1))


@pytest.mark.parametrize("ordered", [False, True], ids=["paused", "of another process"])
def test_nothing_is_given_up_on_while_the_endpoint_is_paused_or_another_process_has_it(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, at_noon: int, ordered: bool
) -> None:
    reader = make_reader(ordered=ordered)
    if ordered:
        client.set("sweeperd:lease:order:hook", "another-process-0123456789abcdef:15000", px=60_000)
    else:
        EndpointStateStore(shard).pause("hook", "moving house")
    old = add(client, at_noon - HOUR_MS - 2, "old 1", "old 2")
    parked(client, old[0], deliveries=2)
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(3)
    assert (reader.given_up, reader.pending) == ([], {old[0]: (PARKED, 2)})


@pytest.mark.parametrize("muted", [False, True])
def test_what_a_dead_process_had_is_given_up_on_when_it_is_too_old(
    client: redis.Redis, shard: Shard, make_reader: MakeReader, at_noon: int, muted: bool
) -> None:
    reader = make_reader()
    if muted:
        EndpointStateStore(shard).mute("hook", 60)
    old = add(client, at_noon - HOUR_MS - 2, "old 1", "old 2", "old 3")
    client.xreadgroup("hook", "dead", {EVENTS: ">"})
    wanted: Any = old
    client.xclaim(EVENTS, "hook", "dead", 0, wanted, idle=10**6, retrycount=3, justid=True)
    client.xdel(EVENTS, old[2])
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(3)
    assert reader.pending == {}
    gone = (b"", b"the event is no longer in the stream")
    letters = [(fields.get(b"id", b""), fields[b"reason"]) for _, fields in entries(client, DEAD_LETTERS)]
    assert sorted(letters) == [gone, (b"old 1", b"HTTP 500"), (b"old 2", b"HTTP 500")]
    assert reader.metrics.registry.get_sample_value("sweeperd_webhook_dead_letters_total", {"endpoint": "hook"}) == 3
    assert {fields[b"attempts"] for _, fields in entries(client, DEAD_LETTERS)} == {b"3"}


def test_no_more_is_taken_back_in_a_step_than_a_page(client: redis.Redis, make_reader: MakeReader) -> None:
    """However little room there is: what is taken back is not in hand."""
    reader = make_reader(capacity=1)
    ids: Any = expire(client, *map(str, range(PAGE + 10)))
    client.xreadgroup("hook", "dead", {EVENTS: ">"})
    client.xclaim(EVENTS, "hook", "dead", 0, ids, idle=10**6, justid=True)
    reader.open_circuit(b"1-1", b"1-2")
    left = []
    for _ in range(2):
        reader.steps()
        rows: Any = client.xpending_range(EVENTS, "hook", "-", "+", 1000, "dead")
        left.append(len(rows))
    assert left == [10, 0]
    assert len(reader.in_flight) == 0


def test_what_travels_alone_is_given_up_on_too(client: redis.Redis, make_reader: MakeReader, at_noon: int) -> None:
    """It stands behind younger events that travel with others."""
    reader = make_reader()
    alone: Any = add(client, at_noon - HOUR_MS - 2, "alone")
    parked(client, *alone)
    client.xclaim(EVENTS, "hook", PARKED_ALONE.decode(), 0, alone, idle=0, justid=True)
    parked(client, *add(client, at_noon, "young"))
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps()
    assert reader.given_up == [(b"alone", b"HTTP 500")]


@pytest.mark.parametrize("taken", [True, False], ids=["parked", "never taken"])
def test_giving_up_needs_no_room_and_goes_by_pages(
    client: redis.Redis, make_reader: MakeReader, at_noon: int, taken: bool
) -> None:
    reader = make_reader(capacity=1)
    old = add(client, at_noon - HOUR_MS - 1, *map(str, range(3 * PAGE)))
    if taken:
        parked(client, *old, deliveries=2)
    reader.open_circuit(b"1-1", b"1-2")
    reader.steps(3)
    assert (len(reader.given_up), reader.pending) == (3 * PAGE, {})
    assert reader.metrics.registry.get_sample_value("sweeperd_webhook_dead_letters_total", {"endpoint": "hook"}) == (
        3 * PAGE
    )
    assert reader.stop.waits == []


def test_a_page_of_what_is_given_up_on_is_bounded_in_bytes(
    client: redis.Redis, make_reader: MakeReader, at_noon: int
) -> None:
    reader = make_reader()
    for number in range(1, 41):
        fields: Any = {"id": str(number), "tenant": "acme", "data.note": "x" * 200_000}
        client.xadd(EVENTS, fields, id=f"{at_noon - HOUR_MS - 1}-{number}")
    reader.steps()
    parked(client, *reader.in_flight.ids())
    reader.in_flight.remove(reader.in_flight.ids())
    reader.lane.parked = True
    reader.open_circuit(b"1-1", b"1-2")
    before = 0
    for _ in range(4):
        reader.steps()
        assert 0 < len(reader.given_up) - before <= 10
        before = len(reader.given_up)
    assert before == 40


@pytest.mark.parametrize("taken", [True, False], ids=["parked", "never taken"])
def test_no_event_is_given_up_on_unless_the_endpoint_has_failed_lately(
    client: redis.Redis, make_reader: MakeReader, at_noon: int, taken: bool
) -> None:
    """When the probe is due, the receiver may take the events: only the next failure tells."""
    reader = make_reader()
    old = add(client, at_noon - HOUR_MS - 2, "a", "b", "c")
    if taken:
        parked(client, *old, deliveries=2)
    reader.open_circuit(b"1-1", b"1-2")
    reader.now += 30
    reader.steps(3)
    (probe,) = reader.in_flight.ids()
    assert reader.given_up == []
    reader.now += 29
    reader.steps(3)
    assert reader.given_up == [], "the probe has no result yet"
    reader.circuit.failed(probe, "HTTP 503", probe=True)
    reader.steps(3)
    left = sorted({b"a", b"b", b"c"} - {client.xrange(EVENTS, probe, probe)[0][1][b"id"]})  # type: ignore[index]
    assert reader.given_up == [(name, b"HTTP 503") for name in left]


def test_a_probe_that_is_due_goes_before_giving_up(client: redis.Redis, make_reader: MakeReader, at_noon: int) -> None:
    """However many events get too old meanwhile."""
    reader = make_reader()
    reader.open_circuit(b"1-1", b"1-2")
    for number in range(5):
        add(client, at_noon - HOUR_MS - 10 + number, "a", "b")
        reader.steps()
    assert len(reader.given_up) == 10
    add(client, at_noon - HOUR_MS - 1, "a", "b")
    reader.now += 30
    reader.steps()
    assert (len(reader.given_up), len(reader.in_flight)) == (10, 1)


def test_a_probe_is_tried_when_it_is_due_unless_other_events_are_in_hand(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    reader = make_reader()
    (event,) = expire(client, "a")
    reader.steps()
    (intake,) = reader.reader._intakes.values()
    reader.open_circuit(b"1-1")
    reader.now += 27
    reader.steps(3)
    assert intake.chore_at == reader.now + DEFAULT_TIMING.refresh_every
    reader.in_flight.remove([event])
    reader.steps(3)
    assert intake.chore_at == reader.now + 3


def test_unwanted_events_beside_a_parked_probe_make_the_next_read_larger(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    reader = make_reader(tenants=["acme"])
    (probe,) = expire(client, "waits")
    parked(client, probe)
    expire(client, "unwanted", tenant="other")
    reader.open_circuit(b"1-1")
    reader.now += 30
    reader.steps(2)
    (intake,) = reader.reader._intakes.values()
    assert (reader.in_flight.ids(), intake._read_size.fit(1, 1000)) == ([probe], 2)


def test_the_probe_of_a_lane_with_an_order_is_the_oldest_event_of_its_key(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    reader = make_reader(ordered=True)
    (oldest,) = left_behind(client, "a")
    reader.steps()
    reader.open_circuit(b"1-1", b"1-2")
    (later,) = expire(client, "later", tenant="a")
    reader.now += 30
    reader.steps(3)
    assert reader.pending == {oldest: (b"us", 2), later: (PARKED, 0)}
    batch = reader.queued()
    assert batch is not None
    assert ([entry.id for entry in batch.entries], batch.probe) == ([oldest], True)


def test_an_event_behind_one_that_another_process_has_is_no_probe(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader(ordered=True)
    (first, later) = expire(client, "first", "later")
    client.xreadgroup("hook", "another", {EVENTS: ">"}, count=1)
    reader.open_circuit(b"1-1", b"1-2")
    reader.now += 30
    reader.steps(3)
    assert reader.pending == {first: (b"another", 1), later: (PARKED, 0)}
    assert reader.circuit.probe_due, "no probe is under way"


def test_a_probe_passes_pages_of_unwanted_events(client: redis.Redis, make_reader: MakeReader) -> None:
    reader = make_reader(capacity=2, tenants=["acme"])
    expire(client, *map(str, range(3000)), tenant="another")
    mine = expire(client, "mine", "mine too")
    reader.open_circuit(b"1-1", b"1-2")
    reader.now += 30
    reader.steps()
    reader.stop.left = 13  # without news
    reader.reader.run(reader.stop)
    assert reader.in_flight.ids() == mine[:1]
    assert reader.pending == {mine[0]: (b"us", 1), mine[1]: (PARKED, 0)}
    assert not reader.circuit.probe_due
    batch = reader.queued()
    assert batch is not None
    assert batch.probe


def test_an_event_that_the_stream_has_no_more_becomes_a_dead_letter(
    client: redis.Redis, make_reader: MakeReader
) -> None:
    """It was pending when somebody trimmed the stream. The reader writes the dead letter itself."""
    reader = make_reader()
    gone, there = expire(client, "gone", "there")
    parked(client, gone, there, idle_ms=10**8, deliveries=3)
    client.xdel(EVENTS, gone)
    reader.steps()
    batch = reader.queued()
    assert batch is not None
    assert [entry.id for entry in batch.entries] == [there]
    letters = [fields for _, fields in entries(client, DEAD_LETTERS)]
    assert [fields[b"reason"] for fields in letters] == [b"the event is no longer in the stream"]
    assert reader.in_flight.ids() == [there]
