"""
`sweeperd reconcile`: a walk over all reservations of a shard, beside live traffic, that tells nothing that is not so.

- The index: SCAN over the reservations finds ACTIVE ones that the index has lost and scores that differ from the hash;
  ZSCAN over the index finds entries without a hash. What the walk sees is a hint: a script looks at hash, index and
  quarantine in one step, a second later (a service may write its hash and its entry in two steps), and only what that
  script says is told. The same script mends, where that is wanted: it looks and writes in one step.
- The budgets: see `holdings`. What looks like a drift there is walked a second time, with new moments, and only a
  difference that both walks find is told. That is for where the rules on which `holdings` rests are not kept: the
  server's clock is set back, a reservation service has a clock of its own, a hash is gone once its reservation has
  ended. Budgets are never mended.

A walk ends with RedisUnavailable where the server is not the same one at the end as at the beginning (restarted, failed
over, the slot of a Cluster moved): a cursor of SCAN means nothing to another one, which would leave reservations out.
"""

import enum
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sweeperd.config import SweepSettings
from sweeperd.errors import RedisUnavailable
from sweeperd.ops.budget_drift import MOMENTS, BudgetDrift, Difference, Seen
from sweeperd.ops.throttle import Throttle
from sweeperd.setting_types import milliseconds
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.text import decode

#: How many keys one SCAN looks at, and how many reservations or budgets one script: 0.1 to 0.2 ms of Redis's time each.
PAGE, LOOK = 50, 5
#: How long after the first look the index is looked at again before a fault is told, seconds.
SETTLE = 1.0
#: How many hints wait for that at most.
WAITING = 5_000
#: How often the server is asked whether it is still the same, seconds.
IDENTIFY = 1.0
#: Between two moments of a budget, seconds: more than the millisecond that its clock tells.
MOMENT_PAUSE = 0.002
#: How many findings are kept by default; all are counted.
FINDINGS = 100


class Fault(enum.StrEnum):
    """What can be found."""

    LOST = "lost"
    ORPHAN = "orphan"
    WRONG_SCORE = "wrong_score"
    BUDGET_DRIFT = "budget_drift"

    @property
    def says(self) -> str:
        """For people."""
        return _SAYS[self]


_SAYS = {
    Fault.LOST: "ACTIVE reservation that the index has lost",
    Fault.ORPHAN: "index entry without a reservation",
    Fault.WRONG_SCORE: "score in the index that differs from the reservation",
    Fault.BUDGET_DRIFT: "budget whose reserved is not what its reservations hold",
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
    #: Where the difference of a budget cannot be told exactly: at least and at most.
    bounds: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        if self.fault is not Fault.BUDGET_DRIFT:
            scores = {"score": self.found or None, "expires_at": self.expected or None}
            return {"kind": self.fault.value, "id": decode(self.subject), **scores, "mended": self.mended}
        assert self.bounds is not None  # noqa: S101 - for the type checker
        least, most = self.bounds
        return {
            "kind": self.fault.value,
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

    #: Reservations and index entries looked at; the few that SCAN returns twice count twice.
    reservations: int
    entries: int
    budgets: int
    #: Budgets of which it could not be told whether they drifted.
    unjudged: int
    #: ACTIVE reservations of which it cannot be read what they hold, and where.
    unreadable: int
    found: Mapping[Fault, int]
    mended: Mapping[Fault, int]
    #: The first of them.
    findings: tuple[Finding, ...]
    started_at: int
    duration_seconds: float

    @property
    def truncated(self) -> bool:
        """Whether there are more findings than those that are kept."""
        return len(self.findings) < sum(self.found.values())

    @property
    def remaining(self) -> int:
        """How much was found and is still so."""
        return sum(self.found.values()) - sum(self.mended.values())

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "reservations": self.reservations,
            "index_entries": self.entries,
            "budgets": self.budgets,
            "budgets_unjudged": self.unjudged,
            "unreadable": self.unreadable,
            "found": {fault.value: self.found.get(fault, 0) for fault in Fault},
            "mended": {fault.value: self.mended.get(fault, 0) for fault in Fault if fault is not Fault.BUDGET_DRIFT},
            "findings": [finding.as_dict() for finding in self.findings],
            "truncated": self.truncated,
            "started_at": self.started_at,
            "duration_seconds": round(self.duration_seconds, 3),
        }

    def as_json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict())


class WalkStage(enum.StrEnum):
    """What a walk is busy with."""

    BUDGETS = "reading the budgets"
    RESERVATIONS = "walking the reservations"
    INDEX = "walking the index"
    AGAIN = "walking again for the budgets"


#: (stage, done so far, expected in all)
WalkProgress = Callable[[WalkStage, int, int], None]


def reconcile(
    shard: Shard,
    settings: SweepSettings,
    rate: float,
    *,
    repair: bool = False,
    limit: int = FINDINGS,
    stop: threading.Event | None = None,
    progress: WalkProgress = lambda *_: None,
) -> ReconcileReport:
    """
    Walk one shard at `rate` keys a second at most; with `repair`, mend the index. `limit` findings are kept. Raises
    RedisUnavailable, and Interrupted once `stop` is set.
    """
    with shard.reaching():
        return _Walk(shard, settings, Throttle(rate, stop), progress, limit, repair=repair).run()


@dataclass
class _Tally:
    reservations: int = 0
    entries: int = 0
    found: Counter[Fault] = field(default_factory=Counter)
    mended: Counter[Fault] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class _Walk:
    def __init__(
        self,
        shard: Shard,
        settings: SweepSettings,
        pace: Throttle,
        progress: WalkProgress,
        limit: int,
        *,
        repair: bool,
    ) -> None:
        self._shard = shard
        self._client = shard.client
        self._keys = shard.keys
        self._grace_ms = milliseconds(settings.grace)
        self._retention_ms = milliseconds(settings.audit_retention)
        self._pace = pace
        self._progress = progress
        self._limit = limit
        self._repair = repair
        self._look = Script("ops/reconcile_look")
        self._orphans = Script("ops/reconcile_orphans")
        self._entry = Script("ops/reconcile_entry")
        self._reserved = Script("ops/reconcile_budgets")
        self._one_node = Script("ops/one_node")
        self._tally = _Tally()
        #: Hints: when they came up (monotonic) and the id.
        self._hints: deque[tuple[float, bytes]] = deque()
        #: Whose fault was told: both walks come by, and SCAN may return a key twice.
        self._told = Seen(0)
        self._server = self._identity()
        self._identified_at = time.monotonic()

    def run(self) -> ReconcileReport:
        started, started_at = time.monotonic(), self._shard.read_clock()
        size = self._client.dbsize()
        self._told = Seen(size)
        holdings = BudgetDrift(self._keys, size)
        self._read_budgets(holdings, size)
        self._walk_reservations(holdings, size, WalkStage.RESERVATIONS, faults=True)
        differences = self._differences(holdings)
        self._walk_index()
        while self._hints:
            self._settle(at_least=1)
        drifts, unjudged = self._drifts(differences, size)
        for key, drift in drifts.items():
            bounds = (drift.least, drift.most)
            self._tell(Finding(Fault.BUDGET_DRIFT, key, str(drift.reserved), str(drift.held), bounds=bounds))
        tally = self._tally
        return ReconcileReport(
            tally.reservations,
            tally.entries,
            len(holdings),
            unjudged,
            holdings.unreadable,
            tally.found,
            tally.mended,
            tuple(tally.findings),
            started_at,
            time.monotonic() - started,
        )

    # ---- budgets

    def _read_budgets(self, holdings: BudgetDrift, size: int) -> None:
        """The moments of every budget. All of them come before the walk over the reservations begins."""
        for page in self._scan(self._keys.budget_stem, size, WalkStage.BUDGETS):
            self._take_moments(holdings, [key for key in page if key not in holdings])

    def _take_moments(self, holdings: BudgetDrift, budgets: Sequence[bytes]) -> None:
        for part in _parts(list(dict.fromkeys(budgets))):
            for _ in range(MOMENTS):
                self._pace.begin()
                at, *reserved = self._reserved.run(self._client, Call(part, []))
                holdings.reserved(int(at), zip(part, reserved, strict=True))
                self._pace.end()
                self._pace.wait(MOMENT_PAUSE)

    def _differences(self, holdings: BudgetDrift) -> Mapping[bytes, Difference | None]:
        """What a walk that has just ended found. None of it counts where its clock or its audit was not kept."""
        now = self._shard.read_clock()
        first, last = holdings.first_ms, holdings.last_ms
        differences = holdings.differences()
        if first is None or last is None or last <= now < first + self._retention_ms:
            return differences
        return dict.fromkeys(differences)

    def _drifts(self, first: Mapping[bytes, Difference | None], size: int) -> tuple[Mapping[bytes, Difference], int]:
        """Those that drifted, and how many could not be judged."""
        unjudged = sum(1 for each in first.values() if each is None or (not each.is_drift and each.least != each.most))
        suspects = {key: each for key, each in first.items() if each is not None and each.is_drift}
        if not suspects:
            return {}, unjudged
        again = BudgetDrift(self._keys, size)
        self._take_moments(again, list(suspects))
        self._walk_reservations(again, size, WalkStage.AGAIN, faults=False)
        second = self._differences(again)
        drifts = {}
        for key, suspect in suspects.items():
            if key not in again:
                continue  # the budget is gone
            other = second.get(key)
            met = suspect.meets(other) if other else None
            if met and met.is_drift:
                drifts[key] = met
            else:
                unjudged += 1
        return drifts, unjudged

    # ---- reservations and index

    def _walk_reservations(self, holdings: BudgetDrift, size: int, stage: WalkStage, *, faults: bool) -> None:
        stem = self._keys.reservation(b"")
        since: int | str = "" if holdings.first_ms is None else holdings.first_ms
        for page in self._scan(stem, size, stage):
            ids = [key.removeprefix(stem) for key in page]
            for entry, fault, holding in self._looked_at(ids, since):
                if fault and faults:
                    self._hints.append((time.monotonic(), entry))
                if holding:
                    holdings.held(entry, holding)
            if faults:
                self._tally.reservations += len(ids)
                self._settle()

    def _walk_index(self) -> None:
        index = self._keys.reservation_index
        cursor, done = 0, 0
        size = self._client.zcard(index)
        while True:
            self._pace.begin()
            cursor, entries = cast(Any, self._client.zscan(index, cursor, count=PAGE))
            self._pace.end(PAGE)
            self._hint_orphans([entry for entry, _ in entries])
            self._tally.entries += len(entries)
            self._settle()
            done += len(entries)
            self._progress(WalkStage.INDEX, done, max(size, done))
            if not cursor:
                self._same_server(at_once=True)
                return

    def _hint_orphans(self, ids: Sequence[bytes]) -> None:
        for part in _parts(ids, PAGE):
            self._pace.begin()
            gone = self._orphans.run(self._client, Call([self._keys.reservation(entry) for entry in part], []))
            self._pace.end()
            self._hints.extend((time.monotonic(), part[position]) for position in gone)

    def _looked_at(self, ids: Sequence[bytes], since: int | str) -> Iterator[tuple[bytes, bytes, Sequence[bytes]]]:
        """Of each of which there is something to tell: id, fault or nothing, what it holds."""
        for part in _parts(ids):
            keys = [self._keys.reservation(entry) for entry in part]
            call = Call([self._keys.reservation_index, self._keys.quarantine, *keys], [self._grace_ms, since, *part])
            self._pace.begin()
            replies = self._look.run(self._client, call)
            self._pace.end()
            for entry, reply in zip(part, replies, strict=True):
                if reply:
                    yield entry, reply[0], reply[1]

    def _settle(self, at_least: int = 0) -> None:
        """Look again at the hints that have waited long enough; wait for the others where they are too many."""
        while self._hints:
            wait = self._hints[0][0] + SETTLE - time.monotonic()
            if wait > 0 and not at_least and len(self._hints) < WAITING:
                return
            self._pace.wait(wait)
            latest = time.monotonic() - SETTLE
            ripe: list[bytes] = []
            while self._hints and self._hints[0][0] <= latest and len(ripe) < LOOK:
                ripe.append(self._hints.popleft()[1])
            self._confirm(ripe)
            at_least = max(0, at_least - len(ripe))

    def _confirm(self, ids: Sequence[bytes]) -> None:
        calls = [
            Call(
                [self._keys.reservation_index, self._keys.quarantine, self._keys.reservation(entry)],
                [entry, int(self._repair)],
            )
            for entry in ids
        ]
        self._pace.begin()
        replies = self._entry.run_many(self._client, calls)
        self._pace.end()
        for entry, reply in zip(ids, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply and not self._told.add(entry):
                fault, wanted, score = reply
                self._tell(Finding(Fault(fault.decode()), entry, score.decode(), wanted.decode(), self._repair))

    def _tell(self, finding: Finding) -> None:
        tally = self._tally
        tally.found[finding.fault] += 1
        tally.mended[finding.fault] += finding.mended
        if len(tally.findings) < self._limit:
            tally.findings.append(finding)

    # ---- the server

    def _scan(self, stem: bytes, size: int, stage: WalkStage) -> Iterator[list[bytes]]:
        """All keys that begin with it, page by page; some may come twice."""
        pattern = re.sub(rb"([\\*?\[\]^-])", rb"\\\1", stem) + b"*"
        cursor, done = 0, 0
        while True:
            self._pace.begin()
            cursor, page = cast(Any, self._client.scan(cursor, match=pattern, count=PAGE))
            self._pace.end(PAGE)
            if page:
                yield page
            self._same_server(at_once=not cursor)
            done += PAGE
            self._progress(stage, done if cursor else max(size, 1), max(size, done))
            if not cursor:
                return

    def _identity(self) -> object:
        # All of a slot's keys are on one node, or this is refused: what has gone to another node already would be
        # missing from the walk. No reservation has an empty id, and a key that is not there is looked for elsewhere.
        self._one_node.run(self._client, Call([self._keys.reservation_index, self._keys.reservation(b"")], []))
        return self._client.info("server")["run_id"]

    def _same_server(self, *, at_once: bool) -> None:
        """Raises RedisUnavailable where it is another one than at the beginning."""
        now = time.monotonic()
        if not at_once and now < self._identified_at + IDENTIFY:
            return
        self._identified_at = now
        if self._identity() != self._server:
            raise RedisUnavailable(
                f"{self._shard.address}: it was restarted or another took its place during the walk; start it again"
            )


def _parts(items: Sequence[bytes], length: int = LOOK) -> Iterator[Sequence[bytes]]:
    return (items[start : start + length] for start in range(0, len(items), length))


def kinds(counts: Mapping[Fault, int], wanted: Collection[Fault] = tuple(Fault)) -> str:
    """What was found, on one line."""
    return ", ".join(f"{counts[fault]} {fault.value}" for fault in wanted if counts.get(fault)) or "nothing"
