"""Acknowledges delivered events many at a time: a round trip for each would cost as much as half of its request."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from sweeperd.errors import RedisUnavailable

log = logging.getLogger(__name__)

#: The longest that a delivered event waits for others to be acknowledged with, seconds.
GATHER = 0.005
#: How long to leave Redis alone after it failed, seconds.
RECOVERY_PAUSE = 1.0


class Acknowledger:
    """
    Gathers what was delivered to one endpoint. `run` is a thread's work: it acknowledges as soon as there are as many
    as are worth a round trip, or the first of them has waited long enough.

    `acknowledge` tells Redis and raises RedisUnavailable; it is tried again until it succeeds or `end` was called.
    `settled` is told what is over, and whether it was acknowledged. What was not stays pending, for whoever finds it
    silent: its webhook comes again. `about`: what every log line carries.
    """

    def __init__(
        self,
        acknowledge: Callable[[Sequence[bytes]], None],
        settled: Callable[[Sequence[bytes], bool], None],
        together: int,
        about: Mapping[str, object],
    ) -> None:
        self._acknowledge = acknowledge
        self._settled = settled
        self._together = together
        self._about = dict(about)
        self._delivered: list[bytes] = []
        self._ended = False
        self._changed = threading.Condition(threading.Lock())

    def add(self, entry: bytes) -> None:
        """This event was delivered."""
        with self._changed:
            self._delivered.append(entry)
            if len(self._delivered) in (1, self._together):
                self._changed.notify()

    def end(self) -> None:
        """There will be no more: `run` acknowledges what there is and returns."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def run(self) -> None:
        """Acknowledge until `end`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._delivered or self._ended)
                self._changed.wait_for(lambda: self._ended or len(self._delivered) >= self._together, GATHER)
                ids, self._delivered, last = self._delivered, [], self._ended
            if ids:
                self._settle(ids, last=last)
            elif last:
                return

    def _settle(self, ids: list[bytes], *, last: bool) -> None:
        try:
            self._acknowledge(ids)
        except RedisUnavailable as error:
            about = self._about | {"events": len(ids), "error": str(error)}
            if not last:
                log.warning("delivered events wait to be acknowledged", extra=about)
                with self._changed:
                    self._delivered[:0] = ids
                    self._changed.wait_for(lambda: self._ended, RECOVERY_PAUSE)
                return
            log.warning("delivered events are left pending", extra=about)
        except Exception:
            log.exception("delivered events could not be acknowledged", extra=self._about | {"events": len(ids)})
        else:
            self._settled(ids, True)
            return
        self._settled(ids, False)
