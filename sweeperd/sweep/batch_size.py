"""How many entries go to Redis in one slice: as many as keep other clients waiting no longer than they may."""

#: A slice is at most so many times as long as the one before it.
GROWTH = 1.25
#: Up to this part of Redis's time, others are nobody but a machine that is slow; from that part on, a slice may take
#: only this part of what it may take in quiet.
QUIET, BUSY, SHORTENED = 0.025, 0.05, 0.25
#: How much of what is known of the others comes from the last slice, and how much of it is forgotten with each of which
#: nothing is known.
WEIGHT, FORGOTTEN = 0.05, 0.003
#: Between two slices Redis reads, writes and polls, even if nobody else is there: for so long at most, µs. It is taken
#: for the median pause, which is followed in steps of so many.
OVERHEAD, STEP = 300.0, 4.0
#: Others are told by pauses that come again and again; of a single long one, which is more likely the machine's, only
#: so much counts, as a part of the slice that it came before.
BELIEVED = 0.25
#: Between two slices that Redis read in one go, µs: it could not have served anybody.
NO_PAUSE = 10


class AdaptiveBatchSize:
    """
    From `shortest` to `longest` entries, so that Redis is busy with a slice for `limit_micros` at most.

    Redis serves one client after the other, so what it takes for a slice is what all the others wait. It tells that
    itself, by its own clock, and so what it does for others between two slices: the busier they keep it, the less of
    its time a slice may take. As in Redis's own expiry the work goes on while it pays; what gives way is its grain.
    A slice gets shorter at once, by half at most, and longer bit by bit.
    """

    def __init__(self, shortest: int, longest: int, limit_micros: float) -> None:
        self._shortest = min(shortest, longest)
        self._longest = longest
        self._limit = limit_micros
        #: The part of Redis's time that others take while a slice waits for its turn, smoothed.
        self._others = 0.0
        self._overhead: float | None = None
        self._ideal = float(longest)

    def __int__(self) -> int:
        return int(self._ideal)

    @property
    def keeps_distance(self) -> bool:
        """
        Whether others keep Redis so busy that it should not find the next slice when it is done with the last. What
        they do meanwhile is not known, so after a while it is tried again.
        """
        return self._others > BUSY

    def took(self, entries: int, micros: int, pause_micros: int | None) -> None:
        """
        Redis took so long for a slice of so many entries, which had been waiting for its turn for so long where that is
        known. What a clock says that was set meanwhile is not believed.
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
        nearest = min(max(fitting, self._ideal / 2), self._ideal * GROWTH)
        self._ideal = min(max(nearest, self._shortest), self._longest)
