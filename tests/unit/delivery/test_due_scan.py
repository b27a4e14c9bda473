"""Which pending events are due, to the millisecond, and when the next step of the scan is."""

import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.lane import Brake
from sweeperd.delivery.order import OrderedQueue
from sweeperd.delivery.scan import PAGES_PER_STEP, PAUSE_PER_PAGE, SETTLING, WAITING, DueScan, OrderedScan
from sweeperd.outbox import PAGE, PARKED, PARKED_ALONE, OutboxEntry, Pending
from sweeperd.store.operations import Operation, operation
from tests.support.builders import batch_limits, in_flight, redelivery

#: The first wait of an event that was sent in vain, seconds; and that of an event after five deliveries.
INITIAL, AFTER_FIVE = 30, 480


#: The owners of events that wait for a process with the filter of this one, and with another one.
OUR_FILTER, OTHER_FILTER = b"(released:ours)", b"(released:other)"


class Listed:
    """An outbox with exactly these pending events. A claim is kept, and gives every event but the `refused` ones."""

    client: Any = None

    def __init__(self, *pending: Pending) -> None:
        self.listed = list(pending)
        self.least_idle: list[int] = []
        self.refused: list[bytes] = []

    def may_take(self, _subscription: object, owner: bytes) -> bool:
        return owner == OUR_FILTER

    @operation
    def states(self, _group: str, ids: Sequence[bytes]) -> Operation[dict[bytes, Pending]]:
        yield from ()
        return {each.id: each for each in self.listed if each.id in ids}

    @operation
    def look_up(self, listed: Sequence[Pending]) -> Operation[list[OutboxEntry]]:
        """Ten ids in a row share a tenant."""
        yield from ()
        return [OutboxEntry(each.id, each.deliveries, [b"tenant", each.id[:5]]) for each in listed]

    @operation
    def pending(self, _group: str, previous: bytes | None = None) -> Operation[list[Pending]]:
        yield from ()
        return [each for each in self.listed if previous is None or each.id > previous][:PAGE]

    @operation
    def claim(self, _group: str, wanted: Sequence[Pending], min_idle_ms: int) -> Operation[list[OutboxEntry]]:
        yield from ()
        self.least_idle.append(min_idle_ms)
        return [
            OutboxEntry(each.id, each.deliveries + 1, [b"id", b"r"]) for each in wanted if each.id not in self.refused
        ]


class Scan:
    """A scan whose operations run alone."""

    def __init__(self, lane: Any, clock: Callable[[], float]) -> None:
        self.lane = lane
        self._scan = DueScan(lane)
        self._clock = clock

    def step(self, count: int) -> list[Pending]:
        return _run(self._scan.step(count))

    def take(self, room: int, pause: float) -> list[OutboxEntry]:
        return _run(self._scan.take(room, pause))

    def end_waits(self) -> None:
        self._scan.end_waits()

    @property
    def at_start(self) -> bool:
        return self._scan.at_start

    @property
    def due(self) -> bool:
        return self._clock() >= self._scan.due_at


T = TypeVar("T")


def _run(one: Operation[T]) -> T:
    with pytest.raises(StopIteration) as ended:
        next(one)
    result: T = ended.value.value
    return result


class ManualClock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def parked(number: int, idle: float, deliveries: int = 1, owner: bytes = PARKED) -> Pending:
    return Pending(b"%06d-0" % number, owner, int(idle * 1000), deliveries)


def make_lane(outbox: Listed, *in_hand: OutboxEntry, clock: Callable[[], float] = time.monotonic) -> Any:
    return SimpleNamespace(
        group="hook",
        subscription=None,
        outbox=outbox,
        redelivery=redelivery(INITIAL),
        in_flight=in_flight(*in_hand),
        timing=Timing(clock=clock),
        brake=Brake(1.0),
        due_at=math.inf,
    )


def scan(outbox: Listed, *in_hand: OutboxEntry, clock: Callable[[], float] = time.monotonic) -> Scan:
    return Scan(make_lane(outbox, *in_hand, clock=clock), clock)


@pytest.mark.parametrize("owner", [PARKED, PARKED_ALONE])
@pytest.mark.parametrize(("deliveries", "wait"), [(0, 0), (1, INITIAL), (2, 2 * INITIAL), (5, AFTER_FIVE)])
def test_a_parked_event_is_due_when_its_wait_is_over(owner: bytes, deliveries: int, wait: float) -> None:
    early = [parked(1, wait - 0.001, deliveries, owner)] if wait else []
    due = parked(2, wait, deliveries, owner)
    assert scan(Listed(*early, due)).step(10) == [due]


def test_an_event_of_a_dead_process_is_due_unless_this_process_has_it_in_hand() -> None:
    alive = parked(1, DEFAULT_TIMING.take_over_after - 0.001, owner=b"them")
    dead, ours = (
        parked(2, DEFAULT_TIMING.take_over_after, owner=b"them"),
        parked(3, DEFAULT_TIMING.take_over_after, owner=b"us"),
    )
    in_hand = OutboxEntry(ours.id, 1, [b"id", b"r1"])
    assert scan(Listed(alive, dead, ours), in_hand).step(10) == [dead]


def test_only_what_was_parked_before_an_operator_ended_all_waits_is_due_by_that(clock: ManualClock) -> None:
    before, after = parked(1, 20, 5), parked(2, 19.999, 5)
    outbox = Listed(before, after)
    steps = scan(outbox, clock=clock)
    assert steps.step(10) == []
    steps.end_waits()
    clock.now += 20
    assert steps.step(10) == [before]
    clock.now += 0.5
    assert steps.step(10) == []


def test_no_event_is_due_by_the_end_of_all_waits_that_a_claim_would_refuse(clock: ManualClock) -> None:
    least = DEFAULT_TIMING.take_over_after
    due, younger = parked(1, least, 5), parked(2, least - 0.001, 5)
    outbox = Listed(due, younger)
    steps = scan(outbox, clock=clock)
    steps.end_waits()
    assert [entry.id for entry in steps.take(10, 5)] == [due.id]
    assert outbox.least_idle == [least * 1000]


def test_the_brake_holds_for_its_pause(clock: ManualClock) -> None:
    brake = Brake(1.0, clock)
    assert not brake.holds
    brake.hold()
    clock.now += 0.999
    assert brake.holds
    clock.now += 0.001
    assert (brake.holds, brake.waiting) == (False, True)
    brake.hold()
    brake.release()
    assert not brake.holds


def test_the_brake_holds_longer_while_there_is_no_room_at_all(clock: ManualClock) -> None:
    """But never much longer than the time without room so far, so that an end of it is noticed soon."""
    brake, waits = Brake(1.0, clock), []
    for seconds, rooms in (
        (0, [False]),
        (32, [False]),
        (32, [False]),
        (64, [False]),
        (1000, [False]),
        (0, [True, False]),
    ):
        clock.now += seconds
        for room in rooms:
            brake.hold(room=room)
        waits.append(brake.until - clock.now)
    assert waits == [1, 1, 2, 4, 8, 1]
    clock.now += 1000
    brake.release()
    brake.hold()
    assert brake.until - clock.now == 1


def test_the_brake_of_a_run_holds_until_its_patience_ends(clock: ManualClock) -> None:
    brake = Brake(1.0, clock, 2.0)
    for holds in (True, True, False, False):
        brake.hold()
        assert (brake.waiting, brake.holds) == (True, holds)
        clock.now += 1
    brake.release()
    brake.hold()
    assert brake.holds


def test_each_try_with_the_brake_on_puts_it_on_anew(clock: ManualClock) -> None:
    steps = scan(Listed(), clock=clock)
    steps.lane.brake = Brake(1.0, clock)
    steps.lane.brake.hold()
    clock.now += 1
    assert steps.due
    assert steps.take(10, 0.0) == []
    assert not steps.due


def test_half_of_the_room_is_left_to_new_events(clock: ManualClock) -> None:
    outbox = Listed(*(parked(number, 100) for number in range(100)))
    steps = scan(outbox, clock=clock)
    assert [len(steps.take(10, 5)) for _ in range(4)] == [5, 5, 5, 5]


def test_where_there_is_room_for_one_event_parked_and_new_ones_take_turns(clock: ManualClock) -> None:
    outbox = Listed(*(parked(number, 100) for number in range(10)))
    steps = scan(outbox, clock=clock)
    assert [len(steps.take(1, 5)) for _ in range(6)] == [1, 0, 1, 0, 1, 0]


def test_the_next_step_is_at_once_after_one_that_found_something(clock: ManualClock) -> None:
    outbox = Listed()
    steps = scan(outbox, clock=clock)
    assert steps.due
    steps.take(10, 5)
    assert not steps.due
    outbox.listed = [parked(1, 100)]
    assert len(steps.take(10, 5)) == 1
    assert steps.due


@pytest.mark.parametrize(
    ("events", "pause"),
    [(0, 5), (PAGE * PAGES_PER_STEP + 1, DEFAULT_TIMING.scan_every)],
    ids=["at the end", "on the way"],
)
def test_the_next_step_after_one_that_found_nothing(events: int, pause: float, clock: ManualClock) -> None:
    """After a whole scan there is a pause; a scan over many events goes on soon."""
    steps = scan(Listed(*(parked(number, 1) for number in range(events))), clock=clock)
    began = clock.now
    assert steps.take(10, 5) == []
    assert steps.at_start == (events == 0)
    clock.now = began + pause - 0.001
    assert not steps.due
    clock.now = began + pause
    assert steps.due


@pytest.mark.parametrize("what", [DueScan.end_waits, lambda steps: steps.released([])], ids=["all waits", "released"])
def test_the_end_of_waits_begins_a_step_at_once(clock: ManualClock, what: Callable[[DueScan], None]) -> None:
    steps = scan(Listed(), clock=clock)
    steps.take(10, 5)
    assert not steps.due
    what(steps._scan)
    assert steps.due


def test_the_next_scan_begins_when_the_first_wait_ends(clock: ManualClock) -> None:
    """Nothing is waited for that is in hand, or in the hands of another process."""
    in_hand = parked(3, 0)
    others = parked(4, DEFAULT_TIMING.take_over_after - 1, owner=b"them")
    outbox = Listed(parked(1, INITIAL - 4), parked(2, INITIAL - 3), in_hand, others)
    steps = scan(outbox, OutboxEntry(in_hand.id, 1, [b"id", b"r1"]), clock=clock)
    assert steps.take(10, 5) == []
    clock.now += 2.9
    assert not steps.due
    clock.now += 0.1
    assert steps.due


def test_a_long_scan_is_not_repeated_at_once_whatever_is_parked_meanwhile(clock: ManualClock) -> None:
    steps = scan(Listed(*(parked(number, INITIAL - 0.01) for number in range(2 * PAGE + 1))), clock=clock)
    assert steps.take(10, 5) == []
    steps.lane.due_at = clock.now
    clock.now += 3 * PAUSE_PER_PAGE - 0.001
    assert not steps.due
    clock.now += 0.001
    assert steps.due


def test_what_was_parked_before_a_scan_began_begins_no_other_one(clock: ManualClock) -> None:
    """But what is parked while it goes on does."""
    steps = scan(Listed(*(parked(number, 1) for number in range(PAGE * PAGES_PER_STEP + 1))), clock=clock)
    steps.lane.due_at = clock.now
    assert (steps.take(10, 5), steps.lane.due_at) == ([], math.inf)
    steps.lane.due_at = clock.now + 1
    assert (steps.take(10, 5), steps.at_start, steps.lane.due_at) == ([], True, clock.now + 1)


def test_with_the_brake_on_the_oldest_due_events_come_first(clock: ManualClock) -> None:
    behind = PAGE * PAGES_PER_STEP
    steps = scan(Listed(*(parked(number, 1 if number < behind else 100) for number in range(behind + 9))), clock=clock)
    steps.lane.brake = Brake(1.0, clock)
    steps.lane.brake.hold()
    assert steps.take(10, 5) == []
    first, *_ = steps.take(2, 5)
    assert first.added_ms == behind, "the scan goes on while it finds nothing"
    assert steps.take(2, 5) == []
    assert steps.take(2, 5)[0] == first


# ---- with an order


class Ordered:
    """The scan of a lane with an order."""

    def __init__(
        self, clock: ManualClock, *pending: Pending, known: int = 10_000, in_hand: Sequence[Pending] = ()
    ) -> None:
        self.outbox, self._clock = Listed(*pending), clock
        lease: Any = None
        self.order = OrderedQueue(batch_limits(5), clock, lease, "tenant", known, lambda: None)
        entries = [OutboxEntry(each.id, 1, [b"id", b"r"]) for each in in_hand]
        self.scan = OrderedScan(make_lane(self.outbox, *entries, clock=clock), self.order)

    def learn(self) -> bool:
        return _run(self.scan.learn())

    def take(self, room: int = 100) -> list[int]:
        """What is taken, by number."""
        return [int(entry.id.partition(b"-")[0]) for entry in _run(self.scan.take(room, 0.0))]

    @property
    def next_look(self) -> float:
        """In how many seconds."""
        return round(self.order.next_look - self._clock.now, 3)


def test_what_is_pending_is_learnt_step_by_step_and_then_looked_at(clock: ManualClock) -> None:
    events = PAGE * PAGES_PER_STEP + 1
    ordered = Ordered(clock, *(parked(number, 0) for number in range(events)))
    for learnt, known in [(True, events - 1), (True, events), (False, events)]:
        assert (ordered.scan.due_at, ordered.scan.at_start) == ((0.0, False) if learnt else (clock.now, False))
        assert (ordered.learn(), len(ordered.order), ordered.order.complete) == (learnt, known, known == events)
    assert ordered.take() == []
    assert (ordered.next_look, ordered.scan.at_start) == (0, False), "a step looks at half of the room"
    while ordered.next_look <= 0:
        assert ordered.take(10**6) == []
    assert ordered.next_look == INITIAL
    ordered.scan.doubt()
    ordered.outbox.listed = []
    assert (ordered.order.complete, ordered.learn(), ordered.order.complete) == (False, True, True)


def test_no_more_is_learnt_than_may_be_known(clock: ManualClock) -> None:
    ordered = Ordered(clock, *(parked(number, 0) for number in range(PAGE + 30)), known=PAGE)
    assert (ordered.learn(), len(ordered.order), ordered.order.complete, ordered.next_look) == (True, PAGE, False, 0)
    assert (ordered.learn(), ordered.scan.due_at) == (False, clock.now)
    for settled in ordered.outbox.listed[:5]:
        ordered.order.forget(settled.id)
    assert ordered.scan.due_at == 0
    assert (ordered.learn(), len(ordered.order), ordered.order.complete) == (True, PAGE + 25, True)


def test_what_waits_for_the_filter_of_another_process_holds_nothing_back(clock: ManualClock) -> None:
    ordered = Ordered(clock, parked(1, 0, 0, OTHER_FILTER), parked(2, 0, 0, OUR_FILTER), parked(3, 0, 0))
    ordered.learn()
    assert ordered.take() == [2, 3]


def test_of_each_key_the_next_due_events_are_taken_and_no_later_ones(clock: ManualClock) -> None:
    waits, due, also_due = parked(10, INITIAL - 20), parked(11, INITIAL), parked(20, INITIAL)
    ordered = Ordered(clock, waits, due, also_due, parked(21, 0, 0), parked(22, 0), parked(23, 0, 0))
    ordered.learn()
    assert ordered.take() == [20, 21]
    assert ordered.next_look == 20
    ordered.outbox.listed.remove(waits)
    clock.now += 20
    assert ordered.take() == [11], "what is settled elsewhere holds nothing back"
    assert (ordered.next_look, len(ordered.order)) == (0, 5)


@pytest.mark.parametrize(
    ("pending", "seconds"),
    [
        (parked(1, INITIAL - 29), 29),
        (parked(1, 0, 5), WAITING),
        (parked(1, INITIAL - 0.001), DEFAULT_TIMING.scan_every),
        (parked(1, 0, 0, OTHER_FILTER), DEFAULT_TIMING.take_over_after),
        (parked(1, 0, owner=b"them"), SETTLING),
        (parked(1, DEFAULT_TIMING.take_over_after - 0.5, owner=b"them"), 0.5),
    ],
    ids=["waits", "waits long", "waits shortly", "waits for a filter", "in hand", "in hand of a dead process"],
)
def test_when_the_next_event_of_a_key_is_looked_at_again(clock: ManualClock, pending: Pending, seconds: float) -> None:
    """An operator may skip an event that waits. A process that stops may settle what it has in hand."""
    ordered = Ordered(clock, pending)
    (entry,) = _run(ordered.outbox.look_up.part([pending]))
    ordered.order.add([entry])
    ordered.order.complete = True
    ordered.order.look_everywhere()
    assert (ordered.take(), ordered.next_look) == ([], seconds)


def test_what_another_process_has_claimed_meanwhile_is_looked_at_again(clock: ManualClock) -> None:
    ordered = Ordered(clock, parked(10, INITIAL), parked(20, INITIAL))
    ordered.learn()
    ordered.outbox.refused = [b"000010-0"]
    assert ordered.take() == [20]
    assert ordered.next_look == DEFAULT_TIMING.scan_every
    clock.now += DEFAULT_TIMING.scan_every
    ordered.outbox.refused = []
    assert ordered.take() == [10]
    assert ordered.next_look == math.inf


def test_what_is_due_by_an_operator_or_given_back_is_looked_at_at_once(clock: ManualClock) -> None:
    ordered = Ordered(clock, parked(10, 20, 5))
    ordered.learn()
    assert ordered.take() == []
    clock.now += 1
    ordered.scan.end_waits()
    assert (ordered.next_look, ordered.take(), ordered.next_look) == (0, [10], math.inf)
    ordered.scan.released(_run(ordered.outbox.look_up.part(ordered.outbox.listed)))
    assert ordered.next_look == 0
