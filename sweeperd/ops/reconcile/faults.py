"""Names the faults that a walk can find, and its stages."""

import enum

from sweeperd.sweep.kind import Budgets, Kind


class Fault(enum.StrEnum):
    LOST = "lost"
    ORPHAN = "orphan"
    WRONG_SCORE = "wrong_score"
    SHORT_TTL = "short_ttl"
    FOREIGN_QUARANTINE = "foreign_quarantine"
    BUDGET_DRIFT = "budget_drift"
    SUM_DRIFT = "sum_drift"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]

    @property
    def mendable(self) -> bool:
        return self in MENDABLE_FAULTS


MENDABLE_FAULTS = (Fault.LOST, Fault.ORPHAN, Fault.WRONG_SCORE, Fault.SHORT_TTL)
_MEANINGS = {
    Fault.LOST: "active hash that the index lacks; --repair adds it",
    Fault.ORPHAN: "index entry without a hash; --repair removes it",
    Fault.WRONG_SCORE: "score in the index that differs from the deadline of the hash; --repair sets it",
    Fault.SHORT_TTL: "active hash whose TTL may end before the entry expires; --repair extends the TTL",
    Fault.FOREIGN_QUARANTINE: "reservation that another sweeper quarantined; `quarantine adopt` takes it over",
    Fault.BUDGET_DRIFT: "budget whose reserved differs from what its reservations hold; see `ledger show`, "
    "--repair-budget",
    Fault.SUM_DRIFT: "counter that differs from the sum over the active hashes",
}


def faults_of(kind: Kind) -> tuple[Fault, ...]:
    foreign = (Fault.FOREIGN_QUARANTINE,) if kind.cycles else ()
    drift = Fault.BUDGET_DRIFT if isinstance(kind.counters, Budgets) else Fault.SUM_DRIFT
    return (*MENDABLE_FAULTS, *foreign, drift)


class WalkStage(enum.StrEnum):
    """
    A walk over reservations reads the budgets first, and sums up while it walks the hashes. Any other walk sums up
    after the index, and again if a counter seems wrong.
    """

    BUDGETS = "reading the budgets"
    HASHES = "walking the hashes"
    INDEX = "walking the index"
    COUNTERS = "adding up for the counters"
    AGAIN = "adding up again"
