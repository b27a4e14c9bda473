"""
The size of a batch: as many script calls as keep other clients of Redis waiting no longer than they may.

Redis serves one client after the other, so the time that it takes for a batch is the time that all other clients wait.
By its own clock it says how long it took, and how long it was busy with other clients between two batches. The busier
they keep it, the less of its time a batch may take. As in Redis's own active expiry, the work goes on in any case; what
changes is the size of its steps. A batch gets smaller at once, by half at most, and larger little by little.

Being polite must not lose the race: from half of `max_lag` on, the size approaches that of a hurry, and with entries
that are overdue for longer than `max_lag` it has that size. It is larger than what politeness allows even with an idle
Redis: where the system gives the core of the sweeping process to another one for some milliseconds, Redis goes on with
the calls that are on their way.
"""

import math

#: A batch is at most so many times as large as the one before it.
GROWTH = 1.25
#: Up to this share of Redis's time, the pauses between batches are those of a slow machine. From the second share on,
#: other clients keep Redis busy, and a batch may take only the third share of what it may take otherwise.
QUIET, BUSY, SHORTENED = 0.025, 0.05, 0.25
#: How much the last batch counts for the share of the other clients; and how much of that share is forgotten with each
#: batch that says nothing about them.
WEIGHT, FORGOTTEN = 0.05, 0.003
#: Between two batches Redis reads, writes and polls, even without other clients: for so long at most, µs. The estimate
#: is the median pause, which it follows in steps of so many µs.
OVERHEAD, STEP = 300.0, 4.0
#: Other clients cause pauses again and again. A single long pause is more likely the machine's: only so much of it
#: counts, as a share of the time of the batch after it.
BELIEVED = 0.25
#: A shorter pause, µs, is none: Redis read both batches at once, and could not have served another client in between.
NO_PAUSE = 10
#: From this part of `max_lag` on the size grows; from the second part on, the next batch is sent ahead in any case.
HURRY, SEND_AHEAD = 0.5, 0.75


class AdaptiveBatchSize:
    """
    From `smallest` to `largest` calls, so that Redis is busy with a batch for `limit_micros` at most; `hurried` calls
    where an entry is overdue for `max_lag_ms`.
    """

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
    def keeps_distance(self) -> bool:
        """
        Whether other clients keep Redis so busy that it should not find the next batch when it is done with the last.
        Batches sent that way say nothing about the other clients, so after a while it is tried again.
        """
        return self._others > BUSY and self._lateness < SEND_AHEAD

    def late_by(self, lag_ms: int) -> None:
        """An entry has just expired so long after it could have expired."""
        self._lateness = lag_ms / self._max_lag_ms

    def record(self, entries: int, micros: int, pause_micros: int | None) -> None:
        """
        Redis took so long for a batch of so many entries, after it had been busy with something else for so long; None
        where that is not known. Times from a clock that was set in between are ignored.
        """
        if micros <= 0 or entries <= 0:
            return
        if pause_micros is None or pause_micros < NO_PAUSE:
            self._others *= 1 - FORGOTTEN
        else:
            overhead = pause_micros if self._overhead is None else self._overhead
            self._overhead = min(overhead + (STEP if pause_micros > overhead else -STEP), OVERHEAD)
            others = min(max(0.0, pause_micros - self._overhead), BELIEVED * micros)
            self._others += WEIGHT * (others / (others + micros) - self._others)
        busy = min(1.0, max(0.0, self._others - QUIET) / (BUSY - QUIET))
        allowed = self._limit * (1 - (1 - SHORTENED) * busy)
        fitting = entries * allowed / micros
        nearest = min(max(fitting, self._polite / 2), self._polite * GROWTH)
        self._polite = min(max(nearest, self._smallest), self._largest)
