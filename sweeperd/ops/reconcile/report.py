"""Reports what a walk found."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated

from pydantic import Field, WithJsonSchema

from sweeperd.document import Argument, Count, Document, Moment, Seconds, ShardsDocument, Text, Truncated
from sweeperd.ops.reconcile.faults import MENDABLE_FAULTS, Fault, faults_of
from sweeperd.store.shard import Shard
from sweeperd.sweep.backlog import FarAhead
from sweeperd.sweep.kind import Kind
from sweeperd.text import decode

#: Up to how many findings a report holds by default; all are counted.
FINDINGS = 100
#: Up to how many ids a report holds for `mend`, and of reservations that another sweeper expired.
MENDABLE, NAMED = 1_000_000, 20


@dataclass
class Named:
    """Counts entries and names the first; one that SCAN returns twice may count twice."""

    count: int = 0
    ids: list[bytes] = field(default_factory=list)

    def add(self, entry: bytes) -> None:
        if entry in self.ids:
            return
        self.count += 1
        if len(self.ids) < NAMED:
            self.ids.append(entry)

    def __str__(self) -> str:
        more = f", and {self.count - len(self.ids)} more" if self.count > len(self.ids) else ""
        return f"{self.count} ({', '.join(map(decode, self.ids))}{more})"


def _one_of(*faults: Fault) -> WithJsonSchema:
    return WithJsonSchema({"enum": [fault.value for fault in faults]})


class IndexFindingDocument(Document):
    """A fault of the index or of the TTL of a hash."""

    fault: Annotated[Fault, _one_of(*MENDABLE_FAULTS, Fault.FOREIGN_QUARANTINE)]
    id: Text = Field(validation_alias="subject")
    score: str | None = Field(description="In the index, ms on Redis's clock; null without one, and for `short_ttl`.")
    deadline: str | None = Field(description="ms on Redis's clock, as the hash has it; null if there is none.")
    ttl_ms: Count | None = Field(description="How long the hash has left; null except for `short_ttl`.")
    mended: bool


class CounterFindingDocument(Document):
    """A counter that differs from what the hashes hold."""

    fault: Annotated[Fault, _one_of(Fault.BUDGET_DRIFT, Fault.SUM_DRIFT)]
    key: Text = Field(validation_alias="subject")
    field: Text
    holds: int = Field(validation_alias="found", description="What the counter holds.")
    sum: int = Field(validation_alias="expected", description="What the hashes hold.")
    difference: int | None = Field(description="holds minus sum; null if it is not exact.")
    difference_least: int
    difference_most: int
    mended: bool = Field(description="Whether --repair-budget has repaired it since; only with --last.")


FindingDocument = IndexFindingDocument | CounterFindingDocument


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of an entry, given by id, or of a counter, given by key and `field`."""

    fault: Fault
    subject: bytes
    #: The actual and the correct value: scores as text, or amounts.
    found: str
    expected: str
    field: bytes = b""
    #: The least and the greatest possible difference of a counter.
    bounds: tuple[int, int] | None = None
    #: How long the hash of a SHORT_TTL had left.
    ttl_ms: int | None = None
    mended: bool = False

    @property
    def evidence(self) -> str:
        """
        The fault and the score or deadline that shows it. An id may be reused between two observations: then both are
        true, but of different entries.
        """
        return f"{self.fault}:{self.found or self.expected}"

    def document(self) -> FindingDocument:
        if self.bounds is None:
            return IndexFindingDocument.made_of(self, score=self.found or None, deadline=self.expected or None)
        least, most = self.bounds
        difference = least if least == most else None
        return CounterFindingDocument.made_of(self, difference=difference, difference_least=least, difference_most=most)


@dataclass
class Tally:
    """The counts of a walk, or of one page."""

    #: Hashes and index entries that were read; those that SCAN returns twice count twice.
    hashes: int = 0
    entries: int = 0
    #: Reservations that were dismissed from the quarantine and still hold amounts.
    dismissed: int = 0
    #: EXPIRED reservations without `expired_event`, which another sweeper expired, and the first ids.
    foreign_expiries: int = 0
    foreign_ids: list[bytes] = field(default_factory=list)
    #: Hashes in a state that the settings do not name, of a kind of which no entry was seen alive, and why.
    held: int = 0
    held_because: str = ""
    found: Counter[Fault] = field(default_factory=Counter)
    #: The first budgets with BUDGET_DRIFT, by key.
    drifted: list[bytes] = field(default_factory=list)
    #: The first findings.
    findings: list[Finding] = field(default_factory=list)
    #: The evidence of the findings that `mend` can mend, by id, up to MENDABLE.
    mendable: dict[bytes, str] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self.found[finding.fault] += 1
        self.findings.append(finding)
        if finding.fault is Fault.BUDGET_DRIFT:
            self.drifted.append(finding.subject)
        if finding.fault.mendable:
            self.mendable[finding.subject] = finding.evidence

    def merge(self, page: "Tally", limit: int) -> None:
        """Adds the counts of a page, and keeps up to `limit` findings."""
        for name in ("hashes", "entries", "dismissed", "foreign_expiries", "held"):
            setattr(self, name, getattr(self, name) + getattr(page, name))
        self.foreign_ids += page.foreign_ids[: NAMED - len(self.foreign_ids)]
        self.drifted += page.drifted[: NAMED - len(self.drifted)]
        self.held_because = self.held_because or page.held_because
        self.found += page.found
        self.findings += page.findings[: max(0, limit - len(self.findings))]
        self.mendable.update(islice(page.mendable.items(), MENDABLE - len(self.mendable)))


class WalkedShardDocument(Document):
    """A walk over one kind on one shard; --last lists several for each shard."""

    shard: str
    address: str
    kind: str = Field(description="What was walked: reservations, or a configured kind.")
    hashes: Count
    index_entries: Count = Field(validation_alias="entries")
    counters: Count = Field(description="Budgets or sums that were compared with what the hashes hold.")
    counters_unjudged: Count = Field(
        validation_alias="unjudged",
        description="Counters that could not be compared: traffic was too heavy, or a hash cannot be read or is held.",
    )
    counters_closed: Count = Field(validation_alias="closed", description="CLOSED budgets, which are not compared.")
    unreadable: Count = Field(description="Active hashes whose amount, or whose counters, cannot be read.")
    unreadable_ids: list[Text] = Field(description="The first of their ids.")
    left_out: Count = Field(
        description="Dismissed hashes that cannot be read; what they held counts as drift of their budgets."
    )
    left_out_ids: list[Text] = Field(description="The first of their ids.")
    dismissed: Count = Field(description="Dismissed from the quarantine, but still holding their amounts.")
    foreign_expiries: Count = Field(description="Reservations that another sweeper expired, without an event.")
    held: Count = Field(
        description="Hashes in a state that the settings do not name, while no entry of the kind was seen alive. The "
        "walk does not judge them."
    )
    held_because: str = Field(description="Why, of the first one; empty if there is none.")
    far_ahead: Count = Field(description="Index entries whose deadline is more than 100 years ahead.")
    far_ahead_unit: str = Field(description="Their likely unit, such as microseconds; empty if none fits.")
    foreign_expired_ids: list[Text] = Field(validation_alias="foreign_ids", description="The first of their ids.")
    resumed: bool = Field(description="Whether the walk resumed an earlier one that was interrupted.")
    found: dict[str, Count] = Field(description="Kind of finding to number.")
    mended: dict[str, Count]
    findings: list[FindingDocument]
    truncated: Truncated
    remaining: Count = Field(description="Findings that are not mended.")
    started_at: Moment
    finished_at: Moment | None = Field(default=None, description="Only with --last.")
    duration_seconds: Seconds


class ReconcileDocument(ShardsDocument, title="sweeperd reconcile --json, also with --repair and --last"):
    repair: bool
    found: Count
    remaining: Count = Field(description="Findings that are not mended.")
    truncated: Truncated
    shards: list[WalkedShardDocument]


class RepairBudgetDocument(ShardsDocument, title="sweeperd reconcile --repair-budget BUDGET --json"):
    """The result for one budget, with the figures if it was judged."""

    budget: Argument
    result: str = Field(description="repaired, no drift, or why nothing was done.")
    reserved: int | None = None
    held: int | None = None
    difference: int | None = None
    unreadable: Count = Field(default=0, description="How many reservations prevent a judgement.")
    unreadable_ids: list[Text] = Field(default=[], description="The first of their ids.")
    left_out: Count = Field(default=0, description="Dismissed reservations that cannot be read, and are left out.")
    left_out_ids: list[Text] = Field(default=[], description="The first of their ids.")


@dataclass(kw_only=True)
class ReconcileReport(Tally):
    kind: Kind
    #: As in WalkedShardDocument.
    counters: int = 0
    unjudged: int = 0
    closed: int = 0
    unreadable: Named = field(default_factory=Named)
    left_out: Named = field(default_factory=Named)
    resumed: bool = False
    mended: Counter[Fault] = field(default_factory=Counter)
    far: FarAhead = field(default_factory=FarAhead)
    #: ms on Redis's clock.
    started_at: int = 0
    duration_seconds: float = 0.0
    #: Entries that `mend` has written; the other mended entries were already correct.
    changed: int = 0

    @property
    def truncated(self) -> bool:
        return len(self.findings) < self.found.total()

    @property
    def remaining(self) -> int:
        return self.found.total() - self.mended.total()

    def document(self, shard: Shard) -> WalkedShardDocument:
        faults = faults_of(self.kind)
        return WalkedShardDocument.made_of(
            self,
            shard=shard.name,
            address=shard.address,
            kind=self.kind.name,
            unreadable=self.unreadable.count,
            unreadable_ids=self.unreadable.ids,
            left_out=self.left_out.count,
            left_out_ids=self.left_out.ids,
            far_ahead=self.far.count,
            far_ahead_unit=self.far.unit,
            found={fault.value: self.found[fault] for fault in faults},
            mended={fault.value: self.mended[fault] for fault in faults if fault.mendable},
            findings=[finding.document() for finding in self.findings],
            duration_seconds=round(self.duration_seconds, 3),
        )
