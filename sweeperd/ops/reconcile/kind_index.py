"""Compares the hashes of one configured kind with its index: what the index lost, and entries without a hash."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sweeperd.ops.budget_drift import Seen
from sweeperd.ops.reconcile.faults import CONFIRM, MENDABLE, SETTLE
from sweeperd.ops.reconcile.keyspace import batches
from sweeperd.ops.reconcile.kind_reader import KindReader, checked
from sweeperd.ops.reconcile.kind_report import KindFault, KindFinding, KindStage
from sweeperd.sweep.kind import Outcome

#: The outcomes of a hash that is active.
_ACTIVE = (Outcome.EXPIRED, Outcome.IN_GRACE, Outcome.NOT_DUE)
#: How many hints wait for their second read at most, and how long, seconds.
WAITING, SETTLE_EVERY = 50_000, 10.0

#: A stage of the walk and its cursor.
KindPlace = tuple[KindStage, int]


@dataclass
class KindTally:
    """What a walk over a kind has counted so far. `limit`: how many findings are kept."""

    limit: int
    hashes: int = 0
    entries: int = 0
    found: Counter[KindFault] = field(default_factory=Counter)
    findings: list[KindFinding] = field(default_factory=list)
    mendable: list[tuple[bytes, KindFault]] = field(default_factory=list)

    def add(self, finding: KindFinding) -> None:
        """Count a finding, and keep it while there is room."""
        self.found[finding.fault] += 1
        if len(self.findings) < self.limit:
            self.findings.append(finding)
        if finding.fault.mendable and len(self.mendable) < MENDABLE:
            self.mendable.append((finding.subject, finding.fault))


class KindIndexWalk:
    """
    Walks the hashes, then the index. The first sight of a fault is a hint only; a second read, SETTLE seconds later,
    makes it a finding. `settled` is called with the place of the next page whenever no hint waits: a later walk that
    goes on there counts no page twice, and leaves none out.
    """

    def __init__(
        self, reader: KindReader, tally: KindTally, expected: int, settled: Callable[[KindPlace], None]
    ) -> None:
        self._reader = reader
        self._tally = tally
        self._settled = settled
        self._hints: dict[bytes, None] = {}
        self._settled_at = time.monotonic()
        #: SCAN may return a key twice.
        self._reported = Seen(expected)

    def walk(self, place: KindPlace) -> None:
        """Go on from this place to the end of the index."""
        stage, position = place
        if stage is KindStage.HASHES:
            for cursor, ids in self._reader.hashes(stage, position):
                self._tally.hashes += len(ids)
                self._page(stage, ids, (stage, cursor) if cursor else (KindStage.INDEX, 0))
            stage, position = KindStage.INDEX, 0
        if stage is KindStage.INDEX:
            for cursor, ids in self._reader.index(position):
                self._tally.entries += len(ids)
                self._page(stage, ids, (stage, cursor) if cursor else (KindStage.SUMS, 0))

    def _page(self, stage: KindStage, ids: Sequence[bytes], following: KindPlace) -> None:
        for part in batches(ids, CONFIRM):
            self._hints.update(dict.fromkeys(finding.subject for finding in self._faults(stage, part)))
        waited = time.monotonic() >= self._settled_at + SETTLE_EVERY
        if following[0] is not stage or waited or len(self._hints) >= WAITING:
            self._settle(stage)
        if not self._hints:
            self._settled(following)

    def _settle(self, stage: KindStage) -> None:
        """Read all hints again."""
        if self._hints:
            self._reader.throttle.wait(SETTLE)
        for part in batches(list(self._hints), CONFIRM):
            faults = self._faults(stage, part)
            active = self._active([each.subject for each in faults if each.fault is KindFault.LOST])
            for finding in faults:
                lost_but_ended = finding.fault is KindFault.LOST and finding.subject not in active
                if not lost_but_ended and not self._reported.add(finding.subject):
                    self._tally.add(finding)
        self._hints.clear()
        self._settled_at = time.monotonic()

    def _faults(self, stage: KindStage, ids: Sequence[bytes]) -> list[KindFinding]:
        """The faults that this stage reports: the walk over the index those without a hash, the other one the rest."""
        self._reader.throttle.begin()
        found = checked(self._reader.shard, self._reader.kind, ids)
        self._reader.throttle.end()
        in_index = stage is KindStage.INDEX
        return [finding for finding in found if (finding.fault is KindFault.ORPHAN) is in_index]

    def _active(self, ids: Sequence[bytes]) -> set[bytes]:
        if not ids:
            return set()
        self._reader.throttle.begin()
        explanations = self._reader.explained(ids)
        self._reader.throttle.end()
        return {each.decision.id for each in explanations if each.decision.outcome in _ACTIVE}
