"""
Passing by what is in grace. A backlog that waits for its grace to end lies at the beginning of the index, in front of
what is to be expired, and each tick has to get past it.

To ask expire.lua about each entry is exact, and slow. Two things are as exact. A page can be read with a look at each
hash, in one script, which tells what is plainly in grace; the rest is for expire.lua. And where all of a stretch of
the index are in grace, the first of them leaves it at a known time: until then there is nothing to be done there, as
long as the same entries stand in it with the same scores. That is checked by a fingerprint, on the server.

Whoever commits, releases or extends a reservation changes its index entry too. For writers that do not, each stretch is
looked at again after a while.
"""

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.index_reader import IndexEntry, Position
from sweeperd.sweep.kind import GraceScan

#: For how long at least and at most a stretch is not looked at again, seconds. At random, so that not all of them are
#: due in the same tick.
LOOK_AGAIN = (30.0, 60.0)
#: How many stretches are remembered: with 200 entries each, a million entries take about a MiB.
REMEMBERED = 5_000


@dataclass(frozen=True, slots=True)
class CachedRange:
    """So many entries in a row, every one of them in grace when it was looked at."""

    count: int
    #: The scores of the first and of the last of them, and how many have the last.
    first: bytes
    last: bytes
    tail: int
    fingerprint: bytes
    #: When the first grace among them ends, ms on the server's clock.
    until_ms: int
    #: When it is to be looked at again (monotonic).
    look_again_at: float

    def end(self, begin: Position) -> Position:
        """Where paging goes on behind it, where it lies right behind `begin`."""
        return Position(self.last, self.tail + (begin.passed if begin.score == self.last else 0))


class ScannedPage(NamedTuple):
    """A page: its entries, and whether there is nothing behind them that is due."""

    entries: list[IndexEntry]
    last: bool


class GraceCache:
    """What is known of one index. One tick at a time goes through it, from the lowest score to the highest."""

    def __init__(self, shard: Shard, index: bytes, look: GraceScan) -> None:
        self._shard = shard
        self._index = index
        self._look = look
        self._check = Script("sweep/unchanged_ranges")
        #: The stretches that this tick has not come to yet.
        self._ahead: deque[CachedRange] = deque()
        #: Those that it has found as they were, and new ones.
        self._behind: list[CachedRange] = []
        #: Up to this score the page is read now, so that the next stretch begins where it did.
        self._bound: bytes | None = None

    def begin(self) -> bool:
        """A tick begins. Returns whether anything is known."""
        self._ahead = deque([*self._behind, *self._ahead])
        self._behind = []
        self._bound = None
        return bool(self._ahead)

    def skip(self, position: Position, entries: int) -> tuple[Position, int]:
        """
        Pass by the stretches that lie next, about so many entries. Returns where to go on, and how many were passed: 0
        where there is something to be read. Raises redis.RedisError.
        """
        asked = [] if self._bound is not None else self._next(position, entries)
        if not asked:
            return position, 0
        args: list[bytes | int] = [position.score, position.passed]
        for stretch in asked:
            args += [stretch.count, stretch.fingerprint, stretch.until_ms]
        held: int = self._check.run(self._shard.client, Call([self._index], args))
        for _ in range(held):
            self._behind.append(self._ahead.popleft())
            position = self._behind[-1].end(position)
        if held < len(asked):
            self._bound = self._ahead.popleft().last
        return position, sum(stretch.count for stretch in asked[:held])

    def read(self, until: int, position: Position, count: int) -> ScannedPage:
        """The next entries with a score up to `until`, and of each whether it is in grace. Raises redis.RedisError."""
        bounded = self._bound is not None and float(self._bound) < until
        last: bytes | int = self._bound if bounded and self._bound is not None else until
        args: list[bytes | int] = [last, position.score, position.passed, count, *self._look.args]
        reply: Any = self._look.script.run(self._shard.client, Call([self._index], args))
        flat, flags, more, *stretch = reply
        entries = list(map(IndexEntry, flat[::2], flat[1::2], [flag == ord("1") for flag in flags]))
        if stretch:
            fingerprint, until_ms = stretch
            self._remember(entries, fingerprint, int(until_ms))
        if more != b"1":
            self._bound = None
        return ScannedPage(entries, more != b"1" and not bounded)

    def _next(self, position: Position, entries: int) -> list[CachedRange]:
        """The stretches to be asked about, from the first that is ahead."""
        now = time.monotonic()
        while self._ahead and float(self._ahead[0].first) < float(position.score):
            # It was passed in another way, which may be because the tick began in the middle of the index.
            stretch = self._ahead.popleft()
            if now < stretch.look_again_at:
                self._behind.append(stretch)
        asked: list[CachedRange] = []
        for stretch in self._ahead:
            if now >= stretch.look_again_at or entries <= 0:
                break
            asked.append(stretch)
            entries -= stretch.count
        if self._ahead and not asked:
            self._bound = self._ahead.popleft().last
        return asked

    def _remember(self, entries: Sequence[IndexEntry], fingerprint: bytes, until_ms: int) -> None:
        if len(self._behind) + len(self._ahead) >= REMEMBERED:
            return
        first, last = entries[0].score, entries[-1].score
        tail = sum(entry.score == last for entry in entries)
        look_again_at = time.monotonic() + random.uniform(*LOOK_AGAIN)  # noqa: S311
        self._behind.append(CachedRange(len(entries), first, last, tail, fingerprint, until_ms, look_again_at))
