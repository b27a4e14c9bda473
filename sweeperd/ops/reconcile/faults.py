"""From the first sight of a fault to a finding: a second read confirms it."""

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sweeperd.ops.budget_drift import Seen
from sweeperd.ops.reconcile.keyspace import Throttle, batches
from sweeperd.ops.reconcile.report import Fault, Finding, WalkStage
from sweeperd.store.keys import Keys
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: How long after the first sight a fault is read again, seconds.
SETTLE = 1.0
#: How many hints wait for that at most, and how many are read again in one round trip.
WAITING, CONFIRM = 5_000, 50
#: How many ids a report holds for `mend`, and how many of the reservations that another sweeper expired it names.
MENDABLE, NAMED = 1_000_000, 20

#: A stage of the walk and its cursor.
Place = tuple[WalkStage, int]


@dataclass
class Tally:
    """What a walk, or one page of it, has counted so far. `limit`: how many findings are kept."""

    limit: int
    reservations: int = 0
    entries: int = 0
    dismissed: int = 0
    foreign_expiries: int = 0
    foreign_ids: list[bytes] = field(default_factory=list)
    found: Counter[Fault] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    mendable: list[tuple[bytes, Fault]] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there is room."""
        self.found[finding.fault] += 1
        if len(self.findings) < self.limit:
            self.findings.append(finding)
        if finding.fault.mendable and len(self.mendable) < MENDABLE:
            self.mendable.append((finding.subject, finding.fault))

    def merge(self, page: "Tally") -> None:
        """Add what a page has counted."""
        self.reservations += page.reservations
        self.entries += page.entries
        self.dismissed += page.dismissed
        self.foreign_expiries += page.foreign_expiries
        self.foreign_ids += page.foreign_ids[: NAMED - len(self.foreign_ids)]
        self.found += page.found
        self.findings += page.findings[: self.limit - len(self.findings)]
        self.mendable += page.mendable[: MENDABLE - len(self.mendable)]


@dataclass
class Page:
    """
    A page of keys or of index entries, and what was counted in it. It is settled once all of it was visited and all its
    hints were read again.
    """

    place: Place
    tally: Tally
    visited: bool = False
    #: Hints that are not read again yet.
    waiting: int = 0

    @property
    def settled(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.visited and not self.waiting


@dataclass(frozen=True, slots=True)
class _Hint:
    #: Monotonic, seconds.
    seen_at: float
    entry: bytes
    page: Page


class FaultFinder:
    """
    Collects hints and turns what a second read confirms into findings. The pages of the walk are settled in their order
    and only then counted in `tally`: a later walk that goes on at `place` counts no page a second time.
    """

    def __init__(self, shard: Shard, throttle: Throttle, tally: Tally, expected: int) -> None:
        self._keys = shard.keys
        self._client = shard.client
        self._throttle = throttle
        self._tally = tally
        self._entry = Script("ops/reconcile_entry")
        self._pages: deque[Page] = deque()
        self._hints: deque[_Hint] = deque()
        #: SCAN may return a key twice, and both the reservations and the index lead to an entry.
        self._reported = Seen(expected)

    @property
    def place(self) -> Place | None:
        """The place of the first page that is not settled; None where all are."""
        return self._pages[0].place if self._pages else None

    def page(self, place: Place) -> Page:
        """The next page of the walk begins."""
        page = Page(place, Tally(self._tally.limit))
        self._pages.append(page)
        return page

    def hint(self, entry: bytes, page: Page) -> None:
        """Something seems wrong with this entry."""
        page.waiting += 1
        self._hints.append(_Hint(time.monotonic(), entry, page))

    def new(self, entry: bytes) -> bool:
        """Whether it was not counted yet."""
        return not self._reported.add(entry)

    def settle(self, *, all_of_them: bool = False) -> None:
        """Read the hints again that have waited long enough; wait for more where they are too many, or for all."""
        self._count()
        while self._hints:
            wait = self._hints[0].seen_at + SETTLE - time.monotonic()
            if wait > 0 and not all_of_them and len(self._hints) < WAITING:
                return
            self._throttle.wait(wait)
            latest = time.monotonic() - SETTLE
            ripe: list[_Hint] = []
            for hint in self._hints:
                if hint.seen_at > latest or len(ripe) == CONFIRM:
                    break
                ripe.append(hint)
            self._confirm(ripe)
            for hint in ripe:
                self._hints.popleft()
                hint.page.waiting -= 1
            self._count()

    def _count(self) -> None:
        while self._pages and self._pages[0].settled:
            self._tally.merge(self._pages.popleft().tally)

    def _confirm(self, hints: Sequence[_Hint]) -> None:
        self._throttle.begin()
        calls = [entry_call(self._keys, hint.entry) for hint in hints]
        replies = self._entry.run_many(self._client, calls)
        self._throttle.end()
        for hint, reply in zip(hints, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply and self.new(hint.entry):
                fault, wanted, score = (text.decode() for text in reply)
                hint.page.tally.add(Finding(Fault(fault), hint.entry, score, wanted))


def entry_call(keys: Keys, entry: bytes, *, repair: bool = False) -> Call:
    """The call of reconcile_entry.lua for one entry."""
    return Call([keys.reservation_index, keys.quarantine, keys.reservation(entry)], [entry, int(repair)])


class OrphanFinder:
    """Which ids of the index have no reservation."""

    def __init__(self, shard: Shard, throttle: Throttle) -> None:
        self._shard = shard
        self._throttle = throttle
        self._script = Script("ops/reconcile_orphans")

    def find(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those of these without a reservation."""
        found = []
        for part in batches(ids, CONFIRM):
            self._throttle.begin()
            keys = [self._shard.keys.reservation(entry) for entry in part]
            gone = self._script.run(self._shard.client, Call(keys, []))
            self._throttle.end()
            found += [part[position] for position in gone]
        return found
