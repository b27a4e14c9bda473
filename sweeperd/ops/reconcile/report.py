"""What a walk finds: its faults, its report, its place, and what `sweeperd:reconcile` keeps of the last walk."""

import enum
import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pydantic
import redis

from sweeperd.store.errors import is_full
from sweeperd.store.shard import Shard
from sweeperd.sweep.reservations import RESERVATIONS
from sweeperd.text import decode

log = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)

#: How many findings a report holds by default; all are counted.
FINDINGS = 100
#: How many ids a report holds for `mend`, and how many of the reservations that another sweeper expired.
MENDABLE, NAMED = 1_000_000, 20


class Fault(enum.StrEnum):
    """What can be wrong."""

    LOST = "lost"
    ORPHAN = "orphan"
    WRONG_SCORE = "wrong_score"
    FOREIGN_QUARANTINE = "foreign_quarantine"
    BUDGET_DRIFT = "budget_drift"
    SUM_DRIFT = "sum_drift"

    @property
    def says(self) -> str:
        """For people."""
        return _SAYS[self]

    @property
    def mendable(self) -> bool:
        """Whether `mend` removes it."""
        return self in _INDEX_FAULTS


_SAYS = {
    Fault.LOST: "active hash that the index lacks; --repair adds it",
    Fault.ORPHAN: "index entry without a hash; --repair removes it",
    Fault.WRONG_SCORE: "score in the index that is not the deadline of the hash; --repair sets it",
    Fault.FOREIGN_QUARANTINE: "reservation that another sweeper set aside; `quarantine adopt` takes it over",
    Fault.BUDGET_DRIFT: "budget whose reserved is not what its reservations hold; see `ledger show`, --repair-budget",
    Fault.SUM_DRIFT: "counter that is not the sum of what the active hashes hold",
}


_INDEX_FAULTS = (Fault.LOST, Fault.ORPHAN, Fault.WRONG_SCORE)


def faults_of(kind: str) -> tuple[Fault, ...]:
    """What a walk over this kind can find."""
    if kind == RESERVATIONS:
        return (*_INDEX_FAULTS, Fault.FOREIGN_QUARANTINE, Fault.BUDGET_DRIFT)
    return (*_INDEX_FAULTS, Fault.SUM_DRIFT)


class WalkStage(enum.StrEnum):
    """
    The stages of a walk. A walk over reservations reads the budgets first, and what the reservations hold on its way
    over the hashes; all other counters are added up after the index, and again if a counter seems wrong.
    """

    BUDGETS = "reading the budgets"
    HASHES = "walking the hashes"
    INDEX = "walking the index"
    COUNTERS = "adding up for the counters"
    AGAIN = "adding up again"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `subject`: the id of an entry, or the key of a counter and the field in it."""

    fault: Fault
    subject: bytes
    #: What is there, and what should be: scores as text, or amounts.
    found: str
    expected: str
    field: bytes = b""
    #: The least and the most that the difference of a counter can be.
    bounds: tuple[int, int] | None = None
    mended: bool = False

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        shared: dict[str, object] = {"fault": self.fault.value, "mended": self.mended}
        if self.bounds is None:
            scores = {"score": self.found or None, "deadline": self.expected or None}
            return shared | {"id": decode(self.subject)} | scores
        least, most = self.bounds
        counter = {"key": decode(self.subject), "field": decode(self.field)}
        return (
            shared
            | counter
            | {
                "holds": int(self.found),
                "sum": int(self.expected),
                "difference": least if least == most else None,
                "difference_least": least,
                "difference_most": most,
            }
        )


@dataclass
class Tally:
    """What a walk, or a page of a walk, has counted so far."""

    #: Hashes and index entries that were read; the few that SCAN returns twice count twice.
    hashes: int = 0
    entries: int = 0
    #: Reservations that an operator dismissed from the quarantine: they still hold their amounts.
    dismissed: int = 0
    #: EXPIRED reservations without `expired_event`: another sweeper expired them. And the first of their ids.
    foreign_expiries: int = 0
    foreign_ids: list[bytes] = field(default_factory=list)
    found: Counter[Fault] = field(default_factory=Counter)
    #: The first of them.
    findings: list[Finding] = field(default_factory=list)
    #: The ids of what `mend` can mend, with the fault of each; up to a limit.
    mendable: list[tuple[bytes, Fault]] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it."""
        self.found[finding.fault] += 1
        self.findings.append(finding)
        if finding.fault.mendable:
            self.mendable.append((finding.subject, finding.fault))

    def merge(self, page: "Tally", limit: int) -> None:
        """Add what a page has counted, and keep findings up to `limit`."""
        self.hashes += page.hashes
        self.entries += page.entries
        self.dismissed += page.dismissed
        self.foreign_expiries += page.foreign_expiries
        self.foreign_ids += page.foreign_ids[: NAMED - len(self.foreign_ids)]
        self.found += page.found
        self.findings += page.findings[: max(0, limit - len(self.findings))]
        self.mendable += page.mendable[: MENDABLE - len(self.mendable)]


@dataclass
class ReconcileReport(Tally):
    """One walk in numbers."""

    #: What was walked: reservations, or a configured kind.
    kind: str = RESERVATIONS
    #: Counters that were compared with what the hashes hold: budgets, or sums. Counters that could not be compared, and
    #: CLOSED budgets, which are not compared.
    counters: int = 0
    unjudged: int = 0
    closed: int = 0
    #: Active hashes whose amount, or whose counters, cannot be read.
    unreadable: int = 0
    #: Whether the walk went on from an earlier walk's cursor.
    resumed: bool = False
    mended: Counter[Fault] = field(default_factory=Counter)
    #: ms on Redis's clock.
    started_at: int = 0
    duration_seconds: float = 0.0
    #: How many entries `mend` has written; all others that count as mended were right by then.
    changed: int = 0

    @property
    def truncated(self) -> bool:
        """Whether there are more findings than `findings` holds."""
        return len(self.findings) < self.found.total()

    @property
    def remaining(self) -> int:
        """How many findings are not mended."""
        return self.found.total() - self.mended.total()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        faults = faults_of(self.kind)
        return {
            "kind": self.kind,
            "hashes": self.hashes,
            "index_entries": self.entries,
            "counters": self.counters,
            "counters_unjudged": self.unjudged,
            "counters_closed": self.closed,
            "unreadable": self.unreadable,
            "dismissed": self.dismissed,
            "foreign_expiries": self.foreign_expiries,
            "foreign_expired_ids": [decode(entry) for entry in self.foreign_ids],
            "resumed": self.resumed,
            "found": {fault.value: self.found[fault] for fault in faults},
            "mended": {fault.value: self.mended[fault] for fault in faults if fault.mendable},
            "findings": [finding.as_dict() for finding in self.findings],
            "truncated": self.truncated,
            "remaining": self.remaining,
            "started_at": self.started_at,
            "duration_seconds": round(self.duration_seconds, 3),
        }


class WalkCursor(pydantic.BaseModel):
    """
    The place of an unfinished walk, from which a later walk goes on: JSON. A cursor of SCAN holds for one run of one
    server only, so the cursor is used only if the server's `run_id` is still the same.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    run_id: str
    #: When the walk began, ms on Redis's clock, and how long the walk has taken so far, seconds.
    started_at: int
    seconds: float
    stage: WalkStage
    #: The cursor of SCAN or ZSCAN, by stage.
    position: int
    hashes: int
    entries: int
    dismissed: int = 0
    foreign_expiries: int = 0
    found: dict[Fault, int]
    #: Fault, id in hex, found, expected.
    findings: list[tuple[Fault, str, str, str]]

    def report(self, kind: str) -> ReconcileReport:
        """The report of the walk up to this place."""
        return ReconcileReport(
            hashes=self.hashes,
            entries=self.entries,
            dismissed=self.dismissed,
            foreign_expiries=self.foreign_expiries,
            found=Counter(self.found),
            findings=[
                Finding(fault, bytes.fromhex(entry), score, wanted) for fault, entry, score, wanted in self.findings
            ],
            kind=kind,
            resumed=True,
            started_at=self.started_at,
        )


class LastWalk(pydantic.BaseModel):
    """When the last complete walk ended, and what it found: JSON."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: ms on Redis's clock.
    finished_at: int
    found: dict[Fault, int]
    #: EXPIRED reservations that another sweeper expired.
    foreign_expiries: int = 0

    @property
    def total(self) -> int:
        """How many findings there were."""
        return sum(self.found.values())


class WalkStore:
    """
    What the hash `sweeperd:reconcile` keeps of the walks over one kind: the fields `last`, `report` and `cursor`, with
    `:<kind>` after the name unless the kind is reservations. Methods raise redis.RedisError.
    """

    def __init__(self, shard: Shard, kind: str = RESERVATIONS) -> None:
        self._shard = shard
        self._client = shard.client
        self._key = shard.keys.reconcile
        self._end = "" if kind == RESERVATIONS else f":{kind}"

    def last(self) -> LastWalk | None:
        """The last complete walk; None if there is none, or if the field cannot be read."""
        return self._read("last", LastWalk)

    def report(self) -> dict[str, Any] | None:
        """The report of the last complete walk, as `as_dict` made it, with `finished_at`; None if there is none."""
        last, report = self._client.hmget(self._key, f"last{self._end}", f"report{self._end}")
        try:
            finished_at = LastWalk.model_validate_json(last or b"").finished_at
            parsed = json.loads(report or b"")
        except ValueError:
            return None
        # Reports without a kind are from a version before this one.
        return {**parsed, "finished_at": finished_at} if "kind" in parsed else None

    def cursor(self) -> WalkCursor | None:
        """The place of an unfinished walk."""
        return self._read("cursor", WalkCursor)

    def write_cursor(self, cursor: WalkCursor) -> None:
        """Keep the place of a walk. A full Redis refuses the write, and a later walk begins anew."""
        self._write({"cursor": cursor.model_dump_json()})

    def finish(self, walk: LastWalk, report: ReconcileReport) -> bool:
        """A walk is complete. False if Redis is full and keeps nothing of it."""
        self._client.hdel(self._key, f"cursor{self._end}")
        return self._write({"last": walk.model_dump_json(), "report": json.dumps(report.as_dict())})

    def _read(self, name: str, model: type[ModelT]) -> ModelT | None:
        text = self._client.hget(self._key, name + self._end)
        if not isinstance(text, bytes):
            return None
        try:
            return model.model_validate_json(text)
        except ValueError:
            fields = {"shard": self._shard.name, "field": name + self._end}
            log.warning("what is kept of a reconcile cannot be read", extra=fields)
            return None

    def _write(self, fields: dict[str, str]) -> bool:
        try:
            self._client.hset(self._key, mapping={name + self._end: value for name, value in fields.items()})
        except redis.ResponseError as error:
            if not is_full(error):
                raise
            return False
        return True
