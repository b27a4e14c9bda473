"""Scans the keys of one shard page by page."""

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from sweeperd import progress
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.reconcile.throttle import Throttle
from sweeperd.store.connect import TIME_SCRIPT
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import glob

#: Keys that one SCAN visits: about 0.1 ms of Redis's time.
PAGE = 200


class Keyspace:
    """Pages of keys and of index entries, throttled. Raises RedisUnavailable if the server changes."""

    def __init__(self, shard: Shard, throttle: Throttle, index: bytes, no_entry: bytes) -> None:
        """`no_entry`: a key in the form of an entry's hash that never exists."""
        self._shard = shard
        self._client = shard.client
        self._throttle = throttle
        self._index = index
        # While a slot of a Cluster moves, a walk over one node would miss keys; the server then refuses this script.
        self._one_node, self._one_node_call = Script("one node", TIME_SCRIPT), Call([index, no_entry], [])
        self.run_id = self._read_run_id()
        self._identified_at = time.monotonic()

    def size(self) -> int:
        return int(self._client.dbsize())

    def keys(self, stem: bytes, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """All keys that begin with `stem`: the cursor of the next page (0: none), and a page. May repeat a key."""
        return self._pages(lambda at: self._client.scan(at, match=glob(stem) + b"*", count=PAGE), cursor)

    def index(self, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids in the index, paged like `keys`."""
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
