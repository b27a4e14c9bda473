"""Which pending events are due, to the millisecond, and when the next step of the scan is."""

import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.delivery.lane import Brake
from sweeperd.delivery.scan import PAGES_PER_STEP, DueScan
from sweeperd.outbox import PAGE, PARKED, PARKED_ALONE, OutboxEntry, Pending
from sweeperd.store.operations import Operation, operation
from tests.support.builders import in_flight, redelivery

#: The first wait of an event that was sent in vain, seconds; and that of an event after five deliveries.
INITIAL, AFTER_FIVE = 30, 480


class Listed:
    """An outbox with exactly these pending events. A claim is kept, and gives every event."""

    client: Any = None

    def __init__(self, *pending: Pending) -> None:
        self.listed = list(pending)
        self.least_idle: list[int] = []

    @operation
    def pending(self, _group: str, previous: bytes | None = None) -> Operation[list[Pending]]:
        yield from ()
        return [each for each in self.listed if previous is None or each.id > previous][:PAGE]

    @operation
    def claim(self, _group: str, wanted: Sequence[Pending], min_idle_ms: int) -> Operation[list[OutboxEntry]]:
        yield from ()
        self.least_idle.append(min_idle_ms)
        return [OutboxEntry(each.id, each.deliveries + 1, []) for each in wanted]


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


def scan(outbox: Listed, *in_hand: OutboxEntry, clock: Callable[[], float] = time.monotonic) -> Scan:
    lane: Any = SimpleNamespace(
        group="hook",
        outbox=outbox,
        redelivery=redelivery(INITIAL),
        in_flight=in_flight(*in_hand),
        timing=Timing(clock=clock),
        brake=Brake(1.0),
        due_at=math.inf,
    )
    return Scan(lane, clock)


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


def test_the_end_of_all_waits_begins_a_step_at_once(clock: ManualClock) -> None:
    steps = scan(Listed(), clock=clock)
    steps.take(10, 5)
    assert not steps.due
    steps.end_waits()
    assert steps.due
