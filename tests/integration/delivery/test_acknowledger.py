"""Delivered events are acknowledged together, on real servers: none early, none lost, and a stop leaves none behind."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import redis

from sweeperd.delivery.acknowledger import Acknowledger
from sweeperd.delivery.outbox import Outbox
from sweeperd.store.shard import Shard
from tests.support.harness import eventually

KEY, GROUP = "sweeperd:events", "billing"


class Gathering:
    """An acknowledger of this process on a stream with so many taken events, and what it said of them."""

    def __init__(self, shard: Shard, events: int, together: int) -> None:
        self._shard = shard
        self._stream = Outbox(shard, "us")
        self._stream.ensure_group(GROUP)
        for number in range(events):
            shard.client.xadd(KEY, {"id": f"r{number}"})
        self.taken = [entry.id for entry in self._stream.read(GROUP, events)]
        shard.client.config_resetstat()
        self.settled: list[tuple[bytes, bool]] = []
        self.acknowledger = Acknowledger(self._acknowledge, self._settle, together, {"endpoint": GROUP})
        self.thread = threading.Thread(target=self.acknowledger.run, daemon=True)

    def _acknowledge(self, ids: Sequence[bytes]) -> None:
        with self._shard.reaching():
            self._stream.acknowledge(GROUP, ids)

    def _settle(self, ids: Sequence[bytes], acknowledged: bool) -> None:
        self.settled += [(entry, acknowledged) for entry in ids]

    def add(self, ids: Sequence[bytes]) -> None:
        for entry in ids:
            self.acknowledger.add(entry)

    def end(self) -> None:
        self.acknowledger.end()
        self.thread.join(5)
        assert not self.thread.is_alive()

    @property
    def pending(self) -> int:
        return int(self._shard.client.xpending(KEY, GROUP)["pending"])

    @property
    def trips(self) -> int:
        """How many XACKs the server has run."""
        return int(self._shard.client.info("commandstats").get("cmdstat_xack", {"calls": 0})["calls"])


@contextlib.contextmanager
def refused(client: redis.Redis) -> Iterator[None]:
    """While the block lasts, the server acknowledges nothing."""
    client.acl_setuser("default", commands=["-xack"])
    try:
        yield
    finally:
        client.acl_setuser("default", commands=["+xack"])


def test_what_has_gathered_is_acknowledged_in_one_go(shard: Shard) -> None:
    gathering = Gathering(shard, 20, together=100)
    gathering.add(gathering.taken)
    gathering.thread.start()
    eventually(lambda: gathering.settled)
    assert gathering.settled == [(entry, True) for entry in gathering.taken]
    assert (gathering.pending, gathering.trips) == (0, 1)
    gathering.end()


def test_only_what_was_added_is_acknowledged(shard: Shard) -> None:
    gathering = Gathering(shard, 5, together=2)
    gathering.thread.start()
    gathering.add(gathering.taken[1:3])
    eventually(lambda: len(gathering.settled) == 2)
    gathering.end()
    held = {row["message_id"] for row in shard.client.xpending_range(KEY, GROUP, "-", "+", 10)}
    assert held == {gathering.taken[0], *gathering.taken[3:]}


def test_one_alone_does_not_wait_for_others_for_long(shard: Shard) -> None:
    gathering = Gathering(shard, 2, together=100)
    gathering.thread.start()
    for number, entry in enumerate(gathering.taken, 1):
        started = time.monotonic()
        gathering.add([entry])
        eventually(lambda number=number: len(gathering.settled) == number)
        assert time.monotonic() - started < 1
    assert (gathering.pending, gathering.trips) == (0, 2)
    gathering.end()


def test_the_end_waits_for_what_was_added(shard: Shard) -> None:
    gathering = Gathering(shard, 20, together=100)
    gathering.thread.start()
    gathering.add(gathering.taken)
    gathering.end()
    assert gathering.pending == 0
    assert {entry for entry, acknowledged in gathering.settled if acknowledged} == set(gathering.taken)


def test_what_redis_refuses_is_tried_again(own_shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    gathering = Gathering(own_shard, 6, together=2)
    gathering.thread.start()
    with refused(own_shard.client):
        gathering.add(gathering.taken[:4])
        eventually(lambda: "delivered events wait to be acknowledged" in caplog.text)
        gathering.add(gathering.taken[4:])
        assert gathering.settled == [], "they stay in hand"
        assert gathering.pending == 6
    eventually(lambda: len(gathering.settled) == 6)
    assert gathering.settled == [(entry, True) for entry in gathering.taken], "each once"
    assert gathering.pending == 0
    gathering.end()


def test_at_the_end_what_cannot_be_acknowledged_stays_pending(
    own_shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    gathering = Gathering(own_shard, 4, together=2)
    gathering.thread.start()
    with refused(own_shard.client):
        gathering.add(gathering.taken)
        eventually(lambda: "delivered events wait to be acknowledged" in caplog.text)
        gathering.end()
    assert sorted(gathering.settled) == [(entry, False) for entry in gathering.taken]
    assert gathering.pending == 4
    assert "delivered events are left pending" in caplog.text


def test_a_fault_of_ours_does_not_end_it(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    gathering = Gathering(shard, 2, together=1)
    gathering.thread.start()
    shard.client.rename(KEY, "elsewhere")
    shard.client.set(KEY, "no stream")
    gathering.add(gathering.taken[:1])
    eventually(lambda: gathering.settled)
    assert gathering.settled == [(gathering.taken[0], False)]
    assert "delivered events could not be acknowledged" in caplog.text
    shard.client.rename("elsewhere", KEY)
    gathering.add(gathering.taken[1:])
    eventually(lambda: len(gathering.settled) == 2)
    assert gathering.settled[1] == (gathering.taken[1], True)
    assert gathering.pending == 1
    gathering.end()
