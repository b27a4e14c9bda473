"""The keys of one shard, page by page, at a pace that other clients do not notice."""

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from sweeperd import progress
from sweeperd.context import DEFAULT_TIMING, Timing
from sweeperd.errors import RedisUnavailable
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: If other clients keep Redis busy, a walk rests after each step for REST times the duration of the step: at most a
#: quarter of the time is then work.
REST = 3.0
#: The part of a step spent on waiting for other clients: up to QUIET there is no rest, from BUSY on a full rest.
QUIET, BUSY = 0.15, 0.5
#: How much of the estimate comes from the last step.
WEIGHT = 0.05
#: The shortest known round trip grows by this factor with each step, so that a lucky step is forgotten.
FLOOR_GROWTH = 1.02
#: How many keys one SCAN visits: about 0.1 ms of Redis's time.
PAGE = 200
#: Bits of `Seen` for each key of the database, and how many bits there are at least and at most: 32 MiB.
_BITS_EACH, _BITS_LEAST, _BITS_MOST = 16, 1 << 20, 1 << 28


class Interrupted(Exception):
    """The walk was asked to stop."""


class Throttle:
    """
    At most `rate` keys per second (None: no limit), and a rest after each step that grows with the load of other
    clients. `stop` ends the walk at its next step. Each method raises Interrupted.

    If a step reports how long Redis worked on the step, the rest of the step's time was spent on waiting: for the
    network, which the shortest wait so far shows, and for other clients.
    """

    def __init__(
        self, rate: float | None = None, stop: threading.Event | None = None, timing: Timing = DEFAULT_TIMING
    ) -> None:
        self.timing = timing
        self._rate = rate
        self._stop = stop or threading.Event()
        self._began = self._next = time.monotonic()
        self._floor: float | None = None
        #: Until steps have shown that Redis is idle, Redis counts as busy.
        self._others = BUSY

    def raise_rate(self, rate: float) -> None:
        """Allow at least so many keys per second."""
        if self._rate is not None:
            self._rate = max(self._rate, rate)

    @contextlib.contextmanager
    def step(self, keys: int = 0) -> Iterator[None]:
        """The block is one step, which visits so many keys."""
        self.begin()
        yield
        self.end(keys)

    def begin(self) -> None:
        if self._stop.is_set():
            raise Interrupted
        self._began = time.monotonic()

    def end(self, keys: int = 0, busy: float | None = None) -> None:
        """
        The step has ended and has visited so many keys; Redis worked on the step for `busy` seconds (None: unknown).
        Waits as long as the rate and the other clients ask for.
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
        """Wait for something else."""
        if seconds > 0 and progress.pause(self._stop, seconds):
            raise Interrupted

    def _measure(self, elapsed: float, busy: float) -> None:
        waited = max(0.0, elapsed - busy)
        self._floor = waited if self._floor is None else min(waited, self._floor * FLOOR_GROWTH)
        others = max(0.0, waited - 2 * self._floor) / elapsed if elapsed > 0 else 0.0
        self._others += WEIGHT * (others - self._others)


class Keyspace:
    """Pages of keys and of index entries, at the pace of `throttle`. Raises RedisUnavailable if the server changes."""

    def __init__(self, shard: Shard, throttle: Throttle, index: bytes, no_entry: bytes) -> None:
        """`no_entry`: a key that has the form of an entry's hash, and never exists."""
        self._shard = shard
        self._client = shard.client
        self._throttle = throttle
        self._index = index
        # In a Cluster all keys of a slot are on one node, or the server refuses this script: while a slot moves, a walk
        # over one node would miss keys.
        self._one_node, self._one_node_call = Script("ops/one_node"), Call([index, no_entry], [])
        self.run_id = self._read_run_id()
        self._identified_at = time.monotonic()

    def size(self) -> int:
        return int(self._client.dbsize())

    def keys(self, stem: bytes, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """All keys that begin with `stem`: the cursor of the next page (0: none), and a page. A key may come twice."""
        pattern = re.sub(rb"([\\*?\[\]^-])", rb"\\\1", stem) + b"*"
        return self._pages(lambda at: self._client.scan(at, match=pattern, count=PAGE), cursor)

    def index(self, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids in the index, page by page like `keys`."""
        pages = self._pages(lambda at: self._client.zscan(self._index, at, count=PAGE), cursor)
        return ((following, [entry for entry, _ in entries]) for following, entries in pages)

    def _pages(self, scan: Callable[[int], Any], cursor: int) -> Iterator[tuple[int, list[Any]]]:
        while True:
            with self._throttle.step(PAGE):
                cursor, page = cast(Any, scan(cursor))
            progress.step()
            self._check_server(at_once=not cursor)
            yield cursor, page
            if not cursor:
                return

    def _read_run_id(self) -> str:
        self._one_node.run(self._client, self._one_node_call)
        return str(self._client.info("server")["run_id"])

    def _check_server(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if not at_once and now < self._identified_at + self._throttle.timing.identify_every:
            return
        self._identified_at = now
        if self._read_run_id() != self.run_id:
            raise RedisUnavailable(
                f"{self._shard.address}: it was restarted or replaced during the walk; start the walk again"
            )


class Seen:
    """A Bloom filter of ids: `add` may return True for a new id, and never returns False for a known one."""

    def __init__(self, expected: int) -> None:
        bits = min(max(expected * _BITS_EACH, _BITS_LEAST), _BITS_MOST)
        self._mask = (1 << (bits - 1).bit_length()) - 1
        self._bits = bytearray((self._mask + 1) // 8)

    def add(self, entry: bytes) -> bool:
        """Add an id. Returns whether the id may have been added before."""
        digest = hashlib.blake2b(entry, digest_size=16).digest()
        before = True
        for start in range(0, 16, 4):
            place = int.from_bytes(digest[start : start + 4], "big") & self._mask
            byte, bit = place >> 3, 1 << (place & 7)
            if not self._bits[byte] & bit:
                before = False
                self._bits[byte] |= bit
        return before
