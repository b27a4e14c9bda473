"""Measures how fast entries expire."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


UNKNOWN = Rate(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rates:
    """The expiries of each kind within one window."""

    window_seconds: float = WINDOW
    expiries: Mapping[str, int] = field(default_factory=dict)

    def of(self, kind: str) -> Rate:
        if self.window_seconds <= 0:
            return UNKNOWN
        return Rate(round(self.expiries.get(kind, 0) / self.window_seconds, 2), round(self.window_seconds, 3))


def read_rates(shard: Shard) -> Rates:
    """
    The rates of expiries until now, UNKNOWN if the clock was set back. Events carry the time of their expiry on Redis's
    clock, so every process reads the same rate, during a long tick too. The script reads the clock after the newest
    event: during a drain, thousands of events may be newer than a clock that was read before.
    """
    call = Call([shard.keys.events], [int(WINDOW * 1000), COUNTED])
    read, since_oldest, *counts = _RATE.run(shard.client, call)
    kinds = (decode(kind) or RESERVATIONS for kind in counts[::2])
    return Rates(WINDOW if read < COUNTED else since_oldest / 1000, dict(zip(kinds, counts[1::2], strict=True)))
