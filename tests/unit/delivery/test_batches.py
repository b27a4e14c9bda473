"""What is in hand, and how it is gathered into batches: the bounds, and which waits end when."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from sweeperd.delivery.lane import Batch, BatchLimits, BatchQueue, InFlight
from sweeperd.outbox import OutboxEntry
from tests.support.waiting import Background

#: Longer than any test: what waits for so long waits for something else.
LONG = 60.0


def entry(number: int, size: int = 10, *, alone: bool = False) -> OutboxEntry:
    return OutboxEntry(b"%d-0" % number, 1, (), alone, size)


def entries(*numbers: int, size: int = 10) -> list[OutboxEntry]:
    return [entry(number, size) for number in numbers]


def numbers(batch: Batch | None) -> list[int]:
    return [] if batch is None else [one.added_ms for one in batch.entries]


def take(queue: BatchQueue) -> list[int]:
    """The events of the next batch, by number; empty if none follows. Fails if a batch that should come is late."""
    return numbers(Background(queue.take).result())


class Clock:
    """A monotonic clock that the test moves. It sets `spun` if it is read again and again."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.spun = threading.Event()
        self._reads = 0

    def __call__(self) -> float:
        self._reads += 1
        if self._reads > 20:
            self.spun.set()
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


def in_hand(count: int, stop: threading.Event, size: int = 10) -> InFlight:
    """So many events with the ids 1, 2, …, of ten at most."""
    found = InFlight(10, 10**6, stop)
    found.add(entries(*range(1, count + 1), size=size))
    return found


Queue = Callable[..., BatchQueue]


@pytest.fixture
def queue() -> Iterator[Queue]:
    """Makes a queue for that many requests at once, `in_flight` of which are under way."""
    made: list[BatchQueue] = []

    def make(
        events: int = 10,
        size: int = 1000,
        wait: float = LONG,
        *,
        requests: int = 10,
        in_flight: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> BatchQueue:
        made.append(BatchQueue(BatchLimits(events, size, wait), requests, clock))
        for number in range(in_flight):
            made[-1].put([entry(900 + number, alone=True)])
            assert take(made[-1]) == [900 + number]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_is_in_hand_is_known_until_it_is_settled(stop: threading.Event) -> None:
    held = in_hand(3, stop)
    held.remove([b"2-0", b"7-0"])
    assert held.ids() == [b"1-0", b"3-0"]
    assert len(held) == 2
    assert b"1-0" in held
    assert b"2-0" not in held


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
def test_the_room_is_bounded_in_events_and_in_bytes(stop: threading.Event, sizes: list[int], free: int) -> None:
    held = InFlight(10, 1000, stop)
    held.add([entry(number, size) for number, size in enumerate(sizes)])
    assert held.free == free


def test_what_is_settled_makes_room_for_its_bytes(stop: threading.Event) -> None:
    held = InFlight(10, 1000, stop)
    held.add(entries(1, 2, size=500))
    assert held.free == 0
    held.remove([b"1-0"])
    assert held.free == 1
    held.remove([b"2-0"])
    assert held.free == 2


def test_one_event_may_be_taken_where_it_is_larger_than_the_bound(stop: threading.Event) -> None:
    held = InFlight(10, 1000, stop)
    held.add(entries(1, size=5000))
    held.remove([b"1-0"])
    assert held.free == 1


def test_a_read_that_found_nothing_says_nothing_about_sizes(stop: threading.Event) -> None:
    held = InFlight(10, 1000, stop)
    held.add(entries(1, size=400))
    held.add([])
    assert held.free == 1


def test_an_event_that_is_counted_twice_takes_room_once(stop: threading.Event) -> None:
    held = InFlight(10, 1000, stop)
    entry = OutboxEntry(b"1-1", 1, [b"id", b"a"], False, 100)
    held.add([entry])
    held.add([entry])
    assert (len(held), held.free) == (1, 9)
    held.remove([entry.id])
    assert (len(held), held.free) == (0, 10)


def test_the_reader_waits_until_fewer_are_in_hand(stop: threading.Event) -> None:
    held = in_hand(2, stop)
    waiting = Background(lambda: held.await_fewer(2, LONG))
    waiting.must_wait()
    held.remove([b"1-0"])
    waiting.result()


def test_the_reader_does_not_wait_where_fewer_are_in_hand(stop: threading.Event) -> None:
    held = in_hand(3, stop)
    Background(lambda: held.await_fewer(4, LONG)).result()


def test_the_reader_waits_so_long_at_most(stop: threading.Event) -> None:
    held = in_hand(3, stop)
    Background(lambda: held.await_fewer(1, 0.01)).result()


def test_a_stop_ends_the_wait_of_the_reader(stop: threading.Event) -> None:
    held = in_hand(3, stop)
    waiting = Background(lambda: held.await_fewer(1, LONG))
    waiting.must_wait()
    stop.set()
    held.wake()
    waiting.result()


def test_events_are_taken_in_batches_of_the_greatest_count(queue: Queue) -> None:
    waiting = queue(events=3)
    waiting.put(entries(1, 2, 3, 4, 5, 6, 7), in_order=True)
    waiting.close()
    assert waiting.size == 3
    assert [take(waiting) for _ in range(3)] == [[1, 2, 3], [4, 5, 6], [7]]
    assert not take(waiting)


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([40, 60, 1], [[0, 1], [2]]),  # exactly as many bytes as a batch may have
        ([40, 61, 1], [[0], [1, 2]]),
        ([30, 30, 30, 30], [[0, 1, 2], [3]]),
        ([500, 1], [[0], [1]]),  # one event is sent, however large it is
    ],
)
def test_a_batch_has_so_many_bytes_at_most(queue: Queue, sizes: list[int], batches: list[list[int]]) -> None:
    waiting = queue(size=100)
    waiting.put([entry(number, size) for number, size in enumerate(sizes)], in_order=True)
    waiting.close()
    assert [take(waiting) for _ in batches] == batches
    assert not take(waiting)


def test_a_batch_is_in_the_order_of_the_stream(queue: Queue) -> None:
    """Also where events that were parked come between new ones."""
    waiting = queue()
    waiting.put(entries(3, 4), in_order=True)
    waiting.put(entries(1))
    waiting.put(entries(10), in_order=True)
    assert take(waiting) == [1, 3, 4, 10]


def test_an_order_that_is_known_is_not_made_again(queue: Queue) -> None:
    """It costs a parse of each id. The order of a queue that was empty depends on nothing that was there before."""
    waiting = queue()
    waiting.put(entries(2, 1))
    assert take(waiting) == [1, 2]
    waiting.done()
    waiting.put(entries(4, 3), in_order=True)
    assert take(waiting) == [4, 3]


def test_a_probe_and_an_event_that_was_refused_alone_share_a_request_with_no_other(queue: Queue) -> None:
    waiting = queue()
    waiting.put(entries(1), probe=True)
    waiting.put([entry(2), entry(3, alone=True), entry(4)])
    found: list[Batch] = []
    for _ in range(3):
        found.append(Background(waiting.take).result())
        waiting.done()
    assert [(numbers(batch), batch.probe) for batch in found] == [([1], True), ([3], False), ([2, 4], False)]


@pytest.mark.parametrize("full", [entries(1, 2, 3), entries(1, 2, size=50)], ids=["events", "bytes"])
def test_a_full_batch_is_taken_at_once(queue: Queue, full: list[OutboxEntry]) -> None:
    waiting = queue(events=3, size=100, in_flight=1)
    waiting.put(full)
    assert take(waiting) == [one.added_ms for one in full]


@pytest.mark.parametrize("partial", [entries(1, 2), entries(1, size=99)], ids=["events", "bytes"])
def test_a_partial_batch_is_held_while_another_request_is_in_flight(queue: Queue, partial: list[OutboxEntry]) -> None:
    waiting = queue(events=3, size=100, in_flight=1)
    waiting.put(partial)
    taker = Background(waiting.take)
    taker.must_wait()
    waiting.close()
    assert numbers(taker.result()) == [one.added_ms for one in partial]


def test_a_partial_batch_is_taken_where_no_request_is_in_flight(queue: Queue) -> None:
    waiting = queue(in_flight=1)
    waiting.done()
    waiting.put(entries(1))
    assert take(waiting) == [1]


def test_a_batch_that_was_taken_counts_no_more(queue: Queue) -> None:
    """What is left after it is partial, in events and in bytes."""
    waiting = queue(events=3, size=100)
    waiting.put(entries(1, 2, 3, 4, size=33), in_order=True)
    assert take(waiting) == [1, 2, 3]
    Background(waiting.take).must_wait()


def test_a_partial_batch_is_taken_when_its_wait_is_over(queue: Queue) -> None:
    waiting = queue(wait=0.02, in_flight=1)
    waiting.put(entries(1))
    assert take(waiting) == [1]


@pytest.mark.parametrize(("passed", "over"), [(0.0, False), (7.75, False), (8.0, True), (9.0, True)])
def test_the_wait_is_over_exactly_when_it_has_passed(queue: Queue, clock: Clock, passed: float, over: bool) -> None:
    waiting = queue(clock=clock, wait=8.0, in_flight=1)
    waiting.put(entries(1))
    clock.now += passed
    taker = Background(waiting.take)
    if over:
        assert numbers(taker.result()) == [1]
    else:
        taker.must_wait()


def test_the_wait_is_that_of_the_first_event(queue: Queue, clock: Clock) -> None:
    """Events that come later do not prolong it."""
    waiting = queue(clock=clock, wait=8.0, in_flight=1)
    waiting.put(entries(1))
    clock.now += 6
    waiting.put(entries(2))
    clock.now += 2
    assert take(waiting) == [1, 2]


def test_the_wait_begins_anew_with_what_comes_after_a_batch(queue: Queue, clock: Clock) -> None:
    waiting = queue(clock=clock, wait=8.0, in_flight=1)
    waiting.put(entries(1))
    clock.now += 8
    assert take(waiting) == [1]
    clock.now += 100
    waiting.put(entries(2))
    Background(waiting.take).must_wait()


@pytest.mark.parametrize(
    ("put", "requests", "passed"),
    [([], 2, 2 * LONG), ([1], 2, LONG / 2), ([1], 1, 2 * LONG), ([1, 2, 3], 1, 2 * LONG)],
    ids=["nothing is there", "a partial batch", "no request may begin", "no request may begin with a full batch"],
)
def test_a_sender_sleeps_while_it_waits(
    queue: Queue, clock: Clock, put: list[int], requests: int, passed: float
) -> None:
    """It must not ask again and again: that would use a whole core."""
    waiting = queue(clock=clock, events=3, requests=requests, in_flight=1)
    waiting.put(entries(*put))
    clock.now += passed
    taker = Background(waiting.take)
    taker.must_wait()
    assert not clock.spun.wait(0.05)


def test_no_more_requests_are_in_flight_than_may_be(queue: Queue) -> None:
    waiting = queue(events=1, requests=2, in_flight=2)
    waiting.put(entries(1))
    taker = Background(waiting.take)
    taker.must_wait()
    waiting.allow(3)
    assert numbers(taker.result()) == [1]


def test_the_end_of_a_request_makes_room_for_the_next(queue: Queue) -> None:
    waiting = queue(events=1, requests=1, in_flight=1)
    waiting.put(entries(1))
    waiting.done()
    assert take(waiting) == [1]


@pytest.mark.parametrize("senders", [1, 3])
def test_what_comes_is_taken_by_senders_that_wait(queue: Queue, senders: int) -> None:
    waiting = queue(events=2)
    takers = [Background(waiting.take) for _ in range(senders)]
    for taker in takers:
        taker.must_wait()
    waiting.put(entries(*range(2 * senders)), in_order=True)
    taken = [numbers(taker.result()) for taker in takers]
    assert sorted(taken) == [[2 * number, 2 * number + 1] for number in range(senders)]


def test_large_events_wake_a_sender_for_each_batch_of_bytes(queue: Queue) -> None:
    waiting = queue(events=100, size=1000)
    takers = [Background(waiting.take) for _ in range(3)]
    for taker in takers:
        taker.must_wait()
    waiting.put(entries(1, 2, 3, size=1000), in_order=True)
    assert sorted(numbers(taker.result()) for taker in takers) == [[1], [2], [3]]


@pytest.mark.parametrize("senders", [1, 2])
def test_events_that_travel_alone_wake_a_sender_each(queue: Queue, senders: int) -> None:
    waiting = queue()
    takers = [Background(waiting.take) for _ in range(senders)]
    for taker in takers:
        taker.must_wait()
    waiting.put(entries(*range(senders)), probe=True)
    assert sorted(numbers(taker.result()) for taker in takers) == [[number] for number in range(senders)]


def test_the_end_is_told_to_every_sender(queue: Queue) -> None:
    waiting = queue()
    takers = [Background(waiting.take) for _ in range(3)]
    for taker in takers:
        taker.must_wait()
    waiting.close()
    assert [taker.result() for taker in takers] == [None] * 3


def test_after_the_end_what_is_queued_is_taken_at_once(queue: Queue) -> None:
    """A partial batch too, and where as many requests are in flight as may be."""
    waiting = queue(requests=1, in_flight=1)
    waiting.put(entries(1))
    waiting.close()
    assert take(waiting) == [1]
    assert not take(waiting)
