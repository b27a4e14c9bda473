"""Measures how fast entries expire."""

from collections.abc import Iterable
from dataclasses import dataclass

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.text import decode

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
        return self.per_second if self.window_seconds else None

    def seconds_for(self, waiting: int) -> float | None:
        """How many seconds `waiting` events take at this rate; None if they take forever."""
        if not waiting:
            return 0.0
        return round(waiting / self.per_second, 1) if self.per_second else None


def read_rates(shard: Shard, kinds: Iterable[str]) -> dict[str, Rate]:
    """
    The rates of these kinds' expiries until now, unknown if the clock was set back. Events carry the time of their
    expiry on Redis's clock, so every process reads the same rate, during a long tick too. The script reads the clock
    after the newest event: during a drain, thousands of events may be newer than a clock that was read before.
    """
    call = Call([shard.keys.events], [int(WINDOW * 1000), COUNTED])
    read, since_oldest, *counts = _RATE.run(shard.client, call)
    window = WINDOW if read < COUNTED else since_oldest / 1000
    if window <= 0:
        return dict.fromkeys(kinds, Rate(0.0, 0.0))
    expiries = dict(zip((decode(kind) or RESERVATIONS for kind in counts[::2]), counts[1::2], strict=True))
    return {kind: Rate(round(expiries.get(kind, 0) / window, 2), round(window, 3)) for kind in kinds}
