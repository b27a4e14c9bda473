"""What is in hand, and how it is gathered into batches: the bounds, and when which batch is ready."""

import math

import pytest

from sweeperd.delivery.batches import Batch, BatchLimits, BatchQueue
from sweeperd.delivery.in_flight import InFlight, Room
from sweeperd.outbox import OutboxEntry
from tests.support.builders import room_for

#: Longer than any test.
LONG = 60.0


def entry(number: int, size: int = 10, *, alone: bool = False) -> OutboxEntry:
    return OutboxEntry(b"%d-0" % number, 1, (), alone, size)


def entries(*numbers: int, size: int = 10) -> list[OutboxEntry]:
    return [entry(number, size) for number in numbers]


def numbers(batch: Batch) -> list[int]:
    return [one.added_ms for one in batch.entries]


class Queue(BatchQueue):
    """A queue on a clock of the test."""

    def __init__(self, events: int = 10, size: int = 1000, wait: float = LONG) -> None:
        super().__init__(BatchLimits(events, size, wait), lambda: self.now)
        self.now = 1000.0

    def ready(self, requests: int = 0) -> bool:
        """Whether a batch may be taken, with so many requests in flight."""
        return self.ready_at(self.now, requests) <= self.now

    def taken(self) -> list[int]:
        """The next batch, by number."""
        return numbers(self.take(self.now))


def in_hand(count: int, size: int = 10) -> InFlight:
    """So many events with the ids 1, 2, ..., of ten at most."""
    found = room_for(10, 10**6)
    found.add(entries(*range(1, count + 1), size=size))
    return found


def test_what_is_in_hand_is_known_until_it_is_settled() -> None:
    held = in_hand(3)
    held.remove([b"2-0", b"7-0"])
    assert held.ids() == [b"1-0", b"3-0"]
    assert len(held) == 2
    assert b"1-0" in held
    assert b"2-0" not in held


def take(held: InFlight, events: list[OutboxEntry]) -> None:
    held.learn(events)
    held.add(events)


@pytest.mark.parametrize(
    ("sizes", "free"),
    [
        ([], 10),
        ([10] * 4, 6),
        ([10] * 10, 0),
        ([250] * 2, 2),  # 500 bytes are left, and the next events have 250 like these
        ([250] * 4, 0),
        ([300], 2),
        ([5000], 0),
        ([0, 0], 8),
    ],
)
def test_the_room_is_bounded_in_events_and_in_bytes(sizes: list[int], free: int) -> None:
    held = room_for(10, 1000)
    take(held, [entry(number, size) for number, size in enumerate(sizes)])
    assert held.free == free


def test_what_is_settled_makes_room_for_its_bytes() -> None:
    held = room_for(10, 1000)
    take(held, entries(1, 2, size=500))
    assert held.free == 0
    held.remove([b"1-0"])
    assert held.free == 1
    held.remove([b"2-0"])
    assert held.free == 2


def test_the_lanes_at_work_share_the_bytes() -> None:
    held = InFlight(Room(10, 100, 1000, lanes=2, typical=1.0))
    take(held, entries(1, 2, size=200))
    assert held.free == 0


def test_one_event_may_be_taken_where_it_is_larger_than_the_bound() -> None:
    held = room_for(10, 1000)
    take(held, entries(1, size=5000))
    held.remove([b"1-0"])
    assert held.free == 1


def test_a_read_that_found_nothing_says_nothing_about_sizes() -> None:
    held = room_for(10, 1000)
    take(held, entries(1, size=400))
    take(held, [])
    assert held.free == 1


def test_an_event_that_is_counted_twice_takes_room_once() -> None:
    held = room_for(10, 1000)
    entry = OutboxEntry(b"1-1", 1, [b"id", b"a"], False, 100)
    take(held, [entry])
    take(held, [entry])
    assert (len(held), held.free) == (1, 9)
    held.remove([entry.id])
    assert (len(held), held.free) == (0, 10)


@pytest.mark.parametrize(
    ("lanes", "batch", "own", "capacity"),
    [
        (1, 1, None, 32),
        (2, 1, None, 16),
        (5, 1, None, 8),
        (1000, 1, None, 2),
        (1, 100, None, 3200),
        (2, 1000, None, 10_000),
        (1000, 100, None, 20),
        (1000, 1, 2, 4),
    ],
)
def test_the_lanes_at_work_share_the_room(lanes: int, batch: int, own: int | None, capacity: int) -> None:
    """Two batches for each request of the lane's part, and never more than its part of the whole bound."""
    assert InFlight(Room(16, 20_000, lanes=lanes), batch, own).capacity == capacity


@pytest.mark.parametrize(
    ("in_hand", "held_up", "left"),
    [(0, 0, 100), (30, 0, 70), (130, 30, 0), (130, 100, 70), (390, 390, 10), (500, 500, -100)],
)
def test_lanes_that_are_held_up_leave_room_to_the_others(in_hand: int, held_up: int, left: int) -> None:
    """Within a bound for all of them."""
    assert Room(16, bytes=100).left(in_hand, held_up) == left


@pytest.mark.parametrize(("held", "worth"), [(0, True), (7, True), (8, True), (9, False), (10, False)])
def test_a_round_trip_is_worth_a_quarter_of_the_room(held: int, worth: bool) -> None:
    assert in_hand(held).worth_reading is worth


def test_events_are_taken_in_batches_of_the_greatest_count() -> None:
    waiting = Queue(events=3)
    waiting.put(entries(1, 2, 3, 4, 5, 6, 7), in_order=True)
    assert [waiting.taken() for _ in range(3)] == [[1, 2, 3], [4, 5, 6], [7]]
    assert not waiting


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([40, 60, 1], [[0, 1], [2]]),  # exactly as many bytes as a batch may have
        ([40, 61, 1], [[0], [1, 2]]),
        ([30, 30, 30, 30], [[0, 1, 2], [3]]),
        ([500, 1], [[0], [1]]),  # one event is sent, however large it is
    ],
)
def test_a_batch_has_so_many_bytes_at_most(sizes: list[int], batches: list[list[int]]) -> None:
    waiting = Queue(size=100)
    waiting.put([entry(number, size) for number, size in enumerate(sizes)], in_order=True)
    assert [waiting.taken() for _ in batches] == batches
    assert not waiting


def test_a_batch_is_in_the_order_of_the_stream() -> None:
    """Also where events that were parked come between new ones."""
    waiting = Queue()
    waiting.put(entries(3, 4), in_order=True)
    waiting.put(entries(1))
    waiting.put(entries(10), in_order=True)
    assert waiting.taken() == [1, 3, 4, 10]


def test_an_order_that_is_known_is_not_made_again() -> None:
    """It costs a parse of each id. The order of a queue that was empty depends on nothing that was there before."""
    waiting = Queue()
    waiting.put(entries(2, 1))
    assert waiting.taken() == [1, 2]
    waiting.put(entries(4, 3), in_order=True)
    assert waiting.taken() == [4, 3]


def test_a_probe_and_an_event_that_was_refused_alone_share_a_request_with_no_other() -> None:
    waiting = Queue()
    waiting.put(entries(1), probe=True)
    waiting.put([entry(2), entry(3, alone=True), entry(4)])
    found = [waiting.take(waiting.now) for _ in range(3)]
    assert [(numbers(batch), batch.probe) for batch in found] == [([1], True), ([3], False), ([2, 4], False)]


def test_nothing_is_ready_where_nothing_is_queued() -> None:
    assert Queue().ready_at(1000.0, 0) == math.inf


@pytest.mark.parametrize("full", [entries(1, 2, 3), entries(1, 2, size=50)], ids=["events", "bytes"])
def test_a_full_batch_is_ready_at_once(full: list[OutboxEntry]) -> None:
    waiting = Queue(events=3, size=100)
    waiting.put(full)
    assert waiting.ready(requests=1)


@pytest.mark.parametrize("partial", [entries(1, 2), entries(1, size=99)], ids=["events", "bytes"])
def test_a_partial_batch_is_held_while_another_request_is_in_flight(partial: list[OutboxEntry]) -> None:
    waiting = Queue(events=3, size=100)
    waiting.put(partial)
    assert (waiting.ready(requests=1), waiting.ready(requests=0)) == (False, True)


def test_a_batch_that_was_taken_counts_no_more() -> None:
    """What is left after it is partial, in events and in bytes."""
    waiting = Queue(events=3, size=100)
    waiting.put(entries(1, 2, 3, 4, size=33), in_order=True)
    assert waiting.taken() == [1, 2, 3]
    assert not waiting.ready(requests=1)


@pytest.mark.parametrize(("passed", "over"), [(0.0, False), (7.75, False), (8.0, True), (9.0, True)])
def test_the_wait_is_over_exactly_when_it_has_passed(passed: float, over: bool) -> None:
    """It is that of the first event: one that comes later does not prolong it."""
    waiting = Queue(wait=8.0)
    waiting.put(entries(1))
    waiting.now += passed
    waiting.put(entries(2))
    assert waiting.ready(requests=1) is over
    assert waiting.ready_at(waiting.now, 1) == 1008.0


def test_the_wait_begins_anew_with_what_comes_after_a_batch() -> None:
    waiting = Queue(wait=8.0)
    waiting.put(entries(1))
    waiting.now += 8
    assert waiting.taken() == [1]
    waiting.now += 100
    waiting.put(entries(2))
    assert not waiting.ready(requests=1)


def test_a_batch_that_is_put_back_is_the_next_one_and_holds_all() -> None:
    waiting = Queue(events=2)
    waiting.put(entries(1, 2, 3, 4), in_order=True)
    waiting.put_back(waiting.take(waiting.now), 0.5)
    assert waiting.ready_at(waiting.now, 0) == 1000.5
    waiting.now += 0.5
    assert [waiting.taken(), waiting.taken()] == [[1, 2], [3, 4]]


def test_a_batch_that_backs_off_lets_the_others_pass() -> None:
    waiting = Queue(events=1)
    waiting.put(entries(1, 2, 3), in_order=True)
    waiting.back_off(waiting.take(waiting.now), 0.5)
    assert waiting.ready()
    assert waiting.taken() == [2]
    waiting.now += 0.5
    assert [waiting.taken(), waiting.taken()] == [[1], [3]], "when it is due it goes first"
    waiting.back_off(Batch(tuple(entries(9))), 2.0)
    assert waiting.ready_at(waiting.now, 0) == 1002.5
    assert waiting.taken() == [9], "a lane that stops waits for nothing"
