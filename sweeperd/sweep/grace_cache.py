"""
The grace cache: entries in grace are passed by without a script call for each.

A backlog in grace lies at the beginning of the index, in front of the entries that are to be expired, and each tick has
to get past it. To ask expire.lua about each entry is exact, and slow. Two faster ways are as exact:

- A grace scan: one script reads a page, and the hash of each entry of it, and marks the entries that are in grace.
- A cached range: consecutive entries which were all in grace when they were scanned. The first of these graces ends at
  a known time. Until then nothing is to be done in the range, as long as the same entries stand in it with the same
  scores. A script checks that by a fingerprint.

The services that commit, release or extend a reservation change its index entry too. A service that changes the hash
only would not be noticed by the fingerprint, so each range is scanned again after a while.
"""

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import GraceScan
from sweeperd.sweep.position import IndexEntry, Position

#: How long a range is used before it is scanned again: at least, at most, seconds. The time is random, so that the
#: ranges are not all scanned in the same tick.
RESCAN_AFTER = (30.0, 60.0)
#: The most ranges in the cache: with 200 entries each, those of a million entries take about a MiB.
CAPACITY = 5_000


@dataclass(frozen=True, slots=True)
class CachedRange:
    """Consecutive entries of the index, every one of them in grace when it was scanned."""

    count: int
    #: The scores of the first and of the last entry, and how many of the entries have the last score.
    first: bytes
    last: bytes
    tail: int
    fingerprint: bytes
    #: When the first grace among them ends, ms on the server's clock.
    first_end_ms: int
    #: When it is scanned again (monotonic).
    rescan_at: float

    def end(self, begin: Position) -> Position:
        """The position after the range, where the range follows `begin`."""
        return Position(self.last, self.tail + (begin.passed if begin.score == self.last else 0))


class SkippedRanges(NamedTuple):
    """Cached ranges that were passed by."""

    position: Position
    #: How many entries they have. 0: none was passed by, and a page is to be scanned.
    entries: int = 0
    first_end_ms: int = 0


class ScannedPage(NamedTuple):
    """A page that was read with a grace scan."""

    entries: list[IndexEntry]
    #: Whether there are no more due entries after it.
    last: bool
    #: When the first grace among them ends, ms; None where no entry is in grace.
    first_end_ms: int | None


class GraceCache:
    """The cached ranges of one index. One tick at a time goes through them, from the lowest score to the highest."""

    def __init__(self, shard: Shard, index: bytes, grace_scan: GraceScan) -> None:
        self._shard = shard
        self._index = index
        self._grace_scan = grace_scan
        self._unchanged_ranges = Script("sweep/unchanged_ranges")
        #: The ranges that this tick has still to come to.
        self._next: deque[CachedRange] = deque()
        #: The ranges that this tick has found unchanged, or made.
        self._passed: list[CachedRange] = []
        #: The last score of a range that is scanned again. Pages end there, so that the next range begins where it did.
        self._bound: bytes | None = None

    def start(self) -> bool:
        """A tick begins. Returns whether there are any ranges."""
        self._next = deque([*self._passed, *self._next])
        self._passed = []
        self._bound = None
        return bool(self._next)

    def skip(self, position: Position, entries: int) -> SkippedRanges:
        """
        Pass by the ranges at this position that are unchanged, with about so many entries. Raises redis.RedisError.
        """
        ranges = [] if self._bound is not None else self._choose(position, entries)
        if not ranges:
            return SkippedRanges(position)
        args: list[bytes | int] = [position.score, position.passed]
        for cached in ranges:
            args += [cached.count, cached.fingerprint, cached.first_end_ms]
        count: int = self._unchanged_ranges.run(self._shard.client, Call([self._index], args))
        unchanged = ranges[:count]
        for cached in unchanged:
            self._next.popleft()
            self._passed.append(cached)
            position = cached.end(position)
        if count < len(ranges):
            self._bound = self._next.popleft().last
        if not unchanged:
            return SkippedRanges(position)
        first_end_ms = min(cached.first_end_ms for cached in unchanged)
        return SkippedRanges(position, sum(cached.count for cached in unchanged), first_end_ms)

    def scan(self, until: int, position: Position, count: int) -> ScannedPage:
        """
        The next entries with a score up to `until`, at most `count`, each marked where it is in grace. Where all of
        them are, they become a range. Raises redis.RedisError.
        """
        bounded = self._bound is not None and float(self._bound) < until
        last: bytes | int = self._bound if bounded and self._bound is not None else until
        args: list[bytes | int] = [last, position.score, position.passed, count, *self._grace_scan.args]
        reply: Any = self._grace_scan.script.run(self._shard.client, Call([self._index], args))
        flat, flags, more, first_end, fingerprint = reply
        entries = list(map(IndexEntry, flat[::2], flat[1::2], [flag == ord("1") for flag in flags]))
        if fingerprint:
            self._remember(entries, fingerprint, int(first_end))
        if more != b"1":
            self._bound = None
        return ScannedPage(entries, more != b"1" and not bounded, int(first_end) if first_end else None)

    def _choose(self, position: Position, entries: int) -> list[CachedRange]:
        """The next ranges to be checked, with about so many entries."""
        now = time.monotonic()
        while self._next and float(self._next[0].first) < float(position.score):
            # The tick began in the middle of the index, or the entries of this range were read as a page.
            cached = self._next.popleft()
            if now < cached.rescan_at:
                self._passed.append(cached)
        ranges: list[CachedRange] = []
        for cached in self._next:
            if now >= cached.rescan_at or entries <= 0:
                break
            ranges.append(cached)
            entries -= cached.count
        if self._next and not ranges:
            self._bound = self._next.popleft().last
        return ranges

    def _remember(self, entries: Sequence[IndexEntry], fingerprint: bytes, first_end_ms: int) -> None:
        if len(self._passed) + len(self._next) >= CAPACITY:
            return
        first, last = entries[0].score, entries[-1].score
        tail = sum(entry.score == last for entry in entries)
        rescan_at = time.monotonic() + random.uniform(*RESCAN_AFTER)  # noqa: S311
        self._passed.append(CachedRange(len(entries), first, last, tail, fingerprint, first_end_ms, rescan_at))
