"""How many entries go to Redis in one slice: as many as keep other clients waiting no longer than they may."""

#: How much of what is known of the others' work comes from the last slice.
WEIGHT = 0.25
#: A slice is at most so many times as long as the one before it.
GROWTH = 1.25


class SliceLength:
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
        self._ideal = float(longest)

    def __int__(self) -> int:
        return int(self._ideal)

    def took(self, entries: int, micros: int, others_micros: int | None) -> None:
        """
        Redis took so long for a slice of so many entries, and before it so long for others, where that is known. What a
        clock says that was set meanwhile is not believed.
        """
        if micros <= 0 or entries <= 0:
            return
        if others_micros is not None and others_micros >= 0:
            share = others_micros / (others_micros + micros)
            self._others += WEIGHT * (share - self._others)
        fitting = entries * self._limit * (1 - self._others) / micros
        nearest = min(max(fitting, self._ideal / 2), self._ideal * GROWTH)
        self._ideal = min(max(nearest, self._shortest), self._longest)
