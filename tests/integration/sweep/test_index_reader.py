"""Tests which pages of an index are scanned or skipped, and where a tick goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from sweeperd.config import RedisSettings
from sweeperd.store import Shard
from sweeperd.sweep import Decision, Outcome
from sweeperd.sweep.index import SCANS, SKIPS, GraceEnds, IndexEntry, IndexPage, IndexReader, PageSize
from tests.support.builders import reservations_kind
from tests.support.harness import server_time
from tests.support.servers import free_port

HOUR = 3_600_000
#: So many expiries take Redis as long as a page may take; and so many entries are scanned, or passed by, in that time.
BATCH = 2
SCANNED, SKIPPED = SCANS * BATCH, SKIPS * BATCH


@dataclass
class Index:
    """An index of reservations, and a reader that is told the time."""

    shard: Shard
    #: When the first of them was due, ms.
    first: int = 0
    reader: IndexReader = field(init=False)

    def __post_init__(self) -> None:
        self.first = server_time(self.shard.client) - 60_000
        self.reader = self.another()

    def another(self, page_size: int = 100) -> IndexReader:
        return IndexReader(self.shard, reservations_kind(self.shard.keys), page_size)

    def fill(self, scores: Sequence[int], in_grace: bool = True) -> None:
        """Put in one reservation for each of these deadlines, in ms after the first one."""
        pipeline = self.shard.client.pipeline()
        for score in scores:
            name, deadline = f"{self.shard.client.incr('names'):04}".encode(), self.first + score
            grace = HOUR if in_grace else 0
            values: dict[Any, Any] = {"state": "ACTIVE", "expires_at": deadline, "grace_ms": grace}
            pipeline.hset(self.shard.keys.reservation(name), mapping=values)
            pipeline.zadd(self.shard.keys.reservation_index, {name: deadline})
        pipeline.execute()

    def remove(self, score: int) -> None:
        """One of the reservations with this deadline is committed."""
        deadline = self.first + score
        names: Any = self.shard.client.zrangebyscore(self.shard.keys.reservation_index, deadline, deadline)
        self.shard.client.zrem(self.shard.keys.reservation_index, names[0])

    def start(self, now: int = 30_000) -> None:
        """A tick begins so many ms after the first deadline."""
        self.reader.start(self.first + now)

    def next(self) -> IndexPage:
        """The next page, each entry of it decided as in grace."""
        page = self.reader.next(BATCH)
        self.reader.advance(page.entries, [Decision(entry.id, Outcome.IN_GRACE) for entry in page.entries])
        return page

    def tick(self, now: int = 30_000) -> list[IndexPage]:
        """All pages of a tick."""
        self.start(now)
        pages = []
        while not self.reader.ended:
            pages.append(self.next())
            assert len(pages) < 100
        return pages


@pytest.fixture
def index(shard: Shard) -> Index:
    return Index(shard)


def is_scanned(page: IndexPage) -> bool:
    """Whether this page, which has entries in grace, was read with a grace scan."""
    return any(entry.in_grace for entry in page.entries)


def passed(pages: Sequence[IndexPage]) -> list[int]:
    """How many entries were passed by in place of each page; -1 where a page was read."""
    return [page.passed or -1 for page in pages]


@pytest.mark.parametrize(("apart", "cut"), [(0, 0), (10, 1)], ids=["one score", "each its own score"])
def test_as_many_are_passed_by_at_once_as_take_as_long_as_a_batch(index: Index, apart: int, cut: int) -> None:
    entries = 10 * SCANNED
    index.fill([number * apart for number in range(entries)])
    assert {len(page.entries) for page in index.tick()[:-1]} == {SCANNED - cut}, "a page ends with a whole score"
    for _ in range(4):  # however often: no range is asked about twice
        counts = passed(index.tick())
        assert sum(counts[:-1]) == entries
        assert counts[-1] == -1, "what may have come after them is looked for"
        assert all(SKIPPED <= count < SKIPPED + SCANNED for count in counts[:-2])
    if not cut:
        assert counts == [SKIPPED, SKIPPED, entries - 2 * SKIPPED, -1]


def test_what_lies_before_the_place_where_a_tick_begins_is_still_known(index: Index) -> None:
    index.fill([number * 10 for number in range(100)])
    index.tick()
    index.start()
    first = index.next().passed
    index.reader.stop()
    assert sum(page.passed for page in index.tick()) == 100 - first
    assert sum(page.passed for page in index.tick()) == 100


def test_the_page_of_a_changed_range_is_the_last_one_where_it_ends_with_the_tick(index: Index) -> None:
    index.fill([0, 10, 20])
    index.tick(now=20)
    index.remove(10)
    pages = index.tick(now=20)
    assert [len(page.entries) for page in pages] == [2]


def test_a_clock_that_is_set_back_does_not_make_later_entries_due(index: Index) -> None:
    """As after a failover: a range that was known goes on beyond the end of the tick."""
    index.fill([0, 10, 20, 30])
    index.tick(now=30)
    index.remove(10)
    pages = index.tick(now=20)
    assert [int(entry.score) - index.first for page in pages for entry in page.entries] == [0, 20]


def test_a_grace_that_ends_in_a_range_that_was_passed_by_starts_at_the_front_again(index: Index) -> None:
    """The ticks are cut short, and what has ended lies before the place where they go on."""
    index.fill([number * 10 for number in range(100)])
    index.tick()
    index.start()
    first = index.next().passed
    index.reader.stop()
    index.start(now=HOUR)
    assert index.next().passed == 100 - first, "the last ms of grace counts"
    index.reader.stop()
    index.start(now=HOUR + 1)
    assert index.next().passed == first


@pytest.mark.parametrize(("in_grace", "scanned"), [(SCANNED // 2 - 1, False), (SCANNED // 2, True)])
def test_pages_are_scanned_while_half_of_the_entries_are_in_grace(index: Index, in_grace: int, scanned: bool) -> None:
    index.fill(range(in_grace))
    index.fill(range(in_grace, SCANNED), in_grace=False)
    index.fill(range(SCANNED, 3 * SCANNED))
    index.start()
    assert is_scanned(index.next())
    assert is_scanned(index.next()) is scanned


@pytest.mark.parametrize(("in_grace", "rereads"), [(3, False), (4, True)])
def test_a_page_is_read_again_where_half_of_a_batch_is_in_grace(index: Index, in_grace: int, rereads: bool) -> None:
    index.fill(range(SCANNED), in_grace=False)
    index.fill(range(SCANNED, 3 * SCANNED))
    index.start()
    index.next()
    page = index.reader.next(BATCH)
    assert not is_scanned(page)
    outcomes = [Outcome.IN_GRACE] * in_grace + [Outcome.NOT_FOUND] * (8 - in_grace)
    decisions = [Decision(entry.id, outcome) for entry, outcome in zip(page.entries, outcomes, strict=False)]
    index.reader.advance(page.entries[:8], decisions)
    assert index.reader.rereads is rereads
    assert index.reader.ended is not rereads, "there is no other page after this one"


def test_the_first_page_after_an_idle_tick_is_scanned(index: Index) -> None:
    """Entries in grace stand in front."""
    assert index.tick() == [IndexPage([])]
    index.fill([0])
    assert [is_scanned(page) for page in index.tick()] == [True]


def test_a_grace_whose_end_the_script_told_starts_at_the_front_again(index: Index) -> None:
    index.reader = index.another(page_size=SCANNED)
    index.fill(range(SCANNED), in_grace=False)  # they stay all the same
    index.fill([number * 10 for number in range(10, 10 + 4 * SCANNED)])
    index.start()
    first = index.next()
    assert not is_scanned(first)
    page = index.reader.next(BATCH)
    end = index.first + HOUR // 2
    decided = page.entries[:1]
    index.reader.advance(decided, [Decision(entry.id, Outcome.IN_GRACE, grace_end_ms=end) for entry in decided])
    index.reader.stop()
    index.start(now=HOUR // 2)
    assert index.next().entries[0].id != first.entries[0].id
    index.reader.stop()
    index.start(now=HOUR // 2 + 1)
    assert index.next().entries[0].id == first.entries[0].id


def test_a_tick_over_the_whole_index_forgets_the_graces_that_have_ended(index: Index, shard: Shard) -> None:
    """Only that of such a tick reaches all their entries; and a grace that ends later is the first one then."""
    ends = GraceEnds()
    for name, end in ((b"soon", 10_000), (b"later", 30_000), (b"last", HOUR)):
        ends.add(IndexEntry(name, b"1"), index.first + end)
    index.reader = IndexReader(shard, reservations_kind(shard.keys), SCANNED, ends)
    index.fill(range(2 * SCANNED))
    index.start(now=10_000)
    assert ends.first == index.first + 30_000
    index.next()
    index.reader.stop()
    index.tick(now=40_000)
    assert ends.first == index.first + 30_000, "the tick went on from the middle"
    index.tick(now=40_000)
    assert ends.first == index.first + HOUR


def test_pages_stay_as_large_while_redis_answers_nothing() -> None:
    gone = Shard(RedisSettings.model_validate({"url": f"redis://127.0.0.1:{free_port()}"}))
    pages = PageSize(gone, 100)
    with pytest.raises(redis.ConnectionError):
        pages.read(lambda count: gone.client.zrange("reservation:ttl", 0, count))
    assert pages.now == 100
