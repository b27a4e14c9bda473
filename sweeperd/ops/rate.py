"""A rate over a stated window; that of expiries is read from the event stream."""

from dataclasses import dataclass

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: The window, seconds, and the most events that are counted. Where more happened, the window is shorter.
WINDOW, COUNTED = 60.0, 2000


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second, over the last `window_seconds`; 0.0 seconds where nothing is known."""

    per_second: float = 0.0
    window_seconds: float = WINDOW

    def seconds_for(self, waiting: int) -> float | None:
        """How long `waiting` of them take at this rate; None where it is 0 and some wait."""
        if not waiting:
            return 0.0
        return round(waiting / self.per_second, 1) if self.per_second else None


#: Of what was not measured.
UNKNOWN = Rate(0.0, 0.0)


def read_rate(shard: Shard, now: int) -> Rate:
    """
    The rate of expiries up to `now` (ms). Each event has the time of its expiry on Redis's clock, so the rate is right
    during a long tick and after one, and the same for every process that reads it. Raises redis.RedisError.
    """
    start = now - int(WINDOW * 1000)
    call = Call([shard.keys.events], [max(0, start), COUNTED])
    read, expiries, oldest = Script("ops/rate").run(shard.client, call)
    window = WINDOW if read < COUNTED else max(0.001, (now - oldest) / 1000)
    return Rate(round(expiries / window, 2), round(window, 3))
