"""What a walk over one configured kind found, as values."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass

from sweeperd.text import decode


class KindStage(enum.StrEnum):
    """The stages of a walk, in order."""

    HASHES = "walking the hashes"
    INDEX = "walking the index"
    SUMS = "adding up the sums"
    AGAIN = "adding up the sums again"


class KindFault(enum.StrEnum):
    """The findings of a configured kind."""

    LOST = "lost"
    ORPHAN = "orphan"
    WRONG_SCORE = "wrong_score"
    SUM_DRIFT = "sum_drift"

    @property
    def says(self) -> str:
        """For people."""
        return _SAYS[self]

    @property
    def mendable(self) -> bool:
        """Whether `mend_kind` removes it."""
        return self is not KindFault.SUM_DRIFT


_SAYS = {
    KindFault.LOST: "active hash that the index lacks; --repair adds it",
    KindFault.ORPHAN: "index entry without a hash; --repair removes it",
    KindFault.WRONG_SCORE: "score in the index that is later than the deadline of the hash; --repair sets it",
    KindFault.SUM_DRIFT: "counter that is not the sum of what the active hashes hold",
}


@dataclass(frozen=True, slots=True)
class KindFinding:
    """One fault. `subject`: an id, or of a sum the key and the field of the counter. Scores and amounts are text."""

    fault: KindFault
    subject: bytes
    found: str
    expected: str
    field: bytes = b""
    mended: bool = False

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        shared = {"fault": self.fault.value, "mended": self.mended}
        if self.fault is not KindFault.SUM_DRIFT:
            return shared | {"id": decode(self.subject), "score": self.found or None, "deadline": self.expected or None}
        counter = {"key": decode(self.subject), "field": decode(self.field)}
        held, expected = int(self.found), int(self.expected)
        return shared | counter | {"holds": held, "sum": expected, "difference": held - expected}


@dataclass(frozen=True)
class KindReport:
    """One walk over one kind in numbers."""

    kind: str
    hashes: int
    entries: int
    #: Amounts or keys of sums of active hashes that cannot be read; and sums that changed between the walks over them.
    unreadable: int
    unjudged: int
    #: Whether it went on from an earlier walk's cursor. Sums are compared in unbroken walks only.
    resumed: bool
    found: Mapping[KindFault, int]
    mended: Mapping[KindFault, int]
    findings: tuple[KindFinding, ...]
    #: The ids that `mend_kind` can mend, with the fault of each; up to a limit.
    mendable: tuple[tuple[bytes, KindFault], ...]
    #: ms on Redis's clock.
    started_at: int
    duration_seconds: float
    #: How many entries `mend_kind` has written; the other ones that count as mended were right by then.
    changed: int = 0

    @property
    def remaining(self) -> int:
        """How many findings are not mended."""
        return sum(self.found.values()) - sum(self.mended.values())

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "kind": self.kind,
            "hashes": self.hashes,
            "index_entries": self.entries,
            "unreadable": self.unreadable,
            "sums_unjudged": self.unjudged,
            "resumed": self.resumed,
            "found": {fault.value: self.found.get(fault, 0) for fault in KindFault},
            "mended": {fault.value: self.mended.get(fault, 0) for fault in KindFault if fault.mendable},
            "findings": [finding.as_dict() for finding in self.findings],
            "truncated": len(self.findings) < sum(self.found.values()),
            "remaining": self.remaining,
            "started_at": self.started_at,
            "duration_seconds": round(self.duration_seconds, 3),
        }

    def as_json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict())
