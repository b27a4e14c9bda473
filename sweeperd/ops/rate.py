"""Measures how fast entries expire."""

from dataclasses import dataclass

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: The window of a rate, seconds, and up to how many events are counted. If there are more, the window is shorter.
WINDOW, COUNTED = 60.0, 2000
_RATE = Script("ops/rate")


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second over the last `window_seconds`, which is 0 if the rate is unknown."""

    per_second: float = 0.0
    window_seconds: float = WINDOW

    @property
    def known(self) -> float | None:
        """Events per second; None if unknown."""
        return self.per_second if self.window_seconds else None

    def seconds_for(self, waiting: int) -> float | None:
        """How many seconds `waiting` events take at this rate; None if they take forever."""
        if not waiting:
            return 0.0
        return round(waiting / self.per_second, 1) if self.per_second else None


UNKNOWN = Rate(0.0, 0.0)


def read_rate(shard: Shard) -> Rate:
    """
    The rate of expiries until now, UNKNOWN if the clock was set back. Events carry the time of their expiry on Redis's
    clock, so every process reads the same rate, during a long tick too. The script reads the clock after the newest
    event: during a drain, thousands of events may be newer than a clock that was read before.
    """
    call = Call([shard.keys.events], [int(WINDOW * 1000), COUNTED])
    read, expiries, since_oldest = _RATE.run(shard.client, call)
    window = WINDOW if read < COUNTED else since_oldest / 1000
    return Rate(round(expiries / window, 2), round(window, 3)) if window > 0 else UNKNOWN
