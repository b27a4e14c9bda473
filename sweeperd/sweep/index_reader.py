"""Paging through an index whose entries leave, stay or move while one pages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard


class IndexEntry(NamedTuple):
    """One entry of the index."""

    id: bytes
    score: bytes
    #: Whether it was seen to be in grace when the page was read.
    in_grace: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where paging through a sorted set goes on: at this score, past this many entries of that score, which stay."""

    score: bytes = b"-inf"
    passed: int = 0

    def behind(self, entries: Iterable[tuple[IndexEntry, bool]]) -> "Position":
        """Behind these, each of which stays where it is or does not."""
        score, passed = self.score, self.passed
        for entry, stays in entries:
            if entry.score != score:
                score, passed = entry.score, 0
            passed += stays
        return Position(score, passed)

    def behind_all(self, entries: Iterable[IndexEntry]) -> "Position":
        """Behind these, all of which stay."""
        return self.behind((entry, True) for entry in entries)


class IndexPager:
    """Reads an index page by page."""

    def __init__(self, shard: Shard, index: bytes) -> None:
        self._shard = shard
        self._index = index
        self._page = Script("sweep/page")

    def read(self, until: int, position: Position, count: int) -> list[IndexEntry]:
        """The next entries with a score up to `until`. Raises redis.RedisError."""
        call = Call([self._index], [until, position.score, position.passed, count])
        flat: list[bytes] = self._page.run(self._shard.client, call)
        return list(map(IndexEntry, flat[::2], flat[1::2]))
