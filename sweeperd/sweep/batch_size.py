"""
Sizes the batches of a sweep so that other clients of Redis wait for a batch only briefly.

While Redis runs a batch, all other clients wait. Each reply says, by Redis's clock, how long its batch took and how
long Redis served others before it. The busier Redis is with others, the less time a batch may take. As in Redis's
active expiry the work never stops, only its steps change: a batch shrinks at once, by up to half, and grows slowly.

From half of `max_lag` on, the size approaches that of a hurry, which is larger than an idle Redis would need: if the
system takes the core from the sweeping process for some milliseconds, Redis still has calls to run.
"""

import math

#: A batch is up to this many times as large as the one before.
GROWTH = 1.25
#: Up to the first share of Redis's time, pauses between batches are those of a slow machine. From the second share on,
#: other clients keep Redis busy, and a batch may take only the third share of its usual time.
QUIET, BUSY, SHORTENED = 0.025, 0.05, 0.25
#: The smoothing of the other clients' share, and its decay with each batch that measures none.
WEIGHT, DECAY = 0.05, 0.003
#: The longest time that Redis itself needs between two batches, µs. The estimate of it is the median pause, approached
#: in steps of this many µs.
OVERHEAD, STEP = 300.0, 4.0
#: A pause counts up to this share of the batch that follows: a single long pause is more likely the machine's.
LONGEST_PAUSE = 0.25
#: Below this, µs, Redis read both batches at once and served no other client in between.
NO_PAUSE = 10
#: From this part of `max_lag` on the size grows, and from that part on the next batch is always sent ahead.
HURRY, SEND_AHEAD = 0.5, 0.75


class AdaptiveBatchSize:
    """Calls that take `limit_micros`, from `smallest` to `largest`; `hurried` when entries are late by `max_lag_ms`."""

    def __init__(
        self, smallest: int, largest: int, limit_micros: float, max_lag_ms: float = math.inf, hurried: int = 0
    ) -> None:
        self._smallest = min(smallest, largest)
        self._largest = largest
        self._hurried = max(hurried, largest)
        self._limit = limit_micros
        self._max_lag_ms = max_lag_ms
        #: How late the last expiries were, as a part of `max_lag`.
        self._lateness = 0.0
        #: The share of Redis's time that other clients take while a batch waits for its turn, smoothed.
        self._others = 0.0
        self._overhead: float | None = None
        self._polite = float(largest)

    def __int__(self) -> int:
        hurry = min(1.0, max(0.0, self._lateness - HURRY) / (1 - HURRY))
        return int(self._polite + hurry * (self._hurried - self._polite))

    @property
    def sends_alone(self) -> bool:
        """Whether Redis is so busy with others that each batch waits for its reply, until `_others` has decayed."""
        return self._others > BUSY and self._lateness < SEND_AHEAD

    def late_by(self, lag_ms: int) -> None:
        """An entry has just expired this late."""
        self._lateness = lag_ms / self._max_lag_ms

    def record(self, entries: int, micros: int, pause_micros: int | None) -> None:
        """Redis took `micros` for a batch, `pause_micros` after the last; not used if the clock was set."""
        if micros <= 0 or entries <= 0:
            return
        if pause_micros is None or pause_micros < NO_PAUSE:
            self._others *= 1 - DECAY
        else:
            overhead = pause_micros if self._overhead is None else self._overhead
            self._overhead = min(overhead + (STEP if pause_micros > overhead else -STEP), OVERHEAD)
            others = min(max(0.0, pause_micros - self._overhead), LONGEST_PAUSE * micros)
            self._others += WEIGHT * (others / (others + micros) - self._others)
        busy = min(1.0, max(0.0, self._others - QUIET) / (BUSY - QUIET))
        allowed = self._limit * (1 - (1 - SHORTENED) * busy)
        fitting = entries * allowed / micros
        nearest = min(max(fitting, self._polite / 2), self._polite * GROWTH)
        self._polite = min(max(nearest, self._smallest), self._largest)
