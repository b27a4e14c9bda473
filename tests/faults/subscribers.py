"""Counts how often each event reaches two endpoints that receive the same events, one of them in batches."""

import contextlib
from types import TracebackType
from typing import Any, Self

import redis

from tests.support.harness import BATCH, BATCHES_IN_HAND, IN_HAND, eventually
from tests.support.receiver import EventCounter, Receiver

EVENTS = "sweeperd:events"


class Subscribers:
    """`hook` gets single events and `batches` gets batches. Both accept everything while the `with` block lasts."""

    def __init__(self) -> None:
        self.counters = {"hook": EventCounter(), "batches": EventCounter()}
        self._receivers = {name: Receiver(counter) for name, counter in self.counters.items()}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for receiver in self._receivers.values():
            self._stack.enter_context(receiver)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """Their settings."""
        return [
            {"name": "hook", "url": self._receivers["hook"].url},
            {"name": "batches", "url": self._receivers["batches"].url, "batch_size": BATCH},
        ]

    def requests(self, name: str) -> int:
        """How many requests came to this endpoint."""
        return len(self._receivers[name].requests)

    def await_all(self, client: redis.Redis, total: int) -> None:
        """Wait until the stream has so many events, and until both endpoints got and acknowledged each of them."""
        eventually(lambda: client.xlen(EVENTS) == total, limit=60)
        for name, counter in self.counters.items():
            eventually(lambda counter=counter: len(counter.counts) == total, limit=60)
            eventually(lambda name=name: client.xpending(EVENTS, name)["pending"] == 0, limit=40)

    def check_doubled(self, faults: int) -> None:
        """What came again was in hand at one of so many faults, when its acknowledgement may have been lost."""
        assert self.counters["hook"].doubled <= faults * IN_HAND
        assert self.counters["batches"].doubled <= faults * BATCHES_IN_HAND
