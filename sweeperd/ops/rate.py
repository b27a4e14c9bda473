"""Measures how fast entries expire."""

from dataclasses import dataclass

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: The window of a rate, seconds, and the most events that are counted. If there are more events, the window is shorter.
WINDOW, COUNTED = 60.0, 2000
_RATE = Script("ops/rate")


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second, over the last `window_seconds`; 0.0 seconds if nothing is known."""

    per_second: float = 0.0
    window_seconds: float = WINDOW

    @property
    def known(self) -> float | None:
        """Events per second; None if nothing is known."""
        return self.per_second if self.window_seconds else None

    def seconds_for(self, waiting: int) -> float | None:
        """How long `waiting` events take at this rate, seconds; None if events wait and the rate is 0."""
        if not waiting:
            return 0.0
        return round(waiting / self.per_second, 1) if self.per_second else None


#: The rate if nothing was measured.
UNKNOWN = Rate(0.0, 0.0)


def read_rate(shard: Shard) -> Rate:
    """
    The rate of expiries up to now. Each event has the time of its expiry on Redis's clock, so the rate is right
    during a long tick and afterwards, and each process reads the same rate. The script reads the clock after the
    newest event: during a drain, thousands of events may be newer than a clock that was read before. UNKNOWN if the
    clock was set back. Raises redis.RedisError.
    """
    call = Call([shard.keys.events], [int(WINDOW * 1000), COUNTED])
    read, expiries, since_oldest = _RATE.run(shard.client, call)
    window = WINDOW if read < COUNTED else since_oldest / 1000
    return Rate(round(expiries / window, 2), round(window, 3)) if window > 0 else UNKNOWN
