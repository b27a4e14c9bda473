"""What a walk finds, and the report about it."""

import enum
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sweeperd.text import decode

#: How many findings a report holds by default; all are counted.
FINDINGS = 100


class Fault(enum.StrEnum):
    """The kinds of findings."""

    LOST = "lost"
    ORPHAN = "orphan"
    WRONG_SCORE = "wrong_score"
    FOREIGN_QUARANTINE = "foreign_quarantine"
    BUDGET_DRIFT = "budget_drift"

    @property
    def says(self) -> str:
        """For people."""
        return _SAYS[self]

    @property
    def mendable(self) -> bool:
        """Whether `mend` removes it."""
        return self in _MENDABLE


_MENDABLE = (Fault.LOST, Fault.ORPHAN, Fault.WRONG_SCORE)
_SAYS = {
    Fault.LOST: "ACTIVE reservation that the index lacks; --repair adds it",
    Fault.ORPHAN: "index entry without a reservation; --repair removes it",
    Fault.WRONG_SCORE: "score in the index that differs from the reservation; --repair sets it",
    Fault.FOREIGN_QUARANTINE: "reservation that another sweeper set aside; `quarantine adopt` takes it over",
    Fault.BUDGET_DRIFT: "budget whose reserved is not what its reservations hold; see `ledger show`, --repair-budget",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: of a reservation by its bare id, or of a budget by its key."""

    fault: Fault
    subject: bytes
    #: What is there, and what should be: scores as text, or amounts.
    found: str
    expected: str
    mended: bool = False
    #: The least and the most that the difference of a budget can be.
    bounds: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        if self.bounds is None:
            scores = {"score": self.found or None, "expires_at": self.expected or None}
            return {"fault": self.fault.value, "id": decode(self.subject), **scores, "mended": self.mended}
        least, most = self.bounds
        return {
            "fault": self.fault.value,
            "budget": decode(self.subject),
            "reserved": int(self.found),
            "held": int(self.expected),
            "difference": least if least == most else None,
            "difference_least": least,
            "difference_most": most,
            "mended": False,
        }


@dataclass(frozen=True)
class ReconcileReport:
    """One walk in numbers."""

    #: Reservations and index entries that were read; the few that SCAN returns twice count twice.
    reservations: int
    entries: int
    budgets: int
    #: Budgets that could not be compared with their reservations, and CLOSED ones, which are not compared.
    unjudged: int
    closed: int
    #: ACTIVE reservations whose amount, unit or scopes cannot be read.
    unreadable: int
    #: Reservations that an operator dismissed from the quarantine: they still hold their amounts.
    dismissed: int
    #: EXPIRED reservations without `expired_event`: another sweeper expired them. And the first of their ids.
    foreign_expiries: int
    foreign_ids: tuple[bytes, ...]
    #: Whether it went on from an earlier walk's cursor. Budgets are judged in unbroken walks only.
    resumed: bool
    found: Mapping[Fault, int]
    mended: Mapping[Fault, int]
    #: The first of them.
    findings: tuple[Finding, ...]
    #: The ids of what `mend` can mend, with the fault of each; up to a limit.
    mendable: tuple[tuple[bytes, Fault], ...]
    started_at: int
    duration_seconds: float
    #: How many entries `mend` has written; the other ones that count as mended were right by then.
    changed: int = 0

    @property
    def truncated(self) -> bool:
        """Whether there are more findings than `findings` holds."""
        return len(self.findings) < sum(self.found.values())

    @property
    def remaining(self) -> int:
        """How many findings are not mended."""
        return sum(self.found.values()) - sum(self.mended.values())

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "reservations": self.reservations,
            "index_entries": self.entries,
            "budgets": self.budgets,
            "budgets_unjudged": self.unjudged,
            "budgets_closed": self.closed,
            "unreadable": self.unreadable,
            "dismissed": self.dismissed,
            "foreign_expiries": self.foreign_expiries,
            "foreign_expired_ids": [decode(entry) for entry in self.foreign_ids],
            "resumed": self.resumed,
            "found": {fault.value: self.found.get(fault, 0) for fault in Fault},
            "mended": {fault.value: self.mended.get(fault, 0) for fault in _MENDABLE},
            "findings": [finding.as_dict() for finding in self.findings],
            "truncated": self.truncated,
            "started_at": self.started_at,
            "duration_seconds": round(self.duration_seconds, 3),
        }

    def as_json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict())


class WalkStage(enum.StrEnum):
    """The stages of a walk, in order."""

    BUDGETS = "reading the budgets"
    RESERVATIONS = "walking the reservations"
    INDEX = "walking the index"
    AGAIN = "walking again for the budgets"


def counts_text(counts: Mapping[Fault, int], wanted: Collection[Fault] = tuple(Fault)) -> str:
    """The counts on one line, such as `2 lost, 1 orphan`; `nothing` where all are 0."""
    return ", ".join(f"{counts[fault]} {fault.value}" for fault in wanted if counts.get(fault)) or "nothing"
