"""Reads how much memory a server uses of its maxmemory."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis

from sweeperd.store.errors import is_server_trouble

#: How long a reading is used, seconds.
FRESH = 1.0
#: How long until a server is queried again that refused INFO, seconds.
REFUSED_FOR = 60.0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes, as Redis compares them before it refuses a write."""

    used: int
    #: The server's maxmemory; None if there is none, or a managed service hides it.
    limit: int | None = None

    @property
    def percent(self) -> int | None:
        """The used share of maxmemory; None without one."""
        return self.used * 100 // self.limit if self.limit else None

    def exceeds(self, percent: int) -> bool:
        return self.limit is not None and self.used * 100 > percent * self.limit


def memory_use(info: Mapping[str, Any]) -> MemoryUse:
    """The figures of INFO. Buffers of replicas and of the append-only file do not count toward maxmemory."""
    used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
    return MemoryUse(max(0, used), int(info.get("maxmemory", 0)) or None)


class ServerMemory:
    """The memory of one server, which is queried once a second at most. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: MemoryUse | None = None
        self._next_at = 0.0

    def read(self, client: "redis.Redis") -> MemoryUse | None:
        """None if the user may not run INFO. Raises redis.RedisError if the server is in trouble."""
        with self._lock:
            if time.monotonic() >= self._next_at:
                try:
                    self._last = memory_use(client.info("memory"))
                except (redis.ResponseError, KeyError) as error:
                    if is_server_trouble(error):
                        raise
                    self._last = None
                self._next_at = time.monotonic() + (REFUSED_FOR if self._last is None else FRESH)
            return self._last
