"""
The pages of an index, for one tick after another.

A page is read in one of three ways. Plain: the entries only. With a grace scan: one script reads the page and marks
the entries that are in grace, so that expire.lua need not be asked about each. Not at all: a range of which it is known
that every entry is in grace is passed by. A scan costs more than a plain page, so it is used while at least half of
the entries turn out to be in grace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.cursor import Cursor
from sweeperd.sweep.grace_cache import GraceCache
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.sweep.position import START, IndexEntry, Position

#: In the time that it takes to expire one entry, this many are scanned, or passed by in remembered ranges.
SCANS, SKIPS = 8, 32


class IndexPager:
    """Reads an index page by page."""

    def __init__(self, shard: Shard, index: bytes) -> None:
        self._shard = shard
        self._index = index
        self._page = Script("sweep/page")

    def read(self, until: int, position: Position, count: int) -> list[IndexEntry]:
        """The next entries with a score up to `until`, at most `count`. Raises redis.RedisError."""
        call = Call([self._index], [until, position.score, position.passed, count])
        flat: list[bytes] = self._page.run(self._shard.client, call)
        return list(map(IndexEntry, flat[::2], flat[1::2]))


@dataclass(frozen=True, slots=True)
class IndexPage:
    """Consecutive entries of the index."""

    entries: Sequence[IndexEntry] = ()
    #: How many entries were passed by as in grace in place of a page.
    passed: int = 0


class IndexReader:
    """Reads the due entries of one kind on one shard."""

    def __init__(self, shard: Shard, kind: Kind, page_size: int) -> None:
        self._page_size = page_size
        self._pager = IndexPager(shard, kind.index)
        self._cache = None if kind.grace_scan is None else GraceCache(shard, kind.index, kind.grace_scan)
        self._cursor = Cursor()
        self._position = START
        self._until = 0
        #: Whether the next page is read with a grace scan. Entries in grace stand in front, so the first page is.
        self._scans = self._cache is not None
        self._page_scanned = False
        #: Whether the last page was read.
        self.ended = False

    def start(self, now_ms: int) -> None:
        """A tick begins: it reads the entries that are due at this time of the server."""
        if self.ended:
            self._cursor.finish()
        self.ended = False
        self._until = now_ms
        self._position = self._cursor.start(now_ms)
        if self._cache is not None and self._cache.start():
            self._scans = True

    @property
    def rereads(self) -> bool:
        """Whether the rest of the page is not to be used, because it is read again with a grace scan."""
        return self._scans and not self._page_scanned

    def next(self, batch_size: int) -> IndexPage:
        """
        The next page. To scan it, or to pass by ranges in its place, takes Redis about as long as a batch of
        `batch_size` expiries. Raises redis.RedisError.
        """
        self._page_scanned = self._scans
        if self._cache is None or not self._scans:
            entries = self._pager.read(self._until, self._position, self._page_size)
            self.ended = len(entries) < self._page_size
            return IndexPage(entries)
        skipped = self._cache.skip(self._position, SKIPS * batch_size)
        if skipped.entries:
            self._position = skipped.position
            self._cursor.pass_by(skipped.first_end_ms)
            return IndexPage(passed=skipped.entries)
        page = self._cache.scan(self._until, self._position, min(self._page_size, SCANS * batch_size))
        self.ended = page.last
        self._scans = 2 * sum(entry.in_grace for entry in page.entries) >= len(page.entries)
        if page.first_end_ms is not None:
            self._cursor.pass_by(page.first_end_ms)
        return IndexPage(page.entries)

    def advance(self, entries: Sequence[IndexEntry], decisions: Sequence[Decision]) -> None:
        """These entries, the next ones of the page, were decided."""
        stays = [decision.outcome.stays for decision in decisions]
        self._position = self._position.after(zip(entries, stays, strict=True))
        for decision in decisions:
            if decision.grace_end_ms:
                self._cursor.pass_by(decision.grace_end_ms)
        if self._cache is not None and not self._page_scanned:
            self._scans = 2 * sum(decision.outcome is Outcome.IN_GRACE for decision in decisions) >= len(decisions)
            self.ended = self.ended and not self._scans

    def stop(self, failed: Sequence[IndexEntry] = ()) -> None:
        """The tick was cut short here, or by the failure of these entries, which the next tick passes over."""
        self.ended = False
        self._cursor.stop(self._position.after_all(failed))
