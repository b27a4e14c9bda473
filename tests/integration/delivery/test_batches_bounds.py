"""How many bytes of batches are read and in hand: the bounds are made small."""

from typing import Any

import pytest
import redis

from sweeperd.delivery import in_flight, intake
from sweeperd.outbox import Outbox, OutboxEntry
from sweeperd.store.operations import Operation, operation
from tests.integration.delivery.test_batches import many
from tests.support.deliveries import Deliver, expire
from tests.support.harness import eventually
from tests.support.receiver import Answer, Receiver


def test_what_is_in_hand_is_bounded_in_bytes(
    client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "IN_FLIGHT_BYTES", 200_000)
    with Receiver(lambda *_: Answer(delay=0.5)) as receiver, deliver(receiver.url, 2, {"batch_size": 100}) as delivery:
        expire(client, *many(10))
        eventually(lambda: delivery.events("delivered") == 10)
        expire(client, *[f"{number} " + "x" * 8000 for number in range(2)])
        eventually(lambda: delivery.events("delivered") == 12)
        expire(client, *[f"{number} " + "y" * 8000 for number in range(100)])
        receiver.wait_for(lambda requests: len(requests) >= 4)
        assert len(delivery.pending()) <= 50
        eventually(lambda: delivery.events("delivered") == 112, limit=30)


def test_one_read_takes_no_more_than_so_many_bytes(
    client: redis.Redis, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "READ_BYTES", 100_000)
    reads: list[int] = []

    def read(self: Outbox, group: str, count: int) -> Operation[list[OutboxEntry]]:
        entries = yield from unbounded.__get__(self, Outbox).part(group, count)
        reads.append(len(entries))
        return entries

    unbounded: operation[Any, list[OutboxEntry]] = vars(Outbox)["read"]
    monkeypatch.setattr(Outbox, "read", operation(read))
    with Receiver() as receiver, deliver(receiver.url, 4, {"batch_size": 100}) as delivery:
        expire(client, "the first " + "x" * 8000)  # the reader learns from it how large the next ones may be
        eventually(lambda: delivery.events("delivered") == 1)
        reads.clear()
        expire(client, *[f"{number} " + "x" * 8000 for number in range(200)])
        eventually(lambda: delivery.events("delivered") == 201)
    assert sum(reads) == 200
    assert max(reads) <= 100_000 // 8000
