"""How fast a walk over a whole Redis may go, so that its other clients do not notice it."""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

from sweeperd.errors import RedisUnavailable
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: Where other clients keep Redis busy, a walk rests so many times as long as each step took: it takes a quarter of the
#: time at most.
REST = 3.0
#: The part of a step's time that it waited for other clients: up to QUIET there is no rest, from BUSY on a full one.
QUIET, BUSY = 0.15, 0.5
#: How much of the estimate comes from the last step.
WEIGHT = 0.05
#: By how much the shortest known round trip grows with each step, so that one lucky step is forgotten.
FLOOR_GROWTH = 1.02


class Interrupted(Exception):
    """The walk was asked to stop."""


class Throttle:
    """
    At most `rate` keys per second (None: no limit), and a rest after each step that is the longer the busier other
    clients keep Redis. `stop` ends the walk at its next step.

    A step that reports how long Redis worked for it shows how long it waited: for the network, which the shortest wait
    so far shows, and for other clients, which is the rest.
    """

    def __init__(self, rate: float | None = None, stop: threading.Event | None = None) -> None:
        self._rate = rate
        self._stop = stop or threading.Event()
        self._began = self._next = time.monotonic()
        self._floor: float | None = None
        #: Until steps have shown that Redis is idle, it counts as busy.
        self._others = BUSY

    def raise_rate(self, rate: float) -> None:
        """Allow at least so many keys per second."""
        if self._rate is not None:
            self._rate = max(self._rate, rate)

    def begin(self) -> None:
        """A step begins. Raises Interrupted."""
        if self._stop.is_set():
            raise Interrupted
        self._began = time.monotonic()

    def end(self, keys: int = 0, busy: float | None = None) -> None:
        """
        The step has ended and has visited so many keys; Redis worked on it for `busy` seconds, where that is known.
        Waits as long as the rate and the other clients ask for. Raises Interrupted.
        """
        now = time.monotonic()
        elapsed = now - self._began
        if busy is not None:
            self._measure(elapsed, busy)
        rest = REST * elapsed * min(1.0, max(0.0, self._others - QUIET) / (BUSY - QUIET))
        if self._rate is not None:
            self._next = max(self._next, self._began) + keys / self._rate
            rest = max(rest, self._next - now)
        self.wait(rest)

    def wait(self, seconds: float) -> None:
        """Wait for something else. Raises Interrupted."""
        if seconds > 0 and self._stop.wait(seconds):
            raise Interrupted

    def _measure(self, elapsed: float, busy: float) -> None:
        waited = max(0.0, elapsed - busy)
        self._floor = waited if self._floor is None else min(waited, self._floor * FLOOR_GROWTH)
        others = max(0.0, waited - 2 * self._floor) / elapsed if elapsed > 0 else 0.0
        self._others += WEIGHT * (others - self._others)


# ---- the keys of one shard, page by page, while the server stays the same


#: How many keys one SCAN visits: about 0.1 ms of Redis's time.
PAGE = 200
#: How often the server is asked for its run_id, seconds.
IDENTIFY = 1.0


class Keyspace:
    """Pages of keys and of index entries, at the pace of `throttle`. Raises RedisUnavailable if the server changes."""

    def __init__(
        self, shard: Shard, throttle: Throttle, index: bytes | None = None, no_entry: bytes | None = None
    ) -> None:
        """`index`: by default that of reservations. `no_entry`: a name among those of the entries that no entry has."""
        self._shard = shard
        self._index = index or shard.keys.reservation_index
        self._no_entry = no_entry or shard.keys.reservation(b"")
        self._client = shard.client
        self._throttle = throttle
        self._one_node = Script("ops/one_node")
        self.run_id = self._read_run_id()
        self._identified_at = time.monotonic()

    def size(self) -> int:
        """How many keys the database holds."""
        return int(self._client.dbsize())

    def keys(self, stem: bytes, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """All keys that begin with `stem`: the cursor of the next page (0: none), and a page. A key may come twice."""
        pattern = re.sub(rb"([\\*?\[\]^-])", rb"\\\1", stem) + b"*"
        while True:
            self._throttle.begin()
            cursor, page = cast(Any, self._client.scan(cursor, match=pattern, count=PAGE))
            self._throttle.end(PAGE)
            self._check_server(at_once=not cursor)
            yield cursor, page
            if not cursor:
                return

    def index(self, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids in the index, in the same way."""
        while True:
            self._throttle.begin()
            cursor, entries = cast(Any, self._client.zscan(self._index, cursor, count=PAGE))
            self._throttle.end(PAGE)
            self._check_server(at_once=not cursor)
            yield cursor, [entry for entry, _ in entries]
            if not cursor:
                return

    def _read_run_id(self) -> str:
        # In a Cluster all keys of a slot are on one node, or the server refuses this script: while a slot moves, a walk
        # over one node would miss keys. No reservation has an empty id, so that the second key does not exist.
        self._one_node.run(self._client, Call([self._index, self._no_entry], []))
        return str(self._client.info("server")["run_id"])

    def _check_server(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now < self._identified_at + IDENTIFY:
            return
        self._identified_at = now
        if self._read_run_id() != self.run_id:
            raise RedisUnavailable(
                f"{self._shard.address}: it was restarted or replaced during the walk; start the walk again"
            )


def batches(items: Sequence[bytes], length: int) -> Iterator[Sequence[bytes]]:
    """The items in order, in lists of at most `length`."""
    return (items[start : start + length] for start in range(0, len(items), length))
