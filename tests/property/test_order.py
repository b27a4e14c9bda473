"""Plays reader and senders of an endpoint with an order: no event passes an earlier one of its key."""

import random
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from sweeperd.delivery.batches import Batch, BatchLimits
from sweeperd.delivery.order import OrderedQueue
from sweeperd.delivery.senders import _halves
from sweeperd.outbox import OutboxEntry

MOVES = ("read", "look", "take", "take", "deliver", "fail", "part", "halve", "retry")


class Play:
    """One endpoint: its stream, its queue, what waits in Redis, and the requests in flight."""

    def __init__(self, events: list[tuple[str, bool]], batch: int) -> None:
        self.now = 0.0
        self.queue = OrderedQueue(
            BatchLimits(batch, 10**6, 0.0), lambda: self.now, cast(Any, None), "tenant", 10**6, lambda: None
        )
        self.stream = [
            OutboxEntry.of(b"%d-%d" % (9 + number // 3, number % 3), 1, {b"tenant": key.encode()}, alone)
            for number, (key, alone) in enumerate(events)
        ]
        self.read = 0
        self.parked = dict[bytes, OutboxEntry]()
        self.delivered = list[OutboxEntry]()
        self.flying = list[Batch]()

    def move(self, what: str, number: int) -> None:
        if what == "read":
            new = self.stream[self.read : self.read + number]
            self.read += len(new)
            self.queue.add(new)
            self.park(self.queue.put(new))
        elif what == "look":
            self.now += 1.0
            runs = [self.parked.pop(entry) for _, run in self.queue.runs(number) for entry in run]
            self.park(self.queue.put(runs))
            self.queue.look(self.parked.values())
        elif what == "take":
            if self.queue and self.queue.ready_at(self.now, len(self.flying)) <= self.now:
                self.take(self.queue.take(self.now))
        elif self.flying:
            self.answer(what, self.flying.pop(number % len(self.flying)))

    def take(self, batch: Batch) -> None:
        keys = {entry.pairs[1] for entry in batch.entries}
        assert not keys & {entry.pairs[1] for other in self.flying for entry in other.entries}, "one after the other"
        for entry in batch.entries:
            same = [each for each in self.stream if each.pairs[1] == entry.pairs[1]]
            for earlier in same[: same.index(entry)]:
                assert earlier in (*self.delivered, *batch.entries), "in the order of the stream"
        assert list(batch.entries) == sorted(batch.entries, key=self.stream.index)
        self.flying.append(batch)

    def answer(self, what: str, batch: Batch) -> None:
        entries = batch.entries
        if what == "retry":
            self.queue.back_off(batch, 1.0)
        elif what == "halve" and len(entries) > 1:
            self.queue.put_halves(_halves(batch, 1))
        else:
            done = len(entries) if what == "deliver" else len(entries) // 2 if what == "part" else 0
            self.delivered += entries[:done]
            self.park(self.queue.conclude(entries[:done], entries[done:]))
            self.park(entries[done:])

    def park(self, entries: Any) -> None:
        self.parked |= {entry.id: entry for entry in entries}


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5]))
def test_no_event_passes_an_earlier_one_of_its_key(seed: int, batch: int) -> None:
    rng = random.Random(seed)  # lists of hypothesis are too short to get anywhere
    events = [(rng.choice("aaab"), rng.random() < 0.15) for _ in range(rng.randint(1, 25))]
    play = Play(events, batch)
    for _ in range(60):
        play.move(rng.choice(MOVES), rng.randint(0, 7))
    for _ in range(3 * len(events)):
        for move in (("read", 50), ("look", 50), ("take", 0), ("deliver", 0)):
            play.move(*move)
    assert sorted(play.delivered) == sorted(play.stream)
    assert not len(play.queue)
    assert not play.queue
