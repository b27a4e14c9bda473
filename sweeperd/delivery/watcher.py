"""Waits for new events in the stream of a shard."""

import logging
import threading
from collections.abc import Callable

import redis

from sweeperd import progress
from sweeperd.context import Timing
from sweeperd.errors import RedisUnavailable
from sweeperd.logs import Outage
from sweeperd.store import Shard, streams
from sweeperd.store.errors import is_refused

log = logging.getLogger(__name__)

#: Without the right to XREAD: how often the stream is polled, and after how long the right is tried again, seconds.
POLL_EVERY, TRY_AGAIN = 0.2, 60.0


class Watcher:
    """
    Waits in a plain XREAD, because the reader has other things to wait for too. `run` is the work of a thread.

    When there is something after the cursor, `on_news` is called. The reader then reads the last id of the stream,
    before it reads for the lanes, and sets the cursor to it with `watch_from`: a later event is news again. After an
    empty answer or a new connection the last id is read anew: after a fail-over the stream may lie behind the cursor.
    """

    def __init__(self, shard: Shard, timing: Timing, on_news: Callable[[], None]) -> None:
        self._shard = shard.twin()
        self._timing = timing
        self._on_news = on_news
        # The answer must come before the socket times out.
        self._block = min(timing.block, shard.socket_timeout / 2)
        self._cursor = bytes(streams.START)
        #: Whether the reader has set the cursor.
        self._moved = threading.Event()
        self._reconnect = False
        self._refused_until = 0.0
        self._outage = Outage(log, "the watch for new events", {"shard": shard.name})

    def watch_from(self, cursor: bytes) -> None:
        """All events up to this one are read, or will be read without news."""
        self._cursor = cursor
        self._moved.set()

    def reconnect(self) -> None:
        """The reader has a new connection: a demoted primary would answer XREAD as if nothing were wrong."""
        self._reconnect = True

    def run(self, stop: threading.Event) -> None:
        """Watch until the stop."""
        known = False
        while not stop.is_set():
            progress.step()
            try:
                with self._shard.reaching():
                    if self._reconnect:
                        self._reconnect, known = False, False
                        self._shard.client.connection_pool.disconnect()
                    found = (not known and self._is_ahead()) or self._added(stop)
                self._outage.end()
            except (RedisUnavailable, redis.RedisError) as error:
                self._outage.begin(error, failed=not isinstance(error, RedisUnavailable))
                known = False
                stop.wait(self._timing.recovery_pause)
                continue
            except Exception:
                log.exception("the stream of events is not watched", extra={"shard": self._shard.name})
                stop.wait(self._timing.recovery_pause)
                continue
            known = False
            if found and not stop.is_set():
                self._moved.clear()
                self._on_news()
                known = self._moved.wait(self._block)
        self._shard.close()

    def _is_ahead(self) -> bool:
        """Whether the stream ends elsewhere than at the cursor, after it or, after a fail-over, before it."""
        last, before = streams.last_id(self._shard.client, self._shard.keys.events), self._cursor
        self._cursor = last
        return last != before

    def _added(self, stop: threading.Event) -> bool:
        """Wait for an event after the cursor."""
        if self._timing.clock() < self._refused_until:
            stop.wait(POLL_EVERY)
            return self._is_ahead()
        wait = "COUNT", 1, "BLOCK", max(1, int(self._block * 1000))
        try:
            return bool(
                self._shard.client.execute_command("XREAD", *wait, "STREAMS", self._shard.keys.events, self._cursor)
            )
        except redis.RedisError as error:
            if not is_refused(error):
                raise
            if not self._refused_until:
                fields = {"shard": self._shard.name, "error": str(error), "every_seconds": POLL_EVERY}
                log.warning("new events are polled for: grant XREAD to the user", extra=fields)
            self._refused_until = self._timing.clock() + TRY_AGAIN
            return False
