"""Redis's clock, which is the only one that decides anything."""

import time

from sweeperd.errors import RedisUnavailable


class Clock:
    """
    Redis's clock, read between readings: the last TIME plus what the monotonic clock has counted since. The host's
    idea of the time takes no part in it.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def set(self, now_ms: int) -> None:
        """Take a reading of the server's TIME, in ms."""
        self._offset_ms = now_ms - time.monotonic() * 1000

    def now_ms(self) -> int:
        """Milliseconds since the epoch. Raises RedisUnavailable before the first reading."""
        if self._offset_ms is None:
            raise RedisUnavailable("the server's clock has not been read yet")
        return int(self._offset_ms + time.monotonic() * 1000)
