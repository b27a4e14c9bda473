"""Paging through an index whose entries leave, stay or move while one pages."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeperd.lua import Call, Script
from sweeperd.shard import Shard


class Entry(NamedTuple):
    """One entry of the index."""

    id: bytes
    score: bytes
    #: Whether the page was read with a look at what the entries stand for, and this one was in grace then.
    in_grace: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where paging through a sorted set goes on: at this score, past this many entries of that score, which stay."""

    score: bytes = b"-inf"
    passed: int = 0

    def behind(self, entries: Iterable[tuple[Entry, bool]]) -> "Position":
        """Behind these, each of which stays where it is or does not."""
        score, passed = self.score, self.passed
        for entry, stays in entries:
            if entry.score != score:
                score, passed = entry.score, 0
            passed += stays
        return Position(score, passed)

    def behind_all(self, entries: Iterable[Entry]) -> "Position":
        """Behind these, all of which stay."""
        return self.behind((entry, True) for entry in entries)


@dataclass(frozen=True)
class Look:
    """
    A script that pages as page.lua does and says of each entry whether it is in grace, for a fraction of what it takes
    to have each decided. `args` come behind those of page.lua.
    """

    script: Script
    args: Sequence[bytes | int]


class Pager:
    """Reads an index page by page."""

    def __init__(self, shard: Shard, index: bytes, look: Look | None = None) -> None:
        self._shard = shard
        self._index = index
        self._page = Script("page")
        self._look = look

    @property
    def can_look(self) -> bool:
        """Whether there is a look at what the entries stand for."""
        return self._look is not None

    def read(self, until: int, position: Position, count: int, *, look: bool = False) -> list[Entry]:
        """The next entries with a score up to `until`. Raises redis.RedisError."""
        args: list[bytes | int] = [until, position.score, position.passed, count]
        if not look or self._look is None:
            flat: list[bytes] = self._page.run(self._shard.client, Call([self._index], args))
            return list(map(Entry, flat[::2], flat[1::2]))
        told = self._look.script.run(self._shard.client, Call([self._index], [*args, *self._look.args]))
        flat, flags = told
        return list(map(Entry, flat[::2], flat[1::2], [flag == ord("1") for flag in flags]))
