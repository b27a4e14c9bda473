"""What a lane with an order may read and send next, and when it looks at the events of a key."""

import math
from typing import Any, cast

import pytest

from sweeperd.delivery.batches import Batch, BatchLimits
from sweeperd.delivery.order import SETTLED_AFTER, OrderedQueue
from sweeperd.outbox import OutboxEntry
from tests.unit.delivery.test_batches import numbers

#: Each event, and the bytes of a batch.
SIZE, BYTES = 10, 35


def event(number: int, key: str = "a", *, alone: bool = False, size: int = SIZE, **fields: bytes) -> OutboxEntry:
    given = {b"tenant": key.encode()} | {name.encode(): value for name, value in fields.items()}
    return OutboxEntry.of(b"%d-0" % number, 1, given, alone)._replace(size=size)


class Queue(OrderedQueue):
    """A queue on a clock of the test."""

    def __init__(self, events: int = 1, field: str = "tenant") -> None:
        self.now, self.waited = 1000.0, 0

        def waits() -> None:
            self.waited += 1

        super().__init__(BatchLimits(events, BYTES, 0.05), lambda: self.now, cast(Any, None), field, 3, waits)

    def taken(self) -> list[int]:
        """The next batch, by number."""
        return numbers(self.take(self.now))

    def deliver(self, *numbers: int) -> None:
        self.conclude([event(number) for number in numbers], [])

    def looks(self) -> list[list[int]]:
        """The runs of the keys that are looked at now, by number."""
        return [[int(entry.partition(b"-")[0]) for entry in run] for _, run in self.runs(100)]


@pytest.mark.parametrize(
    ("owned", "complete", "known", "reads"),
    [(0.1, True, 2, True), (0.0, True, 2, False), (0.1, False, 2, False), (0.1, True, 3, False)],
)
def test_new_events_are_read_while_every_pending_one_is_known(
    owned: float, complete: bool, known: int, reads: bool
) -> None:
    queue = Queue()
    queue.owned_until, queue.complete = queue.now + owned, complete
    queue.add([event(number, str(number)) for number in range(known)])
    assert (queue.reads, queue.owned, queue.full) == (reads, owned > 0, known == 3)


def test_two_kinds_may_use_the_same_id() -> None:
    queue = Queue(field="id")
    held = queue.put([event(1, id=b"x", kind=b"seats"), event(2, id=b"x", kind=b"carts"), event(3, id=b"x")])
    assert (held, queue.waited, queue.taken(), queue.taken(), queue.taken()) == ([], 0, [1], [2], [3])


def test_an_event_without_the_field_shares_a_key_with_the_others_without_it() -> None:
    queue = Queue(field="scope")
    queue.put([event(1), event(2)])
    assert queue.taken() == [1]
    assert (queue.waited, bool(queue)) == (1, False)


def test_events_that_are_learnt_out_of_order_are_looked_at_in_order() -> None:
    queue = Queue(events=5)
    queue.add([event(10), event(30), event(9)])
    queue.add([event(30)])
    queue.look_everywhere()
    assert queue.looks() == [[9, 10, 30]]
    assert queue.waited == 2


def test_a_probe_holds_back_its_key_though_an_operator_closes_the_circuit() -> None:
    queue = Queue()
    queue.add([event(1), event(2)])
    assert queue.put([event(2), event(1), event(3, "b")], probe=True) == [event(2), event(3, "b")], "one at a time"
    probe = queue.take(queue.now)
    assert (numbers(probe), probe.probe) == ([1], True)
    assert queue.put([event(2)]) == []
    assert not queue
    queue.deliver(1)
    assert queue.taken() == [2]


def test_a_batch_is_taken_from_keys_of_which_nothing_is_in_flight() -> None:
    """What is counted as ready is what may be taken: two events of three are ready at once, or enough bytes."""
    queue = Queue(events=3)

    def ready(requests: int = 1) -> bool:
        return queue.ready_at(queue.now, requests) <= queue.now

    queue.put([event(1), event(2), event(3, "b"), event(4, "b")])
    assert (ready(), queue.taken()) == (True, [1, 2, 3])
    assert not queue, "4 waits for 3"
    queue.put([event(5), event(6, "c"), event(7, "c")])
    assert not ready()
    queue.deliver(1, 2)
    assert (ready(), queue.taken()) == (True, [5, 6, 7])
    queue.conclude([event(3, "b")], [])
    assert (ready(0), ready(), queue.taken()) == (True, False, [4])
    queue.put([event(8, "d", size=30), event(9, "e", size=5)])
    assert ready()
    queue.put([event(10, "f", size=1)])
    assert (queue.taken(), queue.taken()) == ([8, 9], [10])
    queue.put([event(11, "g", size=34)])
    assert not ready()


def test_an_event_that_was_refused_alone_shares_a_request_with_no_other() -> None:
    queue = Queue(events=5)
    queue.put([event(1, "a"), event(2, "b", alone=True), event(3, "c"), event(4, "c", alone=True)])
    assert [queue.taken() for _ in range(3)] == [[1], [2], [3]]
    queue.conclude([event(3, "c")], [])
    assert queue.taken() == [4]


def test_the_second_half_of_a_batch_waits_for_the_first_where_they_share_a_key() -> None:
    queue = Queue(events=3)
    queue.put([event(1), event(2, "b"), event(3)])
    queue.put_halves([])
    assert queue.taken() == [1, 2, 3]
    queue.put_halves([Batch((event(1),), attempts=1), Batch((event(2, "b"), event(3)), attempts=1)])
    assert queue.ids() == {b"1-0", b"2-0", b"3-0"}
    halves = [queue.take(queue.now) for _ in range(2)]
    assert [(numbers(half), half.attempts) for half in halves] == [([1], 1), ([2], 1)]
    assert not queue
    queue.deliver(1)
    assert queue.taken() == [3]


def test_a_failed_event_holds_back_its_key_until_its_settlement_is_written() -> None:
    queue = Queue(events=2)
    queue.put([event(1), event(2, "b"), event(3), event(4), event(5, "b")])
    assert queue.taken() == [1, 3]
    queue.put([event(6)])
    assert queue.conclude([event(1)], [event(3)]) == [event(4), event(6)]
    assert queue.next_look == queue.now + SETTLED_AFTER
    assert (queue.looks(), queue.taken()) == ([], [2, 5])
    queue.now += SETTLED_AFTER
    assert queue.looks() == [[3, 4, 6]]
    assert queue.put([event(3), event(6)]) == [event(6)], "4 comes first"
    assert queue.taken() == [3]


def test_a_key_is_looked_at_when_it_may_have_due_events() -> None:
    queue = Queue()
    queue.add([event(1), event(2), event(3), event(4, "b"), event(5, "c")])
    assert queue.next_look == math.inf
    queue.look([event(4, "b")], 2.0)
    queue.look_at(b"a", 1.0)
    queue.look_at(b"a", 3.0)
    queue.look_at(b"unknown", 0.0)
    queue.look([event(5, "c")])
    assert (queue.looks(), queue.next_look) == ([[5]], queue.now + 1.0)
    queue.now += 1.0
    assert (queue.looks(), queue.next_look) == ([[1, 2]], queue.now + 1.0), "no more of a key than are in hand"
    queue.look_at(b"b", 0.0)
    queue.look_at(b"a", 0.0)
    assert queue.runs(2) == [(b"a", [b"1-0", b"2-0"])]
    queue.put([event(1)])
    queue.look_everywhere()
    assert queue.looks() == [[2], [4], [5]]


def test_what_is_delivered_lets_the_next_pending_event_be_looked_at() -> None:
    queue = Queue()
    queue.put([event(1), event(2), event(3)])
    assert queue.taken() == [1]
    queue.deliver(1)
    assert queue.looks() == [[3]], "2 is queued"
    assert queue.taken() == [2]
    queue.deliver(2)
    assert queue.looks() == [[3]]
    queue.forget(b"3-0")
    assert (len(queue), queue.leads(event(4))) == (0, True)


def test_a_lost_lease_forgets_what_is_pending() -> None:
    queue = Queue()
    queue.complete = True
    queue.put([event(1), event(2)])
    queue.look_everywhere()
    queue.lose()
    assert (len(queue), queue.complete, queue.leads(event(2)), queue.looks()) == (0, False, True, [])
    assert queue.taken() == [1], "its sender looks at the lease"
