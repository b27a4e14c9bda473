"""
Reads the due entries of an index page by page, past the entries that stay.

Entries in grace lie at the beginning of the index, in front of the entries to expire, and each tick has to pass them.
So a page is read in one of three ways. A plain page has the entries only. A grace scan also reads their hashes and
marks the entries in grace, so that expire.lua does not run for each. A cached range of entries that are known to be in
grace is skipped. A scan costs more than a plain page, so pages are scanned while at least half of the entries are in
grace.
"""

import functools
import heapq
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import redis

from sweeperd.store.scripts import Call, Command, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.kind import Decision, GraceScan, Kind, Outcome

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long pages stay smaller after the server cut one off, seconds.
SMALLER = 600.0
#: The bounds of the random time after which a range is scanned again, seconds; random, so that not all ranges are
#: scanned in the same tick.
RESCAN_AFTER = (30.0, 60.0)
#: The most ranges in the cache: with 200 entries each, the ranges of a million entries take about a MiB.
CAPACITY = 5_000
#: The most entries whose end of grace is remembered; others in grace wait for a full tick.
ENDS = 10_000
#: How many entries Redis scans, or skips in cached ranges, in the time that it takes to expire one.
SCANS, SKIPS = 8, 32


class IndexEntry(NamedTuple):
    id: bytes
    score: bytes
    #: When the grace ends, ms, if a grace scan found the entry in grace; else 0.
    grace_end_ms: int = 0

    @property
    def in_grace(self) -> bool:
        return self.grace_end_ms > 0


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the index: after this many staying entries of this score."""

    score: bytes = b"-inf"
    passed: int = 0

    def after(self, entries: Iterable[tuple[IndexEntry, bool]]) -> "Position":
        """The position after these entries, each with whether it stays in the index."""
        score, passed = self.score, self.passed
        for entry, stays in entries:
            if entry.score != score:
                score, passed = entry.score, 0
            passed += stays
        return Position(score, passed)

    def precedes(self, other: "Position") -> bool:
        return (float(self.score), self.passed) < (float(other.score), other.passed)


#: Before the first entry.
START = Position()


class Cursor:
    """
    Where each tick begins to read the index.

    After a tick that was cut short, the next one goes on from there. Graces of the entries before that place may end
    while ticks are cut short again and again. So once the earliest of them has ended, a second walk goes from the start
    of the index up to that place. The two walks alternate, so neither waits for longer than a tick.
    """

    def __init__(self) -> None:
        #: Where the walk over the whole index stopped.
        self._main = START
        #: Where the second walk stopped; None if there is none.
        self._second: Position | None = None
        self._on_second = False
        #: The earliest end of grace among the entries that were skipped, ms on the server's clock.
        self._first_end = math.inf

    def start(self, now_ms: int) -> Position:
        """Where a tick begins that starts at this time of the server."""
        if self._main == START:
            self._second, self._first_end = None, math.inf
        elif self._second is None and now_ms > self._first_end:
            self._second, self._first_end = START, math.inf
        self._on_second = self._second is not None and not self._on_second
        return self._second if self._on_second and self._second else self._main

    def pass_by(self, grace_end_ms: int) -> None:
        """An entry stays in the index until its grace ends at this time, ms."""
        self._first_end = min(self._first_end, grace_end_ms)

    def stop(self, position: Position) -> None:
        if not self._on_second:
            self._main = position
        elif position.precedes(self._main):
            self._second = position
        else:
            self._main, self._second = position, None

    def finish(self) -> None:
        self._main = START


@dataclass(frozen=True, slots=True)
class CachedRange:
    """
    Consecutive entries of the index that were all in grace when scanned. The range needs no work until the first of
    these graces ends, if a fingerprint shows the same entries with the same scores. Services that commit, release or
    extend a reservation change its index entry too. A change to the hash alone would keep the fingerprint, so each
    range is scanned again after a while.
    """

    count: int
    #: The first and the last score, and how many entries have the last one.
    first: bytes
    last: bytes
    tail: int
    fingerprint: bytes
    #: When the first grace of the entries ends, ms on the server's clock.
    first_end_ms: int
    #: When the range is scanned again (monotonic).
    rescan_at: float

    def end(self, begin: Position) -> Position:
        """The position after the range if it follows `begin`."""
        return Position(self.last, self.tail + (begin.passed if begin.score == self.last else 0))


class GraceCache:
    """The cached ranges of one index. One tick at a time goes through them, from the lowest score to the highest."""

    def __init__(self, shard: Shard, index: bytes, grace_scan: GraceScan) -> None:
        self._shard = shard
        self._index = index
        self._grace_scan = grace_scan
        self._unchanged_ranges = Script("sweep/unchanged_ranges")
        #: The ranges still ahead in this tick.
        self._next: deque[CachedRange] = deque()
        #: The ranges that were unchanged in this tick, or are new.
        self._passed: list[CachedRange] = []
        #: The last score of a range that is scanned again. Pages end there, so that the next range still fits.
        self._bound: bytes | None = None

    def start(self) -> bool:
        """Begin a tick. Returns whether there are ranges."""
        self._next = deque([*self._passed, *self._next])
        self._passed = []
        self._bound = None
        return bool(self._next)

    def skip(self, position: Position, entries: int) -> list[CachedRange]:
        """The unchanged ranges at this position, with about `entries` entries. Raises redis.RedisError."""
        ranges = [] if self._bound is not None else self._choose(position, entries)
        if not ranges:
            return []
        args: list[bytes | int] = [position.score, position.passed]
        for cached in ranges:
            args += [cached.count, cached.fingerprint, cached.first_end_ms]
        count: int = self._unchanged_ranges.run(self._shard.client, Call([self._index], args))
        for _ in range(count):
            self._passed.append(self._next.popleft())
        if count < len(ranges):
            self._bound = self._next.popleft().last
        return ranges[:count]

    def scan(self, until: int, position: Position, count: int) -> tuple[list[IndexEntry], bool]:
        """Up to `count` entries up to the score `until`, and whether they are the last. All in grace become a range."""
        bounded = self._bound is not None and float(self._bound) < until
        last: bytes | int = self._bound if bounded and self._bound is not None else until
        args: list[bytes | int] = [last, position.score, position.passed, count, *self._grace_scan.args]
        reply: Any = self._grace_scan.script.run(self._shard.client, Call([self._index], args))
        flat, ends, more, fingerprint = reply
        entries = list(map(IndexEntry, flat[::2], flat[1::2], ends))
        if fingerprint:
            self._remember(entries, fingerprint, min(ends))
        if more != b"1":
            self._bound = None
        return entries, more != b"1" and not bounded

    def _choose(self, position: Position, entries: int) -> list[CachedRange]:
        """The next ranges to check, with about `entries` entries."""
        now = time.monotonic()
        while self._next and float(self._next[0].first) < float(position.score):
            # The tick began in the middle of the index, or read this range as a page.
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


class GraceEnds:
    """When the graces of the entries end that a script left alone, ms on the server's clock. Not thread-safe."""

    def __init__(self) -> None:
        #: Id -> the end of the grace, and the score.
        self._ends: dict[bytes, tuple[int, bytes]] = {}
        #: (end, id), some of them outdated.
        self._queue: list[tuple[int, bytes]] = []

    def add(self, entry: IndexEntry, end_ms: int) -> None:
        known = self._ends.get(entry.id)
        if known != (end_ms, entry.score) and (known or len(self._ends) < ENDS):
            self._ends[entry.id] = end_ms, entry.score
            heapq.heappush(self._queue, (end_ms, entry.id))

    @property
    def first(self) -> float:
        """The first end; infinite if there is none."""
        while self._queue and self._ends.get(self._queue[0][1], (0,))[0] != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else math.inf

    def take(self, until_ms: int, count: int) -> list[IndexEntry]:
        """Forget up to `count` entries whose grace ended by this time, and return them."""
        taken: list[IndexEntry] = []
        while len(taken) < count and self.first <= until_ms:
            _, entry = heapq.heappop(self._queue)
            taken.append(IndexEntry(entry, self._ends.pop(entry)[1]))
        return taken


_PAGE = Script("sweep/page")


def read_page(shard: Shard, index: bytes, until: float | str, position: Position, count: int) -> list[IndexEntry]:
    """Up to `count` entries with a score up to `until`. Raises redis.RedisError."""
    flat: list[bytes] = _PAGE.run(shard.client, Call([index], [str(until), position.score, position.passed, count]))
    return list(map(IndexEntry, flat[::2], flat[1::2]))


def read_due(shard: Shard, kind: Kind, until_ms: float, position: Position, count: int) -> list[IndexEntry]:
    """Up to `count` entries of a kind that are due at this moment, ms. Raises redis.RedisError."""
    return read_page(shard, kind.index, kind.score_of(until_ms), position, count)


class PageSize:
    """
    How many entries are read at once. Ids may be long, and Redis closes the connection if a reply exceeds its output
    limit for clients. So if the connection ends while Redis answers other commands, the page is halved and read again.
    """

    def __init__(self, shard: Shard, most: int) -> None:
        self._shard = shard
        self._most = most
        self._cut_at = 0.0
        self.now = most

    def read(self, read: Callable[[int], T]) -> T:
        """The page that `read` returns for a size, which `now` is afterwards. Raises redis.RedisError."""
        if self.now < self._most and time.monotonic() - self._cut_at > SMALLER:
            self.now = self._most
        while True:
            try:
                return read(self.now)
            except redis.ConnectionError as error:
                if self.now == 1:
                    raise
                self._shard.read_clock()
                self.now, self._cut_at = self.now // 2, time.monotonic()
                log.warning(
                    "Redis closed the connection while it sent a page of the index, and answers again: if it logs "
                    "'overcoming of output buffer limits', raise client-output-buffer-limit normal, or lower "
                    "sweep.batch_size; pages are smaller now",
                    extra={"shard": self._shard.name, "page": self.now, "error": str(error)},
                )


@dataclass(frozen=True, slots=True)
class IndexPage:
    """Consecutive entries of the index, or the number of entries in grace that were skipped instead."""

    entries: Sequence[IndexEntry] = ()
    passed: int = 0


class IndexReader:
    """Reads the due entries of one kind on one shard. `ends`: gets the ends of grace that become known."""

    def __init__(self, shard: Shard, kind: Kind, page_size: int, ends: GraceEnds | None = None) -> None:
        self._ends = ends
        self.pages = PageSize(shard, page_size)
        self._read_page = functools.partial(read_due, shard, kind)
        self._cache = None if kind.grace_scan is None else GraceCache(shard, kind.index, kind.grace_scan)
        self._cursor = Cursor()
        self._position = START
        self._until = 0
        #: Whether the next page is scanned. The first is, because entries in grace are in front.
        self._scans = self._cache is not None
        self._page_scanned = False
        #: Whether the last page was read.
        self.ended = False

    def start(self, now_ms: int, *, idle: bool = False) -> None:
        """Begin a tick over the entries that are due at this time of the server. `idle`: there are none."""
        if self.ended:
            self._cursor.finish()
        self.ended = idle
        self._until = now_ms
        self._position = self._cursor.start(now_ms)
        if self._ends is not None and self._position == START:
            self._ends.take(now_ms, ENDS)  # the tick decides all of them
        if self._cache is not None and self._cache.start():
            self._scans = True

    @property
    def rereads(self) -> bool:
        """Whether to skip the rest of the page, which is read again with a grace scan."""
        return self._scans and not self._page_scanned

    def next(self, batch_size: int) -> IndexPage:
        """The next page, or skipped ranges; either takes Redis as long as a batch. Raises redis.RedisError."""
        self._page_scanned = self._scans
        if self._cache is None or not self._scans:
            entries = self.pages.read(functools.partial(self._read_page, self._until, self._position))
            self.ended = len(entries) < self.pages.now
            return IndexPage(entries)
        if skipped := self._cache.skip(self._position, SKIPS * batch_size):
            for cached in skipped:
                self._position = cached.end(self._position)
                self._cursor.pass_by(cached.first_end_ms)
            return IndexPage(passed=sum(cached.count for cached in skipped))
        scan = functools.partial(self._cache.scan, self._until, self._position)
        entries, self.ended = self.pages.read(lambda count: scan(min(count, SCANS * batch_size)))
        self._scans = 2 * sum(entry.in_grace for entry in entries) >= len(entries)
        return IndexPage(entries)

    def advance(self, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> None:
        stays = [decision.outcome.stays for decision in decisions]
        self._position = self._position.after(zip(entries, stays, strict=True))
        for entry, decision in zip(entries, decisions, strict=True):
            if decision.grace_end_ms:
                self._cursor.pass_by(decision.grace_end_ms)
                if self._ends is not None:
                    self._ends.add(entry, decision.grace_end_ms)
        if self._cache is not None and not self._page_scanned:
            self._scans = 2 * sum(decision.outcome is Outcome.IN_GRACE for decision in decisions) >= len(decisions)
            self.ended = self.ended and not self._scans

    def stop(self, failed: Sequence[IndexEntry] = ()) -> None:
        """The tick was cut short here. The next tick goes on behind the entries that failed."""
        self.ended = False
        self._cursor.stop(self._position.after((entry, True) for entry in failed))


class WokenReader:
    """Reads the entries of a woken tick: those due after the last score seen, and those whose grace has ended."""

    #: A woken tick scans no page.
    rereads = False

    def __init__(self, shard: Shard, kind: Kind, pages: PageSize, ends: GraceEnds, seen_ms: int) -> None:
        """Read the clock and the first page in one round trip. Raises redis.RedisError."""
        self._read_page = functools.partial(read_due, shard, kind)
        self._pages = pages
        self._ends = ends
        self._position = START
        self.ended = False
        # An entry whose deadline is the present millisecond is not due.
        now = shard.clock.now_ms() - 1
        ended = ends.take(now, pages.now)
        more: list[Command] = [("ZMSCORE", kind.index, *(entry.id for entry in ended))] if ended else []
        first = ("ZRANGE", kind.index, f"({kind.score_of(seen_ms)}", kind.score_of(now), "BYSCORE", "LIMIT", 0)
        server_now, replies = pages.read(lambda count: shard.read_with_clock((*first, count, "WITHSCORES"), *more))
        #: The score up to which the tick decides.
        self.until_ms = min(now, server_now - 1)
        flat = replies[0]
        self._page: list[IndexEntry] | None = list(map(IndexEntry, flat[::2], flat[1::2]))
        #: The entries still in the index, which were neither committed nor extended.
        self._in_front = [
            entry
            for entry, score in zip(ended, replies[1] if ended else (), strict=True)
            if score is not None and float(score) == float(entry.score)
        ]

    def next(self, _batch_size: int) -> IndexPage:
        page, self._page = self._page, None
        if page is None:
            page = self._pages.read(functools.partial(self._read_page, self.until_ms, self._position))
        self.ended = len(page) < self._pages.now
        in_front, self._in_front = self._in_front, []
        return IndexPage([*in_front, *page])

    def advance(self, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> None:
        stays = [decision.outcome.stays for decision in decisions]
        self._position = self._position.after(zip(entries, stays, strict=True))
        for entry, decision in zip(entries, decisions, strict=True):
            if decision.grace_end_ms:
                self._ends.add(entry, decision.grace_end_ms)

    def stop(self, _failed: Sequence[IndexEntry] = ()) -> None:
        """The tick was cut short here. The rest waits for the next full tick."""
        self.ended = False
