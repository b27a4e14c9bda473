"""
Reads the due entries of an index page by page, past the entries that stay.

A page is read in one of three ways. Plain: the entries only. With a grace scan: one script reads the page and the hash
of each entry, and marks the entries in grace, so that expire.lua is not asked about each. Not at all: a cached range of
entries that are known to be in grace is passed by. A scan costs more than a plain page, so pages are scanned while at
least half of the entries turn out to be in grace: a backlog in grace lies at the beginning of the index, in front of
the entries that are to be expired, and each tick has to pass the backlog.
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

#: How long pages stay smaller after the server has cut one off, seconds.
SMALLER = 600.0
#: How long a range is used before the next scan: at least, at most, seconds. The time is random, so that the ranges are
#: not all scanned in the same tick.
RESCAN_AFTER = (30.0, 60.0)
#: The most ranges in the cache: with 200 entries each, the ranges of a million entries take about a MiB.
CAPACITY = 5_000
#: The most entries whose end of grace is remembered; the other entries in grace wait for a tick over the whole index.
ENDS = 10_000
#: In the time that Redis takes to expire one entry, this many are scanned, or passed by in cached ranges.
SCANS, SKIPS = 8, 32


class IndexEntry(NamedTuple):
    id: bytes
    score: bytes
    #: When the grace ends, ms, if a grace scan found the entry in grace; else 0.
    grace_end_ms: int = 0

    @property
    def in_grace(self) -> bool:
        """Whether a grace scan found the entry in grace."""
        return self.grace_end_ms > 0


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the index: at this score, after this many entries of exactly this score that stay."""

    score: bytes = b"-inf"
    passed: int = 0

    def after(self, entries: Iterable[tuple[IndexEntry, bool]]) -> "Position":
        """The position after these entries, each with whether the entry stays in the index."""
        score, passed = self.score, self.passed
        for entry, stays in entries:
            if entry.score != score:
                score, passed = entry.score, 0
            passed += stays
        return Position(score, passed)

    def precedes(self, other: "Position") -> bool:
        """Whether this position comes before the other one."""
        return (float(self.score), self.passed) < (float(other.score), other.passed)


#: Before the first entry.
START = Position()


class Cursor:
    """
    The places at which each tick begins to read the index.

    If a tick was cut short, the next tick goes on from there. Entries in grace before that place stay in the index, and
    their graces may end while ticks are cut short again and again. So the cursor remembers the earliest of these ends,
    and when that time has passed, a second walk visits the entries from the start of the index up to that place. The
    two walks take turns, tick by tick, so neither waits for longer than a tick.
    """

    def __init__(self) -> None:
        #: The place at which the walk over the whole index stopped.
        self._main = START
        #: The place at which the second walk stopped; None if there is no second walk.
        self._second: Position | None = None
        self._on_second = False
        #: The earliest end of grace among the entries that were passed by, ms on the server's clock.
        self._first_end = math.inf

    def start(self, now_ms: int) -> Position:
        """A tick begins at this time of the server. Returns the position to begin at."""
        if self._main == START:
            self._second, self._first_end = None, math.inf
        elif self._second is None and now_ms > self._first_end:
            self._second, self._first_end = START, math.inf
        self._on_second = self._second is not None and not self._on_second
        return self._second if self._on_second and self._second else self._main

    def pass_by(self, grace_end_ms: int) -> None:
        """An entry was left in the index whose grace ends at this time, ms."""
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
        """The tick has reached the end of the index: the next tick begins at the start."""
        self._main = START


@dataclass(frozen=True, slots=True)
class CachedRange:
    """
    Consecutive entries of the index that were all in grace when scanned. Until the first of these graces ends, nothing
    is to be done in the range, if the same entries are still there with the same scores: a script checks a fingerprint.
    The services that commit, release or extend a reservation change the index entry too. If a service changed the hash
    only, the fingerprint would stay the same, so each range is scanned again after a while.
    """

    count: int
    #: The scores of the first and of the last entry, and how many of the entries have the last score.
    first: bytes
    last: bytes
    tail: int
    fingerprint: bytes
    #: When the first grace of the entries ends, ms on the server's clock.
    first_end_ms: int
    #: When the range is scanned again (monotonic).
    rescan_at: float

    def end(self, begin: Position) -> Position:
        """The position after the range, if the range follows `begin`."""
        return Position(self.last, self.tail + (begin.passed if begin.score == self.last else 0))


class SkippedRanges(NamedTuple):
    """Cached ranges that were passed by."""

    position: Position
    #: The number of entries in the ranges. If 0, no range was passed by, and a page is to be scanned.
    entries: int = 0
    first_end_ms: int = 0


class ScannedPage(NamedTuple):
    """A page that was read with a grace scan."""

    entries: list[IndexEntry]
    #: Whether this is the last page of due entries.
    last: bool


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
        #: The last score of a range that is scanned again. Pages end there, so that the next range begins as before.
        self._bound: bytes | None = None

    def start(self) -> bool:
        """A tick begins. Returns whether there are ranges."""
        self._next = deque([*self._passed, *self._next])
        self._passed = []
        self._bound = None
        return bool(self._next)

    def skip(self, position: Position, entries: int) -> SkippedRanges:
        """Pass by the unchanged ranges at this position, about `entries` entries. Raises redis.RedisError."""
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
        The next entries with a score up to `until`, up to `count`, each with the end of its grace if in grace. If all
        entries are in grace, they become a range. Raises redis.RedisError.
        """
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
        return ScannedPage(entries, more != b"1" and not bounded)

    def _choose(self, position: Position, entries: int) -> list[CachedRange]:
        """The next ranges to be checked, with about `entries` entries."""
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


class GraceEnds:
    """When the graces of the entries end that a script has left alone, ms on the server's clock. One tick at a time."""

    def __init__(self) -> None:
        #: Id -> the end of the grace, and the score.
        self._ends: dict[bytes, tuple[int, bytes]] = {}
        #: (end, id), with ends that are out of date.
        self._queue: list[tuple[int, bytes]] = []

    def add(self, entry: IndexEntry, end_ms: int) -> None:
        """The grace of this entry ends at this time."""
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


def read_page(shard: Shard, index: bytes, until: float, position: Position, count: int) -> list[IndexEntry]:
    """The next entries with a score up to `until`, at most `count`: a plain page. Raises redis.RedisError."""
    flat: list[bytes] = _PAGE.run(shard.client, Call([index], [str(until), position.score, position.passed, count]))
    return list(map(IndexEntry, flat[::2], flat[1::2]))


class PageSize:
    """
    How many entries are read at once. Redis closes the connection if a reply passes its output limit for clients, and
    ids may be long. So if the connection ends while Redis answers other commands, the page is halved and read again.
    """

    def __init__(self, shard: Shard, most: int) -> None:
        self._shard = shard
        self._most = most
        self._cut_at = 0.0
        self.now = most

    def read(self, read: Callable[[int], T]) -> T:
        """The page that `read` gives for a size. `now` is its size afterwards. Raises redis.RedisError."""
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
    """Consecutive entries of the index."""

    entries: Sequence[IndexEntry] = ()
    #: How many entries in grace were passed by in place of a page.
    passed: int = 0


class IndexReader:
    """Reads the due entries of one kind on one shard. `ends`: gets the ends of grace that become known."""

    def __init__(self, shard: Shard, kind: Kind, page_size: int, ends: GraceEnds | None = None) -> None:
        self._ends = ends
        self.pages = PageSize(shard, page_size)
        self._read_page = functools.partial(read_page, shard, kind.index)
        self._cache = None if kind.grace_scan is None else GraceCache(shard, kind.index, kind.grace_scan)
        self._cursor = Cursor()
        self._position = START
        self._until = 0
        #: Whether the next page is scanned, as the first page is, because entries in grace stand in front.
        self._scans = self._cache is not None
        self._page_scanned = False
        #: Whether the last page was read.
        self.ended = False

    def start(self, now_ms: int, *, idle: bool = False) -> None:
        """A tick begins, and reads the entries that are due at this time of the server; `idle`: there are none."""
        if self.ended:
            self._cursor.finish()
        self.ended = idle
        self._until = now_ms
        self._position = self._cursor.start(now_ms)
        if self._cache is not None and self._cache.start():
            self._scans = True

    @property
    def rereads(self) -> bool:
        """Whether to skip the rest of the page, because the same entries are read again with a grace scan."""
        return self._scans and not self._page_scanned

    def next(self, batch_size: int) -> IndexPage:
        """
        The next page, or ranges passed by in place of a page. Either takes Redis about as long as a batch of
        `batch_size` expiries. Raises redis.RedisError.
        """
        self._page_scanned = self._scans
        if self._cache is None or not self._scans:
            entries = self.pages.read(functools.partial(self._read_page, self._until, self._position))
            self.ended = len(entries) < self.pages.now
            return IndexPage(entries)
        skipped = self._cache.skip(self._position, SKIPS * batch_size)
        if skipped.entries:
            self._position = skipped.position
            self._cursor.pass_by(skipped.first_end_ms)
            return IndexPage(passed=skipped.entries)
        scan = functools.partial(self._cache.scan, self._until, self._position)
        page = self.pages.read(lambda count: scan(min(count, SCANS * batch_size)))
        self.ended = page.last
        self._scans = 2 * sum(entry.in_grace for entry in page.entries) >= len(page.entries)
        return IndexPage(page.entries)

    def advance(self, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> None:
        """The next entries of the page were decided."""
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
        """The tick was cut short here; the entries that failed are passed over by the next tick."""
        self.ended = False
        self._cursor.stop(self._position.after((entry, True) for entry in failed))


class WokenReader:
    """
    Reads what woke a tick, in place of IndexReader: the due entries after the score that was seen, and the entries
    whose grace has ended since.
    """

    #: A woken tick scans no page.
    rereads = False

    def __init__(self, shard: Shard, kind: Kind, pages: PageSize, ends: GraceEnds, seen_ms: int) -> None:
        """Read the clock and the first page, in one round trip. Raises redis.RedisError."""
        self._read_page = functools.partial(read_page, shard, kind.index)
        self._pages = pages
        self._ends = ends
        self._position = START
        self.ended = False
        # If the script finds the deadline in the present millisecond, the entry is not due.
        now = shard.clock.now_ms() - 1
        ended = ends.take(now, pages.now)
        more: list[Command] = [("ZMSCORE", kind.index, *(entry.id for entry in ended))] if ended else []
        first = ("ZRANGE", kind.index, f"({seen_ms}", now, "BYSCORE", "LIMIT", 0)
        server_now, replies = pages.read(lambda count: shard.read_with_clock((*first, count, "WITHSCORES"), *more))
        #: The score up to which the tick decides.
        self.until_ms = min(now, server_now - 1)
        flat = replies[0]
        self._page: list[IndexEntry] | None = list(map(IndexEntry, flat[::2], flat[1::2]))
        #: The entries that are still in the index: their reservations were neither committed nor extended.
        self._in_front = [
            entry
            for entry, score in zip(ended, replies[1] if ended else (), strict=True)
            if score is not None and float(score) == float(entry.score)
        ]

    def next(self, _batch_size: int) -> IndexPage:
        """The next page. Raises redis.RedisError."""
        page, self._page = self._page, None
        if page is None:
            page = self._pages.read(functools.partial(self._read_page, self.until_ms, self._position))
        self.ended = len(page) < self._pages.now
        in_front, self._in_front = self._in_front, []
        return IndexPage([*in_front, *page])

    def advance(self, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> None:
        """The next entries of the page were decided."""
        stays = [decision.outcome.stays for decision in decisions]
        self._position = self._position.after(zip(entries, stays, strict=True))
        for entry, decision in zip(entries, decisions, strict=True):
            if decision.grace_end_ms:
                self._ends.add(entry, decision.grace_end_ms)

    def stop(self, _failed: Sequence[IndexEntry] = ()) -> None:
        """The tick was cut short here; the rest is left to the next tick over the whole index."""
        self.ended = False
