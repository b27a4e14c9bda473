"""Reserves through ledger clients while servers die, and accounts for the webhooks."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import redis

from sweeperd.config import RedisSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.ledger import Ledger
from sweeperd.outbox import message
from sweeperd.store import Shard
from tests.support.books import Books
from tests.support.receiver import EventCounter, Receiver

SCOPE = "tenant:load"


class Load:
    """One client that reserves, one after the other, what will never be committed."""

    def __init__(self, url: str, prefix: str = "") -> None:
        settings = {"url": url, "socket_timeout": "1s", "connect_timeout": "1s"}
        self._shard = Shard(RedisSettings.model_validate(settings), prefix)
        self._ledger = Ledger(self._shard)
        self._ledger.open_budget(SCOPE, "TOKENS", 10**9)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: Reservations that were confirmed, and how many answers were lost.
        self.told: set[bytes] = set()
        self.failed = 0

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.wait(0.01):
                return
            try:
                ttl, grace, key = timedelta(seconds=1), timedelta(0), str(number)
                held = self._ledger.reserve("load", [SCOPE], "TOKENS", 3, ttl=ttl, grace=grace, idempotency_key=key)
            except (RedisUnavailable, redis.RedisError):
                self.failed += 1
            else:
                self.told.add(held.reservation_id.encode())

    @contextlib.contextmanager
    def running(self) -> Iterator["Load"]:
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._shard.close()


def delivered(client: redis.Redis, prefix: str = "") -> bool:
    """Whether every group has taken and acknowledged all there is."""
    groups: Any = client.xinfo_groups(f"{prefix}sweeperd:events")
    last = client.xinfo_stream(f"{prefix}sweeperd:events")["last-generated-id"]
    return all(info["pending"] == 0 and info["last-delivered-id"] == last for info in groups)


def account(receiver: Receiver, books: Books, batched: EventCounter | None = None) -> int:
    """
    `receiver` gets single events, `batched` counts those in batches. Every event of the stream was delivered. A webhook
    whose event is not in the stream reported an expiry that a fail-over undid: its reservation was swept and reported
    again, or was itself lost. Returns how many these are.
    """
    kept = {message(books.keys.prefix, dict(fields)).event_id for fields in books.events}
    told = {request.event_id for request in receiver.requests}
    assert kept <= told, "an event that is in the stream was not delivered"
    assert batched is None or kept <= batched.counts.keys(), "an event that is in the stream was in no batch"
    undone = {
        request.event["data"]["reservation_id"].encode()
        for request in receiver.requests
        if request.event_id not in kept
    }
    assert undone & books.reservations.keys() <= set(books.told), "swept again, and not told again"
    return len(told - kept)
