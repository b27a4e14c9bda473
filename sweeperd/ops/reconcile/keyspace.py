"""The keys of one shard, page by page, while the server stays the same."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

from sweeperd.errors import RedisUnavailable
from sweeperd.ops.throttle import Throttle
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

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
