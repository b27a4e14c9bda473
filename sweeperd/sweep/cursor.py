"""
Where each tick begins to read the index.

A tick that was cut short is taken up by the next one where it stopped. Entries in grace before that place stay in the
index, and their graces may end while the ticks are cut short again and again. So the cursor remembers the earliest of
these ends, and once it has passed, a second walk visits the entries from the start of the index up to that place. The
two walks take turns, tick by tick: neither can keep the other one waiting for more than a tick.
"""

import math

from sweeperd.sweep.position import START, Position


class Cursor:
    """The places at which the two walks over one index stopped."""

    def __init__(self) -> None:
        #: Where the walk over the whole index stopped.
        self._main = START
        #: Where the second walk stopped; None where there is none.
        self._second: Position | None = None
        self._on_second = False
        #: The earliest end of grace among the entries that were passed by, ms on the server's clock.
        self._first_end = math.inf

    def start(self, now_ms: int) -> Position:
        """A tick begins at this time of the server. Returns where."""
        if self._main == START:
            self._second, self._first_end = None, math.inf
        elif self._second is None and now_ms > self._first_end:
            self._second, self._first_end = START, math.inf
        self._on_second = self._second is not None and not self._on_second
        return self._second if self._on_second and self._second else self._main

    def pass_by(self, grace_end_ms: int) -> None:
        """An entry whose grace ends then was left in the index."""
        self._first_end = min(self._first_end, grace_end_ms)

    def stop(self, position: Position) -> None:
        """The tick was cut short at this place."""
        if not self._on_second:
            self._main = position
        elif position.precedes(self._main):
            self._second = position
        else:
            self._main, self._second = position, None

    def finish(self) -> None:
        """The tick has come to the end of the index: the next one begins at its start."""
        self._main = START
