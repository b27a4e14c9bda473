"""Compares what the budgets have reserved with what their reservations hold; see `budget_drift` for the method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sweeperd.config import SweepSettings
from sweeperd.ops.budget_drift import MOMENTS, BudgetDrift, Difference
from sweeperd.ops.reconcile.keyspace import Keyspace, Throttle, batches
from sweeperd.ops.reconcile.reader import SCRIPT_BATCH, ReservationReader
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard

#: Between two moments of a budget, seconds: more than one millisecond, the step of the server's TIME.
MOMENT_PAUSE = 0.002

#: Keys visited so far.
PageDone = Callable[[], None]


class BudgetJudge:
    """Reads budgets and reservations of one shard and judges which budgets have drifted."""

    def __init__(self, shard: Shard, keyspace: Keyspace, reader: ReservationReader, throttle: Throttle) -> None:
        self._shard = shard
        self._keys = shard.keys
        self._keyspace = keyspace
        self._reader = reader
        self._throttle = throttle
        self._reserved = Script("ops/reconcile_budgets")

    def read_all(self, drift: BudgetDrift, page_done: PageDone) -> None:
        """The moments of every budget. All of them come before the walk over the reservations begins."""
        for _, page in self._keyspace.keys(self._keys.budget_stem):
            self.read(drift, [key for key in page if key not in drift])
            page_done()

    def read(self, drift: BudgetDrift, budgets: Sequence[bytes]) -> None:
        """The moments of these budgets."""
        for part in batches(list(dict.fromkeys(budgets)), SCRIPT_BATCH):
            for _ in range(MOMENTS):
                self._throttle.begin()
                at, *reserved = self._reserved.run(self._shard.client, Call(part, []))
                drift.reserved(int(at), zip(part, reserved, strict=True))
                self._throttle.end()
                self._throttle.wait(MOMENT_PAUSE)

    def hold(self, drift: BudgetDrift, page_done: PageDone) -> None:
        """What every reservation holds."""
        stem = self._keys.reservation(b"")
        for _, page in self._keyspace.keys(stem):
            for sight in self._reader.read([key.removeprefix(stem) for key in page], drift.first_ms):
                if sight.holding:
                    drift.held(sight.entry, sight.holding)
            page_done()

    def differences(self, drift: BudgetDrift) -> Mapping[bytes, Difference | None]:
        """The result of a walk that has just ended; None for all budgets where `took_too_long`."""
        differences = drift.differences()
        return dict.fromkeys(differences) if self.took_too_long(drift) else differences

    def took_too_long(self, drift: BudgetDrift) -> bool:
        """
        Whether reservations may have gone before this walk, which has just ended, could read them; or the server's
        clock was set back.
        """
        if drift.first_ms is None or drift.last_ms is None:
            return False  # there are no budgets
        return not drift.last_ms <= self._shard.read_clock() <= drift.first_ms + self._reader.retention_ms // 2

    def confirm(
        self, first: Mapping[bytes, Difference | None], size: int, page_done: PageDone
    ) -> tuple[Mapping[bytes, Difference], int]:
        """The budgets on whose drift a second walk agrees, and how many budgets could not be judged."""
        unjudged = sum(1 for each in first.values() if each is None or (not each.is_drift and each.least != each.most))
        suspects = {key: each for key, each in first.items() if each is not None and each.is_drift}
        if not suspects:
            return {}, unjudged
        again = BudgetDrift(self._keys, size)
        self.read(again, list(suspects))
        self.hold(again, page_done)
        second = self.differences(again)
        drifts = {}
        for key, suspect in suspects.items():
            if key not in again:
                continue  # the budget is gone or CLOSED
            other = second.get(key)
            met = suspect.meets(other) if other else None
            if met and met.is_drift:
                drifts[key] = met
            else:
                unjudged += 1
        return drifts, unjudged


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """One budget after two walks. `difference` None: it was not judged, and `reason` says why."""

    difference: Difference | None = None
    reason: str = ""


#: Why a budget is not judged.
_TOO_LONG = (
    "the walk took longer than ended reservations are sure to stay readable; try without --rate, or at a quiet hour"
)
_INEXACT = "too much happened during the walks: the difference is not exact"


def judge_budget(
    shard: Shard, settings: SweepSettings, budget: bytes, throttle: Throttle, page_done: PageDone = lambda: None
) -> BudgetVerdict:
    """
    Walk twice for one budget, given by its key. The verdict has a difference only where both walks agree on one exact
    number and all reservations of the budget could be read. Raises RedisUnavailable, redis.RedisError, Interrupted.
    """
    with shard.reaching(), ReservationReader(shard, settings, throttle) as reader:
        keyspace = Keyspace(shard, throttle)
        judge = BudgetJudge(shard, keyspace, reader, throttle)
        agreed: Difference | None = None
        for _ in range(2):
            drift = BudgetDrift(shard.keys, keyspace.size())
            judge.read(drift, [budget])
            if drift.closed:
                return BudgetVerdict(reason="it is CLOSED")
            if not len(drift):
                return BudgetVerdict(reason="there is no such budget")
            judge.hold(drift, page_done)
            if drift.unread(budget):
                return BudgetVerdict(reason="some of its reservations cannot be read; repair them first")
            if judge.took_too_long(drift):
                return BudgetVerdict(reason=_TOO_LONG)
            found = drift.differences()[budget]
            met = agreed.meets(found) if agreed and found else found
            if met is None:
                return BudgetVerdict(reason="too much happened during the walks, or it cannot be read")
            agreed = met
    if agreed is None or agreed.least != agreed.most:
        return BudgetVerdict(reason=_INEXACT)
    return BudgetVerdict(agreed)
